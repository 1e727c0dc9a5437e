package command

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

// TestWorkerKilledWhileAwaiting fails when a running script dies, or is run again, because its worker was killed.
func TestWorkerKilledWhileAwaiting(t *testing.T) {
	s := newSite(t, "1.0")
	s.hang("hang")
	c := s.change("op", nil)
	w := s.startWorker(order{Options: s.options(), Change: c, Await: true})
	w.begin()
	w.wantLine("submitted <nil>")
	s.reached()
	w.kill()
	s.wantRunning(c)
	s.release()
	s.wantResult(s.await(c), executors.Result{Outcome: executors.Succeeded})
	s.wantEffects("op", 1)
	if got := s.read("version"); got != "2.0" {
		t.Errorf("the target runs %q, want 2.0", got)
	}
}

// TestWorkerKilledBeforeItsRunner fails when a request without a runner is ever started, or never given up.
func TestWorkerKilledBeforeItsRunner(t *testing.T) {
	s := newSite(t, "1.0")
	c := s.change("op", nil)
	h, err := openHome(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	op, err := h.make("op")
	if err != nil {
		t.Fatal(err)
	}
	// Opening a FIFO for writing waits for a reader: the worker stops between the request and the runner.
	if err := syscall.Mkfifo(op.file(runnerLogFile), 0o600); err != nil {
		t.Fatal(err)
	}
	w := s.startWorker(order{Options: s.options(), Change: c})
	w.begin()
	s.until("the request is written", func() bool { return op.has(requestFile) })
	s.wantRunning(c)
	if _, err := s.worker().Submit(context.Background(), c); err == nil || vouches(err) {
		t.Errorf("Submit while another Submit is at it: %v, want an error that leads to Await", err)
	}
	w.kill()
	if err := os.Remove(op.file(runnerLogFile)); err != nil {
		t.Fatal(err)
	}
	s.wantNotStartedAgain(c)
	s.wantFenced(c)
}

// wantNotStartedAgain submits an operation that has a request, and that nothing holds any more.
func (s *site) wantNotStartedAgain(c executors.Change) {
	s.t.Helper()
	s.until("the lock is free", func() bool {
		lock, free, err := s.operation(c.Operation).tryLock()
		if free {
			unlock(lock)
		}
		return free && err == nil
	})
	_, err := s.worker().Submit(context.Background(), c)
	want := fmt.Sprintf("command: submit %q: the operation was submitted before; await it, it is never started twice", c.Operation)
	if err == nil || err.Error() != want {
		s.t.Errorf("Submit again: %v, want %s", err, want)
	}
}

// TestSubmitAgain fails when an operation that has ended can be started anew.
func TestSubmitAgain(t *testing.T) {
	s := newSite(t, "1.0")
	c := s.change("op", nil)
	s.submit(c)
	s.await(c)
	s.wantNotStartedAgain(c)
	s.wantResult(s.await(c), executors.Result{Outcome: executors.Succeeded})
	s.wantEffects("op", 1)
}

// vouches reports whether the error says that nothing was started.
func vouches(err error) bool {
	return errors.Is(err, executors.ErrRejected) || errors.Is(err, executors.ErrBlocked) || errors.Is(err, executors.ErrUnreachable)
}

// TestWorkerKilledAnywhereInSubmit fails when there is a moment in Submit at which a killed worker leaves an operation
// that runs although Await gave it up, that runs twice, or that nobody can tell the end of.
func TestWorkerKilledAnywhereInSubmit(t *testing.T) {
	s := newSite(t, "1.0")
	outcomes := map[string]int{}
	for i := range 25 {
		op := fmt.Sprintf("op-%d", i)
		c := s.change(op, nil)
		s.write("version", "1.0")
		w := s.startWorker(order{Options: s.options(), Change: c})
		w.begin()
		time.Sleep(time.Duration(rand.Int64N(int64(6 * time.Millisecond)))) // not for a result: to hit another moment each time
		w.kill()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		result, err := s.worker().Await(ctx, c, executors.Ticket{})
		cancel()
		switch {
		case errors.Is(err, executors.ErrNotSubmitted):
			outcomes["not submitted"]++
			s.wantFenced(c)
		case err == nil && result.Outcome == executors.Succeeded:
			outcomes["succeeded"]++
			s.wantEffects(op, 1)
		default:
			t.Fatalf("Await: %+v, %v", result, err)
		}
	}
	t.Logf("how the operations ended: %v", outcomes)
}

// TestRunnerKilled fails when the end of a script whose runner was killed is guessed instead of read from the target.
func TestRunnerKilled(t *testing.T) {
	const lost = "apply on edge-1 was interrupted and left no record of its end"
	reading := func(version string) executors.Reading {
		return executors.Reading{Known: true, Version: version, Detail: "printed by the step's check"}
	}
	for name, test := range map[string]struct {
		how       string // what the script does while and after it hangs
		replace   map[string]any
		version   string // on the target before
		from, to  string
		killed    bool // the script, too
		want      executors.Result
		putBefore string // version put onto the target by others meanwhile
	}{
		"the script lives on and ends well": {
			how: "hang", from: "1.0", to: "2.0",
			want: executors.Result{Outcome: executors.Succeeded, Reason: lost + "; the check decided: the target runs 2.0", Reading: reading("2.0")},
		},
		"the script lives on and does nothing": {
			how: "hang-and-do-nothing", from: "1.0", to: "2.0",
			want: executors.Result{Outcome: executors.Failed, Reason: lost + " before it took effect; the target still runs 1.0", Retryable: true, Reading: reading("1.0")},
		},
		"the script dies after its effect": {
			how: "change-and-hang", from: "1.0", to: "2.0", killed: true,
			want: executors.Result{Outcome: executors.Succeeded, Reason: lost + "; the check decided: the target runs 2.0", Reading: reading("2.0")},
		},
		"the script dies before its effect": {
			how: "hang", from: "1.0", to: "2.0", killed: true,
			want: executors.Result{Outcome: executors.Failed, Reason: lost + " before it took effect; the target still runs 1.0", Retryable: true, Reading: reading("1.0")},
		},
		"nothing was installed before, as far as is known": {
			how: "hang", version: "none", from: "", to: "2.0", killed: true,
			want: executors.Result{Outcome: executors.Failed, Reason: lost + " before it took effect; the target still runs nothing", Reading: reading("")},
		},
		"the target runs something else": {
			how: "hang", from: "1.0", to: "2.0", killed: true, putBefore: "1.7",
			want: executors.Result{Outcome: executors.Indeterminate, Reason: lost + "; the target runs 1.7, which is neither the version wanted (2.0) nor the one before (1.0)", Reading: reading("1.7")},
		},
		"the version was there before": {
			how: "hang", from: "1.0", to: "1.0", killed: true,
			want: executors.Result{Outcome: executors.Indeterminate, Reason: lost + "; the target runs 1.0, but it did so before, so the check can't tell what was done", Reading: reading("1.0")},
		},
		"there is no check": {
			how: "hang", replace: map[string]any{"check": nil}, from: "1.0", to: "2.0", killed: true,
			want: executors.Result{Outcome: executors.Indeterminate, Reason: lost + "; what it did is unknown, because the step has no check"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, strings.TrimPrefix(map[string]string{"": "1.0"}[test.version], "none"))
			s.hang(test.how)
			c := s.change("op", test.replace)
			c.From, c.Version = test.from, test.to
			s.submit(c)
			s.killRunner("op")
			s.wantRunning(c)
			if test.putBefore != "" {
				s.write("version", test.putBefore)
			}
			if test.killed {
				s.killScript()
			} else {
				s.release()
			}
			s.wantResult(s.await(c), test.want)
			s.wantResult(s.await(c), test.want)
			s.wantEffects("op", 1)
		})
	}
}

