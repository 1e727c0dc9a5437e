package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	historypb "go.temporal.io/api/history/v1"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// cluster is a cluster's name.
func cluster(n int) string { return fmt.Sprintf("c%02d", n) }

func clusters(from, to int) []string {
	var out []string
	for n := from; n <= to; n++ {
		out = append(out, cluster(n))
	}
	return out
}

// TestWhatIsEndedByHandAmongBatches fails when somebody terminates or cancels a batch, or the wave above it, and the rollout
// hangs, forgets a target, or says of one more than it knows. Four clusters are in the middle of their change.
func TestWhatIsEndedByHandAmongBatches(t *testing.T) {
	t.Parallel()
	const n = policy.BatchTargets + 1
	first := n / 2 // clusters of the first batch
	for name, test := range map[string]struct {
		batch  int // 0: the wave
		cancel bool
		ends   workflows.Phase
		counts map[policy.TargetState]int
		// back is how a later rollback ends, with so many clusters back.
		back workflows.Phase
		gone int
	}{
		// Nothing is known of its clusters: a person has to look at each, and they count as failures.
		"batch terminated": {1, false, workflows.Holding, map[policy.TargetState]int{policy.NeedsRecovery: first, policy.Pending: n - first}, workflows.RollbackIncomplete, 0},
		// Its batches are told to stop by that, and say what came of their clusters.
		"wave terminated": {0, false, workflows.Failed, map[policy.TargetState]int{policy.Succeeded: 7, policy.Pending: n - 7}, workflows.RolledBack, 7},
		"batch cancelled": {2, true, workflows.Aborted, map[policy.TargetState]int{policy.Succeeded: 7, policy.Pending: n - 7}, workflows.RolledBack, 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			adverse := scenario(n)
			hang := clusters(4, 7)
			adverse.Failures = []fleet.Failure{{Match: fleet.Match{Targets: hang}, Version: "v2", Hang: true}}
			l, s := newLane(t), newSimSite(t, adverse)
			l.patience = 10 * time.Minute // each of a lost batch's clusters is looked at
			l.startWorker()
			in := l.start(s.documents(n, "  - waves: [{name: all, select: 'true', maxConcurrency: 4}]\n"), "v2")
			eventually(t, "four hang", func() bool {
				asked := s.asked()
				return len(asked) == 7
			}, func() string { return fmt.Sprint(s.asked()) })
			id := workflows.WaveID(in.Environment, in.Deployment, in.Rollout, 1)
			if test.batch > 0 {
				id = workflows.BatchID(in.Environment, in.Deployment, in.Rollout, 1, test.batch)
			}
			var err error
			if test.cancel {
				err = l.client.CancelWorkflow(t.Context(), id, "")
			} else {
				err = l.client.TerminateWorkflow(t.Context(), id, "", "by hand")
			}
			if err != nil {
				t.Fatal(err)
			}
			if test.batch != 1 {
				// What is released before that would make room for the next.
				eventually(t, "the first batch is told to stop", func() bool {
					return slices.ContainsFunc(l.history(workflows.BatchID(in.Environment, in.Deployment, in.Rollout, 1, 1)), func(e *historypb.HistoryEvent) bool {
						return e.GetWorkflowExecutionCancelRequestedEventAttributes() != nil || e.GetWorkflowExecutionSignaledEventAttributes().GetSignalName() == controlSignal
					})
				}, func() string { return "" })
			}
			for _, name := range hang {
				answer, err := http.Post(s.url+"/targets/"+name+"/release", "", nil) //nolint:noctx // a fleet of this process
				if err != nil {
					t.Fatal(err)
				}
				if err := answer.Body.Close(); err != nil {
					t.Fatal(err)
				}
			}
			status := l.until("it is "+string(test.ends), func(s workflows.RolloutStatus) bool {
				return s.State == test.ends && (s.Waves[0].State == string(policy.WaveStopped) || s.Waves[0].State == string(policy.WaveFailed))
			})
			for state, want := range test.counts {
				if status.Counts[state] != want {
					t.Errorf("%d clusters are %s, want %d: %v", status.Counts[state], state, want, status.Counts)
				}
			}
			if !test.ends.Ended() {
				l.signal(workflows.RollBack, workflows.Command{By: "bob"})
				l.ended()
				l.wantBack(test.back, test.gone, s)
				return
			}
			back := in
			back.Rollout, back.Mode, back.Of, back.PlanDigest = ulid.Make().String(), workflows.ModeRollback, in.Rollout, ""
			if err := l.client.GetWorkflow(t.Context(), workflows.RolloutID(in.Environment, in.Deployment), "").Get(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			l.launch(back)
			l.until("the rollback ends", func(s workflows.RolloutStatus) bool { return s.Mode == workflows.ModeRollback && s.State.Ended() })
			l.wantBack(test.back, test.gone, s)
		})
	}
}

// wantBack fails when the rollout has not ended like this, with so many clusters back, or anything was asked twice.
func (l *lane) wantBack(ends workflows.Phase, gone int, s *simSite) {
	l.t.Helper()
	status, err := l.status()
	if err != nil {
		l.t.Fatal(err)
	}
	if status.State != ends || status.Counts[policy.RolledBack] != gone {
		l.t.Errorf("the rollback ended %s (%s), %v; want %s with %d back", status.State, status.Reason, status.Counts, ends, gone)
	}
	for what, times := range s.asked() {
		if times != 1 {
			l.t.Errorf("%s was asked %d times", what, times)
		}
	}
}
