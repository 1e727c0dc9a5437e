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

// inBatches plans a rollout of n targets t01, t02, … in one wave that so many batches share.
func inBatches(t *testing.T, n, batches int, rule policy.WaveRule, more ...policy.Policy) *world {
	t.Helper()
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("t%02d", i+1))
	}
	rule.Name, rule.Select = "all", "true"
	p := policy.Policy{Name: "p", Waves: &policy.Waves{Waves: []policy.WaveRule{rule}}}
	if rule.MaxFailures != nil {
		p.FailureThreshold = &policy.FailureThreshold{MaxFailures: rule.MaxFailures}
	}
	w := newWorldOf(t, append([]policy.Policy{p}, more...), names...)
	w.replan(func(p *policy.Plan) { p.Waves[0].Batches = batches })
	return w
}

func refuses() (executors.Result, error) {
	return executors.Result{Outcome: executors.Failed, Reason: "it did not start"}, nil
}

func applies(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("apply t%02d v2", i+1))
	}
	return out
}

// A wave of batches must change each target once, in the wave's order, and end as one without batches does.
func TestBatchesChangeEachTargetOnce(t *testing.T) {
	w := inBatches(t, 9, 3, policy.WaveRule{MaxConcurrency: amount(1)})
	s := w.run()
	if s.State != Succeeded || s.Counts[policy.Succeeded] != 9 {
		t.Fatalf("state %s (%s), counts %v", s.State, s.Reason, s.Counts)
	}
	if got := w.fleet.log(); !slices.Equal(got, applies(9)) {
		t.Errorf("asked for %v", got)
	}
	if r := w.record(); len(r.Targets) != 9 || r.State != string(Succeeded) {
		t.Errorf("the ledger has %d targets, %s", len(r.Targets), r.State)
	}
}

// A budget that two batches exceed together stops both, and the way back touches what was reached in each.
func TestBatchesShareOneBudget(t *testing.T) {
	w := inBatches(t, 60, 3, policy.WaveRule{MaxConcurrency: amount(4), MaxFailures: amount(1)}, policy.Policy{Name: "back",
		Rollback: &policy.Rollback{OnBreach: policy.BreachRolloutAll}})
	w.fleet.on["apply t20"], w.fleet.on["apply t21"] = refuses, refuses
	s := w.run()
	if s.State != RolledBack {
		t.Fatalf("state %s (%s), counts %v", s.State, s.Reason, s.Counts)
	}
	applied, restored := map[string]int{}, map[string]int{}
	for _, line := range w.fleet.log() {
		words := strings.Fields(line)
		if words[0] == "apply" {
			applied[words[1]]++
		} else {
			restored[words[1]]++
		}
	}
	if len(applied) > 40 {
		t.Errorf("%d targets were asked although two of the first 21 had failed with a budget of one: %v", len(applied), w.fleet.log())
	}
	for name := range applied {
		// What failed was never changed, and is back without being asked.
		if failed := name == "t20" || name == "t21"; (restored[name] != 1) != failed || w.fleet.version(name) != "v1" {
			t.Errorf("%s was brought back %d times and runs %s", name, restored[name], w.fleet.version(name))
		}
	}
}

// What is out of reach is tried again when every batch is done with the rest, not when its own is.
func TestBatchesTryAgainAtTheEndOfTheWave(t *testing.T) {
	w := inBatches(t, 9, 3, policy.WaveRule{MaxConcurrency: amount(1), MaxFailures: amount(2)})
	w.fleet.unreachable["t02"], w.fleet.unreachable["t08"] = readAttempts, readAttempts
	s := w.run()
	if s.State != Succeeded {
		t.Fatalf("state %s (%s), counts %v", s.State, s.Reason, s.Counts)
	}
	want := slices.DeleteFunc(applies(9), func(line string) bool { return line == "apply t02 v2" || line == "apply t08 v2" })
	want = append(want, "apply t02 v2", "apply t08 v2")
	if got := w.fleet.log(); !slices.Equal(got, want) {
		t.Errorf("asked for %v", got)
	}
}

