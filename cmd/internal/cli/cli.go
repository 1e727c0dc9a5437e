// Package cli is the command line: one file a command, each with its options, its flags and what it does.
//
// A command reads its arguments, asks Temporal or plans by itself, and writes: the result to stdout, everything else to
// stderr. It decides nothing about rollouts; what may happen is the workflows' to say.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// New returns the root command. extra are the commands that a program has beside the common ones.
func New(extra ...*cobra.Command) *cobra.Command {
	return newRoot(newFactory(), extra...)
}

// newRoot is New with its surroundings given.
func newRoot(f *Factory, extra ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Walk a release through a fleet, wave by wave, and take it back with one command",
		Long: `Sluice walks a release through a fleet: waves of clusters, nodes, devices or sites, each wave gated by what the one
before it showed, and one command that takes it all back.

It talks to Temporal as every Temporal tool does: TEMPORAL_ADDRESS (default ` + defaultAddress + `), TEMPORAL_NAMESPACE,
TLS and API keys from the environment or from Temporal's own configuration file.

` + exitTable,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		PersistentPreRun:  func(cmd *cobra.Command, _ []string) { f.Program = cmd.Root().Name() },
	}
	root.SetIn(f.In)
	root.SetOut(f.Out)
	root.SetErr(f.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitErr{code: exitUsage, err: err} })
	root.AddGroup(
		&cobra.Group{ID: groupPrepare, Title: "Prepare and start:"},
		&cobra.Group{ID: groupLook, Title: "Look:"},
		&cobra.Group{ID: groupSteer, Title: "Steer:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupPrepare, NewCmdValidate(f, nil), NewCmdPlan(f, nil), NewCmdStart(f, nil))
	add(groupLook, NewCmdList(f, nil), NewCmdStatus(f, nil), NewCmdWatch(f, nil), NewCmdExplain(f, nil))
	add(groupSteer, NewCmdApprove(f, nil), NewCmdReject(f, nil), NewCmdPause(f, nil), NewCmdResume(f, nil), NewCmdSkip(f, nil),
		NewCmdRetry(f, nil), NewCmdAbort(f, nil), NewCmdRollback(f, nil))
	root.AddCommand(NewCmdWorker(f, nil), NewCmdVersion(f, nil), NewCmdRunCommand(nil))
	root.AddCommand(extra...)
	return root
}

// The groups of the help text.
const (
	groupPrepare = "prepare"
	groupLook    = "look"
	groupSteer   = "steer"
)

// Main runs the command that the process was called with and returns its exit code. SIGINT and SIGTERM end the command,
// never a rollout.
func Main(root *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return execute(ctx, root)
}

// execute is Main with its context given.
func execute(ctx context.Context, root *cobra.Command) int {
	// What goes wrong before a command runs is the command line's fault.
	began := false
	mark(root, &began)
	called, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !began {
		var coded *exitErr
		if !errors.As(err, &coded) {
			err = &exitErr{code: exitUsage, err: err}
		}
		_, _ = fmt.Fprintf(root.ErrOrStderr(), "%s: %s\nRun `%s --help` for usage.\n", root.Name(), strings.TrimSpace(err.Error()), called.CommandPath())
		return exitCode(err)
	}
	if text := err.Error(); text != "" {
		_, _ = fmt.Fprintf(root.ErrOrStderr(), "%s: %s\n", root.Name(), text)
	}
	return exitCode(err)
}

// mark lets every command note that it was reached.
func mark(cmd *cobra.Command, began *bool) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*began = true
			return run(cmd, args)
		}
	}
	if run := cmd.Run; run != nil {
		cmd.Run = func(cmd *cobra.Command, args []string) {
			*began = true
			run(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		mark(c, began)
	}
}
