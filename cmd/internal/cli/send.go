package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"
	"go.temporal.io/api/serviceerror"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// receiptTimeout is how long to wait for a command's receipt. A worker that is there writes it in well under a second.
const receiptTimeout = 15 * time.Second

// CommandOptions are what one of the eight commands to a rollout is asked.
type CommandOptions struct {
	Factory *Factory
	// Name is the signal.
	Name    string
	Lane    lane
	Rollout string
	Wave    int
	Target  string
	Plan    string
	As      string
	Reason  string
	DryRun  bool
	Format  *out.FormatFlag
}

// Sent is the result of a command.
type Sent struct {
	Command  string            `json:"command"`
	Workflow string            `json:"workflow"`
	Payload  workflows.Command `json:"payload"`
	// Receipt is the rollout's answer; nil if no worker was there to give one, or after a dry run.
	Receipt *workflows.Receipt `json:"receipt,omitempty"`
	// Stored reports that the command was accepted by Temporal and takes effect when a worker comes.
	Stored bool `json:"stored,omitempty"`
	DryRun bool `json:"dryRun,omitempty"`
	// Touches says what the command would do as things stand; after a dry run.
	Touches string `json:"touches,omitempty"`
}

// commandUse are the parts in which one command's help differs from another's.
type commandUse struct {
	name, short, long, example string
	// wave, target and plan say what the flags mean; empty: the command has no such flag.
	wave, target, plan string
	// needsTarget reports that the command is about one target.
	needsTarget bool
}

// newCommand returns one of the commands to a rollout; runF, when not nil, runs in place of it.
func newCommand(f *Factory, use commandUse, runF func(*cobra.Command, *CommandOptions) error) *cobra.Command {
	o := &CommandOptions{Factory: f, Name: use.name, Format: out.NewFormatFlag(out.Table, out.JSON, out.YAML)}
	cmd := &cobra.Command{
		Use:     use.name + " DEPLOYMENT -e ENVIRONMENT",
		Short:   use.short,
		Long:    use.long,
		Example: use.example,
		Args:    laneArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(cmd, args, use); err != nil {
				return err
			}
			if runF != nil {
				return runF(cmd, o)
			}
			return commandRun(cmd.Context(), o)
		},
	}
	addCommandFlags(cmd, o, use)
	return cmd
}

// addCommandFlags adds what the command takes.
func addCommandFlags(cmd *cobra.Command, o *CommandOptions, use commandUse) {
	addEnvironment(cmd, &o.Lane.Environment)
	addRollout(cmd, &o.Rollout, "only if this rollout is the running one (the running one is always named to it)")
	if use.wave != "" {
		cmd.Flags().IntVar(&o.Wave, "wave", 0, use.wave)
	}
	if use.target != "" {
		cmd.Flags().StringVar(&o.Target, "target", "", use.target)
	}
	if use.plan != "" {
		cmd.Flags().StringVar(&o.Plan, "plan", "", use.plan)
	}
	addPerson(cmd, &o.As, &o.Reason)
	addDryRun(cmd, &o.DryRun)
	addFormat(cmd, o.Format)
}

// parse reads the arguments and checks the flags.
func (o *CommandOptions) parse(cmd *cobra.Command, args []string, use commandUse) (err error) {
	if o.Lane, err = parseLane(args, o.Lane.Environment); err != nil {
		return err
	}
	if err := checkRollout(o.Rollout); err != nil {
		return err
	}
	if cmd.Flags().Changed("wave") && o.Wave < 1 {
		return usagef("--wave counts from 1")
	}
	if use.needsTarget && o.Target == "" {
		return usagef("which target? Give --target; `sluice status` lists those that need a look")
	}
	return nil
}

func commandRun(ctx context.Context, o *CommandOptions) error {
	f := o.Factory
	t, err := f.Connect(ctx)
	if err != nil {
		return err
	}
	defer t.Close()
	r, err := t.latest(ctx, o.Lane)
	if err != nil {
		return err
	}
	if err := sendable(o, r); err != nil {
		return err
	}
	sent, err := t.send(ctx, o, r)
	if err != nil {
		return err
	}
	return writeSent(o, sent)
}

// sendable is an error unless the rollout that is meant is open.
func sendable(o *CommandOptions, r run) error {
	if !r.open() {
		return failf(exitNotFound, "no rollout of %s is open; rollout %s of version %s ended as %s", o.Lane, r.rollout, r.version, shownState(r))
	}
	if o.Rollout != "" && o.Rollout != r.rollout {
		return failf(exitRefused, "rollout %s of %s is not the running one; rollout %s of version %s is", o.Rollout, o.Lane, r.rollout, r.version)
	}
	return nil
}