// Checks without a conclusion in one batch hold all of them, and one approval lets all pass.
func TestBatchesHoldTogether(t *testing.T) {
	w := inBatches(t, 9, 3, policy.WaveRule{MaxConcurrency: amount(2)}, policy.Policy{Name: "checks", Verification: []policy.Metric{metric(policy.DuringApply)}})
	w.gauge.value = func(target string, _ time.Time) metrics.Sample {
		if target == "t03" || target == "t04" {
			return metrics.Sample{NoData: true, Problem: "no data"}
		}
		return metrics.Sample{Result: map[string]any{"value": 1.0}}
	}
	var held RolloutStatus
	w.env.RegisterDelayedCallback(func() { held = w.status() }, 4*time.Hour)
	w.send(5*time.Hour, Approve, Command{By: "bob", Wave: 1})
	s := w.run()
	if held.State != Holding || held.Counts[policy.Waiting] != 2 || held.Counts[policy.Pending] != 5 {
		t.Errorf("before the approval: %s (%s), %v", held.State, held.Reason, held.Counts)
	}
	if s.State != Succeeded || !strings.Contains(s.Commands[0].Answer, "2 targets") {
		t.Errorf("state %s (%s), %v, %v", s.State, s.Reason, s.Counts, s.Commands)
	}
}

// Soak checks measure the targets of each batch; a failure within budget leaves the wave to end.
func TestBatchesSoak(t *testing.T) {
	w := inBatches(t, 6, 3, policy.WaveRule{MaxConcurrency: amount(6), MaxFailures: amount(1), Soak: policy.Duration(10 * time.Minute)},
		policy.Policy{Name: "checks", Verification: []policy.Metric{metric(policy.DuringSoak)}})
	w.gauge.value = func(target string, _ time.Time) metrics.Sample {
		if target == "t05" {
			return metrics.Sample{Result: map[string]any{"value": 99.0}}
		}
		return metrics.Sample{Result: map[string]any{"value": 1.0}}
	}
	s := w.run()
	if s.State != SucceededWithFailures || s.Counts[policy.Succeeded] != 5 || s.Counts[policy.Failed] != 1 {
		t.Errorf("state %s (%s), %v", s.State, s.Reason, s.Counts)
	}
	if took := s.EndedAt.Sub(s.StartedAt); took < 10*time.Minute || took > 15*time.Minute {
		t.Errorf("took %v with a soak of ten minutes", took)
	}
	if w.fleet.version("t05") != "v1" {
		t.Error("what failed its soak's checks was not brought back")
	}
}

// A batch of whose targets none is measured while the wave soaks must not keep it from ending.
func TestBatchesSoakWhereOneMeasuresNothing(t *testing.T) {
	w := inBatches(t, 6, 3, policy.WaveRule{MaxConcurrency: amount(6)}, policy.Policy{Name: "checks", Selectors: []policy.Selector{{Resource: "t01,t02,t05"}},
		Verification: []policy.Metric{metric(policy.DuringSoak)}})
	if s := w.run(); s.State != Succeeded {
		t.Errorf("state %s (%s), %v", s.State, s.Reason, s.Counts)
	}
}

// What goes back from an open wave goes in the order in which it went out, over all batches.
func TestBatchesGoBackInOrder(t *testing.T) {
	for order, want := range map[policy.RollbackOrder]func([]string){policy.OrderDeployed: func([]string) {}, policy.OrderNewest: func(names []string) { slices.Reverse(names) }} {
		w := inBatches(t, 12, 3, policy.WaveRule{MaxConcurrency: amount(1), Soak: policy.Duration(time.Hour)}, policy.Policy{Name: "back",
			Rollback: &policy.Rollback{MaxConcurrency: amount(1), Order: order}})
		w.send(time.Minute, RollBack, nil)
		if s := w.run(); s.State != RolledBack || s.Counts[policy.RolledBack] != 12 {
			t.Errorf("%s: state %s (%s), %v", order, s.State, s.Reason, s.Counts)
		}
		var back []string
		for n := range 12 {
			back = append(back, fmt.Sprintf("restore t%02d v1", n+1))
		}
		want(back)
		if got := w.fleet.log()[12:]; !slices.Equal(got, back) {
			t.Errorf("%s: %v", order, got)
		}
	}
}

