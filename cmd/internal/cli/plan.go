package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// PlanOptions are what `plan` is asked.
type PlanOptions struct {
	Factory *Factory
	Request planRequest
	// Offline plans from the documents alone. It is what happens without it too, as long as -f is required.
	Offline bool
	// Targets lists every target with its reason.
	Targets bool
	Format  *out.FormatFlag
}

// planRequest is what `plan` and `start` plan.
type planRequest struct {
	Lane      lane
	Version   string
	Artifacts map[string]string
	Params    map[string]string
	Files     []string
	Unguarded bool
}

// addPlanRequest adds the flags of a request.
func addPlanRequest(cmd *cobra.Command, r *planRequest) {
	addFiles(cmd, &r.Files)
	addEnvironment(cmd, &r.Lane.Environment)
	cmd.Flags().StringToStringVar(&r.Artifacts, "artifact", nil, "an artefact of the version as NAME=REFERENCE; may be given again")
	cmd.Flags().StringToStringVar(&r.Params, "param", nil, "a parameter of the version as NAME=VALUE; may be given again")
	cmd.Flags().BoolVar(&r.Unguarded, "unguarded", false, "go without a policy if none matches")
}

// parse reads the argument.
func (r *planRequest) parse(arg string) (err error) {
	r.Lane, r.Version, err = parseVersion(arg, r.Lane.Environment)
	if err == nil && len(r.Files) == 0 {
		err = usagef("which documents? Give -f with a file or a folder")
	}
	return err
}

// NewCmdPlan returns the command; runF, when not nil, runs in place of it.
func NewCmdPlan(f *Factory, runF func(*cobra.Command, *PlanOptions) error) *cobra.Command {
	o := &PlanOptions{Factory: f, Format: out.NewFormatFlag(out.Table, out.JSON, out.YAML)}
	cmd := &cobra.Command{
		Use:   "plan DEPLOYMENT@VERSION -e ENVIRONMENT -f DIR",
		Short: "Show what a rollout would do: waves, budgets, gates and targets",
		Long: `Show what a rollout would do. Same documents, fleet and version, same plan, same digest, always; a rollout that is started
from it does exactly this or refuses. The plan is made from the documents given with -f; no server is asked.`,
		Example: `  sluice plan web@v1.2.3 -e Production -f deploy/
  sluice plan web@v1.2.3 -e Production -f deploy/ --targets -o yaml`,
		Args: versionArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.Request.parse(args[0]); err != nil {
				return err
			}
			if runF != nil {
				return runF(cmd, o)
			}
			return planRun(cmd.Context(), o)
		},
	}
	addPlanRequest(cmd, &o.Request)
	cmd.Flags().BoolVar(&o.Offline, "offline", false, "ask no server at all")
	cmd.Flags().BoolVar(&o.Targets, "targets", false, "list every target with the reason for its place")
	addFormat(cmd, o.Format)
	return cmd
}

func planRun(ctx context.Context, o *PlanOptions) error {
	f := o.Factory
	made, err := makePlan(ctx, f, o.Request)
	if err != nil {
		return err
	}
	if o.Format.Format() != out.Table {
		return out.Write(f.Out, o.Format.Format(), made.plan)
	}
	return writePlan(f.Out, f.Style, made.plan, o.Targets)
}

// planned is a plan and what it was made from.
type planned struct {
	plan   policy.Plan
	packed []byte
	digest string
}

// makePlan reads documents and plans a request on them, all on this machine.
func makePlan(ctx context.Context, f *Factory, r planRequest) (planned, error) {
	docs, err := readDocuments(r.Files)
	if err != nil {
		return planned{}, err
	}
	packed, digest, err := wire.Pack(docs.files)
	if err != nil {
		return planned{}, err
	}
	made, err := f.Plan(ctx, packed, policy.Request{
		Deployment: r.Lane.Deployment, Environment: r.Lane.Environment, BundleDigest: digest, Unguarded: r.Unguarded,
		Version: policy.Version{Name: r.Version, Artifacts: r.Artifacts, Params: r.Params},
	})
	var (
		refused *wire.Refused
		faults  policy.Faults
	)
	err = docs.placed(err)
	switch {
	case errors.As(err, &refused):
		return planned{}, failf(exitRefused, "the plan is refused: %w", refused.Faults)
	case errors.As(err, &faults):
		return planned{}, invalidDocuments(faults)
	case err != nil:
		return planned{}, err
	}
	return planned{plan: made.Plan, packed: packed, digest: digest}, nil
}
