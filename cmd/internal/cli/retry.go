package cli

import (
	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// NewCmdRetry returns the command; runF, when not nil, runs in place of it.
func NewCmdRetry(f *Factory, runF func(*cobra.Command, *CommandOptions) error) *cobra.Command {
	return newCommand(f, commandUse{
		name:    workflows.Retry,
		short:   "Try one target again with the same version",
		long:    `Try one target again with the same version, also after its wave has closed.`,
		example: `  sluice retry web -e Production --target cluster-eu-1`,
		target:  "the target", needsTarget: true,
	}, runF)
}
