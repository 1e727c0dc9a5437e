package workflows

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

func TestRolloutWalksWavesInOrder(t *testing.T) {
	w := newWorld(t, waves("a", "b,c", "d"), "d", "c", "b", "a")
	s := w.run()
	if s.State != Succeeded {
		t.Fatalf("state = %s (%s), want Succeeded", s.State, s.Reason)
	}
	want := []string{"apply a v2", "apply c v2", "apply b v2", "apply d v2"}
	if got := w.fleet.log(); got[0] != want[0] || got[3] != want[3] || !slices.Contains(got[1:3], want[1]) || len(got) != 4 {
		t.Errorf("asked %v, want %v", got, want)
	}
}

func TestRolloutWaitsForSoakToTheSecond(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[0].Soak = policy.Duration(30 * time.Minute)
	w := newWorld(t, p, "a", "b")
	s := w.run()
	if s.State != Succeeded {
		t.Fatalf("state = %s (%s)", s.State, s.Reason)
	}
	if got := s.Waves[1].StartedAt.Sub(s.Waves[0].StartedAt); got < 30*time.Minute || got > 30*time.Minute+5*time.Second {
		t.Errorf("wave 2 opened %s after wave 1, want 30m", got)
	}
}

func TestFirstFailureOfTheFirstWaveHoldsAndGoesBack(t *testing.T) {
	w := newWorld(t, waves("a", "b,c"), "a", "b", "c")
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		w.fleet.versions["a"] = "half of v2"
		return executors.Result{Outcome: executors.Failed, Reason: "disk full"}, nil
	}
	w.send(time.Hour, Reject, map[string]any{"by": "bob", "reason": "no"})
	var held RolloutStatus
	w.env.RegisterDelayedCallback(func() { held = w.status() }, 30*time.Minute)
	s := w.run()
	if held.State != Holding || held.Waves[0].Failures != 1 || len(held.Attention) != 1 || held.Attention[0].Reason == "" {
		t.Errorf("after the failure: %s (%s), attention %+v; want Holding with a named", held.State, held.Reason, held.Attention)
	}
	// The failed one goes back by itself; nothing else was touched, so that the reject finds nothing to take back.
	if got := w.fleet.log(); !slices.Equal(got, []string{"apply a v2", "restore a v1"}) {
		t.Errorf("asked %v, want the failed change and its way back", got)
	}
	if s.State != Rejected {
		t.Errorf("state = %s (%s), want Rejected: nothing had been left reached", s.State, s.Reason)
	}
}

func fails(reason string) func() (executors.Result, error) {
	return func() (executors.Result, error) {
		return executors.Result{Outcome: executors.Failed, Reason: reason}, nil
	}
}

func TestFailuresWithinBudgetGoOn(t *testing.T) {
	p := waves("a", "b,c,d")
	p.FailureThreshold = &policy.FailureThreshold{MaxFailures: amount(1)}
	w := newWorld(t, p, "a", "b", "c", "d")
	w.fleet.on["apply b"] = fails("disk full")
	s := w.run()
	if s.State != SucceededWithFailures || s.Counts[policy.Failed] != 1 || s.Counts[policy.Succeeded] != 3 {
		t.Errorf("state = %s (%s), counts %v; want SucceededWithFailures with b failed", s.State, s.Reason, s.Counts)
	}
	if w.fleet.version("b") != "v1" || w.fleet.version("d") != "v2" {
		t.Errorf("b runs %s and d %s, want b back on v1 and d on v2", w.fleet.version("b"), w.fleet.version("d"))
	}
}

