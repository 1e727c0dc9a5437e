package workflows

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// takesBack is the payload of a rollback by hand.
func takesBack(what any, id string) map[string]any {
	out := map[string]any{"by": "ann", "reason": "write latency", "id": id}
	if name, is := what.(string); is {
		out["target"] = name
	} else {
		out["wave"] = what
	}
	return out
}

// receiptOf returns what became of a command.
func receiptOf(t *testing.T, s RolloutStatus, id string) Receipt {
	t.Helper()
	i := slices.IndexFunc(s.Commands, func(r Receipt) bool { return r.ID == id })
	if i < 0 {
		t.Fatalf("no receipt of %q among %+v", id, s.Commands)
	}
	return s.Commands[i]
}

// wantReceipt fails unless a command was taken, or refused, with these words.
func wantReceipt(t *testing.T, s RolloutStatus, id string, accepted bool, says string) {
	t.Helper()
	if r := receiptOf(t, s, id); r.Accepted != accepted || r.Pending || !strings.Contains(r.Answer, says) {
		t.Errorf("%s: accepted %t, pending %t: %q; want accepted %t and %q", id, r.Accepted, r.Pending, r.Answer, accepted, says)
	}
}

// wantAsked fails unless the fleet was asked for exactly this, whatever the order among neighbours.
func (w *world) wantAsked(want ...string) {
	w.t.Helper()
	got := w.fleet.log()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Errorf("asked %v, want %v", w.fleet.log(), want)
	}
}

// wantHold fails unless the rollout holds for what was taken back.
func wantHold(t *testing.T, s RolloutStatus, says string) {
	t.Helper()
	if s.State != Holding || !strings.Contains(s.Reason, says) || !slices.ContainsFunc(s.Waits, func(w policy.Wait) bool { return w.Rule == "rollback" && strings.Contains(w.Lifts, "resume") }) {
		t.Errorf("%s (%s), waits %+v; want Holding, %q and a wait that resume lifts", s.State, s.Reason, s.Waits, says)
	}
}

func TestATargetInFlightGoesBackByHandAndTheRestGoesOnAfterResume(t *testing.T) {
	p := waves("a,b,c,d", "e")
	p.Verification = []policy.Metric{metric(policy.DuringApply)}
	w := newWorld(t, p, "a", "b", "c", "d", "e")
	w.hangChange(30*time.Minute, executors.Apply, "a")
	w.send(10*time.Minute, RollBack, takesBack("a", "1"))
	w.send(11*time.Minute, RollBack, takesBack("a", "again"))
	w.send(12*time.Minute, Resume, map[string]any{"id": "early"})
	var flying, held, still RolloutStatus
	w.at(20*time.Minute, &flying)
	w.at(40*time.Minute, &held)
	w.send(50*time.Minute, RollBack, takesBack("a", "later"))
	w.at(24*time.Hour, &still)
	var before []string
	w.env.RegisterDelayedCallback(func() { before = w.fleet.log() }, 24*time.Hour)
	w.send(25*time.Hour, Resume, map[string]any{"by": "ann", "id": "go"})
	s := w.run()
	if flying.State != RollingBack || flying.Rollback == nil || !slices.Equal(flying.Rollback.WaitingFor, []string{"a"}) || !strings.Contains(flying.Reason, `taking back a by hand (ann: "write latency")`) {
		t.Errorf("before its safe point: %s (%s), rollback %+v", flying.State, flying.Reason, flying.Rollback)
	}
	wantHold(t, held, `a went back by hand (ann: "write latency"): resume goes on without it; rollback, reject or abort ends it`)
	if held.Rollback == nil || !held.Rollback.ByHand || held.Rollback.Counts[policy.RolledBack] != 1 || held.Waves[0].Failures != 0 {
		t.Errorf("held: rollback %+v, wave %+v", held.Rollback, held.Waves[0])
	}
	wantHold(t, still, "went back by hand")
	// b was in flight and finished; c had begun in its place before; nothing else started before the resume.
	for _, a := range before {
		if strings.HasPrefix(a, "apply d") || strings.HasPrefix(a, "apply e") {
			t.Errorf("asked %v before the resume", before)
		}
	}
	if s.State != Succeeded || !strings.Contains(s.Reason, "1 target went back by hand") || w.fleet.version("a") != "v1" || w.fleet.version("e") != "v2" {
		t.Errorf("%s (%s), a runs %s, e %s", s.State, s.Reason, w.fleet.version("a"), w.fleet.version("e"))
	}
	if n := len(w.gauge.times); n != 4*5 {
		t.Errorf("measured %d times, want five times each of the four that stay", n)
	}
	wantReceipt(t, s, "1", true, "a reaches a safe point first, then it goes back; nothing new starts until resume")
	wantReceipt(t, s, "again", true, "is on its way back already; this changes nothing")
	wantReceipt(t, s, "early", false, "still on the way back; send resume again")
	wantReceipt(t, s, "later", true, "a runs v1 again already; this changes nothing")
	wantReceipt(t, s, "go", true, "goes on without a")
	if r := w.record(); r.State != string(Succeeded) || !slices.ContainsFunc(r.Targets, func(o activities.TargetRecord) bool { return o.Name == "a" && o.State == "RolledBack" && !o.Reached }) {
		t.Errorf("record %+v", r)
	}
}

