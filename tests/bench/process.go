package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// readyTimeout is how long a process may take until it does its work; it takes a second, and more where machines are busy.
	readyTimeout = time.Minute
	// endTimeout is how long one may take to end; a worker gives what it does 10 s to hand over.
	endTimeout = 20 * time.Second
	// keptLines are the last lines of a process that an error shows.
	keptLines = 10
)

// spawner starts processes that the kernel ends with this one, however it dies.
type spawner struct {
	starts chan func()
}

// newSpawner starts the thread that starts processes. It lives as long as this program: a tied process ends with the
// thread that started it.
func newSpawner() *spawner {
	s := &spawner{starts: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for start := range s.starts {
			start()
		}
	}()
	return s
}

// process is a program that was started.
type process struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{}
	once  sync.Once

	mu    sync.Mutex // guards lines
	lines []string   // the last that it wrote
}

// start starts a program and returns when it has written a line that ready takes.
func (s *spawner) start(ctx context.Context, name string, environ []string, ready func(line string) bool, args ...string) (*process, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the %s: %w", name, err)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = environ, write, write
	// A group of its own: Ctrl-C is for the bench, which ends what it has started in its order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	tie(cmd.SysProcAttr)
	failed := make(chan error)
	s.starts <- func() { failed <- cmd.Start() }
	err = <-failed
	_ = write.Close() // the program has its own
	if err != nil {
		_ = read.Close() // nothing was ever written to it
		return nil, fmt.Errorf("start the %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, ended: make(chan struct{})}
	up := make(chan struct{})
	go func() {
		p.follow(bufio.NewReader(read), up, ready)
		_ = read.Close() // it was read to its end
		_ = cmd.Wait()   // how it ended is asked for where that matters
		close(p.ended)
	}()
	timeout := time.NewTimer(readyTimeout)
	defer timeout.Stop()
	select {
	case <-up:
		return p, nil
	case <-p.ended:
		return nil, fmt.Errorf("the %s ended before it was ready:\n%s", name, p.said())
	case <-timeout.C:
		err = fmt.Errorf("the %s was not ready within %s:\n%s", name, readyTimeout, p.said())
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, p.stop())
}

// follow keeps the last lines until there are no more, and closes up at the first that ready takes.
func (p *process) follow(lines *bufio.Reader, up chan<- struct{}, ready func(line string) bool) {
	waiting := true
	for {
		line, err := lines.ReadString('\n')
		if line = strings.TrimSpace(line); line != "" {
			p.mu.Lock()
			p.lines = append(p.lines, line)
			p.lines = p.lines[max(0, len(p.lines)-keptLines):]
			p.mu.Unlock()
		}
		if waiting && ready(line) {
			waiting = false
			close(up)
		}
		if err != nil {
			return
		}
	}
}

// said are the last lines that it wrote.
func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// usage is what it has used so far. It fails once the process has ended.
func (p *process) usage() (usage, error) {
	u, err := readUsage(p.cmd.Process.Pid)
	if err != nil {
		return u, fmt.Errorf("what the %s uses: %w; it wrote:\n%s", p.name, err, p.said())
	}
	return u, nil
}

// stop ends it and waits until it has ended. It may be called more than once.
func (p *process) stop() (err error) {
	p.once.Do(func() {
		if failed := p.cmd.Process.Signal(syscall.SIGTERM); failed != nil && !errors.Is(failed, os.ErrProcessDone) {
			err = fmt.Errorf("end the %s: %w", p.name, failed)
		}
		timeout := time.NewTimer(endTimeout)
		defer timeout.Stop()
		select {
		case <-p.ended:
		case <-timeout.C:
			_ = p.cmd.Process.Kill() // it may have ended this moment
			<-p.ended
			err = fmt.Errorf("the %s did not end within %s and was killed:\n%s", p.name, endTimeout, p.said())
		}
	})
	return err
}

// ask runs a program to its end and returns what it wrote to stdout. Its error is what it wrote to stderr.
func (s *spawner) ask(ctx context.Context, environ []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var out, complaints strings.Builder
	cmd.Env, cmd.Stdout, cmd.Stderr = environ, &out, &complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	tie(cmd.SysProcAttr)
	failed := make(chan error)
	s.starts <- func() { failed <- cmd.Start() }
	err := <-failed
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		if text := strings.TrimSpace(complaints.String()); text != "" {
			err = errors.New(text)
		}
		return "", fmt.Errorf("%s: %w", args[1], err)
	}
	return out.String(), nil
}

// plainEnviron is the machine's environment without what would lead to other Temporals and other workers.
func plainEnviron(more ...string) []string {
	environ := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "TEMPORAL_") || strings.HasPrefix(entry, "SLUICE_")
	})
	return append(environ, more...)
}
