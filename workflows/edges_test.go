package workflows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// until answers as first says until a time has passed, then as then says.
func (w *world) until(d time.Duration, first, then func() (executors.Result, error)) func() (executors.Result, error) {
	end := w.env.Now().Add(d)
	return func() (executors.Result, error) {
		if w.env.Now().Before(end) {
			return first()
		}
		return then()
	}
}

func works() (executors.Result, error) {
	return executors.Result{Outcome: executors.Succeeded}, nil
}

func blocked() (executors.Result, error) {
	return executors.Result{}, fmt.Errorf("sync window closed: %w", executors.ErrBlocked)
}

// at takes the status after a time.
func (w *world) at(d time.Duration, into *RolloutStatus) {
	w.env.RegisterDelayedCallback(func() { *into = w.status() }, d)
}

// tolerant is a policy of waves with a budget of n, each wave's own and the rollout's.
func tolerant(n int, lists ...string) policy.Policy {
	p := waves(lists...)
	for i := range p.Waves.Waves {
		p.Waves.Waves[i].MaxFailures, p.Waves.Waves[i].MaxConcurrency = amount(n), amount(1)
	}
	p.FailureThreshold = &policy.FailureThreshold{MaxFailures: amount(n)}
	return p
}

func TestABreachByALateRetryStopsTheOpenWave(t *testing.T) {
	w := newWorld(t, tolerant(1, "a,b,x", "c,d"), "a", "b", "x", "c", "d")
	w.fleet.unreachable["a"] = 2 * readAttempts
	w.fleet.on["apply b"], w.fleet.on["apply a"] = fails("flaky"), fails("disk full")
	w.fleet.on["apply c"] = w.until(20*time.Minute, blocked, works)
	w.send(5*time.Minute, Retry, map[string]any{"target": "a", "id": "again"})
	var held RolloutStatus
	w.at(time.Hour, &held)
	w.send(2*time.Hour, Abort, nil)
	w.run()
	if held.State != Holding || w.fleet.version("c") != "v1" || slices.Contains(w.fleet.log(), "apply d v2") {
		t.Errorf("%s (%s), c runs %s, asked %v; want the breach to stop wave 2 at once", held.State, held.Reason, w.fleet.version("c"), w.fleet.log())
	}
}

func TestALateFailureCountsBesideTheOpenWavesOwn(t *testing.T) {
	w := newWorld(t, tolerant(2, "a,b,x", "c,d"), "a", "b", "x", "c", "d")
	w.fleet.unreachable["a"] = 2 * readAttempts
	w.fleet.on["apply b"], w.fleet.on["apply a"] = fails("flaky"), fails("disk full")
	w.fleet.on["apply c"] = w.until(20*time.Minute, blocked, fails("flaky"))
	w.send(5*time.Minute, Retry, map[string]any{"target": "a", "id": "again"})
	var held RolloutStatus
	w.at(time.Hour, &held)
	w.send(2*time.Hour, Abort, nil)
	w.run()
	// d may have read its version already, but it is not asked once three have failed of two.
	if held.State != Holding || w.fleet.version("d") != "v1" {
		t.Errorf("%s (%s), asked %v; want three failures to be a breach of two", held.State, held.Reason, w.fleet.log())
	}
}

// hang makes one activity of those that match take a time; the others answer at once.
func hang[In, Out any](w *world, name string, act func(context.Context, In) (Out, error), matches func(In) bool, d time.Duration) {
	w.env.OnActivity(name, mock.Anything, mock.MatchedBy(matches)).Return(act).After(d)
	w.env.OnActivity(name, mock.Anything, mock.Anything).Return(act)
}

// hangChange makes a change of one target take a time.
func (w *world) hangChange(d time.Duration, direction executors.Direction, target string) {
	hang(w, "Await", w.acts.Await, func(in activities.AwaitInput) bool {
		return in.Change.Direction == direction && in.Change.Target == target
	}, d)
}