func TestWhatIsDoneGoesBackByHandAtOnce(t *testing.T) {
	for _, open := range []bool{true, false} {
		t.Run(fmt.Sprintf("open %t", open), func(t *testing.T) {
			p := waves("a,b", "c,d")
			p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
			if open {
				p.Waves.Waves[0].Soak = policy.Duration(2 * time.Hour)
			}
			w := newWorld(t, p, "a", "b", "c", "d")
			w.send(10*time.Minute, RollBack, takesBack("a", "1"))
			w.send(11*time.Minute, Approve, map[string]any{"by": "bob", "id": "approve"})
			w.send(12*time.Minute, Retry, map[string]any{"target": "a", "id": "retry held"})
			var held RolloutStatus
			w.at(5*time.Hour, &held)
			w.send(6*time.Hour, Resume, map[string]any{"id": "go"})
			s := w.run()
			wantHold(t, held, "a went back by hand")
			w.wantAsked("apply a v2", "apply b v2", "restore a v1", "apply c v2", "apply d v2")
			if s.State != Succeeded || s.Counts[policy.RolledBack] != 1 || s.Waves[0].Counts[policy.Succeeded] != 1 {
				t.Errorf("%s (%s), counts %v", s.State, s.Reason, s.Counts)
			}
			wantReceipt(t, s, "1", true, "a goes back to v1; nothing new starts until resume, which goes on without it")
			if held.Waves[1].StartedAt != (time.Time{}) {
				t.Error("wave 2 opened before the resume")
			}
			wantReceipt(t, s, "retry held", false, "resume it first")
		})
	}
}

func TestARetryBringsBackWhatWentBackByHand(t *testing.T) {
	for _, open := range []bool{true, false} {
		t.Run(fmt.Sprintf("open %t", open), func(t *testing.T) {
			p := waves("a,b", "c")
			p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
			if open {
				p.Waves.Waves[0].Soak = policy.Duration(2 * time.Hour)
			}
			w := newWorld(t, p, "a", "b", "c")
			w.send(10*time.Minute, RollBack, takesBack("a", "1"))
			w.send(20*time.Minute, Resume, nil)
			w.send(21*time.Minute, Skip, map[string]any{"target": "a", "id": "skip"})
			w.send(22*time.Minute, Retry, map[string]any{"target": "a", "id": "retry"})
			w.send(40*time.Minute, RollBack, takesBack("a", "2"))
			w.send(50*time.Minute, Resume, nil)
			w.send(51*time.Minute, Retry, map[string]any{"target": "a", "id": "retry 2"})
			w.send(5*time.Hour, Approve, map[string]any{"by": "bob"})
			s := w.run()
			w.wantAsked("apply a v2", "apply b v2", "restore a v1", "apply a v2", "restore a v1", "apply a v2", "apply c v2")
			if s.State != Succeeded || s.Reason != "each wave is done" || s.Counts[policy.Succeeded] != 3 || len(w.fleet.operations) != 7 {
				t.Errorf("%s (%s), counts %v, %d operations", s.State, s.Reason, s.Counts, len(w.fleet.operations))
			}
			wantReceipt(t, s, "skip", false, "went back and is left out already")
			for _, id := range []string{"retry", "retry 2"} {
				wantReceipt(t, s, id, true, "is tried again")
			}
		})
	}
}

