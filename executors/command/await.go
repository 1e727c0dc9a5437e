package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

const (
	// firstPoll and lastPoll bound the time between two looks at a running operation: a short script is noticed at once,
	// a long one costs two looks a second.
	firstPoll = 50 * time.Millisecond
	lastPoll  = 500 * time.Millisecond
)

// Await follows the operation to its end. A worker may call it for an operation that another one submitted, as long as
// both use the same operations folder; a ticket from another folder is an error, because nothing can be said about it
// here.
func (e *Executor) Await(ctx context.Context, c executors.Change, t executors.Ticket) (executors.Result, error) {
	cfg, err := decodeRendered(c)
	if err != nil {
		return executors.Result{}, err
	}
	result, err := e.follow(ctx, c, cfg, t)
	if err != nil {
		return executors.Result{}, fmt.Errorf("command: await %q: %w", c.Operation, err)
	}
	return result, nil
}

func (e *Executor) follow(ctx context.Context, c executors.Change, cfg config, t executors.Ticket) (executors.Result, error) {
	home, err := e.home()
	if err != nil {
		return executors.Result{}, err
	}
	op := home.at(c.Operation)
	if t.Handle != "" {
		if t.Handle != home.handle(op) {
			return executors.Result{}, fmt.Errorf("the ticket %s is not of this worker's operations folder %s; only a worker that uses the folder it was submitted through can follow it", t.Handle, home.path)
		}
		if _, err := os.Lstat(op.file(requestFile)); errors.Is(err, fs.ErrNotExist) {
			return e.vanished(ctx, c, cfg)
		}
	} else if op, err = home.make(c.Operation); err != nil {
		return executors.Result{}, err
	}
	for poll := firstPoll; ; poll = min(2*poll, lastPoll) {
		now, end, err := op.look()
		if err != nil {
			return executors.Result{}, err
		}
		switch now {
		case stateEnded:
			return e.conclude(ctx, c, cfg, end)
		case stateLost:
			return e.judge(ctx, c, cfg, "was interrupted and left no record of its end", "")
		case stateFenced:
			return executors.Result{}, fmt.Errorf("%w%s", executors.ErrNotSubmitted, op.runnerWords())
		case stateRunning:
		}
		select {
		case <-ctx.Done():
			return executors.Result{}, executors.ErrRunning
		case <-time.After(poll):
		}
	}
}

// state is what an operation's folder says of it.
type state int

const (
	stateRunning state = iota // or somebody is deciding about it this very moment
	stateEnded                // with an exit record, and nothing that could still have an effect
	stateLost                 // it may have run, nothing of it lives, and there is no record of its end
	stateFenced               // it never ran and never will
)

// look says where the operation stands, and fences it if it has not started and nothing lives that could start it.
func (f folder) look() (state, exit, error) {
	var end exit
	recorded, err := f.readJSON(exitFile, &end)
	if err != nil || recorded && !end.unclear() {
		return stateEnded, end, err
	}
	lock, free, err := f.tryLock()
	if err != nil || !free {
		return stateRunning, end, err
	}
	defer unlock(lock)
	// Again, now that nothing can change any more: the record may have come in between.
	recorded, err = f.readJSON(exitFile, &end)
	switch {
	case err != nil:
		return stateRunning, end, err
	case recorded:
		return stateEnded, end, nil
	case f.has(fencedFile):
		return stateFenced, end, nil
	case f.has(startedFile):
		return stateLost, end, nil
	}
	return stateFenced, end, f.put(fencedFile)
}

// runnerWords returns what the runner said before it gave up, for the end of a sentence.
func (f folder) runnerWords() string {
	data, err := os.ReadFile(f.file(runnerLogFile))
	if line := lastLine(string(data)); err == nil && line != "" {
		return ": its runner said: " + line
	}
	return ""
}

// unclear reports whether the record leaves the effect open. A program that was stopped may have left something behind
// that escaped its process group, so such an end counts only once the lock is free.
func (end exit) unclear() bool { return end.TimedOut || end.Signal != "" }

// conclude turns the end of the program into a result.
func (e *Executor) conclude(ctx context.Context, c executors.Change, cfg config, end exit) (executors.Result, error) {
	field, _, err := cfg.program(c)
	if err != nil {
		return executors.Result{}, err
	}
	exited := fmt.Sprintf("%s on %s exited with code %d", field, c.Target.Name, end.Code)
	result := executors.Result{Output: end.Output}
	switch {
	case end.Unstarted != "":
		result.Outcome, result.Retryable = executors.Failed, true
		result.Reason = fmt.Sprintf("%s on %s could not be started: %s", field, c.Target.Name, end.Unstarted)
		return result, nil
	case end.TimedOut:
		return e.judge(ctx, c, cfg, "timed out after "+plain(cfg.timeout)+" and was stopped", end.Output)
	case end.Signal != "":
		return e.judge(ctx, c, cfg, "was ended by a signal ("+end.Signal+")", end.Output)
	case end.Code == 0:
		result.Outcome = executors.Succeeded
		return result, nil
	}
	switch cfg.ends[end.Code] {
	case endSucceeded:
		result.Outcome = executors.Succeeded
		result.Reason = exited + ", which the step counts as succeeded"
	case endBlocked:
		result.Outcome = executors.Blocked
		result.Reason = exited + ", which the step counts as blocked"
	case endRetry:
		result.Outcome, result.Retryable = executors.Failed, true
		result.Reason = exited + ", which the step counts as safe to retry"
	case endFailed, "": // "": not listed
		result.Outcome = executors.Failed
		result.Reason = exited
	}
	return result, nil
}

// judge decides by the check on a program whose effect is unknown; what says how it ended.
func (e *Executor) judge(ctx context.Context, c executors.Change, cfg config, what, output string) (executors.Result, error) {
	field, _, err := cfg.program(c)
	if err != nil {
		return executors.Result{}, err
	}
	what = fmt.Sprintf("%s on %s %s", field, c.Target.Name, what)
	result := executors.Result{Outcome: executors.Indeterminate, Output: output}
	if len(cfg.check) == 0 {
		result.Reason = what + "; what it did is unknown, because the step has no check"
		return result, nil
	}
	if result.Reading, err = e.runCheck(ctx, c, cfg); err != nil {
		return executors.Result{}, err
	}
	switch running := result.Reading.Version; {
	case c.Version == c.From && running == c.Version:
		result.Reason = fmt.Sprintf("%s; the target runs %s, but it did so before, so the check can't tell what was done", what, named(running))
	case running == c.Version:
		result.Outcome = executors.Succeeded
		result.Reason = fmt.Sprintf("%s; the check decided: the target runs %s", what, named(running))
	case running == c.From:
		result.Outcome = executors.Failed
		result.Reason = fmt.Sprintf("%s before it took effect; the target still runs %s", what, named(running))
		// An empty From can also mean that it could not be told, and then "nothing installed" may be half a change.
		result.Retryable = c.From != ""
	default:
		result.Reason = fmt.Sprintf("%s; the target runs %s, which is neither the version wanted (%s) nor the one before (%s)", what, named(running), named(c.Version), named(c.From))
	}
	return result, nil
}

// vanished judges an operation that was submitted through this folder and is no longer in it. Something of it may still
// live, so the old version on the target proves nothing.
func (e *Executor) vanished(ctx context.Context, c executors.Change, cfg config) (executors.Result, error) {
	result, err := e.judge(ctx, c, cfg, "was submitted, but its folder is gone", "")
	if err == nil && result.Outcome == executors.Failed {
		result.Outcome, result.Retryable = executors.Indeterminate, false
	}
	return result, err
}
