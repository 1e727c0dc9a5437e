package workflows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/ledgertest"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/tests/virtual"
)

// fleet is an executor over targets in memory, which notes what it was asked.
type fleet struct {
	mu       sync.Mutex
	versions map[string]string
	// asked are all submits, "apply a v2" or "restore a v1", in order.
	asked []string
	// on, when set for "apply a" or "restore a", replaces what Submit and Await do.
	on map[string]func() (executors.Result, error)
	// unreachable counts how many reads of a target still fail.
	unreachable map[string]int
	// loseAnswers makes Submit fail after it has done its work.
	loseAnswers bool
	operations  map[string]executors.Result
	// now is the clock, at when each submit was asked, beside asked.
	now func() time.Time
	at  []time.Time
}

func newFleet(names ...string) *fleet {
	f := &fleet{versions: map[string]string{}, on: map[string]func() (executors.Result, error){}, unreachable: map[string]int{}, operations: map[string]executors.Result{}}
	for _, n := range names {
		f.versions[n] = "v1"
	}
	return f
}

func (f *fleet) Observe(_ context.Context, c executors.Change) (executors.Reading, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unreachable[c.Target.Name] > 0 {
		f.unreachable[c.Target.Name]--
		return executors.Reading{}, fmt.Errorf("%s does not answer: %w", c.Target.Name, executors.ErrUnreachable)
	}
	return executors.Reading{Known: true, Version: f.versions[c.Target.Name]}, nil
}

func (f *fleet) Submit(_ context.Context, c executors.Change) (executors.Ticket, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := string(c.Direction) + " " + c.Target.Name
	f.asked, f.at = append(f.asked, key+" "+c.Version), append(f.at, f.now())
	result := executors.Result{Outcome: executors.Succeeded}
	if act := f.on[key]; act != nil {
		r, err := act()
		if err != nil {
			return executors.Ticket{}, err
		}
		result = r
	}
	if result.Outcome == executors.Succeeded {
		f.versions[c.Target.Name] = c.Version
	}
	f.operations[c.Operation] = result
	if f.loseAnswers {
		return executors.Ticket{}, errors.New("connection reset")
	}
	return executors.Ticket{Handle: c.Operation}, nil
}

func (f *fleet) Await(_ context.Context, c executors.Change, _ executors.Ticket) (executors.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.operations[c.Operation]
	if !ok {
		return executors.Result{}, executors.ErrNotSubmitted
	}
	return r, nil
}

func (f *fleet) Verify(_ context.Context, c executors.Change) (executors.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	reading := executors.Reading{Known: true, Version: f.versions[c.Target.Name]}
	if reading.Version == c.Version {
		return executors.Result{Outcome: executors.Succeeded, Reading: reading}, nil
	}
	return executors.Result{Outcome: executors.Failed, Reason: fmt.Sprintf("it runs %s, wanted %s", reading.Version, c.Version), Reading: reading}, nil
}

// version returns what a target runs.
func (f *fleet) version(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.versions[name]
}

// log returns what was asked so far.
func (f *fleet) log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// gauge answers each metric with a function of the target's name.
type gauge struct {
	mu    sync.Mutex
	value func(target string, at time.Time) metrics.Sample
	times []time.Time
}

func (g *gauge) Measure(_ context.Context, q metrics.Query) (metrics.Sample, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.times = append(g.times, q.Now)
	var config struct{ Target string }
	if err := json.Unmarshal(q.Config, &config); err != nil {
		return metrics.Sample{}, err
	}
	return g.value(config.Target, q.Now), nil
}

// plainEvaluator renders {{.target.name}} alone and knows one condition: result.value is below 10.
type plainEvaluator struct{}

func (plainEvaluator) RenderJSON(config json.RawMessage, vars map[string]any, _ func(string) string) (json.RawMessage, error) {
	return json.Marshal(map[string]any{"target": vars["target"].(map[string]any)["name"]})
}

func (plainEvaluator) Condition(_ context.Context, source policy.Expression, vars map[string]any) (bool, error) {
	v, ok := vars["result"].(map[string]any)["value"].(float64)
	if !ok {
		return false, errors.New("no value")
	}
	if source == "result.value < 10" {
		return v < 10, nil
	}
	return false, fmt.Errorf("unknown condition %q", source)
}

// world is a rollout under test in virtual time.
type world struct {
	t      *testing.T
	env    *testsuite.TestWorkflowEnvironment
	fleet  *fleet
	gauge  *gauge
	ledger *ledgertest.Memory
	input  RolloutInput
	plan   *policy.Plan
	acts   *activities.Activities
}

// newWorld plans one rollout of web v2 to prod over the named targets, with one policy, and is ready to run it.
func newWorld(t *testing.T, p policy.Policy, names ...string) *world {
	t.Helper()
	return newWorldOf(t, []policy.Policy{p}, names...)
}