func TestAHeldTargetThatGoesBackByHandHoldsTheWaveNoLonger(t *testing.T) {
	p := waves("a,b", "c")
	p.Verification = []policy.Metric{metric(policy.DuringApply)}
	w := newWorld(t, p, "a", "b", "c")
	w.gauge.value = func(target string, _ time.Time) metrics.Sample {
		if target == "a" {
			return metrics.Sample{NoData: true, Problem: "no data"}
		}
		return metrics.Sample{Result: map[string]any{"value": 1.0}}
	}
	w.send(time.Hour, RollBack, takesBack("a", "1"))
	w.send(2*time.Hour, Resume, nil)
	s := w.run()
	if s.State != Succeeded || w.fleet.version("a") != "v1" || w.fleet.version("c") != "v2" || len(s.Attention) != 0 {
		t.Errorf("%s (%s), a runs %s, c %s, attention %+v", s.State, s.Reason, w.fleet.version("a"), w.fleet.version("c"), s.Attention)
	}
}

func TestAWaveOfWhichEverythingWentBackHoldsForAPerson(t *testing.T) {
	w := newWorld(t, waves("a", "b"), "a", "b")
	w.replan(func(p *policy.Plan) { p.Waves[0].Soak = policy.Duration(time.Hour) })
	w.send(10*time.Minute, RollBack, takesBack("a", "1"))
	w.send(20*time.Minute, Resume, nil)
	var held RolloutStatus
	w.at(3*time.Hour, &held)
	w.send(4*time.Hour, Approve, map[string]any{"by": "bob"})
	s := w.run()
	if held.State != Holding || !strings.Contains(held.Reason, "each target of the wave was skipped or went back by hand") {
		t.Errorf("%s (%s)", held.State, held.Reason)
	}
	if s.State != Succeeded || w.fleet.version("b") != "v2" {
		t.Errorf("%s (%s)", s.State, s.Reason)
	}
}

func TestAnOpenWaveGoesBackByHand(t *testing.T) {
	p := waves("x", "a,b,c,d", "e")
	w := newWorld(t, p, "x", "a", "b", "c", "d", "e")
	w.hangChange(30*time.Minute, executors.Apply, "b")
	w.fleet.on["apply c"] = w.until(time.Hour, blocked, works)
	w.send(10*time.Minute, RollBack, takesBack(2, "1"))
	w.send(11*time.Minute, RollBack, takesBack(2, "again"))
	w.send(11*time.Minute, RollBack, takesBack("a", "its target"))
	w.send(11*time.Minute, RollBack, takesBack(3, "not begun"))
	w.send(12*time.Minute, Resume, map[string]any{"id": "early"})
	var flying, held RolloutStatus
	w.at(20*time.Minute, &flying)
	w.at(2*time.Hour, &held)
	w.send(3*time.Hour, Resume, map[string]any{"id": "go"})
	s := w.run()
	if flying.State != RollingBack || w.fleet.version("b") != "v1" || !slices.Contains(flying.Rollback.WaitingFor, "b") || flying.Rollback.Counts[policy.RolledBack] != 1 {
		t.Errorf("in between: %s (%s), %+v; want a back, and b awaited", flying.State, flying.Reason, flying.Rollback)
	}
	wantHold(t, held, "wave 2 (w2) went back by hand")
	if w.fleet.version("a") != "v1" || w.fleet.version("d") != "v1" || w.fleet.version("e") != "v2" || slices.Contains(w.fleet.log(), "apply d v2") {
		t.Errorf("asked %v", w.fleet.log())
	}
	if s.State != Succeeded || s.Counts[policy.RolledBack] != 2 || s.Counts[policy.Skipped] != 2 || !strings.Contains(s.Reason, "2 targets went back by hand") {
		t.Errorf("%s (%s), counts %v; want a and b back, c and d left out", s.State, s.Reason, s.Counts)
	}
	wantReceipt(t, s, "1", true, "what was reached of wave 2 (w2) goes back; nothing new starts until resume")
	wantReceipt(t, s, "again", true, "this changes nothing")
	wantReceipt(t, s, "its target", true, "this changes nothing")
	wantReceipt(t, s, "not begun", false, "wave 3 has not begun")
	wantReceipt(t, s, "early", false, "still on the way back")
}

func TestAClosedWaveGoesBackByHandAsTheRollbackIsWritten(t *testing.T) {
	p := waves("a,b,c", "d", "e")
	p.Rollback = &policy.Rollback{Order: policy.OrderNewest, MaxConcurrency: amount(1)}
	p.Waves.Waves[0].MaxConcurrency = amount(1)
	p.Waves.Waves[2].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c", "d", "e")
	w.send(10*time.Minute, RollBack, takesBack(1, "1"))
	w.send(20*time.Minute, RollBack, takesBack(1, "again"))
	w.send(21*time.Minute, RollBack, takesBack("b", "b"))
	w.send(30*time.Minute, Resume, nil)
	w.send(40*time.Minute, Approve, map[string]any{"by": "bob"})
	s := w.run()
	if got := w.fleet.log()[4:]; !slices.Equal(got, []string{"restore c v1", "restore b v1", "restore a v1", "apply e v2"}) {
		t.Errorf("asked %v", w.fleet.log())
	}
	if s.State != Succeeded || s.Counts[policy.RolledBack] != 3 || s.Rollback.Targets != 3 {
		t.Errorf("%s (%s), %+v", s.State, s.Reason, s.Rollback)
	}
	wantReceipt(t, s, "again", true, "is back already; this changes nothing")
	wantReceipt(t, s, "b", true, "b runs v1 again already")
}

