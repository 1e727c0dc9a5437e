package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// ValidateOptions are what `validate` is asked.
type ValidateOptions struct {
	Factory *Factory
	Files   []string
	Format  *out.FormatFlag
}

// Validity is the result of `validate`.
type Validity struct {
	Valid bool `json:"valid"`
	// Digest names the documents; a rollout that starts from them carries it.
	Digest       string         `json:"digest"`
	Environments []string       `json:"environments,omitempty"`
	Deployments  []string       `json:"deployments,omitempty"`
	Policies     []string       `json:"policies,omitempty"`
	Checks       []string       `json:"checks,omitempty"`
	Targets      int            `json:"targets"`
	Faults       []policy.Fault `json:"faults,omitempty"`
}

// NewCmdValidate returns the command; runF, when not nil, runs in place of it.
func NewCmdValidate(f *Factory, runF func(*cobra.Command, *ValidateOptions) error) *cobra.Command {
	o := &ValidateOptions{Factory: f, Format: out.NewFormatFlag(out.Table, out.JSON, out.YAML)}
	cmd := &cobra.Command{
		Use:   "validate -f DIR",
		Short: "Check documents, all faults at once; needs no server",
		Example: `  sluice validate -f deploy/
  sluice validate -f fleet.yaml -f policies/ -o json`,
		Args: exactArgs(0, "documents are given with -f"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if runF != nil {
				return runF(cmd, o)
			}
			return validateRun(o)
		},
	}
	addFiles(cmd, &o.Files)
	addFormat(cmd, o.Format)
	return cmd
}

// addFormat adds -o.
func addFormat(cmd *cobra.Command, format *out.FormatFlag) {
	cmd.Flags().VarP(format, "output", "o", "how to write the result")
}

func validateRun(o *ValidateOptions) error {
	f := o.Factory
	docs, err := readDocuments(o.Files)
	if err != nil {
		return err
	}
	packed, digest, err := wire.Pack(docs.files)
	if err != nil {
		return err
	}
	bundle, err := f.Load(packed)
	err = docs.placed(err)
	result := Validity{Valid: err == nil, Digest: digest, Targets: len(bundle.Snapshot.Targets)}
	var faults policy.Faults
	switch {
	case errors.As(err, &faults):
		result.Faults = faults
	case err != nil:
		return err
	}
	for _, e := range bundle.Environments {
		result.Environments = append(result.Environments, e.Name)
	}
	for _, d := range bundle.Deployments {
		result.Deployments = append(result.Deployments, d.Name)
	}
	for _, p := range bundle.Policies {
		result.Policies = append(result.Policies, p.Name)
	}
	for _, c := range bundle.Checks {
		result.Checks = append(result.Checks, c.Name)
	}
	if o.Format.Format() != out.Table {
		if err := out.Write(f.Out, o.Format.Format(), result); err != nil {
			return err
		}
		if !result.Valid {
			return &exitErr{code: exitUsage, err: fmt.Errorf("%s", counted(len(faults), "fault"))}
		}
		return nil
	}
	if !result.Valid {
		return invalidDocuments(faults)
	}
	return f.result("%s %s: %s, %s, %s, %s, %s", f.Style.Good("valid"), digest, counted(result.Targets, "target"),
		named(result.Environments, "environment"), named(result.Deployments, "deployment"), named(result.Policies, "policy"), named(result.Checks, "check"))
}

// invalidDocuments lists the faults under a line that says how many there are. A fault that is nowhere in the documents,
// such as the name of a deployment that they lack, is not theirs.
func invalidDocuments(faults policy.Faults) error {
	if !slices.ContainsFunc(faults, func(fault policy.Fault) bool { return fault.Place.File != "" }) {
		return failf(exitUsage, "%w", faults)
	}
	return failf(exitUsage, "the documents are not valid: %s\n%w", counted(len(faults), "fault"), faults)
}

// named is a number of things and their names, e.g. `2 policies (a, b)`.
func named(names []string, noun string) string {
	if len(names) == 0 || len(names) > 5 {
		return counted(len(names), noun)
	}
	return counted(len(names), noun) + " (" + strings.Join(names, ", ") + ")"
}
