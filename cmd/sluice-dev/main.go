// Command sluice-dev is the command line of sluice with a Temporal server linked in: `up` runs everything on one machine,
// `demo` shows a release that is caught and taken back. Production uses sluice and a Temporal of its own.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/cli"
)

func main() { os.Exit(cli.Main(newRoot())) }

// newRoot returns the common commands with those of this program.
func newRoot() *cobra.Command {
	root := cli.New(newUp(), newDemo(), newSim())
	root.Use = "sluice-dev"
	return root
}
