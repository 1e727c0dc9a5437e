package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

const (
	// lockDescriptor is where the runner, and the program, find the lock: the first after stdin, stdout and stderr.
	lockDescriptor = 3
	// outputLimit is the port's bound on Result.Output, in bytes.
	outputLimit = 4 << 10
	// spoolLimit is how much output may lie on disk before it is cut down to its tail, in bytes; between two looks a
	// program can write more, so it bounds the growth, not the moment.
	spoolLimit = 1 << 20
	// spoolEvery is how often the output is looked at.
	spoolEvery = time.Second
	// recordEvery is how often the end is tried to be put on record while the disk is full.
	recordEvery = time.Second
	// stopEvery is how often the runner looks whether a process group that was told to stop has done so.
	stopEvery = 20 * time.Millisecond
)

// Run is the detached runner of one operation: the hidden subcommand that Options.Runner names calls it with the folder
// that it was given, and exits with what it returns, 0 once the end of the program is on record. Only Submit may start
// it, because it must inherit the operation's lock.
func Run(dir string) int {
	if err := run(folder(dir)); err != nil {
		fmt.Fprintf(os.Stderr, "command: runner of %s: %v\n", dir, err)
		return 1
	}
	return 0
}

func run(op folder) error {
	// Caught, not ignored: the program would inherit an ignored signal. Whoever signals everything on the machine
	// hits the program as well, and its end still has to be written down.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	lock, err := inheritLock(op)
	if err != nil {
		return err
	}
	// To the very end: the collector closes a file that nobody refers to any more, and an operation whose lock is free
	// before its end is on record counts as lost.
	defer runtime.KeepAlive(lock)
	for _, name := range []string{fencedFile, startedFile, exitFile} {
		if op.has(name) {
			return fmt.Errorf("not started, because the operation has %s already", name)
		}
	}
	var req request
	there, err := op.readJSON(requestFile, &req)
	if err != nil || !there {
		return errors.Join(errors.New("not started, because the request can't be read"), err)
	}
	s, err := openSpool(op)
	if err != nil {
		return err
	}
	// From here on the program may have run, as far as anybody can tell later.
	if err := op.put(startedFile); err != nil {
		return err
	}
	end := req.run(lock, s)
	end.EndedAt = time.Now().UTC()
	end.Output = s.tail()
	err = op.writeJSON(exitFile, end)
	if full(err) {
		s.empty() // its tail is in the record, and room is needed
	}
	// Without the record nobody could tell how the program ended, so it waits for room; as long as the lock is held the
	// operation counts as running.
	for ; full(err); err = op.writeJSON(exitFile, end) {
		time.Sleep(recordEvery)
	}
	if err != nil {
		return err
	}
	s.empty()
	return nil
}

// inheritLock returns the lock that Submit took, or an error if descriptor 3 is something else.
func inheritLock(op folder) (*os.File, error) {
	lock := os.NewFile(lockDescriptor, op.file(lockFile))
	held, err := lock.Stat()
	if err != nil {
		return nil, fmt.Errorf("not started, because the lock was not inherited: %w", err)
	}
	named, err := os.Stat(op.file(lockFile))
	if err != nil || !os.SameFile(held, named) {
		return nil, errors.Join(errors.New("not started, because descriptor 3 is not the operation's lock"), err)
	}
	// What inherits it does so by intent only.
	syscall.CloseOnExec(lockDescriptor)
	// For the holder this changes nothing; on a descriptor that only looks like the lock it fails.
	if err := flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("not started, because the lock is held by another: %w", err)
	}
	return lock, nil
}

// run runs the program to its end, or to its timeout.
func (req request) run(lock *os.File, s *spool) exit {
	cmd := req.command()
	// A file, not a pipe: a program that outlives its runner must not die of writing, and what it leaves running in the
	// background must not keep the runner waiting.
	cmd.Stdout, cmd.Stderr = s.file, s.file
	cmd.ExtraFiles = []*os.File{lock}
	if err := cmd.Start(); err != nil {
		return exit{Code: -1, Unstarted: err.Error()}
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	timeout := time.NewTimer(req.Timeout)
	look := time.NewTicker(spoolEvery)
	defer look.Stop()
	timedOut := false
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-look.C:
			s.cut()
		case <-timeout.C:
			select {
			case <-ended: // in time, if only just
			default:
				timedOut = true
				stop(cmd.Process.Pid, req.Grace, ended)
			}
			running = false
		}
	}
	return describeEnd(cmd, timedOut)
}

// stop ends the process group: SIGTERM, and SIGKILL for whatever of it is left after the grace.
func stop(group int, grace time.Duration, ended <-chan struct{}) {
	_ = syscall.Kill(-group, syscall.SIGTERM)
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	look := time.NewTicker(stopEvery)
	defer look.Stop()
	for alive(group) {
		select {
		case <-look.C:
		case <-deadline.C:
			_ = syscall.Kill(-group, syscall.SIGKILL)
			<-ended
			return
		}
	}
	<-ended
}

// alive reports whether the process group has a member.
func alive(group int) bool { return !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) }

func describeEnd(cmd *exec.Cmd, timedOut bool) exit {
	end := exit{Code: cmd.ProcessState.ExitCode(), TimedOut: timedOut}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		end.Signal = status.Signal().String()
	}
	return end
}

// spool is the program's output on disk.
type spool struct {
	file *os.File // append-only, so that the program writes on at the new end after a cut
	kept []byte   // the tail of what was cut away
}

func openSpool(op folder) (*spool, error) {
	file, err := os.OpenFile(op.file(outputFile), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	return &spool{file: file}, err
}

// cut keeps the tail and drops the rest, once the file has grown too large. What is written in between is lost.
func (s *spool) cut() {
	if info, err := s.file.Stat(); err == nil && info.Size() > spoolLimit {
		s.kept = s.last()
		s.empty()
	}
}

func (s *spool) empty() { _ = s.file.Truncate(0) }

// last returns the last 4 KiB of everything. An error leaves a shorter tail: output is a courtesy, the exit is not.
func (s *spool) last() []byte {
	var from int64
	if info, err := s.file.Stat(); err == nil {
		from = max(0, info.Size()-outputLimit)
	}
	data, _ := io.ReadAll(io.NewSectionReader(s.file, from, outputLimit))
	all := append(s.kept[:len(s.kept):len(s.kept)], data...)
	return all[max(0, len(all)-outputLimit):]
}

func (s *spool) tail() string { return printable(s.last()) }
