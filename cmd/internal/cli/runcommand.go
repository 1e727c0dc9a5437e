package cli

import (
	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
)

// NewCmdRunCommand returns the hidden command by which this program is the detached runner of a command step. runF, when
// not nil, runs in place of it.
func NewCmdRunCommand(runF func(dir string) int) *cobra.Command {
	if runF == nil {
		runF = wire.RunOperation
	}
	return &cobra.Command{
		Use:    wire.RunCommand + " DIR",
		Short:  "Run one operation of a command step; workers call this",
		Hidden: true,
		Args:   exactArgs(1, "the operation's folder is needed"),
		RunE: func(_ *cobra.Command, args []string) error {
			if code := runF(args[0]); code != 0 {
				return &exitErr{code: code}
			}
			return nil
		},
	}
}
