package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/processtest"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
)

// partRole makes a copy of this test binary a part of an installation.
const partRole = "chaos-part"

// partOrder is what a part is told to be: a server, a worker, or both.
type partOrder struct {
	Server, Worker bool
	Addr           string // of the server, wherever it is
	Data           string
}

// quiet drops what servers and workers say; SLUICE_TEST_LOG=1 shows it.
func quiet() *slog.Logger {
	to := io.Discard
	if os.Getenv("SLUICE_TEST_LOG") != "" {
		to = os.Stderr
	}
	return slog.New(slog.NewTextHandler(to, nil))
}

// runPart works until it is killed, or until whoever started it is gone.
func runPart(text []byte) error {
	var o partOrder
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	ctx := context.Background()
	if o.Server {
		// What SQLite does not write through outlives the death of a process, if not that of a machine.
		s, err := embed.Start(ctx, embed.Options{DataDir: o.Data, FrontendAddr: o.Addr, Synchronous: embed.SynchronousNormal, Logger: quiet()})
		if err != nil {
			return err
		}
		defer s.Stop() //nolint:errcheck // nobody is left to be told
	}
	var failed <-chan error
	if o.Worker {
		c, err := client.Dial(client.Options{HostPort: o.Addr, Logger: log.NewStructuredLogger(quiet())})
		if err != nil {
			return err
		}
		runner, err := processtest.Runner()
		if err != nil {
			return err
		}
		w, err := wire.NewWorker(ctx, c, wire.Options{DataDir: o.Data, Logger: quiet(), Runner: runner})
		if err != nil {
			return err
		}
		failed = w.Failed()
	}
	if err := processtest.Ready(struct{}{}); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	case <-processtest.Abandoned():
		return nil
	}
}

// down is a time in which something was dead, from its kill until it was ready again.
type down struct {
	what     victims
	from, to time.Time
}

// installation is a server and a worker on one data folder, in one process or two.
type installation struct {
	t     *testing.T
	whole bool
	addr  string
	data  string

	mu             sync.Mutex // guards all below
	server, worker *processtest.Process
	client         client.Client
	clients        []client.Client // all there were
	downs          []down
}

// install starts a server and a worker.
func install(t *testing.T, whole bool) *installation {
	t.Helper()
	in := &installation{t: t, whole: whole, addr: freeAddr(t), data: t.TempDir()}
	t.Cleanup(func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		for _, c := range in.clients {
			c.Close()
		}
	})
	if err := in.start(killBoth); err != nil {
		t.Fatal(err)
	}
	return in
}

// freeAddr is an address that a server can have again after its death. It is not one of those that Linux gives away by
// itself, since somebody else would have got it meanwhile.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(15000)) //nolint:gosec // any free one will do
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return addr
	}
	t.Fatal("no free port")
	return ""
}

// start starts what is dead.
func (in *installation) start(what victims) error {
	if what != killWorker {
		p, err := in.startServer()
		if err != nil {
			return err
		}
		c, err := client.Dial(client.Options{HostPort: in.addr, Logger: log.NewStructuredLogger(quiet())})
		if err != nil {
			return err
		}
		in.mu.Lock()
		in.server, in.client = p, c
		in.clients = append(in.clients, c)
		if in.whole {
			in.worker = p
		}
		in.mu.Unlock()
	}
	if what == killServer || in.whole {
		return nil
	}
	p, err := processtest.Start(in.t, partRole, partOrder{Worker: true, Addr: in.addr, Data: in.data}, &struct{}{})
	if err != nil {
		return err
	}
	in.mu.Lock()
	in.worker = p
	in.mu.Unlock()
	return nil
}

// startServer starts a server; another process may have its port for a moment.
func (in *installation) startServer() (*processtest.Process, error) {
	for tries := 1; ; tries++ {
		p, err := processtest.Start(in.t, partRole, partOrder{Server: true, Worker: in.whole, Addr: in.addr, Data: in.data}, &struct{}{})
		if err == nil || tries == 10 || !strings.Contains(err.Error(), embed.ErrPortInUse.Error()) {
			return p, err
		}
	}
}

// connection is a client of the server that runs, or ran last.
func (in *installation) connection() client.Client {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.client
}

// kill kills, calls meanwhile, and starts again after a while. What had ended by itself before is an error.
func (in *installation) kill(what victims, away time.Duration, meanwhile func()) error {
	in.mu.Lock()
	var dying []*processtest.Process
	if what != killWorker {
		dying = append(dying, in.server)
	}
	if what != killServer && !in.whole {
		dying = append(dying, in.worker)
	}
	in.mu.Unlock()
	for _, p := range dying {
		select {
		case <-p.Ended():
			return fmt.Errorf("a process ended before it was killed; it said: %s", p.Said())
		default:
		}
	}
	d := down{what: what, from: time.Now()}
	var both sync.WaitGroup
	for _, p := range dying {
		both.Go(p.Kill)
	}
	both.Wait()
	meanwhile()
	// The drawn time in which it is dead is the scenario's: nothing is waited for, and no condition ends it.
	<-time.After(away)
	if err := in.start(what); err != nil {
		return err
	}
	d.to = time.Now()
	in.mu.Lock()
	in.downs = append(in.downs, d)
	in.mu.Unlock()
	return nil
}