func TestBreachTakesEverythingBackInDeployedOrder(t *testing.T) {
	p := waves("a", "b", "c", "d,e")
	p.Rollback = &policy.Rollback{OnBreach: policy.BreachRolloutAll, OnTargetFailed: policy.TargetStays, MaxConcurrency: amount(1)}
	w := newWorld(t, p, "a", "b", "c", "d", "e")
	w.fleet.on["apply c"] = fails("disk full")
	s := w.run()
	want := []string{"apply a v2", "apply b v2", "apply c v2", "restore a v1", "restore b v1"}
	// c failed and still runs v1, so that nothing has to be asked of it.
	if got := w.fleet.log(); !slices.Equal(got, want) {
		t.Errorf("asked %v, want %v", got, want)
	}
	if s.State != RolledBack || s.Rollback == nil || s.Rollback.Targets != 3 || s.Counts[policy.RolledBack] != 3 {
		t.Errorf("state = %s (%s), rollback %+v, counts %v; want RolledBack of 3", s.State, s.Reason, s.Rollback, s.Counts)
	}
	if r := w.record(); r.State != string(RolledBack) || len(r.Targets) != 3 || r.Targets[0].Reached {
		t.Errorf("record = %+v, want RolledBack with nothing reached", r)
	}
}

func TestRollbackNewestFirst(t *testing.T) {
	p := waves("a", "b", "c")
	p.Rollback = &policy.Rollback{Order: policy.OrderNewest, MaxConcurrency: amount(1)}
	p.Waves.Waves[2].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c")
	w.send(time.Minute, RollBack, nil)
	s := w.run()
	if got := w.fleet.log(); !slices.Equal(got, []string{"apply a v2", "apply b v2", "restore b v1", "restore a v1"}) || s.State != RolledBack {
		t.Errorf("%s: asked %v", s.State, got)
	}
}

func TestRollbackLeavesAloneWhatSomebodyElseChanged(t *testing.T) {
	p := waves("a,b", "c")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c")
	w.env.RegisterDelayedCallback(func() { w.fleet.versions["b"] = "v9" }, time.Minute)
	w.send(2*time.Minute, RollBack, map[string]string{"by": "bob"})
	s := w.run()
	if w.fleet.version("a") != "v1" || w.fleet.version("b") != "v9" || s.State != RolledBack || s.Counts[policy.Skipped] != 1 {
		t.Errorf("%s: a runs %s, b runs %s, counts %v; want b left alone and listed", s.State, w.fleet.version("a"), w.fleet.version("b"), s.Counts)
	}
}

func TestRollbackThatFailsOnOneTargetStopsNoOther(t *testing.T) {
	p := waves("a,b,c", "d")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c", "d")
	w.fleet.on["restore a"] = fails("stuck")
	w.send(time.Minute, RollBack, nil)
	s := w.run()
	if s.State != RollbackIncomplete || s.Counts[policy.RolledBack] != 2 || len(s.Attention) != 1 || s.Attention[0].Name != "a" {
		t.Errorf("%s (%s), counts %v, attention %+v; want RollbackIncomplete naming a", s.State, s.Reason, s.Counts, s.Attention)
	}
}

func TestRollbackOverItsBudgetAsksAPerson(t *testing.T) {
	p := waves("a,b,c", "d")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	p.Rollback = &policy.Rollback{MaxFailures: amount(0), MaxConcurrency: amount(1)}
	w := newWorld(t, p, "a", "b", "c", "d")
	w.fleet.on["restore a"] = fails("stuck")
	w.fleet.on["restore b"] = fails("stuck")
	w.send(time.Minute, RollBack, nil)
	var held RolloutStatus
	w.env.RegisterDelayedCallback(func() { held = w.status() }, 5*time.Minute)
	w.send(10*time.Minute, Resume, map[string]string{"by": "bob"})
	s := w.run()
	if held.State != RollingBack || len(held.Waits) != 1 || w.fleet.version("c") != "v1" {
		t.Errorf("held: %s, waits %+v; c ends on %s, want it to wait for a person and then go on", held.State, held.Waits, w.fleet.version("c"))
	}
	if s.State != RollbackIncomplete {
		t.Errorf("state = %s", s.State)
	}
}

