package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"go.temporal.io/api/serviceerror"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/config"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// noon is the present moment of the tests.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// testFactory returns surroundings without a terminal, and what is written to them.
func testFactory(t *testing.T) (f *Factory, stdout, stderr *bytes.Buffer) {
	t.Helper()
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	f = &Factory{
		Program: "sluice", In: strings.NewReader(""), Out: stdout, Err: stderr, Zone: time.UTC,
		Getenv: func(name string) string { return map[string]string{"SLUICE_ACTOR": "alice"}[name] },
		Now:    func() time.Time { return noon },
		Load:   wire.Load,
		Plan:   wire.Plan,
		Connect: func(context.Context) (*temporal, error) {
			return nil, failf(exitUnavailable, "cannot reach Temporal: the test has none")
		},
	}
	return f, stdout, stderr
}

// golden compares text with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); -update rewrites it:\n%s", file, diff)
	}
}

// exec runs a command line in the given surroundings and returns its exit code.
func exec(t *testing.T, f *Factory, args ...string) int {
	t.Helper()
	root := newRoot(f)
	root.SetArgs(args)
	return execute(t.Context(), root)
}

func TestExitCodesStandForTheirErrors(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want int
	}{
		{"nothing wrong", nil, 0},
		{"anything", errors.New("x"), 1},
		{"interrupted", context.Canceled, 1},
		{"usage", usagef("x"), 2},
		{"faults of documents", policy.Faults{{Message: "x"}}, 2},
		{"faults of the configuration", config.Faults{{Message: "x"}}, 2},
		{"a coded error wins over the faults in it", failf(exitRefused, "x: %w", policy.Faults{{Message: "x"}}), 3},
		{"no such workflow", serviceerror.NewNotFound("x"), 6},
		{"no such namespace", serviceerror.NewNamespaceNotFound("x"), 7},
		{"Temporal is away", serviceerror.NewUnavailable("x"), 7},
	} {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
}

func TestEveryEndOfARolloutHasItsExitCode(t *testing.T) {
	want := map[workflows.Phase]int{
		workflows.Planned: exitError, workflows.Running: exitError, workflows.Paused: exitError, workflows.RollingBack: exitError,
		workflows.AwaitingApproval: exitPerson, workflows.Holding: exitPerson,
		workflows.Succeeded: exitOK, workflows.SucceededWithFailures: exitOK,
		workflows.Failed: exitUnsuccessful, workflows.RolledBack: exitUnsuccessful, workflows.RollbackIncomplete: exitUnsuccessful,
		workflows.Rejected: exitUnsuccessful, workflows.Aborted: exitUnsuccessful, workflows.Superseded: exitUnsuccessful,
	}
	for _, phase := range phases() {
		f, _, stderr := testFactory(t)
		got := exitCode(outcome(f, workflows.RolloutStatus{State: phase, Deployment: "web", Environment: "Production"}, false))
		if got != want[phase] {
			t.Errorf("%s: got %d, want %d", phase, got, want[phase])
		}
		if phase == workflows.SucceededWithFailures && !strings.Contains(stderr.String(), "succeeded with failures") {
			t.Errorf("no remark on the failures: %q", stderr)
		}
	}
	f, _, _ := testFactory(t)
	if code := exitCode(outcome(f, workflows.RolloutStatus{State: workflows.RolledBack}, true)); code != exitOK {
		t.Errorf("a rollback that was asked for and came: %d, want 0", code)
	}
	if code := exitCode(outcome(f, workflows.RolloutStatus{State: workflows.RolledBack, Mode: workflows.ModeRollback}, false)); code != exitOK {
		t.Errorf("a run that takes another back: %d, want 0", code)
	}
	if code := exitCode(outcome(f, workflows.RolloutStatus{State: workflows.RollbackIncomplete}, true)); code != exitUnsuccessful {
		t.Errorf("a rollback that left targets: %d, want 4", code)
	}
}

