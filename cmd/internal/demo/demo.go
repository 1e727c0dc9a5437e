// Package demo shows a release that is caught and taken back: on a simulated fleet, with a Temporal server of its own,
// through the same command line, documents and worker that a person would use.
//
// Whether everything went as promised is judged from the fleet's effect log alone, which is what was really done to each
// cluster, and not from anything that the rollout says of itself. It must not touch anything outside its own folder and
// its own processes.
package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"golang.org/x/term"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/config"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// Story is what the demo shows.
const Story = `Watch a bad release being caught and taken back. 400 simulated clusters in 6 regions run v1. v2 looks clean on the
small clusters of tier 3; on tier 2, under load, writes become slow. The checks see it, the budget is exceeded, nothing
new starts, and every cluster that v2 has reached goes back to v1, in the order in which it was reached.

Everything is real but the clusters: the documents, the command line, the worker and Temporal with its UI run on this
machine, in a temporary folder, and are gone at the end. The verdict is computed from what was really done to the
clusters; the exit code is 0 only if each of them is as it must be. It takes about a minute.`

const (
	// limit bounds the walk out and back, which takes a minute on two cores: what takes longer has stopped moving, and
	// the verdict then says where.
	limit = 8 * time.Minute
	// dialTimeout bounds the first call to a server that has just answered.
	dialTimeout = 10 * time.Second
)

// Options say how to run the demo. The zero value with Out and Err works.
type Options struct {
	// Seed picks the clusters' loads, their latencies and how long changes take.
	Seed int64
	// Keep leaves the folder with the documents, the effect log and the Temporal data.
	Keep bool
	// Out takes what the demo shows, Err the notes of the commands that it runs.
	Out, Err io.Writer
	// Program is sluice-dev as it is run for the fleet and for each command; empty means this very program.
	Program []string

	// What follows is for tests.

	// setting is what happens; nil means the one of the story.
	setting *setting
	// server and namespace are used instead of a server of the demo's own.
	server    *embed.Server
	namespace string
	// wrap and wrapProvider put faults into the worker, see wire.Options.
	wrap         func(kind string, e executors.Executor) executors.Executor
	wrapProvider func(kind, connection string, p metrics.Provider) metrics.Provider
}

// show is one run of the demo.
type show struct {
	Options
	setting setting
	folder  string
	style   out.Style
	logger  *slog.Logger
	fleet   *fleetProcess
}

// Run runs the demo. It returns nil only if the effect log proves that everything went as promised; the error lists what
// did not. When ctx is done it stops, and ends everything that it has started.
func Run(ctx context.Context, o Options) (err error) {
	s := &show{Options: o, style: styleOf(o.Out)}
	if s.setting = story(o.Seed); o.setting != nil {
		s.setting = *o.setting
	}
	if len(s.Program) == 0 {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		s.Program = []string{self}
	}
	if s.folder, err = os.MkdirTemp("", "sluice-demo-"); err != nil {
		return fmt.Errorf("make the demo's folder: %w; set TMPDIR to a folder that can be written", err)
	}
	defer func() {
		if o.Keep {
			s.say("\nKept: %s\nLook at it again with `sluice-dev up --data %s`.", s.folder, filepath.Join(s.folder, dataFolder))
			return
		}
		if failed := os.RemoveAll(s.folder); failed != nil {
			err = errors.Join(err, fmt.Errorf("remove the demo's folder: %w", failed))
		}
	}()
	logFile, err := os.OpenFile(filepath.Join(s.folder, "demo.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the demo's log: %w", err)
	}
	defer func() { _ = logFile.Close() }()
	// The picture of the rollout must not be torn by log lines.
	s.logger = slog.New(slog.NewTextHandler(logFile, nil))

	err = s.run(ctx)
	if ctx.Err() != nil {
		return errors.New("the demo was interrupted; everything that it had started was ended")
	}
	return err
}

// Names of what is in the demo's folder.
const (
	dataFolder      = "data"
	documentsFolder = "documents"
	configFile      = "worker.yaml"
	scenarioFile    = "scenario.yaml"
	effectLog       = "effects.ndjson"
)

// run is the demo within its folder.
func (s *show) run(ctx context.Context) (err error) {
	begun := time.Now()
	s.say("%s", s.style.Bold("A release that goes wrong, on "+s.setting.size()))
	if s.fleet, err = startFleet(ctx, s); err != nil {
		return err
	}
	defer s.fleet.stop()
	server, stopServer, err := s.temporal(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopServer()) }()
	stopWorker, failed, err := s.work(ctx, server)
	if err != nil {
		return err
	}
	defer stopWorker()
	if err := s.writeDocuments(); err != nil {
		return err
	}
	s.say("  fleet      %s, a process of its own (%d)", s.fleet.url, s.fleet.pid())
	s.say("  Temporal   %s", server.HostPort())
	s.say("  documents  %s", s.path(documentsFolder))
	s.say("  started    in %s", time.Since(begun).Round(10*time.Millisecond))

	// A worker that ends by itself would leave a rollout that nobody walks.
	walking, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it has not ended within %s", limit))
	defer cancel()
	walking, fail := context.WithCancelCause(walking)
	defer fail(nil)
	go func() {
		select {
		case err := <-failed:
			fail(fmt.Errorf("the worker ended: %w", err))
		case <-walking.Done():
		}
	}()
	status, stuck := s.walk(walking, server)
	if stuck != nil && ctx.Err() == nil && walking.Err() != nil {
		stuck = context.Cause(walking)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}

	// The log is read when nobody writes it any more.
	stopWorker()
	s.fleet.stop()
	entries, err := fleet.ReadLog(s.path(effectLog))
	if err != nil {
		return errors.Join(stuck, err)
	}
	s.writeTimeline(status)
	s.writeSummary(entries)
	return s.writeVerdict(Judge(entries, s.setting.expectation()), stuck)
}