// send sends the command to an open run and waits for its receipt; in a dry run it says what would be touched.
func (t *temporal) send(ctx context.Context, o *CommandOptions, r run) (Sent, error) {
	f := o.Factory
	by, err := f.actor(o.As)
	if err != nil {
		return Sent{}, err
	}
	sent := Sent{Command: o.Name, Workflow: o.Lane.id(), DryRun: o.DryRun, Payload: workflows.Command{
		ID: ulid.Make().String(), By: by, Reason: o.Reason, Rollout: cmp.Or(o.Rollout, r.rollout), Wave: o.Wave, Target: o.Target, Plan: o.Plan}}
	if o.DryRun {
		status, remark, err := t.status(ctx, r)
		if err != nil {
			return sent, err
		}
		sent.Payload.ID = ""
		sent.Touches = touches(o, status)
		if o.Name == workflows.RollBack && o.Target != "" && remark == "" {
			if found, _, err := t.explainTarget(ctx, status, o.Target); err == nil && found != nil {
				sent.Touches = touchesOne(found)
			}
		}
		if remark != "" {
			f.note("%s %s; the numbers are not known.", f.Notes.Warn("note:"), remark)
		}
		return sent, nil
	}
	f.note("%s: %s to rollout %s of version %s (%s)", o.Lane, describe(sent), r.rollout, r.version, orUnknown(r.state))
	err = t.call(ctx, "send "+o.Name, func(ctx context.Context) error {
		// Without a run id, so that a run that has just continued as a new one gets it; the rollout id in the payload
		// keeps it from any other rollout.
		return t.SignalWorkflow(ctx, o.Lane.id(), "", o.Name, sent.Payload)
	})
	var missing *serviceerror.NotFound
	if errors.As(err, &missing) {
		return sent, failf(exitNotFound, "rollout %s of %s has ended meanwhile", r.rollout, o.Lane)
	}
	if err != nil {
		return sent, err
	}
	sent.Receipt, err = t.receipt(ctx, r, sent.Payload.ID)
	switch {
	case errors.Is(err, errNoAnswer):
		sent.Stored = true
		if found, err := t.polled(ctx, workflows.ControlQueue); err == nil && !found {
			f.note("%s no worker is polling %s: the command is stored and takes effect when a worker comes (`%s worker`).", f.Notes.Warn("note:"), workflows.ControlQueue, f.Program)
		} else {
			f.note("%s no worker answered within %s: the command is stored and takes effect when one does.", f.Notes.Warn("note:"), receiptTimeout)
		}
		return sent, nil
	case err != nil:
		return sent, fmt.Errorf("the command is stored, but its receipt cannot be read: %w", err)
	}
	return sent, nil
}

// receipt waits until the rollout has acknowledged or refused a command.
func (t *temporal) receipt(ctx context.Context, r run, id string) (*workflows.Receipt, error) {
	waiting, cancel := context.WithTimeout(ctx, receiptTimeout)
	defer cancel()
	pause, empty := 100*time.Millisecond, 0
	for {
		var status workflows.RolloutStatus
		err := t.query(waiting, r.lane.id(), r.id, workflows.StatusQuery, &status)
		if err == nil {
			for i := range status.Commands {
				if status.Commands[i].ID == id && !status.Commands[i].Pending {
					return &status.Commands[i], nil
				}
			}
			// A run that continued as a new one keeps its receipts there.
			if last, err := t.latest(waiting, r.lane); err == nil && last.rollout == r.rollout {
				r = last
			}
		} else if errors.Is(err, errNoAnswer) {
			// Twice in a row is ten seconds without a worker; one that is only starting answers the second time.
			if empty++; empty == 2 {
				return nil, err
			}
			if found, err := t.polled(waiting, workflows.ControlQueue); err == nil && !found {
				return nil, errNoAnswer
			}
		} else if ctx.Err() == nil && waiting.Err() == nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !sleep(waiting, pause) {
			return nil, errNoAnswer
		}
		pause = min(pause*2, lookEvery)
	}
}