func TestARollbackThatIsAcceptedWhileTheEndIsRecordedIsCarriedOut(t *testing.T) {
	w := newWorld(t, waves("a"), "a")
	w.env.OnActivity("Record", mock.Anything, mock.MatchedBy(func(r activities.RolloutRecord) bool { return r.State == string(Succeeded) })).Return(w.acts.Record).After(10 * time.Minute)
	w.env.OnActivity("Record", mock.Anything, mock.Anything).Return(w.acts.Record)
	w.send(time.Minute, RollBack, map[string]any{"by": "oncall"})
	s := w.run()
	if s.State != RolledBack || w.fleet.version("a") != "v1" || w.record().State != string(RolledBack) {
		t.Errorf("%s, a runs %s, commands %+v, record %+v; want what was accepted to be done", s.State, w.fleet.version("a"), s.Commands, w.record())
	}
}

func TestARetryOfAFailedCheckIsCheckedAgain(t *testing.T) {
	for _, late := range []bool{true, false} {
		t.Run(fmt.Sprintf("late %t", late), func(t *testing.T) {
			p := tolerant(1, "a,b", "c")
			p.Rollback = &policy.Rollback{OnTargetFailed: policy.TargetStays}
			p.Verification = []policy.Metric{metric(policy.DuringApply)}
			p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
			if !late {
				p.Waves.Waves[0].Soak = policy.Duration(2 * time.Hour)
			}
			w := newWorld(t, p, "a", "b", "c")
			w.gauge.value = func(target string, _ time.Time) metrics.Sample {
				return metrics.Sample{Result: map[string]any{"value": map[string]float64{"a": 50}[target]}}
			}
			w.send(time.Hour, Retry, map[string]any{"target": "a"})
			w.send(5*time.Hour, Abort, nil)
			s := w.run()
			if s.Counts[policy.Failed] != 1 || s.Counts[policy.NoChange] != 0 {
				t.Errorf("counts %v, attention %+v; want a to fail its check again", s.Counts, s.Attention)
			}
		})
	}
}

func TestARollbackTakesBackAHalfDoneChangeOfUnknownEffect(t *testing.T) {
	p := tolerant(1, "a,b", "c")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c")
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		w.fleet.versions["a"] = "half of v2"
		return executors.Result{Outcome: executors.Indeterminate, Reason: "the record was lost"}, nil
	}
	w.send(10*time.Minute, RollBack, nil)
	s := w.run()
	if s.State != RolledBack || w.fleet.version("a") != "v1" {
		t.Errorf("%s: a runs %s, counts %v; want it back on v1", s.State, w.fleet.version("a"), s.Counts)
	}
}

func TestARollbackWaitsUntilALostWaveIsListed(t *testing.T) {
	w := newWorld(t, waves("a", "b"), "a", "b")
	w.env.OnWorkflow(WaveType, mock.Anything, mock.Anything).Return(WaveResult{}, errors.New("terminated"))
	hang(w, "LoadWave", w.acts.LoadWave, func(activities.WaveRef) bool { return true }, 10*time.Minute)
	w.send(time.Minute, RollBack, nil)
	if s := w.run(); s.State != RollbackIncomplete || s.Counts[policy.NeedsRecovery] != 1 {
		t.Errorf("%s (%s), counts %v; want a listed, and no rollback that forgets it", s.State, s.Reason, s.Counts)
	}
}

func TestALedgerThatIsDownHoldsUpNoRollback(t *testing.T) {
	w := newWorld(t, waves("a", "b"), "a", "b")
	hang(w, "LoadWave", w.acts.LoadWave, func(ref activities.WaveRef) bool { return ref.Wave == 2 }, 48*time.Hour)
	w.send(time.Minute, RollBack, nil)
	w.env.RegisterDelayedCallback(w.env.CancelWorkflow, 24*time.Hour)
	if s := w.run(); s.State != RolledBack || w.fleet.version("a") != "v1" {
		t.Errorf("%s (%s), a runs %s", s.State, s.Reason, w.fleet.version("a"))
	}
}