func TestMistakesOnTheCommandLineEndWithTwo(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"an unknown command", []string{"stats"}, "status"},
		{"an unknown flag", []string{"status", "web", "--envrionment", "x"}, "unknown flag"},
		{"no deployment", []string{"status"}, "Give a deployment"},
		{"two deployments", []string{"status", "web", "api", "-e", "Production"}, "Give a deployment"},
		{"no environment", []string{"status", "web"}, "which environment"},
		{"a version where a lane is meant", []string{"status", "web@v1", "-e", "Production"}, "names version v1"},
		{"no version", []string{"plan", "web", "-e", "Production", "-f", "x"}, "names no version"},
		{"an empty version", []string{"plan", "web@", "-e", "Production", "-f", "x"}, "names no version"},
		{"no documents", []string{"plan", "web@v1", "-e", "Production"}, "-f"},
		{"a name that would build another id", []string{"status", "web", "-e", "a/b"}, "a name is"},
		{"a name that would build another query", []string{"list", "-e", "a' OR 'b"}, "a name is"},
		{"a rollout id that would build another query", []string{"status", "web", "-e", "P", "--rollout", "x' OR ''='"}, "no rollout id"},
		{"an unknown format", []string{"status", "web", "-e", "P", "-o", "xml"}, "table, json, yaml"},
		{"an unknown state", []string{"list", "--state", "Runing"}, "AwaitingApproval"},
		{"a wave of zero", []string{"approve", "web", "-e", "P", "--wave", "0"}, "counts from 1"},
		{"no target to skip", []string{"skip", "web", "-e", "P"}, "--target"},
		{"no target to retry", []string{"retry", "web", "-e", "P"}, "--target"},
		{"a target and a wave to take back", []string{"rollback", "web", "-e", "P", "--target", "eu-1", "--wave", "2"}, "exclude each other"},
		{"a wave of zero to take back", []string{"rollback", "web", "-e", "P", "--wave", "0"}, "counts from 1"},
		{"an empty target to take back", []string{"rollback", "web", "-e", "P", "--target", ""}, "names no target"},
		{"--no-input alone", []string{"rollback", "web", "-e", "P", "--no-input"}, "--wait"},
		{"a stream of nothing", []string{"start", "web@v1", "-e", "P", "-f", "x", "-o", "ndjson"}, "--wait"},
		{"no folder", []string{"validate", "-f", "does-not-exist"}, "does-not-exist"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, stdout, stderr := testFactory(t)
			if code := exec(t, f, test.args...); code != exitUsage {
				t.Errorf("exit code %d, want 2", code)
			}
			if stdout.Len() > 0 {
				t.Errorf("stdout holds what is no result: %q", stdout)
			}
			if !strings.Contains(stderr.String(), test.want) {
				t.Errorf("stderr %q does not say %q", stderr, test.want)
			}
		})
	}
}

