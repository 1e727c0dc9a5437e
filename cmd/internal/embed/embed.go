// Package embed runs a Temporal server and its web UI inside this process, on a SQLite file, for laptops, demos and
// tests, and for sites that want one binary and no cluster.
//
// It listens on 127.0.0.1 only, because neither the server nor the UI asks who is calling. It must not know workflows,
// policies or adapters, and only sluice-dev and tests may import it: linking it adds about 200 MB to a binary.
package embed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/temporal"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Defaults of Options. The ports are those of Temporal's own development server, so that its CLI finds this one.
const (
	DefaultNamespace    = "default"
	DefaultFrontendAddr = "127.0.0.1:7233"
	DefaultUIAddr       = "127.0.0.1:8233"
)

// How hard SQLite tries to keep a commit when the power goes. Both survive a crash of the process.
const (
	SynchronousFull   = "FULL"   // every commit is on disk before it counts; what real rollouts need
	SynchronousNormal = "NORMAL" // the last commits may be lost with the power; for demos, tests and benchmarks
)

// retention is how long a closed workflow's history stays. The engine's own default for SQLite, 24 hours, would lose
// the trail of a target that finished in the first week of a rollout of four.
const retention = 90 * 24 * time.Hour

// readyTimeout bounds the wait for a server that has started to answer. It takes under a second on an idle machine;
// the rest is for two busy cores and a race detector.
const readyTimeout = time.Minute

// SearchAttributes returns the names of the search attributes that every namespace gets. All are Keyword.
func SearchAttributes() []string {
	return []string{
		"SluiceEnvironment",
		"SluiceDeployment",
		"SluiceVersion",
		"SluiceRollout",
		"SluiceState",
		"SluiceTarget",
		"SluiceSite",
	}
}

// Options says where a server keeps its data and where it listens.
type Options struct {
	// DataDir holds the database, created with mode 0700 when missing. Empty: everything is in memory and gone after
	// Stop, which is for tests.
	DataDir string
	// Namespace is created when missing. Empty: DefaultNamespace.
	Namespace string
	// FrontendAddr is where Temporal clients connect: "127.0.0.1:port", or ":port" for the same. Port 0 takes a free one.
	// Empty: DefaultFrontendAddr. Any other host is refused.
	FrontendAddr string
	// UIAddr is where the web UI is served, in the form of FrontendAddr. Empty: no UI.
	UIAddr string
	// Synchronous is SynchronousFull or SynchronousNormal. Empty: SynchronousFull.
	Synchronous string
	// Logger takes the server's warnings and errors; its informational lines arrive at debug level, because there are
	// hundreds of them. nil: slog.Default().
	Logger *slog.Logger
	// SearchAttributes are the Keyword attributes of the namespaces. nil: SearchAttributes(). SQLite has room for ten.
	SearchAttributes []string
}