func TestNoRollbackWhereTheDeploymentCannotGoBack(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b")
	w.replan(func(plan *policy.Plan) { plan.NoReturn = "deployment says rollback: none" })
	w.send(time.Minute, RollBack, nil)
	s := w.run()
	if s.State != RollbackIncomplete || !slices.Equal(w.fleet.log(), []string{"apply a v2"}) || s.Counts[policy.NeedsRecovery] != 1 {
		t.Errorf("%s, asked %v, counts %v; want nothing asked and a listed", s.State, w.fleet.log(), s.Counts)
	}
}

func TestApprovalIsAskedBesideTheSoakAndBothAreNeeded(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[0].Soak = policy.Duration(time.Hour)
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 2, NotAuthor: true}
	w := newWorld(t, p, "a", "b")
	w.send(10*time.Minute, Approve, map[string]any{"by": "ann", "id": "1"})
	w.send(20*time.Minute, Approve, map[string]any{"by": "bob", "id": "2"})
	var soaking RolloutStatus
	w.env.RegisterDelayedCallback(func() { soaking = w.status() }, 25*time.Minute)
	w.send(30*time.Minute, Approve, map[string]any{"by": "eve", "id": "3", "wave": 2})
	s := w.run()
	if soaking.State != AwaitingApproval || len(soaking.Waits) != 2 {
		t.Errorf("beside the soak: %s, waits %+v; want AwaitingApproval and the soak", soaking.State, soaking.Waits)
	}
	if got := s.Waves[1].StartedAt.Sub(s.Waves[0].StartedAt); got < time.Hour || got > time.Hour+10*time.Second {
		t.Errorf("wave 2 opened %s after wave 1, want 1h: the approval does not shorten the soak", got)
	}
	if s.State != Succeeded || len(s.Approvals) != 2 || s.Commands[0].Accepted {
		t.Errorf("%s, approvals %+v, commands %+v; want the author's own refused", s.State, s.Approvals, s.Commands)
	}
}

func TestApprovalHoldsWhenItsTimeIsOver(t *testing.T) {
	p := waves("a")
	p.Approval = &policy.Approval{Min: 1, Within: policy.Duration(time.Hour)}
	w := newWorld(t, p, "a")
	var before, after RolloutStatus
	w.env.RegisterDelayedCallback(func() { before = w.status() }, 59*time.Minute)
	w.env.RegisterDelayedCallback(func() { after = w.status() }, 61*time.Minute)
	w.send(2*time.Hour, Approve, map[string]any{"by": "bob"})
	s := w.run()
	if before.State != AwaitingApproval || after.State != Holding || s.State != Succeeded {
		t.Errorf("before %s, after %s, end %s; want AwaitingApproval, Holding, Succeeded", before.State, after.State, s.State)
	}
}

func TestPauseLetsWhatHasBegunFinishAndStartsNothing(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[0].Soak = policy.Duration(time.Hour)
	w := newWorld(t, p, "a", "b")
	w.send(30*time.Minute, Pause, map[string]any{"by": "bob"})
	var paused RolloutStatus
	w.env.RegisterDelayedCallback(func() { paused = w.status() }, 90*time.Minute)
	w.send(2*time.Hour, Resume, nil)
	s := w.run()
	if paused.State != Paused || !slices.Equal(w.fleet.log()[:1], []string{"apply a v2"}) {
		t.Errorf("while paused: %s", paused.State)
	}
	if got := s.Waves[1].StartedAt.Sub(s.StartedAt); got < 2*time.Hour || got > 2*time.Hour+10*time.Second {
		t.Errorf("wave 2 opened %s after the start; the soak ran on, and the resume let it open at 2h", got)
	}
}

