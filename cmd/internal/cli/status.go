package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// StatusOptions are what `status` is asked.
type StatusOptions struct {
	Factory *Factory
	Lane    lane
	Rollout string
	Format  *out.FormatFlag
}

// NewCmdStatus returns the command; runF, when not nil, runs in place of it.
func NewCmdStatus(f *Factory, runF func(*cobra.Command, *StatusOptions) error) *cobra.Command {
	o := &StatusOptions{Factory: f, Format: out.NewFormatFlag(out.Table, out.JSON, out.YAML)}
	cmd := &cobra.Command{
		Use:   "status DEPLOYMENT -e ENVIRONMENT",
		Short: "Show where a rollout stands",
		Example: `  sluice status web -e Production
  sluice status web -e Production --rollout 01JQ… -o json`,
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
			return statusRun(cmd.Context(), o)
		},
	}
	addEnvironment(cmd, &o.Lane.Environment)
	addRollout(cmd, &o.Rollout, "this rollout of the lane, not its last one")
	addFormat(cmd, o.Format)
	return cmd
}

// addRollout adds --rollout.
func addRollout(cmd *cobra.Command, rollout *string, usage string) {
	cmd.Flags().StringVar(rollout, "rollout", "", usage)
}

// checkRollout refuses what cannot be a rollout's id.
func checkRollout(rollout string) error {
	if rollout != "" && !nameRule.MatchString(rollout) {
		return usagef("--rollout %q is no rollout id; `sluice list --all` shows them", rollout)
	}
	return nil
}

func statusRun(ctx context.Context, o *StatusOptions) error {
	f := o.Factory
	t, err := f.Connect(ctx)
	if err != nil {
		return err
	}
	defer t.Close()
	status, _, err := t.lookUp(ctx, f, o.Lane, o.Rollout)
	if err != nil {
		return err
	}
	if o.Format.Format() != out.Table {
		return out.Write(f.Out, o.Format.Format(), status)
	}
	return writeStatus(f.Out, f, f.Style, status)
}

// lookUp finds a run and asks it for its status. A remark on how little is known, and what fails again
// and again, go to stderr.
func (t *temporal) lookUp(ctx context.Context, f *Factory, l lane, rollout string) (status workflows.RolloutStatus, remark string, err error) {
	r, err := t.find(ctx, l, rollout)
	if err != nil {
		return status, "", err
	}
	status, remark, err = t.status(ctx, r)
	if remark != "" {
		f.note("%s %s.", f.Notes.Warn("note:"), remark)
	}
	if err == nil && r.open() {
		if why := t.trouble(ctx, l.id(), r.id); why != "" {
			f.note("%s a step fails and is tried again: %s", f.Notes.Warn("note:"), why)
		}
	}
	return status, remark, err
}
