package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// pageSize is how many targets one query answers: the most that a wave gives.
const pageSize = 500

// ExplainOptions are what `explain` is asked.
type ExplainOptions struct {
	Factory *Factory
	Lane    lane
	Rollout string
	Target  string
	Format  *out.FormatFlag
}

// Explanation is the result of `explain`.
type Explanation struct {
	Rollout     string          `json:"rollout"`
	Deployment  string          `json:"deployment"`
	Environment string          `json:"environment"`
	Version     string          `json:"version"`
	State       workflows.Phase `json:"state"`
	Reason      string          `json:"reason,omitempty"`
	Waits       []ExplainedWait `json:"waits"`
	// Unknown, when not empty, says why the waits are not known: only a worker can tell them.
	Unknown string `json:"unknown,omitempty"`
	// Target is there when one was asked for.
	Target *workflows.TargetStatus `json:"target,omitempty"`
	// TargetNote says what the target's state does not.
	TargetNote string `json:"targetNote,omitempty"`
}

// ExplainedWait is a wait and the commands that lift it.
type ExplainedWait struct {
	policy.Wait
	Commands []string `json:"commands,omitempty"`
}

// NewCmdExplain returns the command; runF, when not nil, runs in place of it.
func NewCmdExplain(f *Factory, runF func(*cobra.Command, *ExplainOptions) error) *cobra.Command {
	o := &ExplainOptions{Factory: f, Format: out.NewFormatFlag(out.Table, out.JSON, out.YAML)}
	cmd := &cobra.Command{
		Use:   "explain DEPLOYMENT -e ENVIRONMENT",
		Short: "Say why a rollout waits, and what lifts it",
		Long: `Say why a rollout waits: every wait with its reason, the rule and the policy behind it, what lifts it, and the next moment
at which it is looked at by itself. With --target, say where that target stands and why.`,
		Example: `  sluice explain web -e Production
  sluice explain web -e Production --target cluster-eu-1`,
		Args: laneArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.Lane, err = parseLane(args, o.Lane.Environment); err != nil {
				return err
			}
			if err := checkRollout(o.Rollout); err != nil {
				return err
			}
			if runF != nil {
				return runF(cmd, o)
			}
			return explainRun(cmd.Context(), o)
		},
	}
	addEnvironment(cmd, &o.Lane.Environment)
	addRollout(cmd, &o.Rollout, "this rollout of the lane, not its last one")
	cmd.Flags().StringVar(&o.Target, "target", "", "where this target stands, and why")
	addFormat(cmd, o.Format)
	return cmd
}

func explainRun(ctx context.Context, o *ExplainOptions) error {
	f := o.Factory
	t, err := f.Connect(ctx)
	if err != nil {
		return err
	}
	defer t.Close()
	status, remark, err := t.lookUp(ctx, f, o.Lane, o.Rollout)
	if err != nil {
		return err
	}
	e := explanation(f.Program, status)
	e.Unknown = remark
	if o.Target != "" {
		if e.Target, e.TargetNote, err = t.explainTarget(ctx, status, o.Target); err != nil {
			return err
		}
	}
	if o.Format.Format() != out.Table {
		return out.Write(f.Out, o.Format.Format(), e)
	}
	return writeExplanation(f, e, status)
}

// explanation turns a status into its waits.
func explanation(program string, s workflows.RolloutStatus) Explanation {
	e := Explanation{Rollout: s.Rollout, Deployment: s.Deployment, Environment: s.Environment, Version: s.Version.Name, State: s.State, Reason: s.Reason,
		Waits: []ExplainedWait{}}
	for _, wait := range s.Waits {
		e.Waits = append(e.Waits, ExplainedWait{Wait: wait, Commands: liftingCommands(program, s, wait)})
	}
	return e
}

// explainTarget finds a target in the rollback, in the waves that have been opened, or among those that need a look.
func (t *temporal) explainTarget(ctx context.Context, s workflows.RolloutStatus, name string) (*workflows.TargetStatus, string, error) {
	var ids []string
	if s.Rollback != nil {
		// What the rollback knows of a target is newer than what its wave knew.
		ids = append(ids, s.Rollback.Workflows...)
	}
	var unopened []string
	for _, wave := range s.Waves {
		if wave.Workflow != "" {
			ids = append(ids, wave.Workflow)
		} else if wave.Size > 0 {
			unopened = append(unopened, fmt.Sprintf("%d (%s)", wave.Number, wave.Name))
		}
	}
	for i := range s.Attention {
		if s.Attention[i].Name == name {
			return &s.Attention[i], "", nil
		}
	}
	for _, id := range ids {
		found, err := t.searchTargets(ctx, id, name)
		if err != nil {
			return nil, "", err
		}
		if found != nil {
			t.askAttempt(ctx, found)
			leftOut(found, s)
			return found, "", nil
		}
	}
	switch {
	case len(s.Waves) == 0:
		return nil, "nothing is known of it: the rollout has no plan yet, or no worker answers", nil
	case len(unopened) > 0 && s.State.Ended():
		return nil, fmt.Sprintf("%s is in no wave that was opened before the rollout ended: it is in one of those that were not (%s), left out, or unknown; `plan --targets` says which", out.Clean(name), strings.Join(unopened, ", ")), nil
	case len(unopened) > 0:
		return nil, fmt.Sprintf("%s is in no wave that has been opened: it is in one of those still to come (%s), left out, or unknown; `plan --targets` says which", out.Clean(name), strings.Join(unopened, ", ")), nil
	}
	return nil, "", failf(exitNotFound, "rollout %s has no target %q; `plan --targets` lists those that it has and those that it leaves out", s.Rollout, name)
}

