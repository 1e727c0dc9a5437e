package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/worker"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/sqlite"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// byHand is a lane whose workflows run and whose activities the test answers, so that it decides what else has happened
// by the time a workflow hears of an answer.
type byHand struct {
	*lane
	site     *simSite
	in       workflows.RolloutInput
	deciding []worker.Worker
	store    *sqlite.Store
}

// newByHand starts a rollout of which no activity has run.
func newByHand(t *testing.T) *byHand {
	t.Helper()
	h := &byHand{lane: newLane(t), site: newSimSite(t, scenario(fleetSize))}
	h.startWorker()
	h.in = h.prepare(h.site.documents(fleetSize, oneWave), "v2")
	h.stopWorker()
	store, err := sqlite.Open(t.Context(), filepath.Join(h.data, "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	h.store = store
	t.Cleanup(func() { _ = store.Close() })
	control := worker.New(h.client, workflows.ControlQueue, worker.Options{LocalActivityWorkerOnly: true})
	target := worker.New(h.client, workflows.TargetQueue, worker.Options{LocalActivityWorkerOnly: true})
	workflows.Register(control, target, &activities.Activities{})
	h.deciding = []worker.Worker{control, target}
	for _, w := range h.deciding {
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(h.rest)
	h.launch(h.in)
	return h
}

// rest stops deciding: from here on what happens is found by the next worker all at once.
func (h *byHand) rest() {
	for _, w := range h.deciding {
		w.Stop()
	}
	h.deciding = nil
}

// asked waits until a workflow has asked for an activity, and returns the event.
func (h *byHand) asked(id, activity string) *historypb.ActivityTaskScheduledEventAttributes {
	h.t.Helper()
	var found *historypb.ActivityTaskScheduledEventAttributes
	eventually(h.t, id+" asks for "+activity, func() bool {
		if _, err := h.client.DescribeWorkflowExecution(h.t.Context(), id, ""); err != nil {
			return false // not started yet
		}
		for _, e := range h.history(id) {
			if a := e.GetActivityTaskScheduledEventAttributes(); a.GetActivityType().GetName() == activity {
				found = a
			}
		}
		return found != nil
	}, func() string { return "" })
	return found
}

// answer answers a workflow's activity as an activity worker would.
func (h *byHand) answer(id, activity string) {
	h.t.Helper()
	asked := h.asked(id, activity)
	a := &activities.Activities{Plan: wire.Plan, Blobs: h.store, Log: h.store}
	var answer any
	var err error
	switch activity {
	case "MakePlan":
		answer, err = a.MakePlan(h.t.Context(), decode[activities.PlanInput](h.lane, asked.GetInput()))
	case "Record":
		err = a.Record(h.t.Context(), decode[ledger.Record](h.lane, asked.GetInput()))
	case "LoadWave":
		answer, err = a.LoadWave(h.t.Context(), decode[activities.WaveRef](h.lane, asked.GetInput()))
	case "Observe":
		answer = activities.Observed{Reading: executors.Reading{Known: true, Version: "v1"}}
	default:
		err = fmt.Errorf("no answer to %s", activity)
	}
	if err == nil {
		err = h.client.CompleteActivityByID(h.t.Context(), h.namespace, id, "", asked.GetActivityId(), answer, nil)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// tell sends a control as a parent does.
func (h *byHand) tell(id string, c policy.Control) {
	h.t.Helper()
	if err := h.client.SignalWorkflow(h.t.Context(), id, "", controlSignal, c); err != nil {
		h.t.Fatal(err)
	}
}

// TestStopBesideAnAnswerStartsNothing fails when a workflow that hears of a stop and of an activity's end in one moment
// acts on the end alone. Moments are long where a worker has been away, or is busy.
func TestStopBesideAnAnswerStartsNothing(t *testing.T) {
	t.Parallel()
	for _, stop := range []string{workflows.Pause, workflows.Reject, workflows.RollBack, workflows.Abort} {
		control := policy.ControlStop
		if stop == workflows.Pause {
			control = policy.ControlPause
		}
		for _, level := range []string{"rollout", "wave", "target"} {
			t.Run(level+"/"+stop, func(t *testing.T) {
				t.Parallel()
				h := newByHand(t)
				rollout := workflows.RolloutID("Production", "web")
				wave := workflows.WaveID("Production", "web", h.in.Rollout, 1)
				target := workflows.TargetID(wave, "c01", 1)
				h.answer(rollout, "MakePlan")
				var check func() bool
				switch level {
				case "rollout":
					h.asked(rollout, "Record")
					h.rest()
					h.answer(rollout, "Record")
					check = h.wantNoWaveAfterStop
				case "wave":
					h.answer(rollout, "Record")
					h.asked(wave, "LoadWave")
					h.rest()
					h.answer(wave, "LoadWave")
					h.tell(wave, control)
					check = func() bool { return h.wantNoStartAfterStop(wave) }
				case "target":
					h.answer(rollout, "Record")
					h.answer(wave, "LoadWave")
					h.asked(target, "Observe")
					h.rest()
					h.answer(target, "Observe")
					h.tell(target, control)
					check = func() bool { return h.wantNoSubmitAfterStop(target) }
				}
				h.signal(stop, workflows.Command{ID: "one", By: "bob"})
				h.startWorker()
				if stop == workflows.Pause {
					h.until("it is paused", func(s workflows.RolloutStatus) bool { return s.State == workflows.Paused })
					h.signal(workflows.Resume, workflows.Command{By: "bob"})
				}
				s := h.ended()
				if stop == workflows.Pause && s.State != workflows.Succeeded {
					t.Errorf("state = %s (%s), want Succeeded after the resume%s", s.State, s.Reason, timeline(s))
				}
				if !check() {
					t.Errorf("the %s has not heard of the stop", level)
				}
			})
		}
	}
}
