package cli

import (
	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// NewCmdPause returns the command; runF, when not nil, runs in place of it.
func NewCmdPause(f *Factory, runF func(*cobra.Command, *CommandOptions) error) *cobra.Command {
	return newCommand(f, commandUse{
		name:    workflows.Pause,
		short:   "Pause the rollout: nothing new starts until resume",
		long:    `Pause the rollout. A target that began its first step finishes all its steps; nothing new starts until resume.`,
		example: `  sluice pause web -e Production --reason "incident 4711"`,
	}, runF)
}