func TestRejectBeforeAnythingWasReached(t *testing.T) {
	p := waves("a")
	p.Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a")
	w.send(time.Minute, Reject, map[string]any{"by": "bob", "reason": "bad day", "surprise": true})
	s := w.run()
	if s.State != Rejected || len(w.fleet.log()) != 0 {
		t.Errorf("%s, asked %v", s.State, w.fleet.log())
	}
	if len(s.Commands) != 1 || !s.Commands[0].Accepted {
		t.Errorf("commands %+v: a stop with an unknown field is taken", s.Commands)
	}
}

func TestCancelMeansAbort(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b")
	w.env.RegisterDelayedCallback(w.env.CancelWorkflow, time.Minute)
	s := w.run()
	if s.State != Aborted || w.fleet.version("a") != "v2" {
		t.Errorf("%s, a runs %s; want Aborted with a left on v2", s.State, w.fleet.version("a"))
	}
}

func TestUnreachableIsTriedAgainAtTheEndOfTheWave(t *testing.T) {
	p := waves("a,b,c")
	p.Waves.Waves[0].MaxFailures, p.Waves.Waves[0].MaxConcurrency = amount(1), amount(1)
	p.FailureThreshold = &policy.FailureThreshold{MaxFailures: amount(1)}
	w := newWorld(t, p, "a", "b", "c")
	w.fleet.unreachable["a"] = readAttempts
	s := w.run()
	if s.State != Succeeded || !slices.Equal(w.fleet.log(), []string{"apply b v2", "apply c v2", "apply a v2"}) {
		t.Errorf("%s (%s), asked %v; want a at the end", s.State, s.Reason, w.fleet.log())
	}
}

func TestUnreachableThatStaysSoIsLeftAndTold(t *testing.T) {
	p := waves("a,b")
	p.Waves.Waves[0].MaxFailures = amount(1)
	p.FailureThreshold = &policy.FailureThreshold{MaxFailures: amount(1)}
	w := newWorld(t, p, "a", "b")
	w.fleet.unreachable["a"] = 1000
	s := w.run()
	if s.State != SucceededWithFailures || s.Counts[policy.Unreachable] != 1 {
		t.Errorf("%s, counts %v", s.State, s.Counts)
	}
}

func TestNoChangeIsASuccessThatIsNeverRolledBack(t *testing.T) {
	p := waves("a,b", "c")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c")
	w.fleet.versions["a"] = "v2"
	w.send(time.Minute, RollBack, nil)
	s := w.run()
	if s.State != RolledBack || w.fleet.version("a") != "v2" || !slices.Equal(w.fleet.log(), []string{"apply b v2", "restore b v1"}) {
		t.Errorf("%s, a runs %s, asked %v", s.State, w.fleet.version("a"), w.fleet.log())
	}
}

func TestBlockedWaitsAndAsksAgain(t *testing.T) {
	w := newWorld(t, waves("a"), "a")
	n := 0
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		if n++; n < 3 {
			return executors.Result{}, fmt.Errorf("sync window closed: %w", executors.ErrBlocked)
		}
		return executors.Result{Outcome: executors.Succeeded}, nil
	}
	if s := w.run(); s.State != Succeeded || len(w.fleet.log()) != 3 {
		t.Errorf("%s, asked %v", s.State, w.fleet.log())
	}
}

func TestBlockedPastItsDeadlineIsFailed(t *testing.T) {
	w := newWorld(t, waves("a"), "a")
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		return executors.Result{}, fmt.Errorf("sync window closed: %w", executors.ErrBlocked)
	}
	w.send(3*time.Hour, Abort, nil)
	s := w.run()
	if s.Counts[policy.Failed] != 1 || w.fleet.version("a") != "v1" {
		t.Errorf("counts %v", s.Counts)
	}
}

func TestALostAnswerIsAdoptedAndNeverAskedAgain(t *testing.T) {
	w := newWorld(t, waves("a"), "a")
	lost := false
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		lost = true
		return executors.Result{Outcome: executors.Succeeded}, nil
	}
	w.fleet.loseAnswers = true
	s := w.run()
	if !lost || s.State != Succeeded || len(w.fleet.log()) != 1 {
		t.Errorf("%s (%s), asked %v; want one asking, adopted", s.State, s.Reason, w.fleet.log())
	}
}

