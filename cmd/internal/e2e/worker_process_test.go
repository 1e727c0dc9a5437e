package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
)

// workerRole, as the first argument, makes this test binary a worker process; wire.RunCommand makes it the runner of
// one command step. Arguments, because a runner gets next to nothing of its worker's environment.
const workerRole = "worker-process"

// role does what a copy of this binary was started for, and reports whether it was.
func role() (code int, found bool) {
	if len(os.Args) < 3 {
		return 0, false
	}
	switch os.Args[1] {
	case wire.RunCommand:
		return wire.RunOperation(os.Args[2]), true
	case workerRole:
		if err := runWorkerProcess(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// processesAtOnce is how many tests with processes of their own run at a time, whatever the number of processors: they
// mostly wait for a dead worker to be noticed.
const processesAtOnce = "8"

// waitTogether lets that many parallel tests run, unless whoever runs them says otherwise.
func waitTogether() error {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if said {
		return nil
	}
	return flag.Set("test.parallel", processesAtOnce)
}

// processOrder is what a worker process is told to do.
type processOrder struct {
	// HostPort is the server; empty: the process runs one itself, on Data.
	HostPort  string
	Namespace string
	Data      string
	// KillAt and KillTarget name the point at which the process kills itself if it can take the file Armed away: once.
	KillAt, KillTarget, Armed string
}

// at is the activities' hook.
func (o processOrder) at(point, target string) {
	if o.KillAt != point || o.KillTarget != target || os.Remove(o.Armed) != nil {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

// runWorkerProcess works until it is killed, or until whoever started it is gone.
func runWorkerProcess(text string) error {
	var o processOrder
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx := context.Background()
	if o.HostPort == "" {
		s, err := embed.Start(ctx, embed.Options{DataDir: o.Data, FrontendAddr: "127.0.0.1:0", Synchronous: embed.SynchronousNormal, Logger: quiet()})
		if err != nil {
			return err
		}
		o.HostPort = s.HostPort()
	}
	c, err := client.Dial(client.Options{HostPort: o.HostPort, Namespace: o.Namespace, Logger: log.NewStructuredLogger(quiet())})
	if err != nil {
		return err
	}
	runner, err := runnerCommand()
	if err != nil {
		return err
	}
	w, err := wire.NewWorker(ctx, c, wire.Options{DataDir: o.Data, Namespace: o.Namespace, Logger: quiet(), Runner: runner, At: o.at})
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(processReady{HostPort: o.HostPort}); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(gone)
	}()
	select {
	case err := <-w.Failed():
		return err
	case <-gone:
		return nil
	}
}

// processReady is what a worker process prints when it works.
type processReady struct{ HostPort string }

// runnerCommand starts this binary as a runner. With the race detector it would sleep for a second when it exits.
func runnerCommand() ([]string, error) {
	env, err := exec.LookPath("env")
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return []string{env, "GORACE=atexit_sleep_ms=0", self, wire.RunCommand}, nil
}

// process is a worker process.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	hostPort string
	stderr   bytes.Buffer // safe to read once ended is closed
	ended    chan struct{}
}

// startProcess starts a worker process and returns when it polls.
func startProcess(t *testing.T, o processOrder) *process {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(self, workerRole, string(text)), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	p.cmd.Stderr = &p.stderr
	if _, err := p.cmd.StdinPipe(); err != nil { // if the tests die, the other end reads the end of the file
		t.Fatal(err)
	}
	stdout, stdin := io.Pipe()
	p.cmd.Stdout = stdin
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		_ = stdin.Close()
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	var ready processReady
	if err := json.NewDecoder(stdout).Decode(&ready); err != nil {
		p.kill()
		t.Fatalf("the worker process did not start: %v; it said: %s", err, p.stderr.String())
	}
	go func() { _, _ = io.Copy(io.Discard, stdout) }() // a blocked pipe would keep Wait from returning
	p.hostPort = ready.HostPort
	return p
}

// kill kills the process, by its id, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // SIGKILL; an error means that it has ended
	<-p.ended
}

// died waits until the process has killed itself.
func (p *process) died() {
	p.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-p.ended:
	case <-deadline.C:
		p.t.Fatal("the worker process never came to the point at which it kills itself")
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		p.t.Fatalf("the worker process ended as %s instead of by SIGKILL; it said: %s", p.cmd.ProcessState, p.stderr.String())
	}
}

// killable is a lane whose worker is a process, perhaps with the server in it.
type killable struct {
	*lane
	process *process
	order   processOrder
	whole   bool
}

// newKillable makes a lane without a worker. whole: the server is in the worker's process.
func newKillable(t *testing.T, whole bool) *killable {
	t.Helper()
	k := &killable{whole: whole}
	if whole {
		k.lane = &lane{t: t, namespace: embed.DefaultNamespace, data: filepath.Join(t.TempDir(), "data")}
	} else {
		k.lane = newLane(t)
		k.order.HostPort = server.HostPort()
	}
	k.order.Namespace, k.order.Data, k.order.Armed = k.namespace, k.data, filepath.Join(t.TempDir(), "armed")
	return k
}

// work starts the process, and connects anew when the server is in it: it has another port each time.
func (k *killable) work() {
	k.t.Helper()
	k.process = startProcess(k.t, k.order)
	if !k.whole {
		return
	}
	c, err := client.Dial(client.Options{HostPort: k.process.hostPort, Namespace: k.namespace, Logger: log.NewStructuredLogger(quiet())})
	if err != nil {
		k.t.Fatal(err)
	}
	if k.client != nil {
		k.client.Close()
	} else {
		k.t.Cleanup(func() { k.client.Close() })
	}
	k.client = c
}

// killAt has the process kill itself at a point, once arm has been called.
func (k *killable) killAt(point, target string) { k.order.KillAt, k.order.KillTarget = point, target }

func (k *killable) arm() {
	k.t.Helper()
	if err := os.WriteFile(k.order.Armed, nil, 0o600); err != nil {
		k.t.Fatal(err)
	}
}

// diesAndComesBack waits until the process has killed itself and starts another.
func (k *killable) diesAndComesBack() {
	k.t.Helper()
	k.process.died()
	k.work()
}

// killAndWork kills the process from outside and starts another.
func (k *killable) killAndWork() {
	k.t.Helper()
	k.process.kill()
	k.work()
}
