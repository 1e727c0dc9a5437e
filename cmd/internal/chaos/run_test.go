package chaos

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/sqlite"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/load"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// patience only ends what hangs: a kill costs the fifteen seconds after which a dead worker is noticed, and two busy
// cores and the race detector make of them a minute.
const patience = 5 * time.Minute

const (
	// glance is how often a test looks at the log and the status.
	glance = 50 * time.Millisecond
	// answerTime is how long a dead or busy server is waited for before it is asked again.
	answerTime = 3 * time.Second
)

// author has started every rollout here.
const author = "ann"

var laneID = workflows.RolloutID("Production", "web")

// sent is a command that somebody sent, and when: the first try, the moment at which the server had taken it, and that at
// which its receipt was first seen. Zero: never.
type sent struct {
	name               string
	command            workflows.Command
	tried, taken, seen time.Time
}

// run is one run of a lane across its kills.
type run struct {
	*installation
	scenario scenario
	site     site
	in       workflows.RolloutInput
	id       string // of the Temporal run
	began    time.Time
	kills    int // so far

	closed chan struct{} // once the workflow has ended

	mu       sync.Mutex // guards all below
	sent     []*sent
	status   workflows.RolloutStatus // as last seen
	lines    int                     // of the log, as last seen
	moved    time.Time               // when they last became more
	problems []error                 // of the test's own parts
}

func (r *run) problem(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, err)
}

// upload brings the documents to the ledger and returns what starts the rollout.
func upload(t *testing.T, in *installation, documents string) workflows.RolloutInput {
	t.Helper()
	packed, digest, err := wire.Pack([]load.File{{Name: "all.yaml", Data: []byte(documents)}})
	if err != nil {
		t.Fatal(err)
	}
	request := policy.Request{Deployment: "web", Environment: "Production", Version: policy.Version{Name: after}, BundleDigest: digest}
	planned, err := wire.Plan(t.Context(), packed, request)
	if err != nil {
		t.Fatalf("%v, in:\n%s", err, documents)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(packed); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sending, err := in.connection().SignalWithStartWorkflow(t.Context(), workflows.BundleID(digest), workflows.ChunkSignal, workflows.BundleChunk{Data: zipped.Bytes()},
		client.StartWorkflowOptions{TaskQueue: workflows.ControlQueue}, workflows.BundleType, workflows.BundleInput{Digest: digest, Chunks: 1})
	if err == nil {
		err = sending.Get(t.Context(), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return workflows.RolloutInput{Rollout: ulid.Make().String(), Mode: workflows.ModeRollout, Deployment: "web", Environment: "Production",
		Version: request.Version, BundleDigest: digest, PlanDigest: planned.Plan.Digest, By: author}
}

// begin starts a run of the lane and what looks after it.
func begin(t *testing.T, s scenario, in *installation, at site, input workflows.RolloutInput) *run {
	t.Helper()
	r := &run{installation: in, scenario: s, site: at, in: input, closed: make(chan struct{}), began: time.Now(), lines: len(at.log()), moved: time.Now()}
	started, err := in.connection().ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: laneID, TaskQueue: workflows.ControlQueue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL, WorkflowExecutionErrorWhenAlreadyStarted: true}, workflows.RolloutType, input)
	if err != nil {
		t.Fatal(err)
	}
	r.id = started.GetRunID()
	return r
}

// through runs everything that happens to a run until it has ended, and returns how it ended.
func (r *run) through(t *testing.T, kills []kill, commands []command) ending {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { r.watch(ctx) })
	all.Go(func() { r.follow(ctx) })
	all.Go(func() { r.look(ctx) })
	all.Go(func() { r.answer(ctx) })
	dead := map[int][]command{}
	for _, c := range commands {
		if c.dead > 0 {
			dead[c.dead] = append(dead[c.dead], c)
			continue
		}
		all.Go(func() {
			if r.await(ctx, c, 0) {
				r.give(ctx, c)
			}
		})
	}
	first := len(r.site.log())
	all.Go(func() {
		for i, k := range kills {
			if !r.await(ctx, command{when: k.when}, first) {
				return
			}
			err := r.kill(k.what, k.away, func() {
				for _, c := range dead[i+1] {
					if k.what == killWorker {
						r.giveToNobody(ctx, c)
					} else {
						all.Go(func() { r.give(ctx, c) })
					}
				}
			})
			if err != nil {
				r.problem(fmt.Errorf("kill %d (%s): %w", i+1, k.what, err))
				cancel()
				return
			}
			r.kills++
			r.mu.Lock()
			r.moved, first = time.Now(), r.lines
			r.mu.Unlock()
		}
	})
	all.Wait()
	for _, err := range r.problems {
		t.Error(err)
	}
	select {
	case <-r.closed:
	default:
		t.Fatalf("the rollout did not end within %s: state %s (%s), counts %v, waits %v, timeline %s", patience, r.status.State, r.status.Reason, r.status.Counts, r.status.Waits, timeline(r.status))
	}
	return r.ended(t)
}

// watch waits for the workflow's end.
func (r *run) watch(ctx context.Context) {
	r.each(ctx, func() bool {
		asking, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		d, err := r.connection().DescribeWorkflowExecution(asking, laneID, r.id)
		if err != nil || d.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
			return false
		}
		close(r.closed)
		return true
	})
}