// A gradual rollout keeps its order, its interval and one at a time across batches.
func TestBatchesKeepOnePace(t *testing.T) {
	var names []string
	for i := range 9 {
		names = append(names, fmt.Sprintf("t%02d", i+1))
	}
	w := newWorldOf(t, []policy.Policy{{Name: "gradual", Gradual: &policy.GradualRollout{Type: policy.Linear, Interval: policy.Duration(10 * time.Minute)}}}, names...)
	w.replan(func(p *policy.Plan) { p.Waves[0].Batches = 3 })
	s := w.run()
	if s.State != Succeeded {
		t.Fatalf("state %s (%s), counts %v", s.State, s.Reason, s.Counts)
	}
	if got := w.fleet.log(); !slices.Equal(got, applies(9)) {
		t.Errorf("asked for %v", got)
	}
	for i := 1; i < len(w.fleet.at); i++ {
		if gap := w.fleet.at[i].Sub(w.fleet.at[i-1]); gap < 10*time.Minute || gap > 10*time.Minute+5*time.Second {
			t.Errorf("t%02d was asked %v after the one before", i+1, gap)
		}
	}
}

// Orders reach the batch that has the target; one for a target of none is refused.
func TestBatchesTakeOrders(t *testing.T) {
	w := inBatches(t, 9, 3, policy.WaveRule{MaxConcurrency: amount(1), MaxFailures: amount(3), Soak: policy.Duration(time.Hour)})
	slow, failed := true, false
	w.fleet.on["apply t01"] = func() (executors.Result, error) {
		if slow {
			slow = false
			return executors.Result{Outcome: executors.Blocked, Reason: "in use"}, nil
		}
		return executors.Result{Outcome: executors.Succeeded}, nil
	}
	w.fleet.on["apply t05"] = func() (executors.Result, error) {
		if failed {
			return executors.Result{Outcome: executors.Succeeded}, nil
		}
		failed = true
		return refuses()
	}
	w.send(time.Second, Skip, Command{ID: "1", By: "bob", Target: "t09"})
	w.send(10*time.Minute, Retry, Command{ID: "2", By: "bob", Target: "t05"})
	w.send(11*time.Minute, RollBack, Command{ID: "3", By: "bob", Target: "t07"})
	w.send(12*time.Minute, Resume, Command{ID: "4", By: "bob"})
	w.send(13*time.Minute, RollBack, Command{ID: "5", By: "bob", Target: "nobody"})
	s := w.run()
	for _, c := range s.Commands[:4] {
		if !c.Accepted {
			t.Errorf("%s %s: %s", c.Name, c.Target, c.Answer)
		}
	}
	if last := s.Commands[4]; last.Accepted || last.Pending {
		t.Errorf("a target that is in no batch: %+v", last)
	}
	if s.State != Succeeded || s.Counts[policy.Succeeded] != 7 || s.Counts[policy.Skipped] != 1 || s.Counts[policy.RolledBack] != 1 {
		t.Errorf("state %s (%s), %v", s.State, s.Reason, s.Counts)
	}
	if w.fleet.version("t05") != "v2" || w.fleet.version("t07") != "v1" || w.fleet.version("t09") != "v1" {
		t.Error("the orders did not do what they say")
	}
	if took := s.EndedAt.Sub(s.StartedAt); took < 70*time.Minute {
		t.Errorf("the soak did not begin anew after the retry: it took %v", took)
	}
}

