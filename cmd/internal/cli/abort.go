package cli

import (
	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// NewCmdAbort returns the command; runF, when not nil, runs in place of it.
func NewCmdAbort(f *Factory, runF func(*cobra.Command, *CommandOptions) error) *cobra.Command {
	return newCommand(f, commandUse{
		name:  workflows.Abort,
		short: "Stop the rollout without rolling back",
		long: `Stop the rollout. Nothing new starts and nothing goes back: targets in flight reach a safe point, and where each one stands is
listed.`,
		example: `  sluice abort web -e Production --reason "superseded by v1.2.4"`,
	}, runF)
}
