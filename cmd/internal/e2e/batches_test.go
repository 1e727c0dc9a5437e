//go:build !race

// Under the race detector the embedded server takes some ten times as long, and so large a wave a quarter of an hour. The
// batches' own code is run under it in virtual time, and by the tests of what ends them by hand.

package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/log"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// largeFleet is how many clusters the waves of batches have: three batches, or two in the subset. Such a wave takes the whole
// machine, so that these tests run beside no other.
func largeFleet() int {
	if full {
		return 1200
	}
	return 600
}

// maxEvents is what no history of a workflow may exceed.
const maxEvents = 4000

// large is a rollout over one wave of batches.
type large struct {
	*lane
	url, log    string
	size, first int // clusters, and those of the first batch
	in          workflows.RolloutInput
}

// startLarge starts one; takes is how long a change takes, and adverse says what goes wrong, given how many clusters the first batch has.
func startLarge(t *testing.T, rules string, takes fleet.Span, adverse func(first int) []fleet.Failure) *large {
	t.Helper()
	l := &large{size: largeFleet()}
	l.first = l.size / ((l.size + policy.BatchTargets - 1) / policy.BatchTargets)
	s := scenario(l.size)
	s.Duration, s.Failures = takes, adverse(l.first)
	l.url, l.log = fleetOf(t, s)
	l.lane = newLane(t)
	l.patience = 15 * time.Minute
	l.startWorker()
	l.in = l.start(simDocuments(l.url, l.size, rules), "v2")
	return l
}

