package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// approved is two waves of which the second needs a person.
const approved = `  - waves:
      - {name: first, select: 'target.name == "c01"'}
      - {name: rest, select: 'true', maxConcurrency: 2, approval: {min: 1}}
`

// startAbsent starts a rollout in a lane that never had a worker. The documents are in the ledger of its data folder,
// brought there by the worker of another lane.
func startAbsent(t *testing.T, text string) (*lane, workflows.RolloutInput) {
	t.Helper()
	other, l := newLane(t), newLane(t)
	other.data, other.options.DataDir = l.data, l.data
	other.startWorker()
	in := other.prepare(text, "v2")
	other.stopWorker()
	l.launch(in)
	return l, in
}

// wantUntouched wants the rollout to be open, and nothing to have looked at it.
func (l *lane) wantUntouched() {
	l.t.Helper()
	var kinds []enumspb.EventType
	for _, e := range l.history(workflows.RolloutID("Production", "web")) {
		kinds = append(kinds, e.GetEventType())
	}
	for _, kind := range kinds {
		if kind != enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED && kind != enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED && kind != enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED {
			l.t.Errorf("the rollout moved without a worker: %v", kinds)
		}
	}
	answer, err := l.client.DescribeWorkflowExecution(l.t.Context(), workflows.RolloutID("Production", "web"), "")
	if err != nil {
		l.t.Fatal(err)
	}
	if got := answer.GetWorkflowExecutionInfo().GetStatus(); got != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		l.t.Errorf("status %s, want running", got)
	}
}

// TestRolloutWaitsForItsFirstWorker fails when a rollout that was started with no worker anywhere is lost or does not
// begin when one comes.
func TestRolloutWaitsForItsFirstWorker(t *testing.T) {
	t.Parallel()
	s := newSimSite(t, scenario(fleetSize))
	l, in := startAbsent(t, s.documents(fleetSize, oneWave))
	l.wantUntouched()
	wantSite(t, s, nil, all(fleetSize, "v1"))
	l.startWorker()
	l.wantEnd(in, workflows.Succeeded, map[policy.TargetState]int{policy.Succeeded: fleetSize})
	wantSite(t, s, changes(all(fleetSize, ""), executors.Apply), all(fleetSize, "v2"))
}

// TestStopsSentBeforeTheFirstWorker fails when a stop that was sent with no worker anywhere comes after a start.
func TestStopsSentBeforeTheFirstWorker(t *testing.T) {
	t.Parallel()
	nothing := map[policy.TargetState]int{policy.Pending: fleetSize}
	for name, end := range map[string]workflows.Phase{
		workflows.Pause: workflows.Paused, workflows.RollBack: workflows.RolledBack, workflows.Reject: workflows.Rejected, workflows.Abort: workflows.Aborted,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSimSite(t, scenario(fleetSize))
			l, in := startAbsent(t, s.documents(fleetSize, oneWave))
			l.signal(name, workflows.Command{ID: "one", By: "bob", Reason: "in time"})
			l.wantUntouched()
			l.startWorker()
			if name != workflows.Pause {
				l.wantEnd(in, end, nothing)
				wantSite(t, s, nil, all(fleetSize, "v1"))
				return
			}
			l.until("it is paused", func(s workflows.RolloutStatus) bool { return s.State == end && accepted(s, "one") })
			wantSite(t, s, nil, all(fleetSize, "v1"))
			l.signal(workflows.Resume, workflows.Command{By: "bob"})
			l.wantEnd(in, workflows.Succeeded, map[policy.TargetState]int{policy.Succeeded: fleetSize})
			wantSite(t, s, changes(all(fleetSize, ""), executors.Apply), all(fleetSize, "v2"))
		})
	}
}

// accepted reports whether a command took effect.
func accepted(s workflows.RolloutStatus, id string) bool {
	return slices.ContainsFunc(s.Commands, func(r workflows.Receipt) bool { return r.ID == id && r.Accepted })
}

