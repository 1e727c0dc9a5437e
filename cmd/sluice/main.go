// Command sluice is the command line and the worker, for an existing Temporal. No server is linked into it.
package main

import (
	"os"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/cli"
)

func main() { os.Exit(cli.Main(cli.New())) }
