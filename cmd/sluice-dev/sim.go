package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/demo"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

// newSim returns the hidden `sim`: a simulated fleet as a process of its own.
func newSim() *cobra.Command {
	var (
		o      fleet.Options
		parent bool
	)
	cmd := &cobra.Command{
		Use:    demo.SimCommand + " --scenario FILE --log FILE",
		Short:  "Simulate a fleet until told to stop",
		Hidden: true,
		Long: `Simulate a fleet until told to stop. The first line on stdout is JSON and says where it listens; everything that it was
asked and did stands in the log, as lines of JSON.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var stdin io.Reader
			if parent {
				stdin = cmd.InOrStdin()
			}
			return demo.Simulate(cmd.Context(), o, stdin, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&o.Scenario, "scenario", "", "the scenario file")
	cmd.Flags().StringVar(&o.Log, "log", "", "the effect log; one that is there is taken up")
	cmd.Flags().StringVar(&o.Listen, "listen", "127.0.0.1:0", "the address to listen on; port 0 takes a free one")
	cmd.Flags().BoolVar(&parent, demo.UntilStdinCloses, false, "end when standard input closes, so that nothing is left of a parent that was killed")
	return cmd
}