// A budget that is exceeded while two batches are in flight must stop both, count over both, keep the order, and bring back
// what was reached in both and nothing else.
func TestBreachAcrossBatches(t *testing.T) {
	const concurrency, budget = 40, 6
	var stuck, bad []string
	l := startLarge(t, fmt.Sprintf("  - failureThreshold: {maxFailures: %d}\n  - rollback: {onBreach: rollout, maxConcurrency: 60}\n"+
		"  - waves: [{name: all, select: 'true', maxConcurrency: %d, maxFailures: %d}]\n", budget, concurrency, budget), fleet.Span{}, func(first int) []fleet.Failure {
		stuck, bad = clusters(first-9, first-8), slices.Concat(clusters(first-2, first), clusters(first+3, first+6))
		return []fleet.Failure{
			{Match: fleet.Match{Targets: stuck}, Version: "v2", Hang: true},
			{Match: fleet.Match{Targets: bad}, Version: "v2", Leaves: fleet.LeavesVersion},
		}
	})
	s := l.until("both batches are in flight, and the rollout goes back", func(s workflows.RolloutStatus) bool {
		return s.State == workflows.RollingBack && s.Rollback != nil && slices.Equal(slices.Sorted(slices.Values(s.Rollback.WaitingFor)), slices.Sorted(slices.Values(stuck)))
	})
	if !strings.Contains(s.Reason, fmt.Sprintf("%d targets failed", budget+1)) {
		t.Errorf("it goes back because of %q; want %d failures over both batches", s.Reason, budget+1)
	}
	for _, name := range stuck {
		answer, err := http.Post(l.url+"/targets/"+name+"/release", "", nil) //nolint:noctx // a fleet of this process
		if err != nil {
			t.Fatal(err)
		}
		if err := answer.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s = l.ended()
	if s.State != workflows.RolledBack {
		t.Fatalf("state %s (%s)%s", s.State, s.Reason, timeline(s))
	}
	j := judge(t, l.log)
	if j.most > concurrency {
		t.Errorf("%d applies were in flight at once, with a concurrency of %d", j.most, concurrency)
	}
	if beyond := len(j.applied) - l.first; beyond < 7 || beyond > concurrency+budget {
		t.Errorf("%d clusters of the second batch were asked; the breach was in its seventh", beyond)
	}
	j.wantOrder(t, concurrency)
	for name := range j.applied {
		if j.applied[name] != 1 || j.runs[name] != "v1" {
			t.Errorf("%s was asked %d times and runs %s", name, j.applied[name], j.runs[name])
		}
		// A cluster that failed went back by itself, before the others did.
		if j.restored[name] != 1 {
			t.Errorf("%s was brought back %d times", name, j.restored[name])
		}
	}
	if untouched := l.size - len(j.applied); s.Counts[policy.Pending] != untouched {
		t.Errorf("%d clusters are counted as pending, %d were not touched: %v", s.Counts[policy.Pending], untouched, s.Counts)
	}
	for name := range j.restored {
		if j.applied[name] == 0 {
			t.Errorf("%s was brought back and had not been changed", name)
		}
	}
	l.wantHistories("breached")
}

// With a bounded budget the slots of all batches together never exceed budget + 1 - failures, and the wave comes to its end.
func TestBoundedBudgetOverBatches(t *testing.T) {
	const concurrency, budget = 60, 45
	var bad []string
	l := startLarge(t, fmt.Sprintf("  - failureThreshold: {maxFailures: %d, bounded: true}\n  - rollback: {onTargetFailed: none}\n"+
		"  - waves: [{name: all, select: 'true', maxConcurrency: %d, maxFailures: %d}]\n", budget, concurrency, budget), fleet.Span{Min: time.Second, Max: 2 * time.Second}, func(first int) []fleet.Failure {
		for n := 1; n <= largeFleet(); n++ {
			if n%30 == 0 && len(bad) < 20 || n > first-5 && n < first {
				bad = append(bad, cluster(n))
			}
		}
		return []fleet.Failure{{Match: fleet.Match{Targets: bad}, Version: "v2"}}
	})
	s := l.ended()
	if s.State != workflows.SucceededWithFailures || s.Counts[policy.Failed] != len(bad) || s.Counts[policy.Succeeded] != l.size-len(bad) {
		t.Fatalf("state %s (%s), %v; want %d failures%s", s.State, s.Reason, s.Counts, len(bad), timeline(s))
	}
	j := judge(t, l.log)
	if j.bound > budget+1 {
		t.Errorf("%d clusters were in flight or had failed at once, with a bounded budget of %d", j.bound, budget)
	}
	if j.most < budget/2 {
		t.Errorf("at most %d clusters were ever in flight: the bound was not reached, and the test proves nothing", j.most)
	}
	if len(j.applied) != l.size {
		t.Errorf("%d clusters were asked of %d", len(j.applied), l.size)
	}
	j.wantOrder(t, concurrency)
	l.wantHistories("bounded")
}

// judged is what the effect log says.
type judged struct {
	order             []string // first applies
	applied, restored map[string]int
	runs              map[string]string
	most              int // applies in flight at once
	bound             int // applies in flight and clusters that had failed, at once
}

func judge(t *testing.T, log string) judged {
	t.Helper()
	entries, err := fleet.ReadLog(log)
	if err != nil {
		t.Fatal(err)
	}
	j := judged{applied: map[string]int{}, restored: map[string]int{}, runs: map[string]string{}}
	flying, failed := map[string]bool{}, map[string]bool{}
	for _, e := range entries {
		switch e.Kind {
		case fleet.KindStarted:
			if e.Version == "v1" {
				j.restored[e.Target]++
				break
			}
			if j.applied[e.Target]++; j.applied[e.Target] == 1 {
				j.order = append(j.order, e.Target)
			}
			flying[e.Operation] = true
			j.most, j.bound = max(j.most, len(flying)), max(j.bound, len(flying)+len(failed))
		case fleet.KindFinished:
			if j.runs[e.Target] = e.Runs; flying[e.Operation] && e.Result == string(fleet.Failed) {
				failed[e.Target] = true
			}
			delete(flying, e.Operation)
		case fleet.KindStart, fleet.KindRestarted, fleet.KindRequest, fleet.KindDropped, fleet.KindRefused, fleet.KindRepeated, fleet.KindFenced, fleet.KindReleased:
		}
	}
	return j
}

// wantOrder fails when a cluster was asked although more than concurrency of those before it had not been: one of them
// may take long, but no more than were started are passed.
func (j judged) wantOrder(t *testing.T, concurrency int) {
	t.Helper()
	place := map[string]int{}
	for n := range largeFleet() {
		place[cluster(n+1)] = n
	}
	for at, name := range j.order {
		if place[name]-at > concurrency {
			t.Errorf("cluster %d, %s, was number %d to be asked, with %d at a time", place[name]+1, name, at+1, concurrency)
		}
	}
}

// wantHistories, which stores them under a name when that was asked for, fails when a history is larger than an engine bears well, or a control workflow's does not replay.
func (l *large) wantHistories(name string) {
	l.t.Helper()
	sizes, histories := map[string]int64{}, map[string]*historypb.History{}
	var token []byte
	for {
		answer, err := l.client.ListWorkflow(l.t.Context(), &workflowservice.ListWorkflowExecutionsRequest{PageSize: 1000, NextPageToken: token,
			Query: fmt.Sprintf("WorkflowType != '%s'", workflows.TargetType)})
		if err != nil {
			l.t.Fatal(err)
		}
		for _, e := range answer.GetExecutions() {
			id, kind := e.GetExecution().GetWorkflowId(), e.GetType().GetName()
			if events := l.history(id); len(events) > maxEvents {
				l.t.Errorf("%s has %d events, more than %d", id, len(events), maxEvents)
			} else if err := replayer().ReplayWorkflowHistory(log.NewStructuredLogger(quiet()), &historypb.History{Events: events}); err != nil {
				l.t.Errorf("%s does not replay: %v", id, err)
			} else {
				sizes[kind] = max(sizes[kind], int64(len(events)))
				histories[id] = &historypb.History{Events: events}
			}
		}
		if token = answer.GetNextPageToken(); len(token) == 0 {
			break
		}
	}
	for _, kind := range []string{workflows.RolloutType, workflows.WaveType, workflows.BatchType} {
		if sizes[kind] == 0 {
			l.t.Errorf("no history of a %s was looked at", kind)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(sizes)) {
		l.t.Logf("the longest history of a %s has %d events", kind, sizes[kind])
	}
	if *writeHistories {
		store(l.t, "batches-"+name, histories)
	}
}
