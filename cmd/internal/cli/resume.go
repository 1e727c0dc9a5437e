package cli

import (
	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// NewCmdResume returns the command; runF, when not nil, runs in place of it.
func NewCmdResume(f *Factory, runF func(*cobra.Command, *CommandOptions) error) *cobra.Command {
	return newCommand(f, commandUse{
		name:    workflows.Resume,
		short:   "Resume a rollout that is paused or holding",
		long:    `Resume a rollout that is paused, or that holds and may go on.`,
		example: `  sluice resume web -e Production`,
	}, runF)
}
