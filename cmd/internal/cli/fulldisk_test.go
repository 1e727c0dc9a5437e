//go:build full

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// disk is a small file system of its own, to be filled up.
type disk struct {
	t    *testing.T
	path string
}

// newDisk mounts a tmpfs of 8 MiB, far more than the tests write and soon full.
func newDisk(t *testing.T) *disk {
	t.Helper()
	path := t.TempDir()
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, "size=8m,mode=0700"); err != nil {
		t.Fatalf("a file system of limited size cannot be mounted on %s: %v; test-full needs root, or CAP_SYS_ADMIN in a container", path, err)
	}
	t.Cleanup(func() {
		// Lazily: a runner that is just ending may still have its folder open.
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return &disk{t: t, path: path}
}

func (d *disk) filler() string { return filepath.Join(d.path, "filler") }

// fill leaves no room at all. It may be called by a worker's goroutine.
func (d *disk) fill() {
	file, err := os.OpenFile(d.filler(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		d.t.Error(err)
		return
	}
	defer func() { _ = file.Close() }()
	for page := make([]byte, 4096); err == nil; {
		_, err = file.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		d.t.Errorf("fill the disk: %v", err)
	}
}

// free gives the room back.
func (d *disk) free() {
	if err := os.Remove(d.filler()); err != nil {
		d.t.Error(err)
	}
}

// newFullSite is a site whose worker keeps everything on a small disk; the targets are elsewhere.
func newFullSite(t *testing.T) (*site, *disk) {
	t.Helper()
	d := newDisk(t)
	s := newSite(t)
	s.data = d.path
	return s, d
}

// once calls f the first time that the worker comes to a point.
func once(at, target string, f func()) func(*wire.Options) {
	var done atomic.Bool
	return func(o *wire.Options) {
		o.At = func(point, name string) {
			if point == at && name == target && done.CompareAndSwap(false, true) {
				f()
			}
		}
	}
}

// wantOnce wants each target to have been changed to these versions, one after the other and no more.
func (s *site) wantOnce(versions map[string][]string) {
	s.t.Helper()
	got := map[string][]string{}
	for target := range versions {
		got[target] = s.applied(target)
	}
	if diff := cmp.Diff(versions, got, cmpopts.EquateEmpty()); diff != "" {
		s.t.Errorf("what was applied (-want +got):\n%s", diff)
	}
}

// TestDocumentsThatFindNoRoomStartNothing fails when a start with the worker's disk full does not say so, begins, or
// keeps the next one from working once there is room.
func TestDocumentsThatFindNoRoomStartNothing(t *testing.T) {
	t.Parallel()
	s, d := newFullSite(t)
	s.startWorker()
	d.fill()
	stdout, stderr := s.run(exitError, "start", "web@v1", "-e", "Production", "-f", s.documents)
	wants(t, stderr, "the worker cannot store the documents, and nothing was started", "disk is full", d.path, "mend that and start again")
	if stdout != "" {
		t.Errorf("start wrote %q", stdout)
	}
	s.wantUntouched()

	d.free()
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	s.wantOnce(map[string][]string{"eu-1": {"v1"}, "us-1": nil, "us-2": nil})
}

// TestAPlanThatFindsNoRoomIsToldAndComesLater fails when a plan that cannot be stored is lost, or when nobody is told why
// a rollout that was started does not move.
func TestAPlanThatFindsNoRoomIsToldAndComesLater(t *testing.T) {
	t.Parallel()
	s, d := newFullSite(t)
	s.startWorker()
	// The documents of the second start are in the ledger already, its plan is not.
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	s.run(exitOK, "abort", "web", "-e", "Production")
	s.run(exitUnsuccessful, "watch", "web", "-e", "Production")
	d.fill()
	temporal := s.dial()
	f, _, stderr := testFactory(t)
	made, err := makePlan(t.Context(), f, planRequest{Lane: lane{Deployment: "web", Environment: "Production"}, Version: "v2", Files: []string{s.documents}})
	if err != nil {
		t.Fatal(err)
	}
	r := run{lane: lane{Deployment: "web", Environment: "Production"}, rollout: "01JROLLOUT"}
	r.id, err = temporal.start(t.Context(), r.lane, workflows.RolloutInput{Rollout: r.rollout, Mode: workflows.ModeRollout, Deployment: "web", Environment: "Production",
		Version: made.plan.Version, BundleDigest: made.digest, PlanDigest: made.plan.Digest, By: "alice"}, "sluice")
	if err != nil {
		t.Fatal(err)
	}
	if err := temporal.awaitPlan(t.Context(), f, r); err != nil {
		t.Error(err)
	}
	wants(t, stderr.String(), "note: rollout 01JROLLOUT has no plan yet, and goes on when it has: store ", "disk is full")
	_, said := s.run(exitOK, "status", "web", "-e", "Production")
	wants(t, said, "a step fails and is tried again: store ", "disk is full")
	_, said = s.run(exitRefused, "start", "web@v3", "-e", "Production", "-f", s.documents)
	wants(t, said, "is busy: rollout 01JROLLOUT of version v2 is Planned", "a step fails and is tried again: store ", "disk is full")

	d.free()
	s.until("it goes on", func(got workflows.RolloutStatus) bool { return got.State == workflows.AwaitingApproval })
	s.wantOnce(map[string][]string{"eu-1": {"v1", "v2"}, "us-1": nil, "us-2": nil})
}

// TestADiskThatFillsUpBeforeAChangeIsNoFailure fails when a change that could not even be asked for counts as a failure
// of its target, is asked for twice, or waits without a reason.
func TestADiskThatFillsUpBeforeAChangeIsNoFailure(t *testing.T) {
	t.Parallel()
	s, d := newFullSite(t)
	s.startWorker(once("submit.begin", "us-1", d.fill))
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	s.run(exitOK, "approve", "web", "-e", "Production", "--as", "bob")
	s.until("us-1 waits for room", func(workflows.RolloutStatus) bool {
		stdout, _ := s.run(exitOK, "explain", "web", "-e", "Production", "--target", "us-1")
		return strings.Contains(stdout, "us-1 is Waiting: ") && strings.Contains(stdout, "the worker's disk is full")
	})
	stdout, _ := s.run(exitOK, "explain", "web", "-e", "Production", "--target", "us-1", "-o", "json")
	if got := decode[Explanation](t, stdout).Target; got == nil || got.State != policy.Waiting || !strings.Contains(got.Reason, "the worker's disk is full") {
		t.Errorf("explain --target us-1: %+v, want Waiting because the disk is full", got)
	}
	if got := s.status(); got.State != workflows.Running || got.Counts[policy.Failed] > 0 {
		t.Errorf("with the disk full: %s, %v; want Running and no failure", got.State, got.Counts)
	}
	s.wantOnce(map[string][]string{"eu-1": {"v1"}, "us-1": nil})

	d.free()
	s.run(exitOK, "watch", "web", "-e", "Production")
	if done := s.status(); done.State != workflows.Succeeded || done.Counts[policy.Succeeded] != 3 {
		t.Errorf("at the end: %s, %v; want three successes", done.State, done.Counts)
	}
	s.wantOnce(map[string][]string{"eu-1": {"v1"}, "us-1": {"v1"}, "us-2": {"v1"}})
}

// TestADiskThatFillsUpUnderTheRunnerAsksAgainOnce fails when a change that was asked for, and could not begin, is given up,
// made twice, or waits without a reason in Temporal.
func TestADiskThatFillsUpUnderTheRunnerAsksAgainOnce(t *testing.T) {
	t.Parallel()
	s, d := newFullSite(t)
	s.startWorker(func(o *wire.Options) {
		// The first runner fills the disk before it does anything.
		script := fmt.Sprintf(`mkdir '%s/once' 2>/dev/null && cat /dev/zero >'%s' 2>/dev/null; exec "$@"`, s.fleet, d.filler())
		o.Runner = append([]string{"/bin/sh", "-c", script, "sh"}, o.Runner...)
	})
	stdout, _ := s.run(exitOK, "start", "web@v1", "-e", "Production", "-f", s.documents, "-o", "json")
	attempt := workflows.TargetID(workflows.WaveID("Production", "web", decode[Started](t, stdout).Rollout, 1), "eu-1", 1)
	temporal := s.dial()
	s.until("the change waits for room", func(workflows.RolloutStatus) bool {
		return strings.Contains(temporal.trouble(t.Context(), attempt, ""), "no space left on device")
	})
	s.wantOnce(map[string][]string{"eu-1": nil})

	d.free()
	s.until("the change is made", func(got workflows.RolloutStatus) bool { return got.State == workflows.AwaitingApproval })
	s.wantOnce(map[string][]string{"eu-1": {"v1"}})
}

// TestADiskThatFillsUpDuringAChangeLosesNoEnd fails when the end of a change that found no room is lost, so that the
// change counts as unknown, or is made again. Without a check nothing but the record of its end can tell it.
func TestADiskThatFillsUpDuringAChangeLosesNoEnd(t *testing.T) {
	t.Parallel()
	s, d := newFullSite(t)
	s.edit("        check: [sh, -c, 'cat "+s.fleet+"/{{.target.name}} || echo v0']\n", "")
	s.edit("        rollback: [sh, -c, 'echo \"$SLUICE_VERSION\" > "+s.fleet+"/{{.target.name}}']\n", "")
	// The script of us-1 waits until the disk is full.
	s.edit("apply: [sh, -c, '", "apply: [sh, -c, 'if [ {{.target.name}} = us-1 ]; then : > FLEET/begun; while [ ! -e FLEET/go ]; do sleep 0.05; done; fi; ")
	s.edit("FLEET", s.fleet)
	s.edit("FLEET", s.fleet)
	s.startWorker()
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	s.run(exitOK, "approve", "web", "-e", "Production", "--as", "bob")
	s.until("the script of us-1 has begun", func(workflows.RolloutStatus) bool {
		_, err := os.Stat(filepath.Join(s.fleet, "begun"))
		return err == nil
	})
	d.fill()
	if err := os.WriteFile(filepath.Join(s.fleet, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.until("the script of us-1 has ended", func(workflows.RolloutStatus) bool { return len(s.applied("us-1")) > 0 })
	// A lost end would be noticed within half a second; this is to see that it is not.
	for looks := 0; looks < 40; looks++ {
		if got := s.status(); got.State != workflows.Running || got.Counts[policy.NeedsRecovery]+got.Counts[policy.Failed] > 0 {
			t.Fatalf("with the disk full: %s, %v; want Running and nothing lost", got.State, got.Counts)
		}
		time.Sleep(50 * time.Millisecond)
	}
	d.free()
	s.run(exitOK, "watch", "web", "-e", "Production")
	s.wantOnce(map[string][]string{"eu-1": {"v1"}, "us-1": {"v1"}, "us-2": {"v1"}})
}

// TestADiskThatFillsUpBeforeARecordKeepsIt fails when what a rollout has done is not recorded once there is room again, or
// nobody is told what it waits for. What was reached goes back from the record.
func TestADiskThatFillsUpBeforeARecordKeepsIt(t *testing.T) {
	t.Parallel()
	s, d := newFullSite(t)
	// The first target is verified before the record that follows its wave.
	var full atomic.Bool
	s.startWorker(func(o *wire.Options) {
		verified := false
		o.At = func(point, target string) {
			verified = verified || point == "verify.end"
			if point == "record.begin" && verified && full.CompareAndSwap(false, true) {
				d.fill()
			}
		}
	})
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	s.until("the record waits for room", func(workflows.RolloutStatus) bool {
		_, stderr := s.run(exitOK, "status", "web", "-e", "Production")
		return strings.Contains(stderr, "a step fails and is tried again: record rollout ") && strings.Contains(stderr, "disk is full")
	})
	// A stop needs neither room nor record.
	s.run(exitOK, "abort", "web", "-e", "Production")
	s.until("it is aborted", func(got workflows.RolloutStatus) bool { return got.State == workflows.Aborted })
	_, stderr := s.run(exitRefused, "start", "web@v2", "-e", "Production", "-f", s.documents)
	wants(t, stderr, "is busy: ", "a step fails and is tried again: record rollout ")

	d.free()
	s.run(exitUnsuccessful, "watch", "web", "-e", "Production")
	stdout, _ := s.run(exitOK, "rollback", "web", "-e", "Production", "--wait", "-o", "json")
	if back := decode[workflows.RolloutStatus](t, stdout); back.State != workflows.RolledBack || back.Rollback == nil || back.Rollback.Targets != 1 {
		t.Errorf("the way back from the record: %+v, want one target RolledBack", back)
	}
	s.wantOnce(map[string][]string{"eu-1": {"v1"}, "us-1": nil, "us-2": nil})
}

// TestAWorkerThatFindsNoRoomSaysSo fails when a worker on a full disk does not end with the reason, or cannot start there
// once it has room.
func TestAWorkerThatFindsNoRoomSaysSo(t *testing.T) {
	s, d := newFullSite(t)
	t.Setenv("TEMPORAL_ADDRESS", s.options.HostPort)
	t.Setenv("TEMPORAL_NAMESPACE", s.options.Namespace)
	d.fill()
	stdout, stderr := s.run(exitError, "worker", "--data", d.path)
	wants(t, stderr, "open ledger "+filepath.Join(d.path, "ledger.db"), "full")
	if stdout != "" {
		t.Errorf("worker wrote %q", stdout)
	}
	d.free()
	s.startWorker()
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
}
