package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

func TestMain(m *testing.M) {
	// The runner of command steps is this program.
	if len(os.Args) == 3 && os.Args[1] == wire.RunCommand {
		os.Exit(wire.RunOperation(os.Args[2]))
	}
	code := m.Run()
	if server.started != nil {
		if err := server.started.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// server is shared by the tests that need one, and started by the first of them; each has a namespace of its own.
var server struct {
	once       sync.Once
	started    *embed.Server
	err        error
	namespaces atomic.Int64
}

func silent() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// site is one test's world: a namespace, documents, a fleet of files, and at most one worker.
type site struct {
	t         *testing.T
	options   client.Options
	documents string
	data      string
	fleet     string // holds a file for each target with its version, and a log of what was applied to it
	worker    *wire.Worker
	client    client.Client
}

func newSite(t *testing.T) *site {
	t.Helper()
	server.once.Do(func() {
		server.started, server.err = embed.Start(context.Background(), embed.Options{FrontendAddr: "127.0.0.1:0", Synchronous: embed.SynchronousNormal, Logger: silent()})
	})
	if server.err != nil {
		t.Fatal(server.err)
	}
	namespace := fmt.Sprintf("cli-%d", server.namespaces.Add(1))
	if err := server.started.CreateNamespace(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, documents: t.TempDir(), data: t.TempDir(),
		options: client.Options{HostPort: server.started.HostPort(), Namespace: namespace, Logger: sdklog.NewStructuredLogger(silent())}}
	s.fleet = t.TempDir()
	text := strings.ReplaceAll(`
type: Environment
name: Production
resourceSelector: "true"
---
- {type: Resource, name: eu-1, metadata: {tier: canary}}
- {type: Resource, name: us-1, metadata: {tier: main}}
- {type: Resource, name: us-2, metadata: {tier: main}}
---
type: Deployment
name: web
steps:
  apply:
    - name: install
      command:
        check: [sh, -c, 'cat FLEET/{{.target.name}} || echo v0']
        apply: [sh, -c, 'echo "$SLUICE_VERSION" > FLEET/{{.target.name}}; echo "$SLUICE_VERSION" >> FLEET/{{.target.name}}.applied']
        rollback: [sh, -c, 'echo "$SLUICE_VERSION" > FLEET/{{.target.name}}']
---
type: Policy
name: production
rules:
  - waves:
      - {name: canary, select: target.metadata.tier == "canary"}
      - {name: rest, select: "true", maxConcurrency: 2, approval: {min: 1}}
`, "FLEET", s.fleet)
	if err := os.WriteFile(filepath.Join(s.documents, "all.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.client, err = client.Dial(s.options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.stopWorker()
		s.client.Close()
	})
	return s
}

func (s *site) startWorker(changes ...func(*wire.Options)) {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	o := wire.Options{DataDir: s.data, Namespace: s.options.Namespace, Logger: silent(), Runner: []string{self, wire.RunCommand}}
	for _, change := range changes {
		change(&o)
	}
	s.worker, err = wire.NewWorker(s.t.Context(), s.client, o)
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) stopWorker() {
	if s.worker != nil {
		s.worker.Stop()
		s.worker = nil
	}
}

// run runs a command line and wants an exit code.
func (s *site) run(code int, args ...string) (stdout, stderr string) {
	s.t.Helper()
	f, o, e := testFactory(s.t)
	f.Now = time.Now
	f.Connect = func(ctx context.Context) (*temporal, error) { return dialWith(ctx, s.options, f) }
	if got := exec(s.t, f, args...); got != code {
		s.t.Fatalf("%v: exit code %d, want %d\nstdout: %s\nstderr: %s", args, got, code, o, e)
	}
	return o.String(), e.String()
}

// status asks for the status as JSON.
func (s *site) status(args ...string) workflows.RolloutStatus {
	s.t.Helper()
	stdout, _ := s.run(exitOK, append([]string{"status", "web", "-e", "Production", "-o", "json"}, args...)...)
	return decode[workflows.RolloutStatus](s.t, stdout)
}

// until asks for the status until it is as wanted.
func (s *site) until(what string, holds func(workflows.RolloutStatus) bool) workflows.RolloutStatus {
	s.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		got := s.status()
		if holds(got) {
			return got
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("never: %s; the status is %+v", what, got)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// applied lists what was applied to a target, in order.
func (s *site) applied(target string) []string {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.fleet, target+".applied"))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	return strings.Fields(string(data))
}

// wantUntouched wants no target to have been changed, and no rollout to have begun.
func (s *site) wantUntouched() {
	s.t.Helper()
	files, err := os.ReadDir(s.fleet)
	if err != nil || len(files) > 0 {
		s.t.Errorf("targets were changed: %v (%v)", files, err)
	}
	s.run(exitNotFound, "status", "web", "-e", "Production")
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var value T
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return value
}

// wants is an error unless text holds all parts.
func wants(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in:\n%s", part, text)
		}
	}
}