// each calls at every glance until it is told to stop, the run has ended, or ctx is done. It reports whether it was told.
func (r *run) each(ctx context.Context, stop func() bool) bool {
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		if stop() {
			return true
		}
		select {
		case <-tick.C:
		case <-r.closed:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// query asks for the status.
func (r *run) query(ctx context.Context) (workflows.RolloutStatus, error) {
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var s workflows.RolloutStatus
	v, err := r.connection().QueryWorkflow(asking, laneID, r.id, workflows.StatusQuery)
	if err == nil {
		err = v.Get(&s)
	}
	return s, err
}

// follow keeps up with the log.
func (r *run) follow(ctx context.Context) {
	r.each(ctx, func() bool {
		lines := len(r.site.log())
		r.mu.Lock()
		defer r.mu.Unlock()
		if lines > r.lines {
			r.lines, r.moved = lines, time.Now()
		}
		return false
	})
}

// look keeps up with the status.
func (r *run) look(ctx context.Context) {
	r.each(ctx, func() bool {
		if s, err := r.query(ctx); err == nil {
			r.note(s)
		}
		return false
	})
}

// note takes a status.
func (r *run) note(s workflows.RolloutStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = s
	for _, receipt := range s.Commands {
		for _, c := range r.sent {
			if c.command.ID == receipt.ID && !receipt.Pending && c.seen.IsZero() {
				c.seen = time.Now()
			}
		}
	}
}

// await waits for a command's or a kill's moment, counted from a length of the log. It reports false if the run ended
// before.
func (r *run) await(ctx context.Context, c command, from int) bool {
	came := r.each(ctx, func() bool {
		if c.name == workflows.Retry && r.failed(c.target) {
			return true
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.lines-from >= c.when.lines && c.name != workflows.Retry || time.Since(r.moved) >= c.when.quiet
	})
	if !came {
		return false
	}
	select {
	case <-time.After(c.when.delay): // the drawn time after the moment
		return true
	case <-r.closed:
		return false
	}
}

// failed reports whether a change of that target has failed.
func (r *run) failed(name string) bool {
	return slices.ContainsFunc(r.site.log(), func(e effect) bool { return e.target == name && e.what == finished && e.failed && e.version == after })
}

// give sends a command. A retry is sent a few times: the target may still be on its way back.
func (r *run) give(ctx context.Context, c command) {
	for range 3 {
		receipt := r.send(ctx, c.name, workflows.Command{By: "eve", Target: c.target, Wave: c.wave})
		if c.name != workflows.Retry || receipt.Accepted {
			return
		}
		select {
		case <-time.After(time.Second): // as a person would
		case <-r.closed:
			return
		}
	}
}

// takeTime is how long a server that lives may take over a command, whoever else is dead.
const takeTime = time.Minute

// giveToNobody sends a command while the server lives and no worker does: it must be taken before one comes back.
func (r *run) giveToNobody(ctx context.Context, c command) {
	waiting, cancel := context.WithTimeout(ctx, takeTime)
	defer cancel()
	if _, taken := r.offer(waiting, c.name, workflows.Command{By: "eve", Target: c.target, Wave: c.wave}); !taken && errors.Is(waiting.Err(), context.DeadlineExceeded) {
		r.problem(fmt.Errorf("%s was not taken within %s while no worker was alive", c.name, takeTime))
	}
}

// send sends a command until the server has taken it, and waits for its receipt, which is empty if the run ended before.
func (r *run) send(ctx context.Context, name string, c workflows.Command) workflows.Receipt {
	var receipt workflows.Receipt
	id, taken := r.offer(ctx, name, c)
	if !taken {
		return receipt
	}
	r.each(ctx, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		i := slices.IndexFunc(r.status.Commands, func(got workflows.Receipt) bool { return got.ID == id && !got.Pending })
		if i >= 0 {
			receipt = r.status.Commands[i]
		}
		return i >= 0
	})
	return receipt
}

// offer sends a command again and again until the server has taken it, always with the same id. It reports false if the
// run ended before, or ctx.
func (r *run) offer(ctx context.Context, name string, c workflows.Command) (id string, taken bool) {
	r.mu.Lock()
	c.ID = fmt.Sprintf("%s-%d", name, len(r.sent)+1)
	one := &sent{name: name, command: c, tried: time.Now()}
	r.sent = append(r.sent, one)
	r.mu.Unlock()
	over := r.each(ctx, func() bool {
		asking, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		err := r.connection().SignalWorkflow(asking, laneID, r.id, name, c)
		taken = err == nil
		if taken {
			r.mu.Lock()
			one.taken = time.Now()
			r.mu.Unlock()
		}
		var gone *serviceerror.NotFound
		return taken || errors.As(err, &gone)
	})
	return c.ID, over && taken
}

// ending is how a run ended.
type ending struct {
	rollout string
	status  workflows.RolloutStatus
	record  ledger.Record
	began   time.Time
	sent    []sent
}

// ended reads what the run left behind.
func (r *run) ended(t *testing.T) ending {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e := ending{rollout: r.in.Rollout, began: r.began}
	var err error
	for e.status, err = r.query(ctx); err != nil; e.status, err = r.query(ctx) {
		select {
		case <-time.After(glance):
		case <-ctx.Done():
			t.Fatalf("the status of what has ended: %v", err)
		}
	}
	r.note(e.status)
	for _, c := range r.sent {
		e.sent = append(e.sent, *c)
	}
	store, err := sqlite.Open(ctx, filepath.Join(r.data, "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }() // nothing was written
	if e.record, err = store.Record(ctx, r.in.Rollout); err != nil {
		t.Fatal(err)
	}
	return e
}