func TestAWayBackByHandThatFailsNeedsRecovery(t *testing.T) {
	for _, open := range []bool{true, false} {
		t.Run(fmt.Sprintf("open %t", open), func(t *testing.T) {
			p := tolerant(1, "a,b", "c")
			p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
			if open {
				p.Waves.Waves[0].Soak = policy.Duration(2 * time.Hour)
			}
			w := newWorld(t, p, "a", "b", "c")
			w.fleet.on["restore a"] = fails("stuck")
			w.send(10*time.Minute, RollBack, takesBack("a", "1"))
			var held RolloutStatus
			w.at(3*time.Hour, &held)
			w.send(4*time.Hour, Resume, nil)
			w.send(5*time.Hour, Approve, map[string]any{"by": "bob"})
			s := w.run()
			wantHold(t, held, "1 target did not come back")
			if len(held.Attention) != 1 || held.Attention[0].State != policy.NeedsRecovery || held.Waves[0].Failures != 1 {
				t.Errorf("attention %+v, waves %+v", held.Attention, held.Waves[0])
			}
			if s.State != SucceededWithFailures || w.fleet.version("c") != "v2" {
				t.Errorf("%s (%s)", s.State, s.Reason)
			}
		})
	}
}

// A target that did not come back by hand and that a person leaves out stays as it is, and is no failure.
func TestASkipLeavesWhatDidNotComeBackByHand(t *testing.T) {
	for _, open := range []bool{true, false} {
		t.Run(fmt.Sprintf("open %t", open), func(t *testing.T) {
			p := tolerant(1, "a,b", "c")
			p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
			if open {
				p.Waves.Waves[0].Soak = policy.Duration(2 * time.Hour)
			}
			w := newWorld(t, p, "a", "b", "c")
			w.fleet.on["restore a"] = fails("stuck")
			w.send(10*time.Minute, RollBack, takesBack("a", "1"))
			w.send(20*time.Minute, Skip, map[string]any{"target": "a", "by": "ann", "id": "skip"})
			var held RolloutStatus
			w.at(3*time.Hour, &held)
			w.send(4*time.Hour, Resume, nil)
			w.send(5*time.Hour, Approve, map[string]any{"by": "bob"})
			s := w.run()
			wantReceipt(t, s, "skip", true, "a is left out")
			w.wantAsked("apply a v2", "apply b v2", "restore a v1", "apply c v2")
			if held.Waves[0].Failures != 0 || len(held.Attention) != 0 || strings.Contains(held.Reason, "did not come back") || held.State != Holding {
				t.Errorf("held: %s (%s), wave %+v, attention %+v", held.State, held.Reason, held.Waves[0], held.Attention)
			}
			if s.State != Succeeded || s.Counts[policy.Skipped] != 1 || s.Rollback.Targets != 1 || s.Rollback.Counts[policy.Skipped]+s.Rollback.Counts[policy.NeedsRecovery] != 1 {
				t.Errorf("%s (%s), counts %v, rollback %+v", s.State, s.Reason, s.Counts, s.Rollback)
			}
			if r := w.record(); !slices.ContainsFunc(r.Targets, func(o activities.TargetRecord) bool { return o.Name == "a" && o.State == "Skipped" && o.Reached }) {
				t.Errorf("record %+v; want a skipped, and reached", r)
			}
		})
	}
}