func TestWithoutAWorkerNothingIsStarted(t *testing.T) {
	s := newSite(t)
	stdout, stderr := s.run(exitUnavailable, "start", "web@v1", "-e", "Production", "-f", s.documents)
	wants(t, stderr, "no worker is polling sluice-control", "sluice worker")
	if stdout != "" {
		t.Errorf("stdout: %q", stdout)
	}
	_, stderr = s.run(exitNotFound, "status", "web", "-e", "Production")
	wants(t, stderr, "there is no rollout of web in Production")
	s.run(exitNotFound, "rollback", "web", "-e", "Production")
}

func TestAMissingNamespaceIsNamed(t *testing.T) {
	s := newSite(t)
	s.options.Namespace = "nowhere"
	_, stderr := s.run(exitUnavailable, "status", "web", "-e", "Production")
	wants(t, stderr, `namespace "nowhere" does not exist`, "TEMPORAL_NAMESPACE")
}

func TestARolloutIsWalkedAndTakenBackFromTheCommandLine(t *testing.T) {
	s := newSite(t)
	s.startWorker()

	// With nobody there to answer, start ends when a person is asked for, and says so.
	stdout, stderr := s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input", "-o", "json")
	asked := decode[workflows.RolloutStatus](t, stdout)
	if asked.State != workflows.AwaitingApproval || asked.By != "alice" || asked.Version.Name != "v1" {
		t.Errorf("status after start: %+v", asked)
	}
	wants(t, stderr, "3 targets in 2 waves", "waits for a person")

	// The lane is busy for everybody else, and the refusal names who has it.
	_, stderr = s.run(exitRefused, "start", "web@v2", "-e", "Production", "-f", s.documents)
	wants(t, stderr, "is busy", asked.Rollout, "v1")

	// explain says what lifts the wait, and the command that it names works.
	stdout, _ = s.run(exitOK, "explain", "web", "-e", "Production", "--target", "eu-1")
	wants(t, stdout, "rule approval of policy production", "$ sluice approve web -e Production --wave 2", "eu-1 is Succeeded")

	// A dry run sends nothing; a command that cannot be meant is refused with the reason.
	s.run(exitOK, "approve", "web", "-e", "Production", "--dry-run")
	_, stderr = s.run(exitRefused, "approve", "web", "-e", "Production", "--wave", "7")
	wants(t, stderr, "approve was refused", "wave 7")
	s.run(exitRefused, "approve", "web", "-e", "Production", "--rollout", "01JOTHER")
	if got := s.status(); len(got.Commands) != 1 {
		t.Errorf("%d commands arrived, want only the refused one: %+v", len(got.Commands), got.Commands)
	}

	// pause and resume are acknowledged.
	stdout, _ = s.run(exitOK, "pause", "web", "-e", "Production", "--reason", "look", "-o", "json")
	if sent := decode[Sent](t, stdout); sent.Receipt == nil || !sent.Receipt.Accepted || sent.Payload.Rollout != asked.Rollout {
		t.Errorf("pause: %+v", sent)
	}
	s.run(exitOK, "resume", "web", "-e", "Production")

	// watch follows to the end.
	s.run(exitOK, "approve", "web", "-e", "Production", "--as", "bob", "--wave", "2")
	stdout, _ = s.run(exitOK, "watch", "web", "-e", "Production")
	wants(t, stdout, "wave 1 (canary) opened", "approve by bob", "wave 2 (rest) opened", "Succeeded")
	done := s.status()
	if done.State != workflows.Succeeded || len(done.Approvals) != 1 || done.Approvals[0].By != "bob" {
		t.Errorf("status at the end: %+v", done)
	}
	_, stderr = s.run(exitNotFound, "approve", "web", "-e", "Production")
	wants(t, stderr, "no rollout of web in Production is open", "Succeeded")

	// A later rollback is a run of its own in the lane.
	stdout, _ = s.run(exitOK, "rollback", "web", "-e", "Production", "--dry-run", "-o", "json")
	if would := decode[Started](t, stdout); would.Of != asked.Rollout || would.Run != "" {
		t.Errorf("rollback --dry-run: %+v", would)
	}
	stdout, _ = s.run(exitOK, "rollback", "web", "-e", "Production", "--reason", "latency", "--wait", "-o", "ndjson")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	back := decode[workflows.RolloutStatus](t, lines[len(lines)-1])
	if back.State != workflows.RolledBack || back.Of != asked.Rollout || back.Mode != workflows.ModeRollback {
		t.Errorf("after the rollback: %+v", back)
	}
	// The first rollout is still there under its id.
	if first := s.status("--rollout", asked.Rollout); first.State != workflows.Succeeded {
		t.Errorf("the first rollout is shown as %s", first.State)
	}
	s.run(exitNotFound, "status", "web", "-e", "Production", "--rollout", "01JOTHER")

	stdout, _ = s.run(exitOK, "list", "--all", "-o", "json")
	listed := decode[[]Listed](t, stdout)
	if len(listed) != 2 || listed[0].Rollout != back.Rollout || listed[0].State != "RolledBack" || listed[1].State != "Succeeded" {
		t.Errorf("list --all: %+v", listed)
	}
	stdout, stderr = s.run(exitOK, "list")
	if stdout != "" {
		t.Errorf("list: %q", stdout)
	}
	wants(t, stderr, "--all")
}

