package cli

import (
	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// NewCmdSkip returns the command; runF, when not nil, runs in place of it.
func NewCmdSkip(f *Factory, runF func(*cobra.Command, *CommandOptions) error) *cobra.Command {
	return newCommand(f, commandUse{
		name:  workflows.Skip,
		short: "Leave one target out",
		long: `Leave one target out of the rollout, with a reason. A target that the change has reached stays reached: a rollback brings it
back too.`,
		example: `  sluice skip web -e Production --target cluster-eu-1 --reason "being rebuilt"`,
		target:  "the target", needsTarget: true,
	}, runF)
}