func TestAWayBackByHandThatFailsBeyondTheBudgetIsABreach(t *testing.T) {
	p := waves("a,b", "c")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c")
	n := 0
	w.fleet.on["restore a"] = func() (executors.Result, error) {
		if n++; n == 1 {
			return executors.Result{Outcome: executors.Failed, Reason: "stuck"}, nil
		}
		return works()
	}
	w.send(10*time.Minute, RollBack, takesBack("a", "1"))
	w.send(20*time.Minute, Resume, map[string]any{"id": "resume"})
	w.send(21*time.Minute, RollBack, takesBack("b", "b"))
	var held RolloutStatus
	w.at(time.Hour, &held)
	w.send(2*time.Hour, RollBack, map[string]any{"id": "all"})
	s := w.run()
	if held.State != Holding || !strings.Contains(held.Reason, "budget breached") {
		t.Errorf("%s (%s)", held.State, held.Reason)
	}
	wantReceipt(t, s, "resume", false, "it is not paused")
	wantReceipt(t, s, "b", true, "b goes back to v1; that it was stopped (breach) stands")
	if s.State != RolledBack || w.fleet.version("a") != "v1" || w.fleet.version("b") != "v1" {
		t.Errorf("%s (%s), asked %v", s.State, s.Reason, w.fleet.log())
	}
	w.wantAsked("apply a v2", "apply b v2", "restore a v1", "restore b v1", "restore a v1")
}

func TestWhatCannotGoBackByHandIsListed(t *testing.T) {
	for name, prepare := range map[string]func(*world){
		"a first install": func(w *world) { w.fleet.versions["a"] = "" },
		"no way back":     func(w *world) { w.replan(func(p *policy.Plan) { p.NoReturn = "deployment says rollback: none" }) },
	} {
		for _, open := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, open %t", name, open), func(t *testing.T) {
				p := tolerant(1, "a,b", "c")
				p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
				if open {
					p.Waves.Waves[0].Soak = policy.Duration(2 * time.Hour)
				}
				w := newWorld(t, p, "a", "b", "c")
				prepare(w)
				w.send(10*time.Minute, RollBack, takesBack("a", "1"))
				var held RolloutStatus
				w.at(3*time.Hour, &held)
				w.send(4*time.Hour, Resume, nil)
				w.send(5*time.Hour, Approve, map[string]any{"by": "bob"})
				s := w.run()
				if len(held.Attention) != 1 || held.Attention[0].State != policy.NeedsRecovery || !strings.Contains(held.Attention[0].Reason, "it cannot go back") || held.State != Holding {
					t.Errorf("%s, attention %+v", held.State, held.Attention)
				}
				w.wantAsked("apply a v2", "apply b v2", "apply c v2")
				if s.State != SucceededWithFailures {
					t.Errorf("%s (%s)", s.State, s.Reason)
				}
			})
		}
	}
}

func TestEverythingElseEndsAHoldByHand(t *testing.T) {
	for command, test := range map[string]struct {
		end  Phase
		runs string // what b runs then
	}{RollBack: {RolledBack, "v1"}, Reject: {RolledBack, "v1"}, Abort: {Aborted, "v2"}} {
		for _, returning := range []bool{true, false} {
			for _, open := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, returning %t, open %t", command, returning, open), func(t *testing.T) {
					p := waves("a,b", "c")
					p.Rollback = &policy.Rollback{MaxConcurrency: amount(1)}
					p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
					if open {
						p.Waves.Waves[0].Soak = policy.Duration(2 * time.Hour)
					}
					w := newWorld(t, p, "a", "b", "c")
					if returning {
						w.hangChange(time.Hour, executors.Restore, "a")
					}
					w.send(10*time.Minute, RollBack, takesBack("a", "1"))
					w.send(30*time.Minute, command, map[string]any{"by": "bob", "id": "all"})
					s := w.run()
					want := []string{"apply a v2", "apply b v2", "restore a v1"}
					if test.runs == "v1" {
						want = append(want, "restore b v1")
					}
					w.wantAsked(want...)
					if s.State != test.end || w.fleet.version("a") != "v1" || w.fleet.version("b") != test.runs || !receiptOf(t, s, "all").Accepted {
						t.Errorf("%s (%s), b runs %s", s.State, s.Reason, w.fleet.version("b"))
					}
				})
			}
		}
	}
}

func TestARejectAfterEverythingWentBackByHandEndsRolledBack(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b")
	w.send(10*time.Minute, RollBack, takesBack("a", "1"))
	w.send(20*time.Minute, Reject, nil)
	if s := w.run(); s.State != RolledBack || len(w.fleet.log()) != 2 {
		t.Errorf("%s (%s), asked %v; want RolledBack: something had been reached", s.State, s.Reason, w.fleet.log())
	}
}

func TestARolloutOfWhichEverythingWentBackIsNoSuccess(t *testing.T) {
	w := newWorld(t, waves("a,b"), "a", "b")
	w.hangChange(time.Hour, executors.Apply, "b")
	w.send(10*time.Minute, RollBack, takesBack(1, "1"))
	w.send(2*time.Hour, Resume, nil)
	if s := w.run(); s.State != RolledBack || s.Counts[policy.RolledBack] != 2 {
		t.Errorf("%s (%s), counts %v", s.State, s.Reason, s.Counts)
	}
}

