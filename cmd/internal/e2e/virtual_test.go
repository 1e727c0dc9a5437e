package e2e

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/ledgertest"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/load"
	"github.com/seed-a0a4f4e3/sluice/tests/fakes/datadog"
	"github.com/seed-a0a4f4e3/sluice/tests/virtual"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// virtualWorld runs a rollout with everything real but its time: real documents, the real Datadog client, a simulated
// fleet over HTTP.
type virtualWorld struct {
	recorded
	t       *testing.T
	env     *testsuite.TestWorkflowEnvironment
	datadog *datadog.Server
	input   workflows.RolloutInput
	log     string
}

func newVirtualWorld(t *testing.T, folder string, series []datadog.Series, change func([]load.File, *wire.Options)) *virtualWorld {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	w := &virtualWorld{t: t, env: suite.NewTestWorkflowEnvironment()}
	w.env.SetTestTimeout(time.Minute)
	w.env.SetWorkerOptions(worker.Options{WorkflowPanicPolicy: worker.FailWorkflow, Interceptors: []interceptor.WorkerInterceptor{virtual.Patient()}})
	w.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: workflows.RolloutID("Production", "web"), TaskQueue: workflows.ControlQueue})
	// Not at a full minute, as no rollout is: Datadog's buckets are.
	w.env.SetStartTime(time.Date(2026, 11, 2, 9, 0, 7, 0, time.UTC))
	var url string
	url, w.log = guideFleet(t)
	w.datadog = datadog.New(t, datadog.Options{APIKey: "api", AppKey: "app", Now: w.env.Now, Series: series})
	o := wire.Options{Config: guideConnection(t, w.datadog), DataDir: t.TempDir(), Logger: quiet(), Now: w.env.Now,
		Wrap:         func(_ string, e executors.Executor) executors.Executor { return &clockedExecutor{e, w} },
		WrapProvider: func(_, _ string, p metrics.Provider) metrics.Provider { return &clockedProvider{p, w} }}
	files := guide(t, folder, url)
	if change != nil {
		change(files, &o)
	}
	packed, digest, err := wire.Pack(files)
	if err != nil {
		t.Fatal(err)
	}
	memory := ledgertest.NewMemory()
	if err := memory.PutBlob(t.Context(), ledger.Bundle, digest, packed); err != nil {
		t.Fatal(err)
	}
	acts, err := wire.Activities(o)
	if err != nil {
		t.Fatal(err)
	}
	acts.Blobs, acts.Log = memory, memory
	workflows.Register(w.env, withoutActivities{w.env}, acts)
	w.input = workflows.RolloutInput{Rollout: "R1", Mode: workflows.ModeRollout, Deployment: "web", Environment: "Production", Version: policy.Version{Name: "v1.2.3"}, BundleDigest: digest, By: "ann"}
	return w
}

// withoutActivities keeps activities from being registered twice: the test environment has one queue.
type withoutActivities struct {
	*testsuite.TestWorkflowEnvironment
}

func (withoutActivities) RegisterActivity(any) {}

func (w *virtualWorld) run() workflows.RolloutStatus {
	w.t.Helper()
	w.env.ExecuteWorkflow(workflows.RolloutType, w.input)
	if err := w.env.GetWorkflowError(); err != nil {
		w.t.Fatalf("the rollout failed: %v", err)
	}
	return w.status()
}

