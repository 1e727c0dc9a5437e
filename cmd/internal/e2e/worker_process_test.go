package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/processtest"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
)

// workerRole makes a copy of this test binary a worker process.
const workerRole = "worker-process"

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
func runWorkerProcess(text []byte) error {
	var o processOrder
	if err := json.Unmarshal(text, &o); err != nil {
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
	runner, err := processtest.Runner()
	if err != nil {
		return err
	}
	w, err := wire.NewWorker(ctx, c, wire.Options{DataDir: o.Data, Namespace: o.Namespace, Logger: quiet(), Runner: runner, At: o.at})
	if err != nil {
		return err
	}
	if err := processtest.Ready(processReady{HostPort: o.HostPort}); err != nil {
		return err
	}
	select {
	case err := <-w.Failed():
		return err
	case <-processtest.Abandoned():
		return nil
	}
}

// processReady is what a worker process prints when it works.
type processReady struct{ HostPort string }

// killable is a lane whose worker is a process, perhaps with the server in it.
type killable struct {
	*lane
	process *processtest.Process
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
	var ready processReady
	var err error
	if k.process, err = processtest.Start(k.t, workerRole, k.order, &ready); err != nil {
		k.t.Fatal(err)
	}
	if !k.whole {
		return
	}
	c, err := client.Dial(client.Options{HostPort: ready.HostPort, Namespace: k.namespace, Logger: log.NewStructuredLogger(quiet())})
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
	if err := k.process.Died(patience); err != nil {
		k.t.Fatal(err)
	}
	k.work()
}

// killAndWork kills the process from outside and starts another.
func (k *killable) killAndWork() {
	k.t.Helper()
	k.process.Kill()
	k.work()
}