func TestAStopIsTakenWithNoWorkerAlive(t *testing.T) {
	s := newSite(t)
	s.startWorker()
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	s.stopWorker()

	stdout, stderr := s.run(exitOK, "abort", "web", "-e", "Production", "--reason", "no worker", "-o", "json")
	if sent := decode[Sent](t, stdout); !sent.Stored || sent.Receipt != nil {
		t.Errorf("abort without a worker: %+v", sent)
	}
	wants(t, stderr, "the command is stored and takes effect")
	stdout, stderr = s.run(exitOK, "status", "web", "-e", "Production")
	wants(t, stdout, "web@v1 in Production: AwaitingApproval", "by       alice")
	wants(t, stderr, "only what Temporal itself knows")

	s.startWorker()
	_, stderr = s.run(exitUnsuccessful, "watch", "web", "-e", "Production")
	wants(t, stderr, "ended as Aborted")
}

func TestAWorkflowEndedInTemporalIsNotShownAsRunning(t *testing.T) {
	s := newSite(t)
	s.startWorker()
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	if err := s.client.TerminateWorkflow(t.Context(), workflows.RolloutID("Production", "web"), "", "by hand"); err != nil {
		t.Fatal(err)
	}
	got := s.status()
	if got.State != workflows.Failed || !strings.Contains(got.Reason, "ended in Temporal (terminated) while it was AwaitingApproval") {
		t.Errorf("status: %s: %s", got.State, got.Reason)
	}
	s.run(exitUnsuccessful, "watch", "web", "-e", "Production")
}