func TestAPauseBesideARollbackByHandKeepsItsMeaning(t *testing.T) {
	for _, first := range []string{Pause, RollBack} {
		t.Run(first+" first", func(t *testing.T) {
			p := waves("a,b", "c")
			p.Waves.Waves[0].Soak = policy.Duration(30 * time.Minute)
			w := newWorld(t, p, "a", "b", "c")
			pauseAt, backAt := 10*time.Minute, 15*time.Minute
			if first == RollBack {
				pauseAt, backAt = backAt, pauseAt
			}
			w.send(pauseAt, Pause, map[string]any{"id": "pause"})
			w.send(backAt, RollBack, takesBack("a", "1"))
			var both RolloutStatus
			w.at(2*time.Hour, &both)
			w.send(3*time.Hour, Resume, map[string]any{"id": "go"})
			s := w.run()
			if both.State != Paused || len(both.Waits) != 2 {
				t.Errorf("%s (%s), waits %+v; want both", both.State, both.Reason, both.Waits)
			}
			wantReceipt(t, s, "pause", true, "paused")
			wantReceipt(t, s, "go", true, "goes on without a; the pause is lifted, too")
			w.wantAsked("apply a v2", "apply b v2", "restore a v1", "apply c v2")
			if s.State != Succeeded {
				t.Errorf("%s (%s)", s.State, s.Reason)
			}
		})
	}
}

func TestAnotherTargetAddsToTheHold(t *testing.T) {
	p := waves("a,b,x", "c,d,e", "f")
	p.Waves.Waves[1].Soak = policy.Duration(time.Hour)
	w := newWorld(t, p, "a", "b", "x", "c", "d", "e", "f")
	w.send(10*time.Minute, RollBack, takesBack("a", "1"))
	w.send(10*time.Minute, RollBack, takesBack("c", "2"))
	w.send(10*time.Minute, RollBack, takesBack("b", "3"))
	var held RolloutStatus
	w.at(3*time.Hour, &held)
	w.send(4*time.Hour, Resume, nil)
	s := w.run()
	wantHold(t, held, "a, c, b went back by hand")
	if s.State != Succeeded || s.Counts[policy.RolledBack] != 3 || w.fleet.version("f") != "v2" || !strings.Contains(s.Reason, "3 targets went back by hand") {
		t.Errorf("%s (%s), counts %v", s.State, s.Reason, s.Counts)
	}
}

func TestATargetThatIsBeingRetriedGoesBackByHand(t *testing.T) {
	p := tolerant(1, "a,b", "c")
	p.Rollback = &policy.Rollback{OnTargetFailed: policy.TargetStays}
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c")
	n := 0
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		if n++; n == 1 {
			w.fleet.versions["a"] = "half of v2"
			return executors.Result{Outcome: executors.Failed, Reason: "flaky"}, nil
		}
		return works()
	}
	w.send(9*time.Minute, Retry, map[string]any{"target": "a", "id": "again"})
	hang(w, "Await", w.acts.Await, func(in activities.AwaitInput) bool { return strings.Contains(in.Change.Operation, "/a/apply/2.") }, 30*time.Minute)
	w.send(10*time.Minute, RollBack, takesBack("a", "1"))
	w.send(2*time.Hour, Resume, nil)
	w.send(3*time.Hour, Approve, map[string]any{"by": "bob"})
	s := w.run()
	wantReceipt(t, s, "1", true, "a is being tried again: it reaches a safe point first, then goes back")
	w.wantAsked("apply a v2", "apply b v2", "apply a v2", "restore a v1", "apply c v2")
	if s.State != Succeeded || s.Counts[policy.RolledBack] != 1 {
		t.Errorf("%s (%s), counts %v", s.State, s.Reason, s.Counts)
	}
}

// hangRecords makes some records take a time.
func (w *world) hangRecords(d time.Duration, which func(activities.RolloutRecord) bool) {
	w.env.OnActivity("Record", mock.Anything, mock.MatchedBy(which)).Return(w.acts.Record).After(d)
	w.env.OnActivity("Record", mock.Anything, mock.Anything).Return(w.acts.Record)
}