func TestAnUnknownEffectIsSettledByReadingTheTarget(t *testing.T) {
	for _, tt := range []struct {
		name string
		runs string
		want policy.TargetState
	}{{"the new version runs", "v2", policy.Succeeded}, {"the old one runs", "v1", policy.NeedsRecovery}} {
		t.Run(tt.name, func(t *testing.T) {
			p := waves("a,b")
			p.Waves.Waves[0].MaxFailures = amount(1)
			p.FailureThreshold = &policy.FailureThreshold{MaxFailures: amount(1)}
			w := newWorld(t, p, "a", "b")
			w.fleet.on["apply a"] = func() (executors.Result, error) {
				w.fleet.versions["a"] = tt.runs
				return executors.Result{Outcome: executors.Indeterminate, Reason: "the record was lost"}, nil
			}
			if s := w.run(); s.Counts[tt.want] == 0 {
				t.Errorf("counts %v, want one %s", s.Counts, tt.want)
			}
		})
	}
}

func TestChecksAreKeptToTheSecond(t *testing.T) {
	p := waves("a")
	p.Verification = []policy.Metric{metric(policy.DuringApply)}
	w := newWorld(t, p, "a")
	s := w.run()
	if s.State != Succeeded || len(w.gauge.times) != 5 {
		t.Fatalf("%s, measured at %v; want five measurements", s.State, w.gauge.times)
	}
	for i := 1; i < 5; i++ {
		if d := w.gauge.times[i].Sub(w.gauge.times[i-1]); d < time.Minute || d > time.Minute+time.Second {
			t.Errorf("measurement %d came %s after the one before, want 1m", i+1, d)
		}
	}
}

func TestAFailedCheckFailsItsTarget(t *testing.T) {
	p := waves("a", "b")
	p.Verification = []policy.Metric{metric(policy.DuringApply)}
	w := newWorld(t, p, "a", "b")
	w.gauge.value = func(string, time.Time) metrics.Sample { return metrics.Sample{Result: map[string]any{"value": 50.0}} }
	w.send(24*time.Hour, Abort, nil)
	s := w.run()
	if !slices.Equal(w.fleet.log(), []string{"apply a v2", "restore a v1"}) || s.Counts[policy.Failed] != 1 {
		t.Errorf("asked %v, counts %v; want a back on v1, counted as failed", w.fleet.log(), s.Counts)
	}
}

func TestAnInconclusiveCheckHoldsTheWaveForAPerson(t *testing.T) {
	for _, answer := range []string{Approve, Reject} {
		t.Run(answer, func(t *testing.T) {
			p := waves("a", "b")
			p.Verification = []policy.Metric{metric(policy.DuringApply)}
			w := newWorld(t, p, "a", "b")
			w.gauge.value = func(target string, _ time.Time) metrics.Sample {
				if target == "a" {
					return metrics.Sample{NoData: true, Problem: "no data"}
				}
				return metrics.Sample{Result: map[string]any{"value": 1.0}}
			}
			var held RolloutStatus
			w.env.RegisterDelayedCallback(func() { held = w.status() }, time.Hour)
			w.send(2*time.Hour, answer, map[string]any{"by": "bob", "id": "x"})
			s := w.run()
			if held.State != Holding || held.Waves[0].State != string(policy.WaveHeld) || held.Counts[policy.Failed] != 0 {
				t.Errorf("held: %s, waves %+v; want Holding, and no failure", held.State, held.Waves)
			}
			if want := map[string]Phase{Approve: Succeeded, Reject: RolledBack}[answer]; s.State != want {
				t.Errorf("state = %s (%s), want %s; commands %+v", s.State, s.Reason, want, s.Commands)
			}
			if !s.Commands[0].Accepted {
				t.Errorf("the answer was refused: %+v", s.Commands[0])
			}
		})
	}
}

