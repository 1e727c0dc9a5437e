package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
)

// WatchOptions are what `watch` is asked.
type WatchOptions struct {
	Factory *Factory
	Lane    lane
	Rollout string
	NoInput bool
	Format  *out.FormatFlag
}

// NewCmdWatch returns the command; runF, when not nil, runs in place of it.
func NewCmdWatch(f *Factory, runF func(*cobra.Command, *WatchOptions) error) *cobra.Command {
	o := &WatchOptions{Factory: f, Format: out.NewFormatFlag(out.Table, out.NDJSON)}
	cmd := &cobra.Command{
		Use:   "watch DEPLOYMENT -e ENVIRONMENT",
		Short: "Follow a rollout to its end",
		Long: `Follow a rollout to its end. On a terminal the picture redraws itself; piped, each change is a line; with -o ndjson each
change is the whole status as one line of JSON. The exit code says how the rollout ended. Ctrl-C ends the watching, never
the rollout.`,
		Example: `  sluice watch web -e Production
  sluice watch web -e Production -o ndjson | jq -r .state`,
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
			return watchRun(cmd.Context(), o)
		},
	}
	addEnvironment(cmd, &o.Lane.Environment)
	addRollout(cmd, &o.Rollout, "this rollout of the lane, not its last one")
	cmd.Flags().BoolVar(&o.NoInput, "no-input", false, "nobody is there to answer: end when the rollout waits for a person")
	addFormat(cmd, o.Format)
	return cmd
}

func watchRun(ctx context.Context, o *WatchOptions) error {
	f := o.Factory
	t, err := f.Connect(ctx)
	if err != nil {
		return err
	}
	defer t.Close()
	r, err := t.find(ctx, o.Lane, o.Rollout)
	if err != nil {
		return err
	}
	return follow(ctx, f, t, followOptions{run: r, format: o.Format.Format(), wait: waitFlags{Wait: true, NoInput: o.NoInput}})
}