func TestFlagsReachTheirOptions(t *testing.T) {
	production := lane{Deployment: "web", Environment: "Production"}
	// parsed runs a command with its flags parsed and runF in place of it.
	parsed := func(t *testing.T, cmd *cobra.Command, args ...string) {
		t.Helper()
		cmd.SetArgs(append([]string{}, args...))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
	}
	check := func(t *testing.T, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(lane{})); diff != "" {
			t.Errorf("options (-want +got):\n%s", diff)
		}
	}
	f, _, _ := testFactory(t)

	t.Run("validate", func(t *testing.T) {
		parsed(t, NewCmdValidate(f, func(_ *cobra.Command, o *ValidateOptions) error {
			check(t, o.Files, []string{"a", "b,c"})
			check(t, o.Format.Format(), out.YAML)
			return nil
		}), "-f", "a", "--file", "b,c", "-o", "yaml")
	})
	t.Run("plan", func(t *testing.T) {
		parsed(t, NewCmdPlan(f, func(_ *cobra.Command, o *PlanOptions) error {
			check(t, o.Request, planRequest{Lane: production, Version: "v1.2.3", Files: []string{"d"}, Unguarded: true,
				Artifacts: map[string]string{"image": "r/web@sha256:1"}, Params: map[string]string{"a": "b=c", "d": "e"}})
			check(t, []bool{o.Offline, o.Targets}, []bool{true, true})
			return nil
		}), "web@v1.2.3", "-e", "Production", "-f", "d", "--artifact", "image=r/web@sha256:1", "--param", "a=b=c", "--param", "d=e",
			"--unguarded", "--offline", "--targets")
	})
	t.Run("start", func(t *testing.T) {
		parsed(t, NewCmdStart(f, func(_ *cobra.Command, o *StartOptions) error {
			check(t, o.Request.Lane, production)
			check(t, o.Wait, waitFlags{Wait: true, NoInput: true})
			check(t, []string{o.As, o.Reason, string(o.Format.Format())}, []string{"bob", "why", "ndjson"})
			check(t, o.DryRun, true)
			return nil
		}), "web@v1.2.3", "--environment", "Production", "-f", "d", "--wait", "--no-input", "--as", "bob", "--reason", "why", "--dry-run", "-o", "ndjson")
	})
	t.Run("list", func(t *testing.T) {
		parsed(t, NewCmdList(f, func(_ *cobra.Command, o *ListOptions) error {
			check(t, o.filter(), "WorkflowType = 'Rollout' AND SluiceDeployment = 'web' AND SluiceEnvironment = 'Production' AND SluiceState = 'RolledBack'")
			check(t, o.Limit, 5)
			return nil
		}), "web", "-e", "Production", "--state", "rolledback", "--limit", "5")
		parsed(t, NewCmdList(f, func(_ *cobra.Command, o *ListOptions) error {
			check(t, o.filter(), "WorkflowType = 'Rollout' AND ExecutionStatus = 'Running'")
			return nil
		}))
	})
	t.Run("status", func(t *testing.T) {
		parsed(t, NewCmdStatus(f, func(_ *cobra.Command, o *StatusOptions) error {
			check(t, o.Lane, production)
			check(t, o.Rollout, "01J")
			return nil
		}), "web", "-e", "Production", "--rollout", "01J")
	})
	t.Run("watch", func(t *testing.T) {
		parsed(t, NewCmdWatch(f, func(_ *cobra.Command, o *WatchOptions) error {
			check(t, o.Lane, production)
			check(t, o.NoInput, true)
			check(t, o.Format.Format(), out.NDJSON)
			return nil
		}), "web", "-e", "Production", "-o", "ndjson", "--no-input")
	})
	t.Run("explain", func(t *testing.T) {
		parsed(t, NewCmdExplain(f, func(_ *cobra.Command, o *ExplainOptions) error {
			check(t, o.Target, "eu/1")
			return nil
		}), "web", "-e", "Production", "--target", "eu/1")
	})
	for name, command := range map[string]func(*Factory, func(*cobra.Command, *CommandOptions) error) *cobra.Command{
		workflows.Approve: NewCmdApprove, workflows.Reject: NewCmdReject, workflows.Pause: NewCmdPause, workflows.Resume: NewCmdResume,
		workflows.Skip: NewCmdSkip, workflows.Retry: NewCmdRetry, workflows.Abort: NewCmdAbort,
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"web", "-e", "Production", "--reason", "why", "--as", "bob", "--rollout", "01J", "--dry-run"}
			want := CommandOptions{Name: name, Lane: production, Rollout: "01J", As: "bob", Reason: "why", DryRun: true}
			if name == workflows.Approve || name == workflows.Reject {
				args, want.Wave = append(args, "--wave", "2"), 2
			}
			if name == workflows.Approve {
				args, want.Plan = append(args, "--plan", "sha256:1"), "sha256:1"
			}
			if name == workflows.Skip || name == workflows.Retry {
				args, want.Target = append(args, "--target", "eu-1"), "eu-1"
			}
			parsed(t, command(f, func(_ *cobra.Command, o *CommandOptions) error {
				got := *o
				got.Factory, got.Format = nil, nil
				check(t, got, want)
				return nil
			}), args...)
		})
	}
	t.Run("rollback", func(t *testing.T) {
		parsed(t, NewCmdRollback(f, func(_ *cobra.Command, o *RollbackOptions) error {
			check(t, []any{o.Name, o.Lane, o.Rollout, o.Wait}, []any{"rollback", production, "R0", waitFlags{Wait: true}})
			return nil
		}), "web", "-e", "Production", "--rollout", "R0", "--wait")
		for _, flags := range [][]string{{"--target", "eu-1"}, {"--wave", "2"}} {
			parsed(t, NewCmdRollback(f, func(_ *cobra.Command, o *RollbackOptions) error {
				check(t, o.limited(), strings.TrimPrefix(strings.Join(flags, " "), "--"))
				return nil
			}), append([]string{"web", "-e", "Production"}, flags...)...)
		}
	})
	t.Run("worker", func(t *testing.T) {
		parsed(t, NewCmdWorker(f, func(_ *cobra.Command, o *WorkerOptions) error {
			check(t, []string{o.Config, o.Data}, []string{"w.yaml", "/srv"})
			return nil
		}), "--config", "w.yaml", "--data", "/srv")
	})
	t.Run("run-command", func(t *testing.T) {
		parsed(t, NewCmdRunCommand(func(dir string) int {
			check(t, dir, "/srv/op")
			return 0
		}), "/srv/op")
	})
}