// TestCommandsSentWhileNoWorkerRuns fails when a command that was sent with the worker dead is lost, or comes after
// something that it should have kept from starting. The rollout waits for the approval of its second wave.
func TestCommandsSentWhileNoWorkerRuns(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end    workflows.Phase
		counts map[policy.TargetState]int
		asked  []string
		runs   map[string]string
	}{
		workflows.Approve: {workflows.Succeeded, map[policy.TargetState]int{policy.Succeeded: 3}, changes(all(fleetSize, ""), executors.Apply), all(fleetSize, "v2")},
		workflows.RollBack: {workflows.RolledBack, map[policy.TargetState]int{policy.RolledBack: 1, policy.Pending: 2}, []string{"apply c01", "restore c01"},
			all(fleetSize, "v1")},
		workflows.Reject: {workflows.RolledBack, map[policy.TargetState]int{policy.RolledBack: 1, policy.Pending: 2}, []string{"apply c01", "restore c01"},
			all(fleetSize, "v1")},
		workflows.Abort: {workflows.Aborted, map[policy.TargetState]int{policy.Succeeded: 1, policy.Pending: 2}, []string{"apply c01"},
			map[string]string{"c01": "v2", "c02": "v1", "c03": "v1"}},
		// Paused before it is approved: both are taken, and nothing starts.
		workflows.Pause: {workflows.Paused, map[policy.TargetState]int{policy.Succeeded: 1, policy.Pending: 2}, []string{"apply c01"},
			map[string]string{"c01": "v2", "c02": "v1", "c03": "v1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, s := newKillable(t, false), newSimSite(t, scenario(fleetSize))
			k.work()
			in := k.start(s.documents(fleetSize, approved), "v2")
			k.until("it asks for approval", func(s workflows.RolloutStatus) bool { return s.State == workflows.AwaitingApproval })
			k.process.Kill()
			k.signal(name, workflows.Command{ID: "one", By: "bob"})
			if name == workflows.Pause {
				k.signal(workflows.Approve, workflows.Command{ID: "two", By: "bob"})
			}
			k.work()
			if name == workflows.Pause {
				k.until("it is paused", func(s workflows.RolloutStatus) bool {
					return s.State == test.end && accepted(s, "one") && accepted(s, "two")
				})
				wantSite(t, s, test.asked, test.runs)
				k.signal(workflows.Resume, workflows.Command{By: "bob"})
				k.wantSucceeded(in, s)
				return
			}
			k.wantEnd(in, test.end, test.counts)
			wantSite(t, s, test.asked, test.runs)
		})
	}
}

// TestPauseAndResumeKeepTheirOrder fails when a wave or a target ends up with the earlier of two controls that were sent
// to it one right after the other: it would wait for ever in a rollout that goes on.
func TestPauseAndResumeKeepTheirOrder(t *testing.T) {
	t.Parallel()
	const n = 6
	l, s := newLane(t), newSimSite(t, scenario(n))
	g := newGate("observe.end", "c01", "c02", "c03", "c04")
	l.options.At = g.at
	openGate := sync.OnceFunc(func() { close(g.open) })
	l.startWorker()
	t.Cleanup(openGate)
	in := l.start(s.documents(n, "  - waves: [{name: all, select: 'true', maxConcurrency: 4}]\n"), "v2")
	eventually(t, "all are being read", g.full, func() string { return fmt.Sprint(s.asked()) })
	for i := range 5 {
		// Each is heard before the next is sent; in one moment a pause and a resume would mean a pause.
		for _, name := range []string{workflows.Pause, workflows.Resume} {
			id := fmt.Sprint(name, i)
			l.signal(name, workflows.Command{ID: id, By: "bob"})
			l.until("the rollout has heard "+id, func(s workflows.RolloutStatus) bool { return accepted(s, id) })
		}
	}
	openGate()
	l.wantEnd(in, workflows.Succeeded, map[policy.TargetState]int{policy.Succeeded: n})
	wantSite(t, s, changes(all(n, ""), executors.Apply), all(n, "v2"))
}

// TestKilledServerKeepsWaiting fails when a soak or a wait for approval does not outlive the death of server and worker.
func TestKilledServerKeepsWaiting(t *testing.T) {
	t.Parallel()
	t.Run("soak", func(t *testing.T) {
		t.Parallel()
		k, s := newKillable(t, true), newSimSite(t, scenario(fleetSize))
		k.work()
		const soak = 5 * time.Second
		in := k.start(s.documents(fleetSize, "  - waves: [{name: all, select: 'true', maxConcurrency: 3, soak: 5s}]\n"), "v2")
		k.until("the wave soaks", func(s workflows.RolloutStatus) bool { return len(s.Waves) == 1 && !s.Waves[0].SoakUntil.IsZero() })
		k.killAndWork()
		k.wantSucceeded(in, s)
		if w := k.ended().Waves[0]; w.EndedAt.Sub(w.StartedAt) < soak {
			t.Errorf("the wave ended %s after it began, want a soak of %s", w.EndedAt.Sub(w.StartedAt), soak)
		}
	})
	t.Run("soak, then rollback", func(t *testing.T) {
		t.Parallel()
		k, s := newKillable(t, true), newSimSite(t, scenario(fleetSize))
		k.work()
		in := k.reachAll(s)
		k.signal(workflows.RollBack, workflows.Command{By: "bob"})
		k.killAndWork()
		k.wantRolledBack(in, s)
	})
	t.Run("approval", func(t *testing.T) {
		t.Parallel()
		k, s := newKillable(t, true), newSimSite(t, scenario(fleetSize))
		k.work()
		in := k.start(s.documents(fleetSize, approved), "v2")
		k.until("it asks for approval", func(s workflows.RolloutStatus) bool { return s.State == workflows.AwaitingApproval })
		k.killAndWork()
		k.until("it still asks for approval", func(s workflows.RolloutStatus) bool { return s.State == workflows.AwaitingApproval })
		wantSite(t, s, []string{"apply c01"}, map[string]string{"c01": "v2", "c02": "v1", "c03": "v1"})
		k.signal(workflows.Approve, workflows.Command{By: "bob"})
		k.wantSucceeded(in, s)
	})
}