func TestARollbackByHandWaitsForNoLedger(t *testing.T) {
	w := newWorld(t, waves("a,b", "c"), "a", "b", "c")
	w.hangRecords(48*time.Hour, func(r activities.RolloutRecord) bool { return r.Sequence > 1 })
	hang(w, "FindTarget", w.acts.FindTarget, func(activities.TargetRef) bool { return true }, 48*time.Hour)
	w.hangChange(10*time.Minute, executors.Apply, "b")
	w.send(5*time.Minute, RollBack, takesBack("a", "1"))
	w.send(6*time.Minute, RollBack, takesBack("b", "2"))
	var held RolloutStatus
	w.at(time.Hour, &held)
	w.send(2*time.Hour, Abort, nil)
	w.run()
	wantHold(t, held, "went back by hand")
	if w.fleet.version("a") != "v1" || w.fleet.version("b") != "v1" {
		t.Errorf("asked %v", w.fleet.log())
	}
}

func TestARollbackByHandThatArrivesWhileTheEndIsRecordedIsCarriedOut(t *testing.T) {
	w := newWorld(t, waves("a", "b"), "a", "b")
	w.hangRecords(10*time.Minute, func(r activities.RolloutRecord) bool { return r.State == string(Succeeded) })
	w.send(time.Minute, RollBack, takesBack("a", "1"))
	var held RolloutStatus
	w.at(time.Hour, &held)
	w.send(2*time.Hour, Resume, nil)
	s := w.run()
	wantHold(t, held, "a went back by hand")
	if s.State != Succeeded || w.fleet.version("a") != "v1" || w.fleet.version("b") != "v2" {
		t.Errorf("%s (%s), asked %v", s.State, s.Reason, w.fleet.log())
	}
}

func TestALaterRollbackOfOneTargetOrWaveTouchesNothingElse(t *testing.T) {
	for name, test := range map[string]struct {
		target string
		wave   int
		end    Phase
		asked  []string
		says   string
	}{
		"a target":        {"b", 0, RolledBack, []string{"restore b v1"}, ""},
		"a wave":          {"", 2, RolledBack, []string{"restore b v1", "restore c v1"}, ""},
		"an unknown one":  {"z", 0, Failed, nil, `has reached no target "z"`},
		"out of range":    {"", 4, Failed, nil, "has no wave 4; it has 3"},
		"of another wave": {"b", 1, Failed, nil, "b is in wave 2, not in wave 1"},
		"unchanged":       {"a", 0, Failed, nil, "NoChange"},
	} {
		t.Run(name, func(t *testing.T) {
			first := newWorld(t, waves("a", "b,c", "d"), "a", "b", "c", "d")
			first.fleet.versions["a"] = "v2"
			if s := first.run(); s.State != Succeeded {
				t.Fatal(s.State)
			}
			later := newWorld(t, waves("a", "b,c", "d"), "a", "b", "c", "d")
			later.keep(first)
			later.input = RolloutInput{Rollout: "R2", Mode: ModeRollback, Of: "R1", Deployment: "web", Environment: "prod", By: "oncall", Target: test.target, Wave: test.wave}
			s := later.run()
			later.wantAsked(test.asked...)
			if s.State != test.end || !strings.Contains(s.Reason, test.says) {
				t.Errorf("%s (%s)", s.State, s.Reason)
			}
		})
	}
}

func TestARollbackByHandOverItsBudgetAsksAPerson(t *testing.T) {
	for _, next := range []string{Resume, RollBack} {
		t.Run(next, func(t *testing.T) {
			p := tolerant(3, "a,b,c", "d")
			p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
			p.Rollback = &policy.Rollback{MaxFailures: amount(0), MaxConcurrency: amount(1)}
			w := newWorld(t, p, "a", "b", "c", "d")
			n := 0
			w.fleet.on["restore a"] = func() (executors.Result, error) {
				if n++; n == 1 {
					return executors.Result{Outcome: executors.Failed, Reason: "stuck"}, nil
				}
				return works()
			}
			w.send(10*time.Minute, RollBack, takesBack(1, "1"))
			var over, held RolloutStatus
			w.at(20*time.Minute, &over)
			w.send(30*time.Minute, next, map[string]any{"by": "bob", "id": "on"})
			w.at(40*time.Minute, &held)
			w.send(50*time.Minute, Abort, nil)
			s := w.run()
			if over.State != RollingBack || !slices.ContainsFunc(over.Waits, func(w policy.Wait) bool { return w.Rule == "rollback.maxFailures" }) || over.Rollback.Counts[policy.RolledBack] != 0 {
				t.Errorf("over its budget: %s, waits %+v", over.State, over.Waits)
			}
			if next == Resume {
				wantReceipt(t, s, "on", true, "goes on with the others")
				wantHold(t, held, "1 target did not come back")
				w.wantAsked("apply a v2", "apply b v2", "apply c v2", "restore a v1", "restore b v1", "restore c v1")
				return
			}
			if s.State != RolledBack || w.fleet.version("a") != "v1" {
				t.Errorf("%s (%s), asked %v; want what was over its budget to hold nothing back", s.State, s.Reason, w.fleet.log())
			}
		})
	}
}