// withDefaults returns o with its empty fields filled in, or an error that names the first field it cannot use.
func (o Options) withDefaults() (Options, error) {
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.FrontendAddr == "" {
		o.FrontendAddr = DefaultFrontendAddr
	}
	if o.Synchronous == "" {
		o.Synchronous = SynchronousFull
	}
	if o.Synchronous != SynchronousFull && o.Synchronous != SynchronousNormal {
		return o, fmt.Errorf("embedded Temporal: synchronous %q is neither %s nor %s", o.Synchronous, SynchronousFull, SynchronousNormal)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.SearchAttributes == nil {
		o.SearchAttributes = SearchAttributes()
	}
	return o, nil
}

// Server is a running Temporal server. It is safe for use by several goroutines.
type Server struct {
	options  Options
	hostPort string
	uiAddr   string
	database *config.SQL
	dbPath   string
	log      *logger

	lock     *folderLock
	temporal temporal.Server
	ui       stopper

	stop    sync.Once
	stopErr error
}

// stopper is the part of the UI server that Stop needs.
type stopper interface{ Stop() }

// Start starts a server and waits until it answers. ctx bounds the start only; end the server with Stop.
//
// It returns ErrInUse when another process holds the data folder, ErrPortInUse when an address is taken, and
// ErrSchema when the data was written for another schema. All three are found before anything is started or changed.
func Start(ctx context.Context, options Options) (_ *Server, err error) {
	options, err = options.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{options: options, log: newLogger(options.Logger)}
	defer func() {
		if err != nil {
			// What Stop could say about a server that never ran would only hide the reason.
			_ = s.Stop()
		}
	}()

	ports, err := reservePorts(options.FrontendAddr, options.UIAddr)
	if errors.Is(err, ErrPortInUse) && options.DataDir != "" {
		// Most often whoever has the port is a server on this very folder, and that is the better answer.
		err = cmp.Or(checkFolder(options.DataDir), err)
	}
	if err != nil {
		return nil, err
	}
	defer ports.release()

	if options.DataDir != "" {
		if err := prepareFolder(options.DataDir); err != nil {
			return nil, err
		}
		if s.lock, err = lockFolder(options.DataDir); err != nil {
			return nil, err
		}
		if err := probeWrite(options.DataDir); err != nil {
			return nil, err
		}
	}
	if s.database, s.dbPath, err = openDatabase(ctx, options); err != nil {
		return nil, err
	}
	if err := ensureNamespace(ctx, s.database, options.Namespace, options.SearchAttributes); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start embedded Temporal: %w", err)
	}

	cfg := serverConfig(s.database, ports)
	s.hostPort, s.uiAddr = ports.frontend, ports.ui
	ports.release()
	if err := s.startTemporal(cfg, ports.hosts()); err != nil {
		return nil, err
	}
	if err := s.awaitFrontend(ctx); err != nil {
		return nil, err
	}
	if s.uiAddr != "" {
		if err := s.startUI(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// HostPort returns the address that Temporal clients connect to.
func (s *Server) HostPort() string { return s.hostPort }

// Namespace returns the namespace that Start made sure of.
func (s *Server) Namespace() string { return s.options.Namespace }

// UIURL returns the address of the web UI, or "" when there is none.
func (s *Server) UIURL() string {
	if s.uiAddr == "" {
		return ""
	}
	return "http://" + s.uiAddr
}

// DBPath returns the database file, or "" when the data is in memory.
func (s *Server) DBPath() string { return s.dbPath }

// CreateNamespace makes sure of a namespace with the same search attributes and retention as the first one, and
// returns when it is usable. Idempotent. Tests use it to be alone without a server of their own.
func (s *Server) CreateNamespace(ctx context.Context, name string) error {
	if err := ensureNamespace(ctx, s.database, name, s.options.SearchAttributes); err != nil {
		return err
	}
	return s.awaitNamespace(ctx, name)
}

// Stop ends the UI, then the server, and gives the data folder back. Workers and clients should be closed before, or
// they log that the server has gone. It takes one to two seconds. Idempotent: every call returns what the first did.
func (s *Server) Stop() error {
	s.stop.Do(func() {
		s.log.stopping.Store(true)
		if s.ui != nil {
			s.ui.Stop()
		}
		if s.temporal != nil {
			if err := catchFatal(s.temporal.Stop); err != nil {
				s.stopErr = fmt.Errorf("stop embedded Temporal: %w", err)
			}
		}
		// Last, so that nobody opens the database while services still write to it.
		s.stopErr = errors.Join(s.stopErr, s.lock.release())
	})
	return s.stopErr
}

// awaitFrontend waits until the frontend answers for the namespace.
func (s *Server) awaitFrontend(ctx context.Context) error {
	return s.awaitNamespace(ctx, s.options.Namespace)
}

// awaitNamespace polls a call that goes through the namespace cache and visibility, which are the last to be ready.
func (s *Server) awaitNamespace(ctx context.Context, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	conn, err := grpc.NewClient(s.hostPort, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to embedded Temporal at %s: %w", s.hostPort, err)
	}
	defer func() { _ = conn.Close() }()
	service := workflowservice.NewWorkflowServiceClient(conn)

	for {
		_, err = service.CountWorkflowExecutions(ctx, &workflowservice.CountWorkflowExecutionsRequest{
			Namespace: namespace,
			Query:     "ExecutionStatus = " + strconv.Quote(enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING.String()),
		})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("embedded Temporal at %s does not answer for namespace %q: %w",
				s.hostPort, namespace, errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond): // a start takes some 300 ms, so this costs little on either side
		}
	}
}

// hostPort joins the one host that is served with a port.
func hostPort(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
