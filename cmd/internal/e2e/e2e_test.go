// Package e2e runs whole rollouts on a real embedded Temporal server, with real workers and real scripts or a simulated
// fleet. It asserts orders, absences and end states; it never asserts how long something took.
package e2e

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/processtest"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/load"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// server is shared by the tests of the package; each has a namespace of its own.
var server *embed.Server

var namespaces atomic.Int64

func TestMain(m *testing.M) {
	if code, played := processtest.Play(map[string]processtest.Role{workerRole: runWorkerProcess}); played {
		os.Exit(code)
	}
	if err := waitTogether(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx := context.Background()
	var err error
	server, err = embed.Start(ctx, embed.Options{FrontendAddr: "127.0.0.1:0", Synchronous: embed.SynchronousNormal, Logger: quiet()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	server.Stop()
	os.Exit(code)
}

// quiet drops what servers and workers say; SLUICE_TEST_LOG=1 shows it.
func quiet() *slog.Logger {
	var to io.Writer = io.Discard
	if os.Getenv("SLUICE_TEST_LOG") != "" {
		to = os.Stderr
	}
	return slog.New(slog.NewTextHandler(to, nil))
}

// lane is one test's world: a namespace, a data folder, documents and at most one worker.
type lane struct {
	t         *testing.T
	namespace string
	client    client.Client
	data      string
	worker    *wire.Worker
	options   wire.Options
	patience  time.Duration // ends what hangs; 0: usualPatience
}

// newLane makes a namespace; no worker polls it yet.
func newLane(t *testing.T) *lane {
	t.Helper()
	name := fmt.Sprintf("test-%d", namespaces.Add(1))
	if err := server.CreateNamespace(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(client.Options{HostPort: server.HostPort(), Namespace: name, Logger: log.NewStructuredLogger(quiet())})
	if err != nil {
		t.Fatal(err)
	}
	l := &lane{t: t, namespace: name, client: c, data: t.TempDir()}
	l.options = wire.Options{DataDir: l.data, Namespace: name, Logger: quiet()}
	t.Cleanup(func() {
		l.stopWorker()
		c.Close()
	})
	return l
}

func (l *lane) startWorker() {
	l.t.Helper()
	w, err := wire.NewWorker(l.t.Context(), l.client, l.options)
	if err != nil {
		l.t.Fatal(err)
	}
	l.worker = w
}

func (l *lane) stopWorker() {
	if l.worker != nil {
		l.worker.Stop()
		l.worker = nil
	}
}

// fleetOf runs a simulated fleet in this process and returns its address and the path of its log.
func fleetOf(t *testing.T, s fleet.Scenario) (url, log string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "effects.ndjson")
	f, err := fleet.New(s, log)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(f.Handler())
	t.Cleanup(func() {
		srv.Close()
		f.Close()
	})
	return srv.URL, log
}

// documents is what a test uploads.
func documents(text string) []load.File { return []load.File{{Name: "all.yaml", Data: []byte(text)}} }

// start uploads documents and starts a rollout of web to Production.
func (l *lane) start(text, version string) workflows.RolloutInput {
	l.t.Helper()
	in := l.prepare(text, version)
	l.launch(in)
	return in
}

// prepare uploads documents, and plans as whoever starts a rollout does.
func (l *lane) prepare(text, version string) workflows.RolloutInput {
	l.t.Helper()
	return l.prepareFiles(documents(text), version)
}

func (l *lane) prepareFiles(files []load.File, version string) workflows.RolloutInput {
	l.t.Helper()
	packed, digest, err := wire.Pack(files)
	if err != nil {
		l.t.Fatal(err)
	}
	r := policy.Request{Deployment: "web", Environment: "Production", Version: policy.Version{Name: version}, BundleDigest: digest}
	planned, err := wire.Plan(l.t.Context(), packed, r)
	if err != nil {
		l.t.Fatal(err)
	}
	l.upload(packed, digest)
	return workflows.RolloutInput{Rollout: ulid.Make().String(), Mode: workflows.ModeRollout, Deployment: "web", Environment: "Production",
		Version: r.Version, BundleDigest: digest, PlanDigest: planned.Plan.Digest, By: "ann"}
}

// launch starts a prepared rollout.
func (l *lane) launch(in workflows.RolloutInput) {
	l.t.Helper()
	_, err := l.client.ExecuteWorkflow(l.t.Context(), client.StartWorkflowOptions{ID: workflows.RolloutID("Production", "web"), TaskQueue: workflows.ControlQueue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL, WorkflowExecutionErrorWhenAlreadyStarted: true}, workflows.RolloutType, in)
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lane) upload(packed []byte, digest string) {
	l.t.Helper()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(packed); err != nil {
		l.t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		l.t.Fatal(err)
	}
	run, err := l.client.SignalWithStartWorkflow(l.t.Context(), workflows.BundleID(digest), workflows.ChunkSignal, workflows.BundleChunk{Data: zipped.Bytes()},
		client.StartWorkflowOptions{TaskQueue: workflows.ControlQueue}, workflows.BundleType, workflows.BundleInput{Digest: digest, Chunks: 1})
	if err != nil {
		l.t.Fatal(err)
	}
	if err := run.Get(l.t.Context(), nil); err != nil {
		l.t.Fatal(err)
	}
}

// status asks the lane's newest run.
func (l *lane) status() (workflows.RolloutStatus, error) {
	ctx, cancel := context.WithTimeout(l.t.Context(), 10*time.Second)
	defer cancel()
	var s workflows.RolloutStatus
	v, err := l.client.QueryWorkflow(ctx, workflows.RolloutID("Production", "web"), "", workflows.StatusQuery)
	if err != nil {
		return s, err
	}
	return s, v.Get(&s)
}

// until waits for a condition on the rollout's status.
func (l *lane) until(what string, holds func(workflows.RolloutStatus) bool) workflows.RolloutStatus {
	l.t.Helper()
	var last workflows.RolloutStatus
	eventuallyWithin(l.t, cmp.Or(l.patience, usualPatience), what, func() bool {
		s, err := l.status()
		if err == nil {
			last = s
		}
		return err == nil && holds(s)
	}, func() string {
		return fmt.Sprintf("state %s (%s), counts %v, timeline %s", last.State, last.Reason, last.Counts, timeline(last))
	})
	return last
}

// ended waits for the rollout's end.
func (l *lane) ended() workflows.RolloutStatus {
	l.t.Helper()
	return l.until("the rollout ends", func(s workflows.RolloutStatus) bool { return s.State.Ended() && !s.EndedAt.IsZero() })
}

func timeline(s workflows.RolloutStatus) string {
	var b strings.Builder
	for _, e := range s.Timeline {
		fmt.Fprintf(&b, "\n  %s %s: %s (%s)", e.At.Format("15:04:05.000"), e.Who, e.What, e.Why)
	}
	return b.String()
}

// usualPatience only ends what hangs.
const usualPatience = 2 * time.Minute

// eventually waits for a condition, looking every 50 ms.
func eventually(t *testing.T, what string, holds func() bool, last func() string) {
	t.Helper()
	eventuallyWithin(t, usualPatience, what, holds, last)
}

func eventuallyWithin(t *testing.T, patience time.Duration, what string, holds func() bool, last func() string) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("timed out waiting until %s; last: %s", what, last())
		case <-t.Context().Done():
			t.Fatalf("gave up waiting until %s; last: %s", what, last())
		}
	}
}

func (l *lane) signal(name string, c workflows.Command) {
	l.t.Helper()
	if err := l.client.SignalWorkflow(l.t.Context(), workflows.RolloutID("Production", "web"), "", name, c); err != nil {
		l.t.Fatal(err)
	}
}