// TestScriptKilled fails when a script that somebody killed counts as one that failed cleanly.
func TestScriptKilled(t *testing.T) {
	s := newSite(t, "1.0")
	s.hang("hang")
	c := s.change("op", map[string]any{"check": nil})
	s.submit(c)
	s.killScript()
	s.wantResult(s.await(c), executors.Result{
		Outcome: executors.Indeterminate,
		Reason:  "apply on edge-1 was ended by a signal (killed); what it did is unknown, because the step has no check",
	})
}

// TestRunnerOutlivesSignals fails when a signal to everything on the machine keeps the end from being recorded.
func TestRunnerOutlivesSignals(t *testing.T) {
	s := newSite(t, "1.0")
	s.hang("hang")
	c := s.change("op", nil)
	s.submit(c)
	s.reached()
	var m mark
	if _, err := s.operation("op").readJSON(startedFile, &m); err != nil {
		t.Fatal(err)
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if err := syscall.Kill(m.PID, signal); err != nil {
			t.Fatal(err)
		}
	}
	s.release()
	s.wantResult(s.await(c), executors.Result{Outcome: executors.Succeeded})
}

// TestRunnerThatNeverStarts fails when a broken runner leaves an operation in doubt, or its words are lost.
func TestRunnerThatNeverStarts(t *testing.T) {
	s := newSite(t, "1.0")
	o := s.options()
	o.Runner = []string{"/bin/sh", "-c", "echo unknown command run-operation >&2; exit 2"}
	c := s.change("op", nil)
	ticket, err := New(o).Submit(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.worker().Await(context.Background(), c, ticket)
	const want = `command: await "op": not submitted: its runner said: unknown command run-operation`
	if !errors.Is(err, executors.ErrNotSubmitted) || err.Error() != want {
		t.Errorf("Await: %v, want %s", err, want)
	}
	s.wantFenced(c)
}

// TestRunnerThatCannotBeRun fails when a Submit that vouches that nothing started spoils the operation for a later one.
func TestRunnerThatCannotBeRun(t *testing.T) {
	s := newSite(t, "1.0")
	o := s.options()
	o.Runner = []string{s.path("missing")}
	c := s.change("op", nil)
	if _, err := New(o).Submit(context.Background(), c); !errors.Is(err, executors.ErrRejected) {
		t.Errorf("Submit: %v, want ErrRejected", err)
	}
	s.submit(c)
	s.wantResult(s.await(c), executors.Result{Outcome: executors.Succeeded})
	s.wantEffects("op", 1)
}

// TestRunnerRefuses fails when a runner that Submit did not start runs the script.
func TestRunnerRefuses(t *testing.T) {
	s := newSite(t, "1.0")
	s.hang("hang")
	c := s.change("op", nil)
	s.submit(c)
	s.reached()
	op := s.operation("op")
	startRunner := func(extra ...*os.File) string {
		t.Helper()
		cmd := exec.Command("env", append(s.itself("run-operation")[1:], string(op))...)
		cmd.ExtraFiles = extra
		output, err := cmd.CombinedOutput()
		var status *exec.ExitError
		if !errors.As(err, &status) || status.ExitCode() != 1 {
			t.Errorf("runner: %v, want exit code 1", err)
		}
		return strings.TrimPrefix(strings.TrimSpace(string(output)), fmt.Sprintf("command: runner of %s: not started, because ", op))
	}
	if got := startRunner(); !strings.HasPrefix(got, "the lock was not inherited") && got != "descriptor 3 is not the operation's lock" {
		t.Errorf("without a lock: %q", got)
	}
	other, err := os.Open(s.path("apply.sh"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if got, want := startRunner(other), "descriptor 3 is not the operation's lock"; got != want {
		t.Errorf("with another file: %q, want %q", got, want)
	}
	lock, err := os.Open(op.file(lockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if got, want := startRunner(lock), "the lock is held by another: resource temporarily unavailable"; got != want {
		t.Errorf("while the operation runs: %q, want %q", got, want)
	}
	s.release()
	s.wantResult(s.await(c), executors.Result{Outcome: executors.Succeeded})
	var free bool
	s.until("the lock is free", func() bool {
		var err error
		lock, free, err = op.tryLock()
		return free && err == nil
	})
	defer unlock(lock)
	if got, want := startRunner(lock), "the operation has started already"; got != want {
		t.Errorf("after the end: %q, want %q", got, want)
	}
	s.wantEffects("op", 1)
}

// TestSubmitConcurrently fails when many Submits of one operation start it more than once.
func TestSubmitConcurrently(t *testing.T) {
	s := newSite(t, "1.0")
	c := s.change("op", nil)
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for i := range errs {
		e := s.worker()
		wg.Go(func() { _, errs[i] = e.Submit(context.Background(), c) })
	}
	wg.Wait()
	accepted := 0
	for _, err := range errs {
		if err == nil {
			accepted++
		} else if vouches(err) {
			t.Errorf("Submit: %v vouches that nothing started", err)
		}
	}
	if accepted != 1 {
		t.Errorf("%d Submits were accepted, want 1", accepted)
	}
	s.wantResult(s.await(c), executors.Result{Outcome: executors.Succeeded})
	s.wantEffects("op", 1)
}

// TestSubmitAgainstFence fails when an operation that Await gave up runs after all, or one that runs is given up.
func TestSubmitAgainstFence(t *testing.T) {
	s := newSite(t, "1.0")
	for i := range 40 {
		c := s.change(fmt.Sprintf("op-%d", i), map[string]any{"check": nil})
		var submitErr, awaitErr error
		var result executors.Result
		var wg sync.WaitGroup
		wg.Go(func() { _, submitErr = s.worker().Submit(context.Background(), c) })
		wg.Go(func() { result, awaitErr = s.worker().Await(context.Background(), c, executors.Ticket{}) })
		wg.Wait()
		switch {
		case errors.Is(awaitErr, executors.ErrNotSubmitted) && submitErr != nil:
			s.wantFenced(c)
		case awaitErr == nil && submitErr == nil && result.Outcome == executors.Succeeded:
			s.wantEffects(c.Operation, 1)
		default:
			t.Fatalf("Submit: %v; Await: %+v, %v", submitErr, result, awaitErr)
		}
	}
}

// TestTicketFromElsewhere fails when a worker vouches for an operation that it cannot see.
func TestTicketFromElsewhere(t *testing.T) {
	s := newSite(t, "1.0")
	c := s.change("op", nil)
	ticket := s.submit(c)
	o := s.options()
	o.Dir = s.path("elsewhere")
	if result, err := New(o).Await(context.Background(), c, ticket); err == nil || errors.Is(err, executors.ErrNotSubmitted) || errors.Is(err, executors.ErrRunning) {
		t.Errorf("Await: %+v, %v; want an error that vouches for nothing", result, err)
	}
	s.wantResult(s.await(c), executors.Result{Outcome: executors.Succeeded})
}

// TestFolderGone fails when a submitted operation whose folder was deleted counts as never submitted, or as safe to
// repeat.
func TestFolderGone(t *testing.T) {
	s := newSite(t, "1.0")
	c := s.change("op", nil)
	ticket := s.submit(c)
	s.await(c)
	s.wantNotStartedAgain(c) // and so the runner is gone
	if err := os.RemoveAll(string(s.operation("op"))); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]executors.Outcome{"2.0": executors.Succeeded, "1.0": executors.Indeterminate, "1.7": executors.Indeterminate} {
		s.write("version", version)
		result, err := s.worker().Await(context.Background(), c, ticket)
		if err != nil || result.Outcome != want || result.Retryable {
			t.Errorf("the target runs %s: %+v, %v; want %s, not retryable", version, result, err, want)
		}
	}
}
