// Package command changes a target by running a program of the owner's own: a script, a deploy tool, a vendor's CLI.
//
// The program is started once, by a detached runner that outlives the worker, and whatever worker comes next adopts it:
//
//	Submit   makes the operation's folder, takes the lock in it, writes the request and starts the runner
//	runner   a session of its own; inherits the lock, marks the start, runs the program in a process group that inherits
//	         the lock too, stops it at its timeout, and records the exit
//	Await    reads the exit record; without one, a held lock means that something of the operation still lives, and a
//	         free lock that nothing does
//
// While the lock is free and no start is marked, Await may take it and fence the operation, so that it can never start;
// a start without an exit record is an unknown effect, which only the step's check can settle.
//
// The lock is a flock on a local file, and a folder is known only to its machine. Two workers that may be handed the
// same operation must therefore share the operations folder, or Await would vouch for what it cannot see; a ticket from
// another folder is refused. A supervisor that stops a worker must leave the runners alone (systemd: KillMode=process).
// A program that closes descriptors it does not know for all of its children (it inherits the lock as descriptor 3)
// gives up that protection for them.
//
// The package must not decide whether a change may start, retry one, or read the process's environment by itself.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

var _ executors.Executor = (*Executor)(nil)

// Options are what the worker gives to every command step.
type Options struct {
	// Dir is the operations folder: one folder for each operation is made in it and never removed by this package. It
	// must be on a local disk that survives the worker, and be shared by all workers that may adopt each other's
	// operations.
	Dir string
	// Runner is the argument vector that starts this program as the detached runner; the operation's folder is appended,
	// and the program must hand it to Run. Its first element should be absolute, as os.Executable returns it.
	Runner []string
	// Environ is the worker's environment as "KEY=value". Programs get only PATH, HOME, LANG, TZ and TMPDIR of it:
	// what else a worker holds there, credentials above all, is none of their business.
	Environ []string
}

// Executor runs command steps. It is safe for concurrent use and keeps no state in memory.
type Executor struct {
	options Options
}

// New returns the executor. It touches nothing: the operations folder is made when it is first needed.
func New(o Options) *Executor { return &Executor{options: o} }

// Observe runs the step's check and returns what it printed; without a check the reading is not known.
func (e *Executor) Observe(ctx context.Context, c executors.Change) (executors.Reading, error) {
	cfg, err := decodeRendered(c)
	if err != nil {
		return executors.Reading{}, err
	}
	if len(cfg.check) == 0 {
		return executors.Reading{Detail: "the step has no check"}, nil
	}
	return e.runCheck(ctx, c, cfg)
}

// Verify compares the check's word with c.Version; without a check it says that nothing was verified.
func (e *Executor) Verify(ctx context.Context, c executors.Change) (executors.Result, error) {
	reading, err := e.Observe(ctx, c)
	switch {
	case err != nil:
		return executors.Result{}, err
	case !reading.Known:
		return executors.Result{Outcome: executors.Succeeded, Reason: "not verified: the step has no check", Reading: reading}, nil
	case reading.Version != c.Version:
		return executors.Result{
			Outcome: executors.Failed,
			Reason:  fmt.Sprintf("%s runs %s, wanted %s", c.Target.Name, named(reading.Version), named(c.Version)),
			Reading: reading,
		}, nil
	}
	return executors.Result{Outcome: executors.Succeeded, Reading: reading}, nil
}

// named returns the version for a sentence.
func named(version string) string {
	if version == "" {
		return "nothing"
	}
	return version
}

// Submit starts the operation's runner and returns at once. ErrRejected and ErrBlocked vouch that nothing was started;
// a folder that already has a request is never started again, and any such doubt is left to Await.
func (e *Executor) Submit(ctx context.Context, c executors.Change) (executors.Ticket, error) {
	cfg, err := decodeRendered(c)
	if err != nil {
		return executors.Ticket{}, fmt.Errorf("%w: %w", err, executors.ErrRejected)
	}
	req, err := e.describe(c, cfg)
	if err != nil {
		return executors.Ticket{}, fmt.Errorf("command: submit %q: %w: %w", c.Operation, err, executors.ErrRejected)
	}
	ticket, err := e.begin(ctx, req)
	if err != nil {
		return executors.Ticket{}, fmt.Errorf("command: submit %q: %w", c.Operation, err)
	}
	return ticket, nil
}