func TestTargetsOfAWaveThatWentBackCanBeRetried(t *testing.T) {
	p := waves("a,b,c", "d")
	p.Waves.Waves[0].MaxConcurrency = amount(1)
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c", "d")
	w.fleet.on["apply b"] = w.until(30*time.Minute, blocked, works)
	w.send(10*time.Minute, RollBack, takesBack(1, "1"))
	w.send(20*time.Minute, Resume, nil)
	for i, name := range []string{"a", "b", "c"} {
		w.send(time.Hour+time.Duration(i)*time.Minute, Retry, map[string]any{"target": name, "id": "retry " + name})
	}
	w.send(2*time.Hour, Approve, map[string]any{"by": "bob"})
	s := w.run()
	if s.State != Succeeded || s.Reason != "each wave is done" || s.Counts[policy.Succeeded] != 4 {
		t.Errorf("%s (%s), counts %v, commands %+v", s.State, s.Reason, s.Counts, s.Commands)
	}
}

func TestARejectThatHoldsSwallowsNoRollbackByHand(t *testing.T) {
	p := waves("a,b", "c")
	p.Rollback = &policy.Rollback{OnReject: policy.RejectHolds}
	w := newWorld(t, p, "a", "b", "c")
	w.hangChange(30*time.Minute, executors.Apply, "a")
	w.send(10*time.Minute, RollBack, takesBack("a", "1"))
	w.send(11*time.Minute, Reject, map[string]any{"by": "bob", "id": "reject"})
	w.send(12*time.Minute, RollBack, takesBack("b", "2"))
	var held RolloutStatus
	w.at(time.Hour, &held)
	w.send(2*time.Hour, Abort, nil)
	w.run()
	if held.State != Holding || w.fleet.version("a") != "v1" || w.fleet.version("b") != "v1" || held.Counts[policy.RolledBack] != 2 || held.Rollback.Targets != 2 {
		t.Errorf("%s (%s), counts %v, rollback %+v", held.State, held.Reason, held.Counts, held.Rollback)
	}
	wantReceipt(t, held, "2", true, "b goes back to v1; that it was stopped (reject) stands")
}

func TestARejectWhileAllGoBackByHandEndsRolledBack(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b")
	w.hangChange(30*time.Minute, executors.Restore, "a")
	w.send(10*time.Minute, RollBack, takesBack("a", "1"))
	w.send(20*time.Minute, Reject, nil)
	if s := w.run(); s.State != RolledBack || len(w.fleet.log()) != 2 {
		t.Errorf("%s (%s), asked %v", s.State, s.Reason, w.fleet.log())
	}
}

func TestAWaveThatWasNotReadYetIsLeftOutWhenItGoesBack(t *testing.T) {
	w := newWorld(t, waves("a", "b,c", "d"), "a", "b", "c", "d")
	hang(w, "LoadWave", w.acts.LoadWave, func(ref activities.WaveRef) bool { return ref.Wave == 2 }, time.Hour)
	w.send(10*time.Minute, RollBack, takesBack(2, "1"))
	w.send(11*time.Minute, Resume, map[string]any{"id": "go"})
	s := w.run()
	w.wantAsked("apply a v2", "apply d v2")
	if s.State != Succeeded || s.Counts[policy.Skipped] != 2 || !receiptOf(t, s, "go").Accepted {
		t.Errorf("%s (%s), counts %v, commands %+v", s.State, s.Reason, s.Counts, s.Commands)
	}
}

func TestASignalThatComesWithAnAnswerIsHeardFirst(t *testing.T) {
	w := newWorld(t, waves("a,b", "c"), "a", "b", "c")
	// It arrives in the moment in which the wave's last change ends.
	w.hangChange(10*time.Minute, executors.Apply, "b")
	w.send(10*time.Minute, RollBack, takesBack("a", "1"))
	var held RolloutStatus
	w.at(time.Hour, &held)
	w.send(2*time.Hour, Resume, nil)
	s := w.run()
	wantHold(t, held, "a went back by hand")
	if held.Waves[1].StartedAt != (time.Time{}) || s.State != Succeeded || w.fleet.version("a") != "v1" {
		t.Errorf("wave 2 opened at %s; %s (%s)", held.Waves[1].StartedAt, s.State, s.Reason)
	}
}
