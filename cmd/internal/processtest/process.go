// Package processtest runs copies of a test binary as processes of their own, so that a test can kill a server or a
// worker as the system would. A copy ends when it is killed, and also when the test that started it is gone.
//
// It only starts and ends processes; what a copy does is its test's business.
package processtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
)

// Role is what a copy of a test binary does: it gets its order as JSON, and whatever it does ends at the latest when
// Abandoned says so.
type Role func(order []byte) error

// Play does what this copy of a test binary was started for, and reports whether it was started for anything: one of the
// roles by name, or a runner of command steps. The name and the order are arguments, because a runner gets next to nothing
// of its worker's environment. TestMain asks it first.
func Play(roles map[string]Role) (code int, played bool) {
	if len(os.Args) < 3 {
		return 0, false
	}
	if os.Args[1] == wire.RunCommand {
		return wire.RunOperation(os.Args[2]), true
	}
	role := roles[os.Args[1]]
	if role == nil {
		return 0, false
	}
	if err := role([]byte(os.Args[2])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

// Ready tells the test that this copy is ready; it must be called once.
func Ready(with any) error { return json.NewEncoder(os.Stdout).Encode(with) }

// Abandoned returns a channel that is closed when whoever started this copy is gone.
func Abandoned() <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // nobody writes; any end of it means the same
		close(gone)
	}()
	return gone
}

// noExitSleep keeps the race detector from sleeping for a second when a process exits.
const noExitSleep = "GORACE=atexit_sleep_ms=0"

// Runner is the command that starts this binary as the runner of a command step.
func Runner() ([]string, error) {
	env, err := exec.LookPath("env")
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return []string{env, noExitSleep, self, wire.RunCommand}, nil
}

// Process is a copy that runs, or has run.
type Process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer // safe to read once ended is closed
	ended  chan struct{}
}

// Start starts a copy of this test binary in a role, and reads what it says when it is ready into ready. It is killed at
// the end of the test at the latest. The error says what the copy said instead, after which it has ended.
func Start(t testing.TB, role string, order, ready any) (*Process, error) {
	t.Helper()
	text, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: exec.Command(self, role, string(text)), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), noExitSleep)
	p.cmd.Stderr = &p.stderr
	if _, err := p.cmd.StdinPipe(); err != nil { // if the tests die, the other end reads the end of the file
		return nil, err
	}
	stdout, stdin := io.Pipe()
	p.cmd.Stdout = stdin
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()  // how it ended is in its ProcessState
		_ = stdin.Close() // its other end died with the process
		close(p.ended)
	}()
	t.Cleanup(p.Kill)
	if err := json.NewDecoder(stdout).Decode(ready); err != nil {
		p.Kill()
		return nil, fmt.Errorf("the process of role %s did not start: %w; it said: %s", role, err, p.stderr.String())
	}
	go func() { _, _ = io.Copy(io.Discard, stdout) }() // a blocked pipe would keep Wait from returning
	return p, nil
}

// Kill kills the process, by its id, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // SIGKILL; an error means that it has ended
	<-p.ended
}

// Died waits up to patience until the process has killed itself; any other end is an error.
func (p *Process) Died(patience time.Duration) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-p.ended:
	case <-deadline.C:
		return fmt.Errorf("the process has not killed itself within %s", patience)
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		return fmt.Errorf("the process ended as %s instead of by SIGKILL; it said: %s", p.cmd.ProcessState, p.stderr.String())
	}
	return nil
}

// Ended returns a channel that is closed when the process has ended, by whatever.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Said is what the process wrote to stderr; only for one that has ended.
func (p *Process) Said() string { return p.stderr.String() }
