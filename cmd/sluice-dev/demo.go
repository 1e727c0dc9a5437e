package main

import (
	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/demo"
)

// newDemo returns `demo`.
func newDemo() *cobra.Command {
	var o demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch a bad release being caught and taken back, on a simulated fleet",
		Long:  demo.Story,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out, o.Err = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return demo.Run(cmd.Context(), o)
		},
	}
	cmd.Flags().Int64Var(&o.Seed, "seed", 1, "picks durations, loads and metric values")
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "keep the folder with the documents, the effect log and the Temporal data")
	return cmd
}