func TestAFailedSoakCheckFailsItsTargetAndBringsItBack(t *testing.T) {
	p := waves("a,b", "c")
	p.Waves.Waves[0].Soak, p.Waves.Waves[0].MaxFailures = policy.Duration(10*time.Minute), amount(1)
	p.FailureThreshold = &policy.FailureThreshold{MaxFailures: amount(1)}
	p.Verification = []policy.Metric{metric(policy.DuringSoak)}
	w := newWorld(t, p, "a", "b", "c")
	start := w.env.Now()
	w.gauge.value = func(target string, at time.Time) metrics.Sample {
		if target == "a" && at.Sub(start) > 3*time.Minute {
			return metrics.Sample{Result: map[string]any{"value": 99.0}}
		}
		return metrics.Sample{Result: map[string]any{"value": 1.0}}
	}
	s := w.run()
	if s.State != SucceededWithFailures || w.fleet.version("a") != "v1" || w.fleet.version("c") != "v2" {
		t.Fatalf("%s (%s): a runs %s, c %s; want a back, and the rollout gone on", s.State, s.Reason, w.fleet.version("a"), w.fleet.version("c"))
	}
	if got := s.Waves[1].StartedAt.Sub(start); got < 10*time.Minute || got > 10*time.Minute+10*time.Second {
		t.Errorf("wave 2 opened after %s, want 10m: a failure within budget does not restart the soak", got)
	}
}

func TestSkipAndRetryOneTarget(t *testing.T) {
	p := waves("a,b", "c,d")
	p.Waves.Waves[0].MaxFailures = amount(1)
	p.FailureThreshold = &policy.FailureThreshold{MaxFailures: amount(1)}
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c", "d")
	n := 0
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		if n++; n == 1 {
			return executors.Result{Outcome: executors.Failed, Reason: "flaky"}, nil
		}
		return executors.Result{Outcome: executors.Succeeded}, nil
	}
	w.send(time.Minute, Retry, map[string]any{"target": "b", "id": "done"})
	w.send(2*time.Minute, Retry, map[string]any{"target": "a", "id": "again"})
	w.send(3*time.Minute, Skip, map[string]any{"target": "c", "reason": "in repair", "id": "skip"})
	w.send(3*time.Minute, Skip, map[string]any{"target": "z", "id": "nobody"})
	w.send(3*time.Minute, Skip, map[string]any{"target": "c", "wave": 1, "id": "wrong wave"})
	w.send(4*time.Minute, Approve, map[string]any{"by": "bob"})
	s := w.run()
	if s.State != Succeeded || w.fleet.version("a") != "v2" || w.fleet.version("c") != "v1" || s.Counts[policy.Skipped] != 1 {
		t.Errorf("%s (%s): a runs %s, c %s, counts %v", s.State, s.Reason, w.fleet.version("a"), w.fleet.version("c"), s.Counts)
	}
	want := map[string]bool{"done": false, "again": true, "skip": true, "nobody": false, "wrong wave": false}
	for _, c := range s.Commands {
		if accepted, listed := want[c.ID]; listed && accepted != c.Accepted {
			t.Errorf("%s: accepted %t (%s), want %t", c.ID, c.Accepted, c.Answer, accepted)
		}
	}
}

func TestAWaveWhoseTargetsWereAllSkippedHoldsForAPerson(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[0].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b")
	w.send(time.Minute, Skip, map[string]any{"target": "a"})
	w.send(2*time.Minute, Approve, map[string]any{"by": "bob", "id": "1"})
	var held RolloutStatus
	w.env.RegisterDelayedCallback(func() { held = w.status() }, 3*time.Minute)
	w.send(4*time.Minute, Approve, map[string]any{"by": "bob", "id": "2"})
	s := w.run()
	if held.State != Holding || s.State != Succeeded || w.fleet.version("a") != "v1" || w.fleet.version("b") != "v2" {
		t.Errorf("held %s, end %s (%s), commands %+v", held.State, s.State, s.Reason, s.Commands)
	}
}