func TestAHungTargetHoldsNoOtherBackAndIsNamed(t *testing.T) {
	p := waves("a,b", "c")
	p.Rollback = &policy.Rollback{MaxFailures: amount(0)}
	w := newWorld(t, p, "a", "b", "c")
	w.hangChange(30*time.Minute, executors.Apply, "b")
	w.fleet.on["restore a"] = fails("stuck")
	w.send(time.Minute, RollBack, nil)
	var over, waits RolloutStatus
	w.at(5*time.Minute, &over)
	w.send(10*time.Minute, Resume, map[string]any{"id": "1"})
	w.send(15*time.Minute, Resume, map[string]any{"id": "2"}) // the part that was over its budget has ended
	w.at(20*time.Minute, &waits)
	s := w.run()
	for _, status := range []RolloutStatus{over, waits} {
		if status.State != RollingBack || !slices.Equal(status.Rollback.WaitingFor, []string{"b"}) {
			t.Errorf("%s, rollback %+v; want b named", status.State, status.Rollback)
		}
	}
	if len(over.Waits) == 0 || slices.ContainsFunc(waits.Waits, func(w policy.Wait) bool { return w.Rule == "rollback.maxFailures" }) {
		t.Errorf("over its budget it waits for %+v, after the resume for %+v", over.Waits, waits.Waits)
	}
	if s.State != RollbackIncomplete || w.fleet.version("b") != "v1" || s.Commands[2].Accepted {
		t.Errorf("%s (%s), b runs %s, commands %+v", s.State, s.Reason, w.fleet.version("b"), s.Commands)
	}
}

func TestAnApprovalThatCouldMeanTwoWavesIsRefused(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[0].Soak = policy.Duration(30 * time.Minute)
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	p.Verification = []policy.Metric{metric(policy.DuringSoak)}
	w := newWorld(t, p, "a", "b")
	w.gauge.value = func(target string, _ time.Time) metrics.Sample {
		if target == "a" {
			return metrics.Sample{NoData: true, Problem: "no data"}
		}
		return metrics.Sample{Result: map[string]any{"value": 1.0}}
	}
	w.send(10*time.Minute, Pause, map[string]any{"id": "p"})
	var held RolloutStatus
	w.at(11*time.Minute, &held)
	w.send(12*time.Minute, Resume, map[string]any{"id": "r"})
	w.send(15*time.Minute, Approve, map[string]any{"by": "bob", "id": "which"})
	w.send(20*time.Minute, Approve, map[string]any{"by": "bob", "id": "hold", "wave": 1})
	w.send(25*time.Minute, Approve, map[string]any{"by": "bob", "id": "wave", "wave": 2})
	s := w.run()
	if s.State != Succeeded || s.Commands[2].Accepted || len(s.Approvals) != 1 || !s.Approvals[0].At.After(s.StartedAt.Add(20*time.Minute)) {
		t.Errorf("%s, commands %+v, approvals %+v; want the one without a wave refused", s.State, s.Commands, s.Approvals)
	}
	if held.State != Paused || !slices.ContainsFunc(held.Waits, func(w policy.Wait) bool { return w.Rule == "pause" }) || len(held.Waits) < 2 {
		t.Errorf("held and paused: %s, waits %+v; want both", held.State, held.Waits)
	}
}

func TestATargetCancelledByHandIsNotTakenForVerified(t *testing.T) {
	p := waves("a,b", "c")
	p.Verification = []policy.Metric{metric(policy.DuringApply)}
	w := newWorld(t, p, "a", "b", "c")
	id := TargetID(WaveID("prod", "web", "R1", 1), "a", 1)
	w.env.RegisterDelayedCallback(func() { w.env.CancelWorkflowByID(id, "") }, 2*time.Minute)
	var held RolloutStatus
	w.at(time.Hour, &held)
	w.send(2*time.Hour, Approve, map[string]any{"by": "bob"})
	s := w.run()
	if held.State != Holding || len(held.Attention) != 1 || held.Attention[0].Name != "a" || s.State != Succeeded {
		t.Errorf("held: %s, attention %+v; end %s; want a person asked", held.State, held.Attention, s.State)
	}
}

func TestATargetCancelledByHandBeforeItsChangeIsLeftOut(t *testing.T) {
	w := newWorld(t, waves("a,b", "c"), "a", "b", "c")
	w.fleet.on["apply a"] = w.until(10*time.Minute, blocked, works)
	id := TargetID(WaveID("prod", "web", "R1", 1), "a", 1)
	w.env.RegisterDelayedCallback(func() { w.env.CancelWorkflowByID(id, "") }, 2*time.Minute)
	if s := w.run(); s.State != Succeeded || w.fleet.version("a") != "v1" || s.Counts[policy.Skipped] != 1 {
		t.Errorf("%s, a runs %s, counts %v; want a left out", s.State, w.fleet.version("a"), s.Counts)
	}
}

