package cli

import (
	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// NewCmdApprove returns the command; runF, when not nil, runs in place of it.
func NewCmdApprove(f *Factory, runF func(*cobra.Command, *CommandOptions) error) *cobra.Command {
	return newCommand(f, commandUse{
		name:  workflows.Approve,
		short: "Approve the rollout or a wave, or accept an inconclusive check",
		long: `Count as one person's approval of the wave that waits, or accept what a check could not conclude. An approval is bound to the
plan: one for another plan is refused.`,
		example: `  sluice approve web -e Production
  sluice approve web -e Production --wave 2 --reason "canary looks good"`,
		wave: "the wave that is approved (default: the one that waits)",
		plan: "the digest of the plan that was looked at (default: the current one)",
	}, runF)
}