func TestEveryMutatingCommandHasADryRun(t *testing.T) {
	f, _, _ := testFactory(t)
	reads := []string{"validate", "plan", "list", "status", "watch", "explain", "worker", "version", "run-command", "help", "completion"}
	for _, cmd := range newRoot(f).Commands() {
		if !slices.Contains(reads, cmd.Name()) && cmd.Flags().Lookup("dry-run") == nil {
			t.Errorf("%s has no --dry-run", cmd.Name())
		}
	}
}

func TestWithoutTemporalEverythingElseEndsWithSeven(t *testing.T) {
	for _, args := range [][]string{
		{"list"}, {"status", "web", "-e", "P"}, {"watch", "web", "-e", "P"}, {"explain", "web", "-e", "P"}, {"approve", "web", "-e", "P"},
		{"rollback", "web", "-e", "P"}, {"abort", "web", "-e", "P"},
	} {
		f, stdout, _ := testFactory(t)
		if code := exec(t, f, args...); code != exitUnavailable || stdout.Len() > 0 {
			t.Errorf("%v: exit code %d, stdout %q; want 7 and nothing", args, code, stdout)
		}
	}
}

func TestStartRefusesBeforeItConnects(t *testing.T) {
	f, stdout, stderr := testFactory(t)
	f.Connect = func(context.Context) (*temporal, error) {
		t.Error("connected")
		return nil, errors.New("connected")
	}
	f.Plan = func(context.Context, []byte, policy.Request) (activities.Planned, error) {
		return activities.Planned{}, &wire.Refused{Faults: policy.Faults{{Place: policy.Place{File: "web.yaml", Line: 3, Column: 1}, Message: "no wave takes 3 targets"}}}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte("type: Deployment\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := exec(t, f, "start", "web@v1", "-e", "Production", "-f", dir); code != exitRefused {
		t.Errorf("exit code %d, want 3", code)
	}
	if want := filepath.Join(dir, "web.yaml") + ":3:1: no wave takes 3 targets"; !strings.Contains(stderr.String(), want) {
		t.Errorf("stderr %q does not say %q", stderr, want)
	}
	if stdout.Len() > 0 {
		t.Errorf("stdout: %q", stdout)
	}
}

func TestTheSameDocumentsHaveTheSameDigestAnywhere(t *testing.T) {
	var digests []string
	for _, dir := range []string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b", "c")} {
		for name, text := range map[string]string{"fleet.yaml": "x: 1\n", "policies/p.yml": "y: 2\n", ".git/z.yaml": dir} {
			file := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		docs, err := readDocuments([]string{dir})
		if err != nil {
			t.Fatal(err)
		}
		_, digest, err := wire.Pack(docs.files)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("digests differ: %v", digests)
	}
}

func TestNoPartOfAnUploadIsAboveTheLimit(t *testing.T) {
	// Hex digests compress to half: enough for several parts.
	var data []byte
	for len(data) < 6*chunkSize {
		data = append(data, ledger.Digest(data[max(0, len(data)-71):])...)
	}
	chunks, err := cutUp(data)
	if err != nil {
		t.Fatal(err)
	}
	if len(chunks) < 2 {
		t.Fatalf("%d parts, want several", len(chunks))
	}
	for i, chunk := range chunks {
		var text bytes.Buffer
		if err := out.Write(&text, out.NDJSON, workflows.BundleChunk{Index: i, Data: chunk}); err != nil {
			t.Fatal(err)
		}
		if text.Len() > 256<<10 {
			t.Errorf("part %d is %d bytes as a payload, above 256 KiB", i, text.Len())
		}
	}
}
