// Package tests drives the programs from outside, as people and scripts do.
package tests

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "rewrite the expected output in the scripts")

// bin is the folder with the built programs.
var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run builds the programs once, tests, and removes them.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sluice-tests-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin = dir
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "sluice"), "../cmd/sluice")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build cmd/sluice:", err)
		return 1
	}
	return m.Run()
}

// TestScripts runs the scripts that need no server.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "scripts",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			// Nothing of the machine's own: no Temporal configuration, no name, no folder, no proxy.
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
			env.Setenv("SLUICE_ACTOR", "alice")
			env.Setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
			env.Setenv("TZ", "UTC")
			examples, err := filepath.Abs(filepath.Join("..", "deploy", "examples"))
			if err != nil {
				return err
			}
			env.Setenv("EXAMPLES", examples)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exit": exit,
			"mask": mask,
		},
	})
}

// exit runs a program and wants this exit code: `exit 2 sluice plan`. Its output is there for stdout and stderr.
func exit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exit CODE PROGRAM [ARGS]")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if failed, ok := err.(*exec.ExitError); ok {
		code = failed.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got := fmt.Sprint(code); got != args[0] {
		ts.Fatalf("%v: exit code %s, want %s", args[1:], got, args[0])
	}
}

// digests are what mask masks.
var digests = regexp.MustCompile(`sha256:[0-9a-f]{64}`)

// mask writes the last stdout to a file with its digests masked, so that a script shows the form and other tests pin the
// digests: `mask FILE`.
func mask(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: mask FILE")
	}
	text := digests.ReplaceAllString(ts.ReadFile("stdout"), "sha256:…")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}