func TestARollbackCancelledByHandIsAnAbort(t *testing.T) {
	p := waves("a,b", "c")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	p.Rollback = &policy.Rollback{MaxConcurrency: amount(1)}
	w := newWorld(t, p, "a", "b", "c")
	w.hangChange(10*time.Minute, executors.Restore, "a")
	w.send(time.Minute, RollBack, nil)
	w.env.RegisterDelayedCallback(func() { w.env.CancelWorkflowByID(BackID("prod", "web", "R1", 1), "") }, 5*time.Minute)
	if s := w.run(); s.State != Aborted || w.fleet.version("a") != "v1" || w.fleet.version("b") != "v2" {
		t.Errorf("%s (%s), a runs %s, b %s", s.State, s.Reason, w.fleet.version("a"), w.fleet.version("b"))
	}
}

func TestASecondWayBackIsAnOperationOfItsOwn(t *testing.T) {
	p := waves("a")
	p.Rollback = &policy.Rollback{OnBreach: policy.BreachWaveBack, OnTargetFailed: policy.TargetStays}
	w := newWorld(t, p, "a")
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		w.fleet.versions["a"] = "half of v2"
		return executors.Result{Outcome: executors.Failed, Reason: "disk full"}, nil
	}
	w.fleet.on["restore a"] = w.until(10*time.Minute, fails("disk full"), works)
	w.send(20*time.Minute, RollBack, nil)
	s := w.run()
	if s.State != RolledBack || len(w.fleet.operations) != len(w.fleet.log()) {
		t.Errorf("%s (%s): %d operations for %v", s.State, s.Reason, len(w.fleet.operations), w.fleet.log())
	}
}

func TestAVersionReadAfterAnUnknownChangeIsNotTheOneToReturnTo(t *testing.T) {
	p := tolerant(1, "a,b", "c")
	p.Waves.Waves[0].Soak = policy.Duration(time.Hour)
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c")
	w.env.OnWorkflow(TargetType, mock.Anything, mock.Anything).Return(func(ctx workflow.Context, in TargetInput) (TargetResult, error) {
		if in.Target == "a" && in.Attempt == 1 && in.Direction == executors.Apply {
			w.fleet.versions["a"] = "v2"
			return TargetResult{}, errors.New("terminated")
		}
		return Target(ctx, in)
	})
	w.send(10*time.Minute, Retry, map[string]any{"target": "a"})
	w.send(2*time.Hour, RollBack, nil)
	if s := w.run(); s.State != RollbackIncomplete || s.Counts[policy.NeedsRecovery] != 1 {
		t.Errorf("%s (%s), a runs %s, counts %v; want a named: nobody knows what it ran", s.State, s.Reason, w.fleet.version("a"), s.Counts)
	}
}

func TestAChangeIsNotAskedForOnceItsTimeIsOver(t *testing.T) {
	w := newWorld(t, waves("a"), "a")
	w.fleet.on["apply a"] = w.until(time.Hour-time.Second, blocked, works)
	w.send(3*time.Hour, Abort, nil)
	s := w.run()
	if w.fleet.version("a") != "v1" || s.Counts[policy.Failed] != 1 {
		t.Errorf("a runs %s, counts %v; want it failed and never asked without time to follow it", w.fleet.version("a"), s.Counts)
	}
}

func TestAPauseTakesNothingOfABlockedTargetsTime(t *testing.T) {
	w := newWorld(t, waves("a"), "a")
	w.fleet.on["apply a"] = w.until(30*time.Minute, blocked, works)
	w.send(10*time.Minute, Pause, nil)
	w.send(5*time.Hour, Resume, nil)
	w.send(9*time.Hour, Abort, nil)
	if s := w.run(); s.State != Succeeded {
		t.Errorf("%s (%s), attention %+v", s.State, s.Reason, s.Attention)
	}
}

func TestASoakRunsAgainForATargetThatIsTriedAgain(t *testing.T) {
	p := tolerant(1, "a,b", "c")
	p.Waves.Waves[0].Soak = policy.Duration(time.Hour)
	w := newWorld(t, p, "a", "b", "c")
	n := 0
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		if n++; n == 1 {
			return executors.Result{Outcome: executors.Failed, Reason: "flaky"}, nil
		}
		return works()
	}
	w.send(50*time.Minute, Retry, map[string]any{"target": "a"})
	s := w.run()
	if got := s.Waves[1].StartedAt.Sub(s.StartedAt); s.State != Succeeded || got < 110*time.Minute || got > 111*time.Minute {
		t.Errorf("%s, wave 2 opened after %s; want an hour after a had become terminal at 50m", s.State, got)
	}
}