// touches says what a command would do as things stand. What it really does is the rollout's to decide.
func touches(o *CommandOptions, s workflows.RolloutStatus) string {
	flying, reached := 0, s.Counts[policy.Succeeded]+s.Counts[policy.Failed]+s.Counts[policy.NeedsRecovery]
	for _, wave := range s.Waves {
		flying += wave.InFlight
	}
	upTo, inFlight := "up to "+counted(reached+flying, "target"), counted(flying, "target")
	if len(s.Waves) == 0 {
		upTo, inFlight = "the targets", "targets"
	}
	scope := "the rollout"
	switch {
	case o.Target != "":
		scope = "target " + o.Target
	case o.Wave > 0:
		scope = fmt.Sprintf("wave %d", o.Wave)
	}
	switch o.Name {
	case workflows.RollBack:
		if scope == "the rollout" {
			return fmt.Sprintf("nothing new starts; %s that the change reached go back to the version they had", upTo)
		}
		if o.Wave > 0 && o.Wave <= len(s.Waves) {
			wave := s.Waves[o.Wave-1]
			upTo = "up to " + counted(wave.Counts[policy.Succeeded]+wave.Counts[policy.Failed]+wave.Counts[policy.NeedsRecovery]+wave.InFlight, "target") + " that the change reached of "
			return fmt.Sprintf("nothing new starts; %s%s go back to the version they had, no other, then the rollout holds until resume", upTo, scope)
		}
		return fmt.Sprintf("nothing new starts; what the change reached of %s goes back to the version it had, nothing else, then the rollout holds until resume", scope)
	case workflows.Reject:
		return fmt.Sprintf("nothing new starts; then what the plan's onReject says, by default %s that the change reached go back", upTo)
	case workflows.Abort:
		return fmt.Sprintf("nothing new starts and nothing goes back; %s in flight reach a safe point", inFlight)
	case workflows.Pause:
		return fmt.Sprintf("nothing new starts until resume; %s in flight finish their steps", inFlight)
	case workflows.Resume:
		return fmt.Sprintf("%s goes on", scope)
	case workflows.Approve:
		return fmt.Sprintf("one approval counts for %s", scope)
	case workflows.Skip:
		return fmt.Sprintf("%s is left out; one that was reached stays reached", scope)
	case workflows.Retry:
		return fmt.Sprintf("%s is tried again with version %s", scope, s.Version.Name)
	}
	return scope
}

// touchesOne says what the rollback of one target would do as things stand.
func touchesOne(t *workflows.TargetStatus) string {
	name := out.Clean(t.Name)
	switch {
	case t.Reached:
		return fmt.Sprintf("nothing new starts; %s (%s) goes back to %s, no other target does, then the rollout holds until resume", name, t.State, orNothing(t.From))
	case t.State == policy.RolledBack, t.State == policy.Failed:
		return fmt.Sprintf("nothing: %s is %s, and back already", name, t.State)
	case t.State.Terminal(), t.State == policy.Pending:
		return fmt.Sprintf("nothing: %s is %s, and the change has not reached it", name, t.State)
	}
	return fmt.Sprintf("nothing new starts; %s (%s) reaches a safe point and goes back to the version it had, no other target does, then the rollout holds until resume", name, t.State)
}

// describe is the command with what it is about.
func describe(sent Sent) string {
	text := sent.Command
	if sent.Payload.Wave > 0 {
		text += fmt.Sprintf(" wave %d", sent.Payload.Wave)
	}
	if sent.Payload.Target != "" {
		text += " target " + sent.Payload.Target
	}
	return text + " by " + sent.Payload.By + because(sent.Payload.Reason)
}

// writeSent writes the result; a refusal is an error.
func writeSent(o *CommandOptions, sent Sent) error {
	f := o.Factory
	var err error
	switch format := o.Format.Format(); {
	case format != out.Table:
		err = out.Write(f.Out, format, sent)
	case sent.DryRun:
		err = f.result("would send %s to %s: %s; nothing was sent (--dry-run)", describe(sent), sent.Workflow, sent.Touches)
	case sent.Receipt == nil:
		err = f.result("%s %s %s", f.Style.Warn("stored"), sent.Command, sent.Payload.ID)
	case sent.Receipt.Accepted:
		err = f.result("%s %s: %s", f.Style.Good("accepted"), sent.Command, out.Clean(sent.Receipt.Answer))
	}
	if err != nil {
		return err
	}
	if sent.Receipt != nil && !sent.Receipt.Accepted {
		return failf(exitRefused, "%s was refused: %s", sent.Command, sent.Receipt.Answer)
	}
	return nil
}
