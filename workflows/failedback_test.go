package workflows

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// highLatency makes the checks of the named targets fail.
func (w *world) highLatency(names ...string) {
	w.gauge.value = func(target string, _ time.Time) metrics.Sample {
		v := 1.0
		if slices.Contains(names, target) {
			v = 50
		}
		return metrics.Sample{Result: map[string]any{"value": v}}
	}
}

// rollback.onTargetFailed: target, the default: the one that failed goes back and stays counted, and the others go on.

func TestATargetThatFailsItsChecksWithinBudgetGoesBackAlone(t *testing.T) {
	p := tolerant(1, "a,b,c", "d")
	p.Verification = []policy.Metric{metric(policy.DuringApply)}
	w := newWorld(t, p, "a", "b", "c", "d")
	w.highLatency("b")
	s := w.run()
	w.wantAsked("apply a v2", "apply b v2", "restore b v1", "apply c v2", "apply d v2")
	if s.State != SucceededWithFailures || s.Waves[0].Failures != 1 || s.Counts[policy.Failed] != 1 || s.Counts[policy.Succeeded] != 3 {
		t.Errorf("%s (%s), counts %v", s.State, s.Reason, s.Counts)
	}
	if len(s.Attention) != 1 || !strings.Contains(s.Attention[0].Reason, "it runs v1 again") || s.Attention[0].Reached {
		t.Errorf("attention %+v; want b named, back on v1", s.Attention)
	}
}

func TestAFailedTargetWhoseWayBackFailsNeedsRecovery(t *testing.T) {
	for name, late := range map[string]bool{"in its wave": false, "after a late retry": true} {
		t.Run(name, func(t *testing.T) {
			p := tolerant(1, "a,b", "c")
			p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
			p.Verification = []policy.Metric{metric(policy.DuringApply)}
			w := newWorld(t, p, "a", "b", "c")
			w.highLatency("a")
			n := 0
			w.fleet.on["restore a"] = func() (executors.Result, error) {
				if n++; late && n == 1 {
					return works()
				}
				return executors.Result{Outcome: executors.Failed, Reason: "stuck"}, nil
			}
			if late {
				w.send(time.Hour, Retry, map[string]any{"target": "a", "id": "retry"})
			}
			w.send(5*time.Hour, Approve, map[string]any{"by": "bob"})
			s := w.run()
			if s.State != SucceededWithFailures || s.Counts[policy.NeedsRecovery] != 1 || s.Waves[0].Failures != 1 || w.fleet.version("c") != "v2" {
				t.Errorf("%s (%s), counts %v", s.State, s.Reason, s.Counts)
			}
			if len(s.Attention) != 1 || !s.Attention[0].Reached || !strings.Contains(s.Attention[0].Reason, "it did not go back: stuck") {
				t.Errorf("attention %+v; want a named, still reached", s.Attention)
			}
			if r := w.record(); !slices.ContainsFunc(r.Targets, func(o activities.TargetRecord) bool { return o.Name == "a" && o.State == "NeedsRecovery" && o.Reached }) {
				t.Errorf("record %+v", r.Targets)
			}
		})
	}
}

func TestAStopWhileAFailedTargetGoesBack(t *testing.T) {
	for name, test := range map[string]struct {
		stop  string
		end   Phase
		asked []string
	}{
		"a rollback asks it for nothing twice": {RollBack, RolledBack, []string{"apply a v2", "apply b v2", "restore a v1", "restore b v1"}},
		"a reject neither":                     {Reject, RolledBack, []string{"apply a v2", "apply b v2", "restore a v1", "restore b v1"}},
		"an abort lets it end":                 {Abort, Aborted, []string{"apply a v2", "apply b v2", "restore a v1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tolerant(1, "b,a,c", "d"), "b", "a", "c", "d")
			w.fleet.on["apply a"] = func() (executors.Result, error) {
				w.fleet.versions["a"] = "half of v2"
				return executors.Result{Outcome: executors.Failed, Reason: "disk full"}, nil
			}
			w.hangChange(30*time.Minute, executors.Restore, "a")
			w.send(10*time.Minute, test.stop, map[string]any{"by": "bob"})
			s := w.run()
			w.wantAsked(test.asked...)
			if s.State != test.end || w.fleet.version("a") != "v1" {
				t.Errorf("%s (%s), a runs %s", s.State, s.Reason, w.fleet.version("a"))
			}
		})
	}
}

func TestAStopBeforeTheFailureLeavesTheWayBackToTheRollback(t *testing.T) {
	for stop, want := range map[string]struct {
		end   Phase
		runs  string
		asked []string
	}{
		RollBack: {RolledBack, "v1", []string{"apply b v2", "apply a v2", "restore b v1", "restore a v1"}},
		Abort:    {Aborted, "half of v2", []string{"apply b v2", "apply a v2"}},
	} {
		t.Run(stop, func(t *testing.T) {
			w := newWorld(t, tolerant(1, "b,a", "d"), "b", "a", "d")
			w.fleet.on["apply a"] = func() (executors.Result, error) {
				w.fleet.versions["a"] = "half of v2"
				return executors.Result{Outcome: executors.Failed, Reason: "disk full"}, nil
			}
			w.hangChange(30*time.Minute, executors.Apply, "a")
			w.send(10*time.Minute, stop, map[string]any{"by": "bob"})
			s := w.run()
			w.wantAsked(want.asked...)
			if s.State != want.end || w.fleet.version("a") != want.runs {
				t.Errorf("%s (%s), a runs %s", s.State, s.Reason, w.fleet.version("a"))
			}
		})
	}
}

func TestOnABreachTheFailedTargetGoesBackAndTheRestHolds(t *testing.T) {
	p := waves("a,b,c", "d")
	p.Verification = []policy.Metric{metric(policy.DuringApply)}
	w := newWorld(t, p, "a", "b", "c", "d")
	w.highLatency("a")
	var held RolloutStatus
	w.at(3*time.Hour, &held)
	w.send(4*time.Hour, Abort, map[string]any{"by": "bob"})
	w.run()
	// b was beside it and finished its checks; c had not begun.
	if held.State != Holding || w.fleet.version("a") != "v1" || w.fleet.version("b") != "v2" || w.fleet.version("c") != "v1" || held.Counts[policy.Succeeded] != 1 {
		t.Errorf("%s (%s), counts %v, asked %v", held.State, held.Reason, held.Counts, w.fleet.log())
	}
	w.wantAsked("apply a v2", "apply b v2", "restore a v1")
}

func TestAFailedTargetOnItsWayBackThatIsTakenBackByHandIsAskedOnce(t *testing.T) {
	w := newWorld(t, tolerant(1, "a,b", "c"), "a", "b", "c")
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		w.fleet.versions["a"] = "half of v2"
		return executors.Result{Outcome: executors.Failed, Reason: "disk full"}, nil
	}
	w.hangChange(30*time.Minute, executors.Restore, "a")
	w.send(10*time.Minute, RollBack, takesBack("a", "1"))
	var held RolloutStatus
	w.at(time.Hour, &held)
	w.send(2*time.Hour, Resume, nil)
	s := w.run()
	wantReceipt(t, s, "1", true, "a failed and is on its way back already; nothing new starts until resume")
	wantHold(t, held, "a went back by hand")
	w.wantAsked("apply a v2", "restore a v1", "apply b v2", "apply c v2")
	if s.State != SucceededWithFailures || s.Waves[0].Failures != 1 {
		t.Errorf("%s (%s): a failed, and stays counted", s.State, s.Reason)
	}
}