// newWorldOf is newWorld with any policies.
func newWorldOf(t *testing.T, policies []policy.Policy, names ...string) *world {
	t.Helper()
	w, err := tryWorld(t, policies, names...)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// tryWorld is newWorldOf for policies that may be refused.
func tryWorld(t *testing.T, policies []policy.Policy, names ...string) (*world, error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	w := &world{t: t, env: suite.NewTestWorkflowEnvironment(), fleet: newFleet(names...), ledger: ledgertest.NewMemory()}
	w.gauge = &gauge{value: func(string, time.Time) metrics.Sample { return metrics.Sample{Result: map[string]any{"value": 1.0}} }}
	w.fleet.now = w.env.Now
	w.env.SetTestTimeout(time.Minute)
	w.env.SetWorkerOptions(worker.Options{WorkflowPanicPolicy: worker.FailWorkflow, Interceptors: []interceptor.WorkerInterceptor{virtual.Patient()}})
	w.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: RolloutID("prod", "web"), TaskQueue: ControlQueue})
	w.env.SetStartTime(time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC))
	snapshot := inventory.Snapshot{}
	for _, n := range names {
		snapshot.Targets = append(snapshot.Targets, inventory.Target{Name: n})
	}
	bundle := policy.Bundle{
		Snapshot:     snapshot,
		Environments: []policy.Environment{{Name: "prod", Selector: "true"}},
		Deployments: []policy.Deployment{{Name: "web", Rollback: policy.RollbackPrevious, Apply: policy.Step{Name: "put", Kind: "fake", Config: json.RawMessage(`{}`),
			Deadline: policy.Duration(time.Hour), Observes: true, Restores: true}}},
		Policies: policies,
	}
	request := policy.Request{Deployment: "web", Environment: "prod", Version: policy.Version{Name: "v2"}, BundleDigest: "sha256:b"}
	matches := policy.Matches{}
	needs, err := policy.Needs(bundle, request)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range needs {
		for _, n := range names {
			matches[e] = append(matches[e], evaluateName(e, n))
		}
	}
	plan, err := policy.MakePlan(bundle, request, matches)
	if err != nil {
		return nil, err
	}
	if err := w.ledger.PutBlob(context.Background(), ledger.Bundle, "sha256:b", nil); err != nil {
		t.Fatal(err)
	}
	w.plan = &plan
	a := &activities.Activities{
		Executors: executors.Registry{"fake": w.fleet},
		Connections: activities.Connections{Kinds: []metrics.Kind{{Name: "gauge"}},
			Open: map[string]map[string]metrics.Provider{"gauge": {"": w.gauge}}},
		Plan: func(context.Context, []byte, policy.Request) (activities.Planned, error) {
			return activities.Planned{Plan: *w.plan, Snapshot: snapshot}, nil
		},
		Evaluator: plainEvaluator{}, Blobs: w.ledger, Log: w.ledger, Now: w.env.Now,
	}
	w.acts = a
	Register(w.env, onlyTargets{w.env}, a)
	w.input = RolloutInput{Rollout: "R1", Mode: ModeRollout, Deployment: "web", Environment: "prod", Version: policy.Version{Name: "v2"}, BundleDigest: "sha256:b", By: "ann"}
	return w, nil
}

// evaluateName knows "true" and "name in a,b": enough to put targets into waves.
func evaluateName(e policy.Expression, name string) policy.Value {
	if e == "true" {
		return policy.Value{V: true}
	}
	return policy.Value{V: slices.Contains(splitNames(string(e)), name)}
}

func splitNames(e string) []string {
	var out []string
	start := 0
	for i := 0; i <= len(e); i++ {
		if i == len(e) || e[i] == ',' {
			out = append(out, e[start:i])
			start = i + 1
		}
	}
	return out
}

// keep goes on with an earlier world's ledger and fleet.
func (w *world) keep(earlier *world) {
	w.ledger, w.acts.Blobs, w.acts.Log = earlier.ledger, earlier.ledger, earlier.ledger
	w.fleet.versions = earlier.fleet.versions
}

// replan changes the plan before the rollout starts.
func (w *world) replan(change func(*policy.Plan)) { change(w.plan) }

// run executes the rollout to its end and returns its last status.
func (w *world) run() RolloutStatus {
	w.t.Helper()
	w.env.ExecuteWorkflow(RolloutType, w.input)
	if !w.env.IsWorkflowCompleted() {
		w.t.Fatalf("the rollout did not end")
	}
	if err := w.env.GetWorkflowError(); err != nil {
		w.t.Fatalf("the rollout failed: %v", err)
	}
	return w.status()
}

func (w *world) status() RolloutStatus {
	w.t.Helper()
	v, err := w.env.QueryWorkflow(StatusQuery)
	if err != nil {
		w.t.Fatalf("status: %v", err)
	}
	var s RolloutStatus
	if err := v.Get(&s); err != nil {
		w.t.Fatalf("status: %v", err)
	}
	return s
}

// send sends a command after a time.
func (w *world) send(after time.Duration, name string, payload any) {
	w.env.RegisterDelayedCallback(func() { w.env.SignalWorkflow(name, payload) }, after)
}

func amount(n int) *policy.Amount { return &policy.Amount{Value: n} }

// waves makes a policy of waves, one for each list of names.
func waves(lists ...string) policy.Policy {
	p := policy.Policy{Name: "p", Waves: &policy.Waves{}}
	for i, l := range lists {
		p.Waves.Waves = append(p.Waves.Waves, policy.WaveRule{Name: fmt.Sprintf("w%d", i+1), Select: policy.Expression(l), MaxConcurrency: amount(2)})
	}
	return p
}

// metric is one measurement a minute, five times, good below 10.
func metric(during policy.During) policy.Metric {
	return policy.Metric{Name: "latency", Provider: "gauge", Config: json.RawMessage(`{}`), Success: "result.value < 10", Interval: policy.Duration(time.Minute),
		InitialDelay: policy.Duration(time.Minute), Count: 5, ConsecutiveErrorLimit: 4, During: during}
}

// onlyTargets keeps activities from being registered twice: the test environment has one queue.
type onlyTargets struct {
	*testsuite.TestWorkflowEnvironment
}

func (onlyTargets) RegisterActivity(any) {}

// record returns what the ledger holds of the rollout.
func (w *world) record() ledger.Record {
	w.t.Helper()
	r, err := w.ledger.Record(context.Background(), w.input.Rollout)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}