func (w *virtualWorld) status() workflows.RolloutStatus {
	w.t.Helper()
	v, err := w.env.QueryWorkflow(workflows.StatusQuery)
	if err != nil {
		w.t.Fatal(err)
	}
	var s workflows.RolloutStatus
	if err := v.Get(&s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// Ten minutes between clusters and five measurements a minute apart are kept to the second, and so is the canary's hour.
func TestMultiRegionGuideKeepsItsTimesToTheSecond(t *testing.T) {
	for _, v := range variations {
		t.Run(v.folder, func(t *testing.T) {
			w := newVirtualWorld(t, v.folder, errorsOf(v.order, ""), nil)
			s := w.run()
			if s.State != workflows.Succeeded {
				t.Fatalf("state = %s (%s)%s", s.State, s.Reason, timeline(s))
			}
			var starts []string
			var measured []time.Duration
			for position, cluster := range v.order {
				after := v.after(position)
				starts = append(starts, fmt.Sprintf("apply %s +%s", cluster, policy.Duration(after)))
				for _, check := range v.checks(cluster) {
					measured = append(measured, after+check)
				}
			}
			slices.Sort(measured)
			if diff := cmp.Diff(starts, w.schedule()); diff != "" {
				t.Errorf("starts (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(measured, w.measurements()); diff != "" {
				t.Errorf("measurements (-want +got):\n%s", diff)
			}
		})
	}
}

// A bad cluster anywhere in the order is the last one that changes, and the only one that goes back by itself.
func TestMultiRegionGuideStopsAtAnyBadCluster(t *testing.T) {
	for _, v := range variations {
		for at, bad := range v.order {
			t.Run(v.folder+"/"+bad, func(t *testing.T) {
				w := newVirtualWorld(t, v.folder, errorsOf(v.order, bad), nil)
				var held workflows.RolloutStatus
				w.env.RegisterDelayedCallback(func() { held = w.status() }, 100*time.Hour)
				w.env.RegisterDelayedCallback(func() {
					w.env.SignalWorkflow(workflows.Abort, map[string]any{"by": "ann", "reason": "we stay here"})
				}, 200*time.Hour)
				s := w.run()
				var want []string
				for position, cluster := range v.order[:at+1] {
					want = append(want, fmt.Sprintf("apply %s +%s", cluster, policy.Duration(v.after(position))))
				}
				want = append(want, fmt.Sprintf("restore %s +%s", bad, policy.Duration(v.after(at)+time.Minute)))
				if diff := cmp.Diff(want, w.schedule()); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
				if held.State != workflows.Holding || held.Counts[policy.Failed] != 1 || held.Counts[policy.Succeeded] != at || held.Counts[policy.Pending] != len(v.order)-at-1 {
					t.Errorf("until a person decides: %s (%s), counts %v", held.State, held.Reason, held.Counts)
				}
				if s.State != workflows.Aborted {
					t.Errorf("state = %s (%s)", s.State, s.Reason)
				}
			})
		}
	}
}

// What Datadog does not say is neither a success nor a failure of the cluster: the wave asks a person, and the message
// says where.
func TestMultiRegionGuideWithoutAnAnswerAsksAPerson(t *testing.T) {
	v := variations[0]
	for _, tt := range []struct {
		fault datadog.Fault
		// held are parts of what the cluster waits with.
		held []string
		// asked is how often at least, and at most, Datadog was asked.
		least, most int
	}{
		{datadog.Down, []string{"check error-rate: 5 errors in a row, 4 allowed", "datadog: query datadog at 127.0.0.1:", "503"}, 5, 5},
		{datadog.Slow, []string{"5 errors in a row", "datadog: query datadog at 127.0.0.1:", "no answer within"}, 5, 5},
		{datadog.Limited, []string{"5 errors in a row", "datadog: query datadog at 127.0.0.1:", "limit"}, 5, 5},
		{datadog.Forbidden, []string{"5 errors in a row", "datadog: query datadog at 127.0.0.1:", "403"}, 5, 5},
		{datadog.ErrorIn200, []string{"5 errors in a row", "datadog: query datadog at 127.0.0.1:"}, 5, 5},
		{datadog.Malformed, []string{"5 errors in a row", "datadog: query datadog at 127.0.0.1:"}, 5, 5},
		{datadog.NoData, []string{"check error-rate: 1 inconclusive, 0 allowed", "no data", "sum:errors{env:prod,cluster:prod-us-east-1}"}, 1, 1},
	} {
		t.Run(string(tt.fault), func(t *testing.T) {
			w := newVirtualWorld(t, v.folder, errorsOf(v.order, ""), func(_ []load.File, o *wire.Options) {
				if tt.fault == datadog.Slow {
					o.Config.Connections[0].Timeout = 200 * time.Millisecond
				}
			})
			w.datadog.Set(tt.fault)
			var held workflows.RolloutStatus
			w.env.RegisterDelayedCallback(func() { held = w.status() }, 50*time.Hour)
			w.env.RegisterDelayedCallback(func() {
				w.env.SignalWorkflow(workflows.Reject, map[string]any{"by": "ann"})
			}, 100*time.Hour)
			s := w.run()
			if held.State != workflows.Holding || held.Counts[policy.Failed] != 0 || len(held.Attention) != 1 || held.Attention[0].Name != "prod-us-east-1" {
				t.Fatalf("it is %s (%s), counts %v, attention %+v", held.State, held.Reason, held.Counts, held.Attention)
			}
			// The status has the beginning of the reason; the cluster's own workflow has all of it.
			reason := w.reasonOf("prod-us-east-1")
			for _, part := range tt.held {
				if !strings.Contains(reason, part) {
					t.Errorf("it waits with %q, which does not say %q", reason, part)
				}
			}
			if n := len(w.datadog.Requests()); n < tt.least || n > tt.most {
				t.Errorf("Datadog was asked %d times, want %d to %d", n, tt.least, tt.most)
			}
			if got, want := w.schedule(), []string{"apply prod-us-east-1 +0s", "restore prod-us-east-1 +100h"}; len(got) != 2 || got[0] != want[0] || !strings.HasPrefix(got[1], "restore prod-us-east-1") {
				t.Errorf("asked %v, want %v", got, want)
			}
			if s.State != workflows.RolledBack {
				t.Errorf("state = %s (%s)", s.State, s.Reason)
			}
		})
	}
}

// A cluster that falls silent has not passed, however good it was until then.
func TestMultiRegionGuideWithoutTheEndOfASeriesAsksAPerson(t *testing.T) {
	v := variations[0]
	var w *virtualWorld
	series := errorsOf(v.order, "")
	series[0].Points = func(at time.Time) (float64, bool) {
		first := w.firstStart()
		return 0, first.IsZero() || at.Before(first.Add(3*time.Minute))
	}
	w = newVirtualWorld(t, v.folder, series, nil)
	var held workflows.RolloutStatus
	w.env.RegisterDelayedCallback(func() { held = w.status() }, 50*time.Hour)
	w.env.RegisterDelayedCallback(func() {
		w.env.SignalWorkflow(workflows.Reject, map[string]any{"by": "ann"})
	}, 100*time.Hour)
	w.run()
	if held.State != workflows.Holding || held.Counts[policy.Failed] != 0 || len(held.Attention) != 1 || held.Attention[0].Name != "prod-us-east-1" {
		t.Fatalf("it is %s (%s), counts %v, attention %+v", held.State, held.Reason, held.Counts, held.Attention)
	}
	if reason := w.reasonOf("prod-us-east-1"); !strings.Contains(reason, "check error-rate: 1 inconclusive, 0 allowed") || !strings.Contains(reason, "no data") {
		t.Errorf("it waits with %q", reason)
	}
	if diff := cmp.Diff(minutes(1, 2, 3, 4, 5), w.measurements()); diff != "" {
		t.Errorf("measurements (-want +got):\n%s", diff)
	}
}

// A person may accept what Datadog could not say, and the rollout goes on in its pace.
func TestMultiRegionGuideGoesOnWhenAPersonAccepts(t *testing.T) {
	v := variations[0]
	w := newVirtualWorld(t, v.folder, errorsOf(v.order, ""), nil)
	w.datadog.Set(datadog.NoData)
	w.env.RegisterDelayedCallback(func() {
		w.datadog.Set(datadog.None)
		w.env.SignalWorkflow(workflows.Approve, map[string]any{"by": "bob"})
	}, time.Hour)
	if s := w.run(); s.State != workflows.Succeeded {
		t.Fatalf("state = %s (%s)%s", s.State, s.Reason, timeline(s))
	}
	got := w.schedule()
	if len(got) != 8 || got[1] != "apply prod-us-west-2 +1h" || got[2] != "apply prod-eu-west-1 +1h10m" {
		t.Errorf("asked %v, want the second after the hour and the third ten minutes later", got)
	}
}

// reasonOf is what a cluster's last attempt says of itself.
func (w *virtualWorld) reasonOf(cluster string) string {
	id := workflows.TargetID(workflows.WaveID("Production", "web", "R1", 1), cluster, 1)
	v, err := w.env.QueryWorkflowByID(id, workflows.StatusQuery)
	if err != nil {
		w.t.Fatal(err)
	}
	var s workflows.TargetStatus
	if err := v.Get(&s); err != nil {
		w.t.Fatal(err)
	}
	return s.Reason
}