func TestAcceptingWhatCouldNotBeCheckedDoesNotShortenTheSoak(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[0].Soak = policy.Duration(time.Hour)
	p.Verification = []policy.Metric{metric(policy.DuringSoak)}
	w := newWorld(t, p, "a", "b")
	w.env.OnActivity("Check", mock.Anything, mock.Anything).Return(func(ctx context.Context, in activities.CheckInput) (activities.CheckOutput, error) {
		if len(in.Targets) > 0 && in.Targets[0].Name == "a" {
			return activities.CheckOutput{}, temporal.NewNonRetryableApplicationError("no such plan", activities.TypeInvalid, nil)
		}
		return w.acts.Check(ctx, in)
	})
	w.send(10*time.Minute, Approve, map[string]any{"by": "bob"})
	s := w.run()
	if got := s.Waves[1].StartedAt.Sub(s.StartedAt); s.State != Succeeded || got < time.Hour {
		t.Errorf("%s, wave 2 opened after %s; want the hour", s.State, got)
	}
}

func TestAStopIsNeverTakenForAnotherCommandOrLost(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	p.Rollback = &policy.Rollback{OnReject: policy.RejectHolds}
	t.Run("the id of another command", func(t *testing.T) {
		w := newWorld(t, p, "a", "b")
		w.send(time.Minute, Pause, map[string]any{"id": "1"})
		w.send(2*time.Minute, RollBack, map[string]any{"id": "1"})
		w.send(time.Hour, Abort, nil)
		if s := w.run(); s.State != RolledBack {
			t.Errorf("%s, commands %+v", s.State, s.Commands)
		}
	})
	t.Run("a reject after a rollback", func(t *testing.T) {
		w := newWorld(t, p, "a", "b")
		w.env.RegisterDelayedCallback(func() { w.env.SignalWorkflow(RollBack, nil); w.env.SignalWorkflow(Reject, nil) }, time.Minute)
		w.send(time.Hour, Abort, nil)
		if s := w.run(); s.State != RolledBack {
			t.Errorf("%s, commands %+v", s.State, s.Commands)
		}
	})
	t.Run("a rollback that an abort leaves undone is not acknowledged", func(t *testing.T) {
		w := newWorld(t, p, "a", "b")
		w.hangChange(10*time.Minute, executors.Apply, "a")
		w.send(time.Minute, Abort, nil)
		w.send(2*time.Minute, RollBack, nil)
		var waits RolloutStatus
		w.at(3*time.Minute, &waits)
		defer func() {
			if len(waits.Waits) != 1 || !strings.Contains(waits.Waits[0].Reason, "on a") {
				t.Errorf("waits %+v, want a named", waits.Waits)
			}
		}()
		if s := w.run(); s.State != Aborted || s.Commands[1].Accepted || !strings.Contains(s.Commands[1].Answer, "once it has ended") {
			t.Errorf("%s, commands %+v", s.State, s.Commands)
		}
	})
}

func TestAnApprovalNeedsAPerson(t *testing.T) {
	p := waves("a")
	p.Approval = &policy.Approval{Min: 2, NotAuthor: true}
	w := newWorld(t, p, "a")
	w.input.By = " ann"
	w.send(time.Minute, Approve, map[string]any{"by": "  "})
	w.send(2*time.Minute, Approve, map[string]any{"by": "ann "})
	w.send(3*time.Minute, Approve, map[string]any{"by": "bob"})
	w.send(4*time.Minute, Approve, map[string]any{"by": "bob "})
	var waits RolloutStatus
	w.at(5*time.Minute, &waits)
	w.send(6*time.Minute, Approve, map[string]any{"by": "eve"})
	if s := w.run(); waits.State != AwaitingApproval || s.State != Succeeded || len(s.Approvals) != 2 {
		t.Errorf("after bob: %s; end %s, approvals %+v", waits.State, s.State, s.Approvals)
	}
	nobody := newWorld(t, p, "a")
	nobody.input.By = ""
	nobody.send(time.Minute, Approve, map[string]any{"by": "bob"})
	nobody.send(2*time.Minute, Approve, map[string]any{"by": "eve"})
	if s := nobody.run(); s.State != Failed || !strings.Contains(s.Reason, "refused, nothing was started") {
		t.Errorf("%s (%s): nobody can tell who is not the author", s.State, s.Reason)
	}
}