func TestALaterRollbackTakesBackAClosedRollout(t *testing.T) {
	first := newWorld(t, waves("a", "b"), "a", "b")
	if s := first.run(); s.State != Succeeded {
		t.Fatal(s.State)
	}
	second := newWorld(t, waves("a", "b"), "a", "b")
	second.keep(first)
	second.input = RolloutInput{Rollout: "R2", Mode: ModeRollback, Of: "R1", Deployment: "web", Environment: "prod", By: "oncall", Reason: "latency"}
	s := second.run()
	if s.State != RolledBack || !slices.Equal(second.fleet.log(), []string{"restore a v1", "restore b v1"}) {
		t.Errorf("%s (%s), asked %v", s.State, s.Reason, second.fleet.log())
	}
	third := newWorld(t, waves("a", "b"), "a", "b")
	third.keep(second)
	third.input = second.input
	third.input.Rollout = "R3"
	if s := third.run(); s.State != RolledBack || len(third.fleet.log()) != 0 {
		t.Errorf("a second rollback: %s, asked %v; want nothing changed", s.State, third.fleet.log())
	}
}

func TestARefusedPlanStartsNothing(t *testing.T) {
	w := newWorld(t, waves("a"), "a")
	w.input.PlanDigest = "sha256:other"
	s := w.run()
	if s.State != Failed || len(w.fleet.log()) != 0 || !strings.Contains(s.Reason, "refused, nothing was started") {
		t.Errorf("%s (%s)", s.State, s.Reason)
	}
}

func TestBadSignalsAreRefusedWithTheirReason(t *testing.T) {
	p := waves("a")
	p.Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a")
	raw := func(data string) converter.RawValue {
		return converter.NewRawValue(&commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(data)})
	}
	w.send(time.Minute, Approve, raw(`{"by":"bob","wav":2}`))
	w.send(time.Minute, Approve, raw(`{"by":`))
	w.send(time.Minute, Approve, raw(`"yes"`))
	w.send(time.Minute, Approve, raw(`{"by":"bob","wave":"1"}`))
	w.send(time.Minute, Approve, raw(`{"by":"bob","wave":7}`))
	w.send(time.Minute, Approve, raw(`{}`))
	w.send(time.Minute, Approve, raw(`{"by":"bob","plan":"sha256:old"}`))
	w.send(time.Minute, Approve, raw(`{"by":"bob","rollout":"R0"}`))
	w.send(time.Minute, Resume, raw(`{"extra":1}`))
	w.send(2*time.Minute, Approve, raw(`{"by":"bob"}`))
	s := w.run()
	if s.State != Succeeded || len(s.Commands) != 10 {
		t.Fatalf("%s, %d commands", s.State, len(s.Commands))
	}
	says := []string{`unknown field "wav"`, "not understood", "not understood", "not understood", "wave 7 is not waiting for approval; wave 1 is", "needs a name", "approves plan sha256:old", "for rollout R0", `unknown field "extra"`}
	var answers []string
	for i, c := range s.Commands {
		answers = append(answers, c.Answer)
		if wantAccepted := i == 9; c.Accepted != wantAccepted {
			t.Errorf("command %d: accepted %t: %s", i, c.Accepted, c.Answer)
		}
	}
	for _, want := range says {
		if !slices.ContainsFunc(answers, func(a string) bool { return strings.Contains(a, want) }) {
			t.Errorf("no refusal says %q; they say %q", want, answers)
		}
	}
}