// temporal starts a server, or takes the one that was given. stop ends it.
func (s *show) temporal(ctx context.Context) (server *embed.Server, stop func() error, err error) {
	if s.server != nil {
		return s.server, func() error { return nil }, s.server.CreateNamespace(ctx, s.namespace)
	}
	server, err = embed.Start(ctx, embed.Options{
		DataDir: s.path(dataFolder), FrontendAddr: ":0", UIAddr: ":0", Synchronous: embed.SynchronousNormal, Logger: s.logger,
	})
	if err != nil {
		return nil, nil, err
	}
	s.namespace = server.Namespace()
	return server, server.Stop, nil
}

// work starts a worker, configured from a file as any other. stop may be called more than once.
func (s *show) work(ctx context.Context, server *embed.Server) (stop func(), failed <-chan error, err error) {
	text := fmt.Sprintf("connections:\n  fleet: {type: prometheus, url: %q}\n", s.fleet.url)
	if err := os.WriteFile(s.path(configFile), []byte(text), 0o600); err != nil {
		return nil, nil, fmt.Errorf("write the worker's configuration: %w", err)
	}
	file, err := config.Load(s.path(configFile), wire.ConnectionTypes(), os.Getenv)
	if err != nil {
		return nil, nil, err
	}
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := client.DialContext(dialing, client.Options{HostPort: server.HostPort(), Namespace: s.namespace, Logger: sdklog.NewStructuredLogger(s.logger)})
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the server that was started at %s: %w", server.HostPort(), err)
	}
	worker, err := wire.NewWorker(ctx, c, wire.Options{Config: file, DataDir: s.path(dataFolder), Namespace: s.namespace, Logger: s.logger,
		Wrap: s.wrap, WrapProvider: s.wrapProvider})
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return func() {
		worker.Stop()
		c.Close()
	}, worker.Failed(), nil
}

// walk starts the rollout as a person would, shows it until it ends, and returns its last status.
func (s *show) walk(ctx context.Context, server *embed.Server) (status workflows.RolloutStatus, err error) {
	p := program{show: s, environ: s.environ(server)}
	lane := []string{deployment, "-e", environment}
	if err := p.run(ctx, nil, "validate", "-f", s.path(documentsFolder)); err != nil {
		return status, err
	}
	var started struct{ Rollout, Workflow, Run string }
	start := []string{"start", deployment + "@" + after, "-e", environment, "-f", s.path(documentsFolder), "--reason", "faster compaction"}
	p.prompt(start)
	if err := p.read(ctx, &started, start...); err != nil {
		return status, err
	}
	s.say("\nrollout %s has started", s.style.Bold(started.Rollout))
	if server.UIURL() != "" {
		s.say("In Temporal, while this runs: %s/namespaces/%s/workflows/%s/%s/history", server.UIURL(), url.PathEscape(s.namespace), url.PathEscape(started.Workflow), started.Run)
	}
	// 4 is the exit code of a rollout that was taken back, 5 that of one that waits for a person, who is not there.
	if err := p.run(ctx, []int{4, 5}, append([]string{"watch", "--no-input"}, lane...)...); err != nil {
		return status, err
	}
	return status, p.read(ctx, &status, append([]string{"status"}, lane...)...)
}

// path is a path in the demo's folder.
func (s *show) path(name string) string { return filepath.Join(s.folder, name) }

// say writes a line. A terminal that has gone is no reason to leave the clusters as they are.
func (s *show) say(format string, args ...any) { _, _ = fmt.Fprintf(s.Out, format+"\n", args...) }

// errVerdict: something is not as it must be; all of it has been written.
var errVerdict = errors.New("the demo did not go as promised")

// writeVerdict writes what the effect log proves. stuck is why the rollout was not followed to its end.
func (s *show) writeVerdict(faults []string, stuck error) error {
	s.say("\n%s", s.style.Bold("Verdict, from the fleet's own log"))
	if stuck != nil {
		faults = append([]string{"the rollout was not followed to its end: " + stuck.Error()}, faults...)
	}
	if len(faults) == 0 {
		s.say("  %s every cluster that was reached changed once each way, in order, and all run %s", s.style.Good("OK"), before)
		return nil
	}
	for _, fault := range faults {
		s.say("  %s %s", s.style.Bad("WRONG"), out.Clean(fault))
	}
	return fmt.Errorf("%w: %s", errVerdict, faults[0])
}

// styleOf colours what goes to a terminal, see https://no-color.org.
func styleOf(w io.Writer) out.Style {
	file, ok := w.(*os.File)
	return out.Style{Color: ok && term.IsTerminal(int(file.Fd())) && os.Getenv("NO_COLOR") == "" && cmp.Or(os.Getenv("TERM"), "dumb") != "dumb"}
}

// decode reads one JSON value strictly enough to notice that it is another program's.
func decode(data []byte, into any) error {
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("understand its answer %.200q: %w", data, err)
	}
	return nil
}