func TestARollbackOfARolloutThatWasTerminatedNamesItsOpenWave(t *testing.T) {
	first := newWorld(t, waves("a", "b", "c"), "a", "b", "c")
	if s := first.run(); s.State != Succeeded {
		t.Fatal(s.State)
	}
	// As the ledger holds it when the workflow was terminated while its second wave was open.
	cut := first.record()
	cut.State, cut.Sequence, cut.EndedAt = string(Running), cut.Sequence+1, time.Time{}
	cut.Targets = slices.DeleteFunc(cut.Targets, func(t ledger.TargetRecord) bool { return t.Wave > 1 })
	if err := first.ledger.PutRecord(context.Background(), cut); err != nil {
		t.Fatal(err)
	}
	second := newWorld(t, waves("a", "b", "c"), "a", "b", "c")
	second.keep(first)
	second.input = RolloutInput{Rollout: "R2", Mode: ModeRollback, Of: "R1", Deployment: "web", Environment: "prod", By: "oncall"}
	s := second.run()
	if s.State != RollbackIncomplete || len(s.Attention) != 1 || s.Attention[0].Name != "b" || second.fleet.version("a") != "v1" {
		t.Errorf("%s (%s), attention %+v; want a back, and b named", s.State, s.Reason, s.Attention)
	}
}

func TestAStopEndsARolloutThatCannotBePlanned(t *testing.T) {
	for name, end := range map[string]Phase{Abort: Aborted, RollBack: RolledBack, Reject: Rejected} {
		w := newWorld(t, waves("a"), "a")
		w.env.OnActivity("MakePlan", mock.Anything, mock.Anything).Return(w.acts.MakePlan).After(48 * time.Hour)
		w.send(time.Hour, name, map[string]any{"by": "bob"})
		if s := w.run(); s.State != end || s.EndedAt.Sub(s.StartedAt) > 2*time.Hour || len(w.fleet.log()) != 0 {
			t.Errorf("%s: %s (%s) after %s, asked %v", name, s.State, s.Reason, s.EndedAt.Sub(s.StartedAt), w.fleet.log())
		}
	}
}

func TestAChangeIsAwaitedInFullAfterALongRefusal(t *testing.T) {
	w := newWorld(t, waves("a"), "a")
	w.fleet.on["apply a"] = w.until(50*time.Minute, blocked, works)
	var awaited time.Duration
	w.env.OnActivity("Await", mock.Anything, mock.Anything).Return(func(ctx context.Context, in activities.AwaitInput) (executors.Result, error) {
		awaited = activity.GetInfo(ctx).ScheduleToCloseTimeout
		return w.acts.Await(ctx, in)
	})
	if s := w.run(); s.State != Succeeded || awaited != time.Hour {
		t.Errorf("%s: its end was awaited for %s, want the whole deadline", s.State, awaited)
	}
}

func TestIdsOfTheLongestNamesStayBelowTheirLimit(t *testing.T) {
	name, ulid := strings.Repeat("n", 63), strings.Repeat("0", 26)
	target := strings.Repeat("rack/", 23)
	for _, parent := range []string{WaveID(name, name, ulid, 99), BackID(name, name, ulid, 99), LateID(name, name, ulid)} {
		one, other := TargetID(parent, target+"node1", 10), TargetID(parent, target+"node2", 10)
		if len(one) >= 200 || one == other || !strings.HasPrefix(one, parent+"/rack/") {
			t.Errorf("%d characters: %s and %s; want below 200, and apart", len(one), one, other)
		}
	}
	if got := TargetID("p", "a/b", 2); got != "p/a/b/2" {
		t.Errorf("got %s, want short names whole", got)
	}
}

