package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// ListOptions are what `list` is asked.
type ListOptions struct {
	Factory     *Factory
	Deployment  string
	Environment string
	State       string
	All         bool
	Limit       int
	Format      *out.FormatFlag
}

// Listed is one rollout in the result of `list`.
type Listed struct {
	Rollout     string    `json:"rollout"`
	Deployment  string    `json:"deployment"`
	Environment string    `json:"environment"`
	Version     string    `json:"version"`
	State       string    `json:"state"`
	StartedAt   time.Time `json:"startedAt"`
	EndedAt     time.Time `json:"endedAt,omitzero"`
	Workflow    string    `json:"workflow"`
	Run         string    `json:"run"`
}

// NewCmdList returns the command; runF, when not nil, runs in place of it.
func NewCmdList(f *Factory, runF func(*cobra.Command, *ListOptions) error) *cobra.Command {
	o := &ListOptions{Factory: f, Format: out.NewFormatFlag(out.Table, out.JSON, out.YAML, out.NDJSON)}
	cmd := &cobra.Command{
		Use:   "list [DEPLOYMENT]",
		Short: "List rollouts: the running ones, or all",
		Example: `  sluice list
  sluice list -e Production --state Holding
  sluice list web --all`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("one deployment at most")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.Deployment = args[0]
			}
			if err := o.check(); err != nil {
				return err
			}
			if runF != nil {
				return runF(cmd, o)
			}
			return listRun(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVarP(&o.Environment, "environment", "e", "", "only in this environment")
	cmd.Flags().StringVar(&o.State, "state", "", "only in this state: "+strings.Join(phaseNames(), ", "))
	cmd.Flags().BoolVar(&o.All, "all", false, "those that have ended too")
	cmd.Flags().IntVar(&o.Limit, "limit", 100, "at most this many, the newest")
	addFormat(cmd, o.Format)
	return cmd
}

// phases lists the states of a rollout.
func phases() []workflows.Phase {
	return []workflows.Phase{workflows.Planned, workflows.AwaitingApproval, workflows.Running, workflows.Paused, workflows.Holding,
		workflows.RollingBack, workflows.Succeeded, workflows.SucceededWithFailures, workflows.Failed, workflows.RolledBack,
		workflows.RollbackIncomplete, workflows.Rejected, workflows.Aborted, workflows.Superseded}
}

func phaseNames() []string {
	names := make([]string, 0, len(phases()))
	for _, p := range phases() {
		names = append(names, string(p))
	}
	return names
}

// check completes the options; a state is taken in any case of letters, and one of the ended implies --all.
func (o *ListOptions) check() error {
	for _, name := range []string{o.Deployment, o.Environment} {
		if name != "" && !nameRule.MatchString(name) {
			return usagef("%q: a name is 1 to 63 of a-z A-Z 0-9 - _ . and inner spaces", name)
		}
	}
	if o.Limit < 1 {
		return usagef("--limit is at least 1")
	}
	if o.State == "" {
		return nil
	}
	for _, p := range phases() {
		if strings.EqualFold(string(p), o.State) {
			o.State = string(p)
			o.All = o.All || p.Ended()
			return nil
		}
	}
	return usagef("unknown state %q; there are: %s", o.State, strings.Join(phaseNames(), ", "))
}

// filter is the visibility query.
func (o *ListOptions) filter() string {
	parts := []string{fmt.Sprintf("WorkflowType = '%s'", workflows.RolloutType)}
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, fmt.Sprintf("%s = '%s'", name, value))
		}
	}
	add(workflows.SluiceDeployment, o.Deployment)
	add(workflows.SluiceEnvironment, o.Environment)
	add(workflows.SluiceState, o.State)
	if !o.All {
		parts = append(parts, "ExecutionStatus = 'Running'")
	}
	return strings.Join(parts, " AND ")
}

func listRun(ctx context.Context, o *ListOptions) error {
	f := o.Factory
	t, err := f.Connect(ctx)
	if err != nil {
		return err
	}
	defer t.Close()
	runs, err := t.list(ctx, o.filter(), o.Limit)
	if err != nil {
		return err
	}
	listed := make([]Listed, 0, len(runs))
	for _, r := range runs {
		if r.status == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW {
			continue // its continuation is listed
		}
		listed = append(listed, Listed{Rollout: r.rollout, Deployment: r.lane.Deployment, Environment: r.lane.Environment, Version: r.version,
			State: shownState(r), StartedAt: r.started, EndedAt: r.ended, Workflow: r.lane.id(), Run: r.id})
	}
	if len(runs) == o.Limit {
		defer f.note("There may be more; --limit shows them.")
	}
	return writeList(f, o, listed)
}

// shownState is the state of a run as far as visibility knows it. One that was ended from outside never wrote an end.
func shownState(r run) string {
	if !r.open() && !workflows.Phase(r.state).Ended() && r.status != enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED {
		return fmt.Sprintf("%s in Temporal", r.status)
	}
	return r.state
}

// writeList writes the list.
func writeList(f *Factory, o *ListOptions, listed []Listed) error {
	switch o.Format.Format() {
	case out.JSON, out.YAML:
		return out.Write(f.Out, o.Format.Format(), listed)
	case out.NDJSON:
		for _, one := range listed {
			if err := out.Write(f.Out, out.NDJSON, one); err != nil {
				return err
			}
		}
		return nil
	case out.Table:
	}
	if len(listed) == 0 {
		if o.All {
			f.note("There is no such rollout.")
		} else {
			f.note("No such rollout is running; --all lists those that have ended.")
		}
		return nil
	}
	grid := out.NewGrid("DEPLOYMENT", "ENVIRONMENT", "VERSION", "STATE", "STARTED", "ENDED", "ROLLOUT")
	for _, one := range listed {
		grid.Row(one.Deployment, one.Environment, out.Clean(one.Version), paintState(f.Style, workflows.Phase(one.State)), f.moment(one.StartedAt),
			f.moment(one.EndedAt), one.Rollout)
	}
	_, err := grid.WriteTo(f.Out)
	return err
}