// No slot is idle at the border between two batches: each target is asked when a whole wave would ask it, and where there are
// so many slots that one alone is not told of at once, a second later at most.
func TestBatchesLeaveNoSlotIdle(t *testing.T) {
	for _, tt := range []struct {
		n, batches, concurrency int
		slack                   time.Duration
	}{{30, 3, 4, 0}, {30, 7, 5, 0}, {160, 3, 50, 3 * time.Second}} {
		t.Run(fmt.Sprintf("%d at a time", tt.concurrency), func(t *testing.T) {
			w := inBatches(t, tt.n, tt.batches, policy.WaveRule{MaxConcurrency: amount(tt.concurrency)})
			takes, slots := map[string]time.Duration{}, make([]time.Time, tt.concurrency)
			want := map[string]time.Time{}
			for i, line := range applies(tt.n) {
				name := strings.Fields(line)[1]
				takes["apply "+name] = time.Duration(10+(i*7)%13) * time.Minute
				// The slot that is free first takes it.
				slices.SortFunc(slots, time.Time.Compare)
				want[name] = slots[0]
				slots[0] = slots[0].Add(takes["apply "+name])
			}
			w.hangChanges(takes)
			if s := w.run(); s.State != Succeeded {
				t.Fatalf("state %s (%s), %v", s.State, s.Reason, s.Counts)
			}
			first := w.fleet.at[0]
			for i, line := range w.fleet.log() {
				name := strings.Fields(line)[1]
				if late := w.fleet.at[i].Sub(first) - want[name].Sub(time.Time{}); late < 0 || late > tt.slack {
					t.Errorf("%s was asked %v later than a slot was free for it", name, late)
				}
			}
		})
	}
}

// A target that failed is on its way back beyond its batch's slots. When it is there its slot is free, and the wave must hear
// of it although nothing else has happened: without that a wave with one slot stood still for ever.
func TestBatchesUseTheSlotOfAWayBackAgain(t *testing.T) {
	w := inBatches(t, 60, 2, policy.WaveRule{MaxConcurrency: amount(1), MaxFailures: amount(1)})
	w.fleet.on["apply t05"] = fails("stuck")
	w.send(time.Hour, Abort, nil)
	s := w.run()
	if s.State != SucceededWithFailures || s.Counts[policy.Succeeded] != 59 {
		t.Errorf("state %s (%s), %v", s.State, s.Reason, s.Counts)
	}
}

// What goes back goes in the order in which it was changed, or against it, across batches: a target that waited for another goes
// before it where the newest go first.
func TestBatchesGoBackInTheOrderOfTheirStarts(t *testing.T) {
	w := inBatches(t, 8, 2, policy.WaveRule{MaxConcurrency: amount(1), Soak: policy.Duration(time.Hour)},
		policy.Policy{Name: "after", Selectors: []policy.Selector{{Resource: "t01"}}, WaitFor: []policy.WaitFor{{Name: "t08", Kind: policy.WaitForTarget}}},
		policy.Policy{Name: "back", Rollback: &policy.Rollback{Order: policy.OrderNewest, MaxConcurrency: amount(1)}})
	hangs := map[string]time.Duration{}
	for i := range 8 {
		hangs[fmt.Sprintf("apply t%02d", i+1)] = time.Minute
	}
	w.hangChanges(hangs)
	w.send(30*time.Minute, RollBack, nil)
	s := w.run()
	var back []string
	for _, line := range w.fleet.log()[8:] {
		back = append(back, strings.Fields(line)[1])
	}
	if want := []string{"t01", "t08", "t07", "t06", "t05", "t04", "t03", "t02"}; !slices.Equal(back, want) {
		t.Errorf("%s (%s): %v went back", s.State, s.Reason, back)
	}
}

// holdsWithoutFirst runs one wave in two batches, the first target of which refuses its change, and returns how the rollout stood
// after an hour.
func holdsWithoutFirst(w *world) RolloutStatus {
	w.replan(func(p *policy.Plan) { p.Waves[0].Batches, p.Waves[0].Budget.MaxFailures = 2, *amount(1) })
	w.fleet.on["apply a"] = refuses
	var held RolloutStatus
	w.env.RegisterDelayedCallback(func() { held = w.status() }, time.Hour)
	w.send(2*time.Hour, Abort, nil)
	w.run()
	return held
}