func TestTheBudgetOfARollbackHoldsOverAllItsParts(t *testing.T) {
	p := waves("a,b,d", "c")
	p.Waves.Waves[0].MaxConcurrency = amount(3)
	p.Rollback = &policy.Rollback{MaxFailures: amount(1), MaxConcurrency: amount(1)}
	w := newWorld(t, p, "a", "b", "d", "c")
	w.hangChanges(map[string]time.Duration{"apply b": 30 * time.Minute, "apply d": 31 * time.Minute})
	w.fleet.on["restore a"], w.fleet.on["restore b"] = fails("stuck"), fails("stuck")
	w.send(time.Minute, RollBack, nil)
	var over RolloutStatus
	w.at(time.Hour, &over)
	w.send(2*time.Hour, Resume, nil)
	s := w.run()
	if over.State != RollingBack || len(over.Waits) != 1 || over.Counts[policy.RolledBack] != 0 || s.State != RollbackIncomplete || w.fleet.version("d") != "v1" {
		t.Errorf("%s waits for %+v, counts %v; end %s, d runs %s; want it held after the second failure", over.State, over.Waits, over.Counts, s.State, w.fleet.version("d"))
	}
}

func TestAHungWayBackHoldsNoLaterOne(t *testing.T) {
	p := waves("a,b", "c")
	w := newWorld(t, p, "a", "b", "c")
	w.hangChanges(map[string]time.Duration{"apply b": 10 * time.Minute, "restore a": 50 * time.Minute})
	w.send(time.Minute, RollBack, nil)
	var waits RolloutStatus
	w.at(20*time.Minute, &waits)
	s := w.run()
	if waits.State != RollingBack || waits.Rollback.Counts[policy.RolledBack] != 1 || waits.Rollback.InFlight != 1 {
		t.Errorf("while a hangs on its way back: %s, %+v; want b back already", waits.State, waits.Rollback)
	}
	if s.State != RolledBack || w.fleet.version("a") != "v1" || w.fleet.version("b") != "v1" {
		t.Errorf("%s (%s), a runs %s, b %s", s.State, s.Reason, w.fleet.version("a"), w.fleet.version("b"))
	}
}

// hangChanges makes changes take a time, by "apply a" or "restore a".
func (w *world) hangChanges(times map[string]time.Duration) {
	for change, d := range times {
		w.env.OnActivity("Await", mock.Anything, mock.MatchedBy(func(in activities.AwaitInput) bool {
			return string(in.Change.Direction)+" "+in.Change.Target == change
		})).Return(w.acts.Await).After(d)
	}
	w.env.OnActivity("Await", mock.Anything, mock.Anything).Return(w.acts.Await)
}

func TestAFirstInstallThatFailsIsNotTakenBackWithoutAnUninstall(t *testing.T) {
	w := newWorld(t, waves("a", "b"), "a", "b")
	w.fleet.versions["a"] = "" // nothing is installed
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		w.fleet.versions["a"] = "half of v2"
		return executors.Result{Outcome: executors.Failed, Reason: "disk full"}, nil
	}
	w.send(time.Hour, RollBack, nil)
	s := w.run()
	if s.State != RollbackIncomplete || !slices.Equal(w.fleet.log(), []string{"apply a v2"}) || s.Counts[policy.NeedsRecovery] != 1 {
		t.Errorf("%s (%s), asked %v, counts %v; want nothing asked and a listed", s.State, s.Reason, w.fleet.log(), s.Counts)
	}
}

// A target says that it may have been changed as soon as it has been asked, not only once its change has ended.
func TestATargetSaysThatItIsReachedOnceItIsAsked(t *testing.T) {
	p := waves("a")
	p.Verification = []policy.Metric{metric(policy.DuringApply)}
	w := newWorld(t, p, "a")
	w.hangChange(10*time.Minute, executors.Apply, "a")
	seen := map[policy.TargetState]TargetStatus{}
	for _, at := range []time.Duration{5 * time.Minute, 12 * time.Minute} {
		w.env.RegisterDelayedCallback(func() {
			v, err := w.env.QueryWorkflowByID(TargetID(WaveID("prod", "web", "R1", 1), "a", 1), StatusQuery)
			if err != nil {
				t.Errorf("the target's status: %v", err)
				return
			}
			var s TargetStatus
			if err := v.Get(&s); err != nil {
				t.Error(err)
			}
			seen[s.State] = s
		}, at)
	}
	w.run()
	for _, state := range []policy.TargetState{policy.Applying, policy.Verifying} {
		if s := seen[state]; !s.Reached || s.From != "v1" {
			t.Errorf("%s: reached %t, from %q (seen: %v); want reached, from v1", state, s.Reached, s.From, seen)
		}
	}
}