func TestTheSameCommandTwiceCountsOnce(t *testing.T) {
	p := waves("a")
	p.Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a")
	w.send(time.Minute, Pause, map[string]any{"id": "p1"})
	w.send(2*time.Minute, Resume, map[string]any{"id": "r1"})
	w.send(3*time.Minute, Pause, map[string]any{"id": "p1"})
	w.send(4*time.Minute, Approve, map[string]any{"by": "bob"})
	if s := w.run(); s.State != Succeeded || len(s.Commands) != 3 {
		t.Errorf("%s, commands %+v; want the second p1 ignored", s.State, s.Commands)
	}
}

func TestALateRetryThatFailsGoesBackAndCountsAgainstTheRollout(t *testing.T) {
	p := waves("a,b,c", "d")
	p.Waves.Waves[0].MaxFailures, p.Waves.Waves[0].MaxUnreachable = amount(1), amount(1)
	p.FailureThreshold = &policy.FailureThreshold{MaxFailures: amount(1), MaxUnreachable: amount(1)}
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c", "d")
	w.fleet.unreachable["a"] = 2 * readAttempts
	w.fleet.on["apply b"] = fails("flaky")
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		w.fleet.versions["a"] = "half of v2"
		return executors.Result{Outcome: executors.Failed, Reason: "disk full"}, nil
	}
	w.send(10*time.Minute, Retry, map[string]any{"target": "a", "id": "again"})
	var held RolloutStatus
	w.env.RegisterDelayedCallback(func() { held = w.status() }, 20*time.Minute)
	w.send(30*time.Minute, Abort, nil)
	s := w.run()
	if w.fleet.version("a") != "v1" || held.State != Holding || s.Counts[policy.Failed] != 2 {
		t.Errorf("a runs %s, held %s (%s), counts %v; want a back, and the second failure a breach of 1", w.fleet.version("a"), held.State, held.Reason, s.Counts)
	}
}

func TestARolloutThatHasStartedNothingYieldsToAnEarlierOnesRollback(t *testing.T) {
	p := waves("a")
	p.Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a")
	w.send(time.Minute, RollBack, map[string]any{"rollout": "R0", "by": "oncall"})
	if s := w.run(); s.State != Superseded || len(w.fleet.log()) != 0 {
		t.Errorf("%s (%s)", s.State, s.Reason)
	}
	q := waves("a", "b")
	q.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	begun := newWorld(t, q, "a", "b")
	begun.send(time.Minute, RollBack, map[string]any{"rollout": "R0"})
	begun.send(2*time.Minute, Approve, map[string]any{"by": "bob"})
	if s := begun.run(); s.State != Succeeded || s.Commands[0].Accepted {
		t.Errorf("%s, commands %+v; want one that has begun to refuse it and go on", s.State, s.Commands)
	}
}

func TestAWaveEndedFromOutsideListsItsTargetsForAPerson(t *testing.T) {
	w := newWorld(t, waves("a", "b"), "a", "b")
	w.env.OnWorkflow(WaveType, mock.Anything, mock.Anything).Return(WaveResult{}, errors.New("terminated"))
	s := w.run()
	if s.State != Failed || s.Counts[policy.NeedsRecovery] != 1 || len(s.Attention) != 1 || s.Attention[0].Name != "a" {
		t.Errorf("%s (%s), counts %v, attention %+v; want a listed", s.State, s.Reason, s.Counts, s.Attention)
	}
	if r := w.record(); len(r.Targets) != 1 || !r.Targets[0].Reached {
		t.Errorf("record %+v: a rollback would forget a", r)
	}
}

func TestAFailedChangeSaysWhatItPrintedLast(t *testing.T) {
	w := newWorld(t, waves("a"), "a")
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		return executors.Result{Outcome: executors.Failed, Reason: "apply exited with code 1", Output: "copying\nthere is no release v2\n\n"}, nil
	}
	w.send(time.Hour, Abort, nil)
	s := w.run()
	if len(s.Attention) != 1 || !strings.Contains(s.Attention[0].Reason, `exited with code 1; it said "there is no release v2"`) {
		t.Errorf("attention %+v", s.Attention)
	}
}