// begin makes the request durable and hands it, with the lock, to a runner.
func (e *Executor) begin(ctx context.Context, req request) (executors.Ticket, error) {
	if err := ctx.Err(); err != nil {
		return executors.Ticket{}, err
	}
	home, err := e.home()
	if err != nil {
		return executors.Ticket{}, noRoom(err) // a folder that could not be made holds no request
	}
	op, err := home.make(req.Operation)
	if err != nil {
		return executors.Ticket{}, home.at(req.Operation).noRoom(err)
	}
	lock, free, err := op.tryLock()
	switch {
	case err != nil:
		return executors.Ticket{}, op.noRoom(err)
	case !free:
		return executors.Ticket{}, errors.New("somebody else holds the operation's lock; await it to learn what it did")
	}
	fenced, requested := op.has(fencedFile), op.has(requestFile)
	if fenced {
		unlock(lock)
		return executors.Ticket{}, fmt.Errorf("the operation was given up before it was submitted: %w", executors.ErrRejected)
	}
	if requested {
		unlock(lock)
		return executors.Ticket{}, errors.New("the operation was submitted before; await it, it is never started twice")
	}
	if err := op.writeJSON(requestFile, req); err != nil {
		_ = op.remove(requestFile) // it may be there although it may not last; if it stays, nothing is vouched for
		unlock(lock)
		return executors.Ticket{}, op.noRoom(err)
	}
	if err := e.startRunner(op, lock); err != nil {
		// Nothing was started and nobody else can have come in under the lock, so the request can be taken back: a
		// later Submit of the same operation starts afresh.
		withdrawn := op.remove(requestFile)
		unlock(lock)
		if withdrawn != nil {
			return executors.Ticket{}, errors.Join(err, withdrawn)
		}
		return executors.Ticket{}, fmt.Errorf("start the runner: %w: %w", err, refusal(err))
	}
	// Closing, not unlocking: the runner's copy of the descriptor keeps the lock.
	_ = lock.Close()
	return executors.Ticket{Handle: home.handle(op), SubmittedAt: req.SubmittedAt}, nil
}

// noRoom says of a full disk's error that it passes: without a request on record nothing was started or ever will be.
func (f folder) noRoom(err error) error {
	if f.has(requestFile) {
		return err
	}
	return noRoom(err)
}

// noRoom is that where there can be no request.
func noRoom(err error) error {
	if full(err) {
		return fmt.Errorf("the worker's disk is full: %w: %w", executors.ErrBlocked, err)
	}
	return err
}

// full reports whether the disk, or what its user may have of it, is used up.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// refusal says whether the machine may start a process later, by the errors of fork(2) and open(2).
func refusal(err error) error {
	for _, passing := range []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ETXTBSY, syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, passing) {
			return executors.ErrBlocked
		}
	}
	return executors.ErrRejected
}

// startRunner starts the detached runner, which gets the lock as its descriptor 3.
func (e *Executor) startRunner(op folder, lock *os.File) error {
	if len(e.options.Runner) == 0 {
		return errors.New("no runner is configured for this worker")
	}
	log, err := os.OpenFile(op.file(runnerLogFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the runner has its own handle
	cmd := exec.Command(e.options.Runner[0], append(e.options.Runner[1:len(e.options.Runner):len(e.options.Runner)], string(op))...)
	cmd.Env = e.allowed()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{lock}
	// A session of its own: neither a signal to the worker's process group nor the end of its terminal reaches it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	// The wait leaves no zombie behind in a worker that lives for weeks; the runner itself needs nobody to wait.
	go func() { _ = cmd.Wait() }()
	return nil
}

// describe puts together what the runner needs, or says why the change can't be asked for.
func (e *Executor) describe(c executors.Change, cfg config) (request, error) {
	if c.Operation == "" {
		return request{}, errors.New("the change names no operation")
	}
	_, argv, err := cfg.program(c)
	if err != nil {
		return request{}, err
	}
	s, err := e.script(c, cfg, argv)
	if err != nil {
		return request{}, err
	}
	return request{
		Operation:   c.Operation,
		Target:      c.Target.Name,
		script:      s,
		Timeout:     cfg.timeout,
		Grace:       cfg.grace,
		SubmittedAt: time.Now().UTC(),
	}, nil
}

// program returns what the change runs and the name of the field that says so.
func (cfg config) program(c executors.Change) (field string, argv []string, err error) {
	switch c.Direction {
	case executors.Apply:
		return "apply", cfg.apply, nil
	case executors.Restore:
		switch {
		case len(cfg.check) == 0:
			return "", nil, errors.New(noCheckReason)
		case len(cfg.rollback) > 0:
			return "rollback", cfg.rollback, nil
		case c.Version == "":
			return "", nil, errors.New("the step has no rollback, so a first install can't be taken back")
		}
		return "apply", cfg.apply, nil
	}
	return "", nil, fmt.Errorf("direction %q is neither %q nor %q", c.Direction, executors.Apply, executors.Restore)
}

// home returns the operations folder, made if need be.
func (e *Executor) home() (home, error) {
	if e.options.Dir == "" {
		return home{}, errors.New("no operations folder is configured for this worker")
	}
	path, err := filepath.Abs(e.options.Dir)
	if err != nil {
		return home{}, err
	}
	return openHome(path)
}