// leftOut corrects what a wave knows of a target that it had not begun with when it went back as a whole: only the rollout
// knows that it is left out for good.
func leftOut(target *workflows.TargetStatus, s workflows.RolloutStatus) {
	if target.State != policy.Pending || target.Wave < 1 || target.Wave > len(s.Waves) {
		return
	}
	if wave := s.Waves[target.Wave-1]; !wave.EndedAt.IsZero() && wave.Counts[policy.Pending] == 0 && wave.Counts[policy.Skipped] > 0 {
		target.State, target.Reason = policy.Skipped, "left out: its wave went back by hand"
	}
}

// askAttempt has the attempt that is under way say where it stands: its wave only hears how it ends.
func (t *temporal) askAttempt(ctx context.Context, target *workflows.TargetStatus) {
	if target.Workflow == "" || target.State.Terminal() {
		return
	}
	var own workflows.TargetStatus
	if err := t.query(ctx, target.Workflow, "", workflows.StatusQuery, &own); err == nil {
		*target = newer(*target, own)
	}
}

// newer is what a wave knows of a target, with what the attempt under way says of itself. What an earlier attempt read is
// what there is to return to, and what it reached stays reached until the attempt's end.
func newer(target, own workflows.TargetStatus) workflows.TargetStatus {
	target.State, target.Reason = own.State, own.Reason
	if !target.Reached {
		target.Reached, target.From = own.Reached, cmp.Or(own.From, target.From)
	}
	return target
}

// searchTargets pages through a wave's targets, or those of its batches.
func (t *temporal) searchTargets(ctx context.Context, workflow, name string) (*workflows.TargetStatus, error) {
	for offset := 0; ; offset += pageSize {
		var page workflows.TargetsAnswer
		err := t.query(ctx, workflow, "", workflows.TargetsQuery, &page, workflows.TargetsPage{Offset: offset, Limit: pageSize})
		if errors.Is(err, errNoAnswer) {
			return nil, failf(exitUnavailable, "no worker answers for %s: %w", workflow, err)
		}
		if err != nil {
			return nil, err
		}
		for _, batch := range page.Batches {
			if found, err := t.searchTargets(ctx, batch, name); found != nil || err != nil {
				return found, err
			}
		}
		for i := range page.Targets {
			if page.Targets[i].Name == name {
				return &page.Targets[i], nil
			}
		}
		if len(page.Targets) == 0 || offset+len(page.Targets) >= page.Total {
			return nil, nil
		}
	}
}

// writeExplanation writes it for people.
func writeExplanation(f *Factory, e Explanation, s workflows.RolloutStatus) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s in %s is %s%s\n", f.Style.Bold(e.Deployment+"@"+out.Clean(e.Version)), f.Style.Bold(e.Environment), paintState(f.Style, e.State), because(e.Reason))
	for i, wait := range e.Waits {
		fmt.Fprintf(&text, "\n%d. %s\n", i+1, f.Style.Warn(out.Clean(wait.Reason)))
		rule := "rule " + out.Clean(wait.Rule)
		if wait.Policy != "" {
			rule += " of policy " + out.Clean(wait.Policy)
		}
		if wait.Rule != "" {
			fmt.Fprintf(&text, "    because of: %s\n", rule)
		}
		writeLifts(&text, f, s, wait.Wait)
	}
	if len(e.Waits) == 0 {
		switch {
		case e.State.Ended():
			text.WriteString("\nIt waits for nothing: it has ended.\n")
		case e.Unknown != "":
			text.WriteString("\nWhat it waits for only a worker can tell.\n")
		default:
			text.WriteString("\nIt waits for nothing but its own work.\n")
		}
	}
	if e.Target != nil {
		t := e.Target
		fmt.Fprintf(&text, "\n%s is %s%s\n", f.Style.Bold(out.Clean(t.Name)), t.State, because(t.Reason))
		grid := out.NewGrid("", "")
		grid.Indent = "  "
		grid.Row("wave", strconv.Itoa(t.Wave))
		if t.Reached {
			grid.Row("changed", "yes, a rollback brings it back to "+orNothing(t.From))
		} else {
			grid.Row("changed", "no, a rollback leaves it alone")
		}
		if !t.Next.IsZero() {
			grid.Row("next look", f.moment(t.Next))
		}
		if t.Attempt > 0 {
			grid.Row("attempt", strconv.Itoa(t.Attempt))
		}
		if t.Workflow != "" {
			grid.Row("workflow", t.Workflow)
		}
		if _, err := grid.WriteTo(&text); err != nil {
			return err
		}
	}
	if e.TargetNote != "" {
		fmt.Fprintf(&text, "\ntarget: %s\n", e.TargetNote)
	}
	_, err := fmt.Fprint(f.Out, text.String())
	return err
}

func orNothing(version string) string {
	if version == "" {
		return "what was there before"
	}
	return out.Clean(version)
}