func TestAnEarlierRolloutIsTakenBackPastOneThatHasStartedNothing(t *testing.T) {
	s := newSite(t)
	s.startWorker()
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	s.run(exitOK, "approve", "web", "-e", "Production", "--as", "bob")
	s.run(exitOK, "watch", "web", "-e", "Production")
	first := s.status()

	s.edit("  - waves:", "  - approval: {min: 1}\n  - waves:")
	s.run(exitPerson, "start", "web@v2", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	second := s.status()
	if second.State != workflows.AwaitingApproval || second.Counts["Pending"] != second.Targets {
		t.Fatalf("the second rollout: %s, %v", second.State, second.Counts)
	}
	_, stderr := s.run(exitOK, "rollback", "web", "-e", "Production", "--rollout", first.Rollout, "--wait")
	wants(t, stderr, "had started nothing and yields the lane")
	if got := s.status(); got.State != workflows.RolledBack || got.Of != first.Rollout {
		t.Errorf("afterwards: %s of %s, want RolledBack of %s", got.State, got.Of, first.Rollout)
	}
}

// edit replaces a part of the documents.
func (s *site) edit(old, replacement string) {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.documents, "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	found := false
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			s.t.Fatal(err)
		}
		if !strings.Contains(string(data), old) {
			continue
		}
		found = true
		if err := os.WriteFile(file, []byte(strings.Replace(string(data), old, replacement, 1)), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	if !found {
		s.t.Fatalf("the documents do not contain %q", old)
	}
}

// TestOneTargetOrWaveIsTakenBackFromTheCommandLine fails when more than the one that was named goes back, when a dry run
// does not say so, or when the rollout goes on before somebody resumes.
func TestOneTargetOrWaveIsTakenBackFromTheCommandLine(t *testing.T) {
	s := newSite(t)
	s.startWorker()
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")

	stdout, _ := s.run(exitOK, "rollback", "web", "-e", "Production", "--target", "eu-1", "--dry-run")
	wants(t, stdout, "would send rollback target eu-1", "eu-1 (Succeeded) goes back to", "no other target does, then the rollout holds until resume")
	stdout, _ = s.run(exitOK, "rollback", "web", "-e", "Production", "--wave", "1", "--dry-run")
	wants(t, stdout, "would send rollback wave 1", "up to 1 target that the change reached of wave 1 go back")
	_, stderr := s.run(exitRefused, "rollback", "web", "-e", "Production", "--target", "us-1")
	wants(t, stderr, "rollback was refused", "us-1 has not been reached")

	stdout, stderr = s.run(exitOK, "rollback", "web", "-e", "Production", "--target", "eu-1", "--reason", "latency", "--wait")
	wants(t, stderr, "accepted: eu-1 goes back to", "nothing new starts until resume")
	wants(t, stdout, `eu-1 went back by hand (alice: "latency")`, "by hand: eu-1 by alice: latency; 1 target, 0 in flight: 1 RolledBack", "$ sluice resume web -e Production")
	stdout, _ = s.run(exitOK, "explain", "web", "-e", "Production", "--target", "eu-1")
	wants(t, stdout, "rule rollback", "lifted by: resume goes on without it", "eu-1 is RolledBack")
	stdout, _ = s.run(exitOK, "rollback", "web", "-e", "Production", "--target", "eu-1")
	wants(t, stdout, "this changes nothing")

	s.run(exitOK, "approve", "web", "-e", "Production", "--as", "bob", "--wave", "2")
	if held := s.status(); held.State != workflows.Holding || len(s.applied("us-1")) > 0 {
		t.Errorf("before the resume: %s (%s), us-1 changed: %v", held.State, held.Reason, s.applied("us-1"))
	}
	stdout, _ = s.run(exitOK, "resume", "web", "-e", "Production")
	wants(t, stdout, "it goes on without eu-1")
	s.run(exitOK, "watch", "web", "-e", "Production")
	done := s.status()
	if done.State != workflows.Succeeded || done.Counts[policy.RolledBack] != 1 || done.Counts[policy.Succeeded] != 2 {
		t.Errorf("at the end: %s (%s), counts %v", done.State, done.Reason, done.Counts)
	}

	// The same of a rollout that has ended is a run of its own.
	stdout, stderr = s.run(exitOK, "rollback", "web", "-e", "Production", "--target", "us-1", "--dry-run")
	wants(t, stdout, "would start rollback of target us-1 of rollout "+done.Rollout)
	wants(t, stderr, "take back target us-1 of rollout "+done.Rollout, "nothing else is touched")
	_, stderr = s.run(exitRefused, "rollback", "web", "-e", "Production", "--target", "mars-1")
	wants(t, stderr, `has reached no target "mars-1"`)
	stdout, _ = s.run(exitOK, "rollback", "web", "-e", "Production", "--wave", "2", "--wait", "-o", "json")
	if back := decode[workflows.RolloutStatus](t, stdout); back.State != workflows.RolledBack || back.Rollback == nil || back.Rollback.Targets != 2 {
		t.Errorf("the wave's rollback: %+v", back)
	}
}

// TestARefusedRunIsNotTheOneToTakeBack fails when a run that its worker refused, and of which nothing is on record, stands
// in the way of taking back the rollout before it.
func TestARefusedRunIsNotTheOneToTakeBack(t *testing.T) {
	s := newSite(t)
	s.startWorker()
	refuse := func(version string) {
		t.Helper()
		f, _, _ := testFactory(t)
		f.Now = time.Now
		c, err := dialWith(t.Context(), s.options, f)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l := lane{Deployment: "web", Environment: "Production"}
		if _, err := c.start(t.Context(), l, workflows.RolloutInput{Rollout: "01REFUSED" + version, Mode: workflows.ModeRollout, Deployment: "web", Environment: "Production",
			Version: policy.Version{Name: version}, BundleDigest: digest("nothing"), PlanDigest: digest("another"), By: "alice"}, "sluice"); err != nil {
			t.Fatal(err)
		}
		s.until("the refusal", func(got workflows.RolloutStatus) bool {
			return got.State == workflows.Failed && strings.Contains(got.Reason, "nothing was started")
		})
	}
	refuse("v0")
	_, stderr := s.run(exitNotFound, "rollback", "web", "-e", "Production", "--dry-run")
	wants(t, stderr, "nothing to take back", "01REFUSEDv0", "refused, nothing was started")

	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	s.run(exitOK, "approve", "web", "-e", "Production", "--as", "bob")
	s.run(exitOK, "watch", "web", "-e", "Production")
	first := s.status()
	refuse("v2")
	stdout, stderr := s.run(exitOK, "rollback", "web", "-e", "Production", "--dry-run", "-o", "json")
	if would := decode[Started](t, stdout); would.Of != first.Rollout {
		t.Errorf("a dry run would take back %s, want %s", would.Of, first.Rollout)
	}
	wants(t, stderr, "rollout 01REFUSEDv2 of version v2 is passed over, it started nothing: refused")
	refuse("v3")
	_, stderr = s.run(exitRefused, "rollback", "web", "-e", "Production", "--rollout", "01REFUSEDv3")
	wants(t, stderr, "nothing to take back", "01REFUSEDv3")
	_, stderr = s.run(exitOK, "rollback", "web", "-e", "Production", "--wait")
	wants(t, stderr, "the last 2 rollouts of web in Production are passed over")
	if got := s.status(); got.State != workflows.RolledBack || got.Of != first.Rollout {
		t.Errorf("afterwards: %s of %s, want RolledBack of %s", got.State, got.Of, first.Rollout)
	}
}