// Where only some targets keep a pace, the others start in no order: one that waits for what has failed must not keep those of
// later batches from their turn.
func TestBatchesPassOverWhatWaitsForOthers(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	p := policy.Policy{Name: "p", FailureThreshold: &policy.FailureThreshold{MaxFailures: amount(1)}}
	w := newWorldOf(t, []policy.Policy{p,
		{Name: "pace", Selectors: []policy.Selector{{Resource: "c,g"}}, Gradual: &policy.GradualRollout{Type: policy.Linear, Interval: policy.Duration(time.Minute), Overlap: true}},
		{Name: "after", Selectors: []policy.Selector{{Resource: "b,c"}}, WaitFor: []policy.WaitFor{{Name: "a", Kind: policy.WaitForTarget}}}}, names...)
	held := holdsWithoutFirst(w)
	if held.State != Holding || held.Counts[policy.Succeeded] != 5 || held.Counts[policy.Waiting] != 2 {
		t.Errorf("%s (%s), %v, asked %v", held.State, held.Reason, held.Counts, w.fleet.log())
	}
}

// Where targets start one after the other, one that waits for what has failed holds up all after it. That is for a person, and
// not for slots to change.
func TestBatchesHoldForAPersonWhereAPaceIsBlocked(t *testing.T) {
	p := policy.Policy{Name: "p", FailureThreshold: &policy.FailureThreshold{MaxFailures: amount(1)}}
	w := newWorldOf(t, []policy.Policy{p, {Name: "pace", Gradual: &policy.GradualRollout{Type: policy.Linear}},
		{Name: "after", Selectors: []policy.Selector{{Resource: "c"}}, WaitFor: []policy.WaitFor{{Name: "a", Kind: policy.WaitForTarget}}}}, "a", "b", "c", "d", "e", "f", "g", "h")
	held := holdsWithoutFirst(w)
	if held.State != Holding || held.Counts[policy.Succeeded] != 1 || held.Counts[policy.Waiting] != 6 {
		t.Errorf("%s (%s), %v, asked %v", held.State, held.Reason, held.Counts, w.fleet.log())
	}
}

// What others of the same batch wait for may be out of reach only for now: it is tried again although they have not started.
func TestBatchesTryAgainWhatOthersWaitFor(t *testing.T) {
	w := inBatches(t, 6, 2, policy.WaveRule{MaxConcurrency: amount(2), MaxFailures: amount(2)},
		policy.Policy{Name: "after", Selectors: []policy.Selector{{Resource: "t02,t06"}}, WaitFor: []policy.WaitFor{{Name: "t01", Kind: policy.WaitForTarget}}})
	w.fleet.unreachable["t01"] = readAttempts
	w.send(time.Hour, Abort, nil)
	if s := w.run(); s.State != Succeeded || s.Counts[policy.Succeeded] != 6 {
		t.Errorf("state %s (%s), %v", s.State, s.Reason, s.Counts)
	}
}

// A batch that is stopped before it has read its targets has reported none: they are still there to be counted.
func TestABatchThatWasStoppedEarlyIsCounted(t *testing.T) {
	w := inBatches(t, 6, 2, policy.WaveRule{MaxConcurrency: amount(2)})
	w.fleet.on["apply t01"] = refuses
	w.env.OnActivity("LoadWave", mock.Anything, mock.MatchedBy(func(ref activities.WaveRef) bool { return ref.Batch == 2 })).Return(w.acts.LoadWave).After(time.Hour)
	w.env.OnActivity("LoadWave", mock.Anything, mock.Anything).Return(w.acts.LoadWave)
	w.hangChanges(map[string]time.Duration{"apply t01": 15 * time.Minute, "apply t02": 30 * time.Minute})
	w.send(10*time.Minute, Abort, nil)
	var between RolloutStatus
	w.env.RegisterDelayedCallback(func() { between = w.status() }, 20*time.Minute)
	w.run()
	if between.Counts[policy.Pending] != 4 || between.Counts[policy.Applying] != 1 || between.Counts[policy.Failed] != 1 {
		t.Errorf("while it is aborted: %s, %v", between.State, between.Counts)
	}
}
