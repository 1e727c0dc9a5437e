package cli

import (
	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// NewCmdReject returns the command; runF, when not nil, runs in place of it.
func NewCmdReject(f *Factory, runF func(*cobra.Command, *CommandOptions) error) *cobra.Command {
	return newCommand(f, commandUse{
		name:  workflows.Reject,
		short: "Reject the rollout: nothing new starts, and what was reached goes back",
		long: `Reject the rollout. Nothing new starts; then what its policy says in onReject happens, by default what was reached is rolled
back. One reject decides.`,
		example: `  sluice reject web -e Production --reason "wrong image"`,
		wave:    "the wave that is rejected (default: the one that waits)",
	}, runF)
}
