package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var begun = time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)

// clockwork runs a wave's decisions on a clock of its own: each target takes its time and then has its outcome.
type clockwork struct {
	state   WaveState
	now     time.Time
	takes   []time.Duration
	outcome []TargetState
	ends    map[int]time.Time
	started []int
	at      []time.Time // of each start, by target
	last    WaveDecision
}

func newClockwork(targets int, state WaveState) *clockwork {
	c := &clockwork{state: state, now: begun, ends: map[int]time.Time{}, at: make([]time.Time, targets), takes: make([]time.Duration, targets), outcome: make([]TargetState, targets)}
	for i := range targets {
		c.takes[i], c.outcome[i] = time.Minute, Succeeded
	}
	if c.state.Targets == nil {
		for i := range targets {
			c.state.Targets = append(c.state.Targets, TargetProgress{Name: fmt.Sprintf("t%d", i), State: Pending, Pace: 1})
		}
	}
	return c
}

// decide decides now, and starts what that says.
func (c *clockwork) decide() WaveDecision {
	c.state.Mark(c.now)
	d := DecideWave(c.state, c.now)
	for _, i := range append(slices.Clone(d.Start), d.Again...) {
		t := &c.state.Targets[i]
		t.Tried = t.State == Unreachable
		c.started = append(c.started, i)
		t.InFlight, t.State, t.Started = true, Applying, len(c.started)
		c.at[i], c.ends[i] = c.now, c.now.Add(c.takes[i])
		if t.Pace > 0 {
			c.state.Paces[t.Pace-1].Last = c.now
		}
	}
	c.last = d
	return d
}

// step goes on to the next moment at which something happens, and reports false when there is none.
func (c *clockwork) step() bool {
	next := c.last.Next
	for _, end := range c.ends {
		if next.IsZero() || end.Before(next) {
			next = end
		}
	}
	if next.IsZero() {
		return false
	}
	c.now = next
	for i := range c.state.Targets {
		if end, flying := c.ends[i]; flying && !end.After(c.now) {
			delete(c.ends, i)
			t := &c.state.Targets[i]
			t.InFlight, t.State, t.Counted = false, c.outcome[i], c.outcome[i] == Failed
		}
	}
	return true
}

// run goes on until nothing more happens, and returns the last decision.
func (c *clockwork) run() WaveDecision {
	for range 10_000 {
		if d := c.decide(); d.Phase != WaveRunning || !c.step() {
			return d
		}
	}
	return c.last
}

// offsets are the starts, in the order of the targets, as time since the beginning; "-" is none.
func (c *clockwork) offsets() string {
	var out []string
	for _, at := range c.at {
		if at.IsZero() {
			out = append(out, "-")
			continue
		}
		out = append(out, Duration(at.Sub(begun)).String())
	}
	return strings.Join(out, " ")
}

func paced(interval time.Duration, overlap bool) WaveState {
	return WaveState{MaxConcurrency: 100, Paces: []PaceState{{Policy: "p", Interval: interval, Overlap: overlap}}}
}

func TestStartsKeepTheirPace(t *testing.T) {
	const m = time.Minute
	for _, tt := range []struct {
		name  string
		state WaveState
		do    func(*clockwork)
		want  string
	}{
		{"an interval apart when each takes less", paced(10*m, false), nil, "0s 10m 20m 30m"},
		{"each after the one before when that takes longer", paced(10*m, false), func(c *clockwork) { c.takes[1] = 25 * m }, "0s 10m 35m 45m"},
		{"one after the other without an interval", paced(0, false), func(c *clockwork) { c.takes[0] = 7 * m }, "0s 7m 8m 9m"},
		{"sub-second intervals are kept", paced(1500*time.Millisecond, true), nil, "0s 1.5s 3s 4.5s"},
		{"at its time, whatever the ones before do", paced(m, true), func(c *clockwork) { c.takes[0] = time.Hour }, "0s 1m 2m 3m"},
		{"all at once with neither", paced(0, true), nil, "0s 0s 0s 0s"},
		{"a skipped one leaves its time free", paced(10*m, false), func(c *clockwork) { c.state.Targets[1].State = Skipped }, "0s - 20m 30m"},
		{"no more than the wave's concurrency", paced(m, true), func(c *clockwork) { c.state.MaxConcurrency = 1; c.takes[0] = 5 * m }, "0s 5m 6m 7m"},
		{"an interval after an earlier wave's last", paced(10*m, false), func(c *clockwork) { c.state.Paces[0].Last = begun.Add(-4 * m) }, "6m 16m 26m 36m"},
		{"a failure within budget frees the way", paced(10*m, false), func(c *clockwork) { c.outcome[1] = Failed }, "0s 10m 20m 30m"},
		{"one that is out of reach is tried at the end, an interval after the last", paced(10*m, false), func(c *clockwork) { c.outcome[0] = Unreachable }, "40m 10m 20m 30m"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newClockwork(4, tt.state)
			if tt.do != nil {
				tt.do(c)
			}
			c.run()
			if got := c.offsets(); got != tt.want {
				t.Errorf("starts: got %s, want %s", got, tt.want)
			}
		})
	}
}

// After a pause or downtime the peer's reading releases all whose time has come at once; ours spaces them.
func TestNoBacklogIsReleasedAtOnce(t *testing.T) {
	c := newClockwork(4, paced(time.Minute, true))
	c.decide()
	c.now = begun.Add(time.Hour)
	c.step()
	for c.decide().Phase == WaveRunning && c.step() {
	}
	if got, want := c.offsets(), "0s 1m 2m 3m"; got != want {
		t.Errorf("starts without a pause: got %s, want %s", got, want)
	}

	c = newClockwork(4, paced(time.Minute, true))
	c.decide()
	c.state.Control = ControlPause
	c.now = begun.Add(time.Hour)
	if d := c.decide(); len(d.Start) > 0 || !d.Next.IsZero() {
		t.Errorf("paused: got %+v, want nothing to start and no moment to look", d)
	}
	c.state.Control = ControlRun
	c.run()
	if got, want := c.offsets(), "0s 1h 1h1m 1h2m"; got != want {
		t.Errorf("starts after a pause: got %s, want %s", got, want)
	}
}

func TestWaitsSayWhatTheyWaitFor(t *testing.T) {
	c := newClockwork(3, paced(10*time.Minute, false))
	c.decide()
	d := c.decide()
	if len(d.Waiting) != 2 || d.Waiting[0].Reason != "it starts after t0" {
		t.Errorf("while the first runs: got %+v", d.Waiting)
	}
	c.step()
	d = c.decide()
	if want := "t1 is next: it starts 10m after t0"; len(d.Waits) != 1 || d.Waits[0].Reason != want || d.Waits[0].Policy != "p" || !d.Waits[0].Next.Equal(begun.Add(10*time.Minute)) {
		t.Errorf("between two: got %+v, want %q at 10m", d.Waits, want)
	}
	if d.Waiting[1].Reason != "it starts after t1" {
		t.Errorf("the third: got %q", d.Waiting[1].Reason)
	}
}

// dependent is a canary that nothing orders and two that wait for it, in a pace of their own.
func dependent(kind DependencyKind) WaveState {
	s := paced(10*time.Minute, false)
	s.MaxUnpaced = 1
	s.Targets = []TargetProgress{{Name: "c", State: Pending}, {Name: "x", State: Pending, Pace: 1, After: []int{0}}, {Name: "y", State: Pending, Pace: 1, After: []int{0}}}
	s.Dependencies = []DependencyState{{Policy: "rest", Name: "c", Kind: kind, Here: []int{0}, Met: map[int]bool{}}}
	return s
}

func TestDependenciesAreWaitedFor(t *testing.T) {
	c := newClockwork(3, dependent(WaitForTarget))
	c.takes[0] = time.Hour
	d := c.decide()
	if len(d.Waits) != 1 || d.Waits[0].Reason != "2 targets wait for c" || d.Waits[0].Rule != "deploymentDependency" || d.Waits[0].Policy != "rest" {
		t.Errorf("while the canary runs: got %+v", d.Waits)
	}
	if d := c.run(); d.Phase != WaveVerified {
		t.Errorf("got %s: %s", d.Phase, d.Reason)
	}
	if got, want := c.offsets(), "0s 1h 1h10m"; got != want {
		t.Errorf("starts: got %s, want %s", got, want)
	}
}

// What waits for a target that failed within budget waits for a person, who may try that again or leave out what waits.
func TestFailedDependencyHolds(t *testing.T) {
	for _, state := range []TargetState{Failed, NeedsRecovery, Skipped, Unreachable} {
		c := newClockwork(3, dependent(WaitForTarget))
		c.outcome[0] = state
		d := c.run()
		if d.Phase != WaveHeld || !strings.HasPrefix(d.Reason, "2 targets wait for c, which is "+string(state)) {
			t.Errorf("%s: got %s: %s", state, d.Phase, d.Reason)
		}
		if len(d.Waits) != 1 || !strings.HasPrefix(d.Waits[0].Lifts, "retry what failed") {
			t.Errorf("%s: got %+v", state, d.Waits)
		}
		if tries := len(c.started); state == Unreachable && tries != 2 || state != Unreachable && tries != 1 {
			t.Errorf("%s: got %d starts", state, tries)
		}
		c.state.Targets[1].State, c.state.Targets[2].State = Skipped, Skipped
		if d := c.decide(); d.Phase == WaveHeld && strings.Contains(d.Reason, "wait") {
			t.Errorf("%s: with the others left out: got %s: %s", state, d.Phase, d.Reason)
		}
		c = newClockwork(3, dependent(WaitForTarget))
		c.outcome[0] = state
		c.run()
		c.state.Targets[0].State, c.state.Targets[0].Counted, c.outcome[0] = Pending, false, Succeeded
		if d := c.run(); d.Phase != WaveVerified {
			t.Errorf("%s: tried again: got %s: %s", state, d.Phase, d.Reason)
		}
	}
}

func TestPolicyIsWaitedForWithoutItsSkipped(t *testing.T) {
	with := func(canary TargetState) WaveState {
		s := dependent(WaitForPolicy)
		s.Targets = append(s.Targets, TargetProgress{Name: "d", State: Skipped})
		s.Targets[0].State, s.Dependencies[0].Here = canary, []int{0, 3}
		return s
	}
	if d := newClockwork(4, with(Pending)).run(); d.Phase != WaveVerified {
		t.Errorf("one succeeded, one skipped: got %s: %s", d.Phase, d.Reason)
	}
	if d := newClockwork(4, with(Skipped)).run(); d.Phase != WaveHeld || !strings.Contains(d.Reason, `the targets of policy "c" (0 of 0 done)`) {
		t.Errorf("all skipped is nobody: got %s: %s", d.Phase, d.Reason)
	}
}

func TestOutsideDependencyNeverHolds(t *testing.T) {
	s := dependent(WaitForEnvironment)
	c := newClockwork(3, s)
	if d := c.run(); d.Phase != WaveRunning || len(d.Waits) != 1 || d.Waits[0].Reason != `2 targets wait for environment "c" to succeed on this version` {
		t.Errorf("got %s: %+v", d.Phase, d.Waits)
	}
	c.now = begun.Add(3 * time.Hour)
	c.state.Dependencies[0].Met = map[int]bool{1: true, 2: true}
	if d := c.run(); d.Phase != WaveVerified {
		t.Errorf("once it is met: got %s: %s", d.Phase, d.Reason)
	}
	if got, want := c.offsets(), "0s 3h 3h10m"; got != want {
		t.Errorf("starts: got %s, want %s", got, want)
	}
}

// Whatever the paces, dependencies, times and failures: a start keeps its interval, its turn and its dependencies, and no
// wave stops for ever without saying so.
func TestPacedWaveProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "targets")
		s := WaveState{MaxConcurrency: rapid.IntRange(1, 5).Draw(t, "concurrency"), Budget: &Budget{MaxFailures: Amount{Value: n}, MaxUnreachable: Amount{Value: n}, Size: n}}
		for range rapid.IntRange(0, 2).Draw(t, "paces") {
			s.Paces = append(s.Paces, PaceState{Interval: time.Duration(rapid.IntRange(0, 3).Draw(t, "interval")) * time.Minute, Overlap: rapid.Bool().Draw(t, "overlap")})
		}
		for i := range n {
			s.Targets = append(s.Targets, TargetProgress{Name: fmt.Sprintf("t%d", i), State: Pending, Pace: rapid.IntRange(0, len(s.Paces)).Draw(t, "pace")})
			if i > 0 && rapid.IntRange(0, 3).Draw(t, "depends") == 0 {
				s.Dependencies = append(s.Dependencies, DependencyState{Name: "d", Kind: WaitForTarget, Here: []int{rapid.IntRange(0, i-1).Draw(t, "on")}})
				s.Targets[i].After = []int{len(s.Dependencies) - 1}
			}
		}
		c := newClockwork(n, s)
		for i := range n {
			c.takes[i] = time.Duration(rapid.IntRange(0, 300).Draw(t, "takes")) * time.Second
			c.outcome[i] = rapid.SampledFrom([]TargetState{Succeeded, Succeeded, Succeeded, NoChange, Failed, Unreachable}).Draw(t, "outcome")
		}
		flying := func() (all int, paced []int) {
			paced = make([]int, len(s.Paces))
			for _, target := range c.state.Targets {
				if target.InFlight {
					all++
					if target.Pace > 0 {
						paced[target.Pace-1]++
					}
				}
			}
			return all, paced
		}
		for range 10_000 {
			last := make([]time.Time, len(s.Paces))
			for k := range s.Paces {
				last[k] = c.state.Paces[k].Last
			}
			d := c.decide()
			for _, i := range d.Start {
				target := c.state.Targets[i]
				for _, n := range target.After {
					if on := c.state.Targets[s.Dependencies[n].Here[0]]; on.State != Succeeded && on.State != NoChange {
						t.Fatalf("%s started while what it waits for is %s", target.Name, on.State)
					}
				}
				if target.Pace == 0 {
					continue
				}
				k := target.Pace - 1
				if !last[k].IsZero() && c.now.Before(last[k].Add(s.Paces[k].Interval)) {
					t.Fatalf("%s started %s after the last one, its interval is %s", target.Name, c.now.Sub(last[k]), s.Paces[k].Interval)
				}
				last[k] = c.now
			}
			all, paced := flying()
			if all > s.MaxConcurrency {
				t.Fatalf("%d in flight, %d allowed", all, s.MaxConcurrency)
			}
			for k, p := range s.Paces {
				if !p.Overlap && paced[k] > 1 {
					t.Fatalf("%d of a pace in flight at once", paced[k])
				}
			}
			if d.Phase != WaveRunning {
				if counts := c.state.Count(); d.Phase == WaveVerified && counts.Pending > 0 || d.Phase == WaveHeld && !strings.Contains(d.Reason, "wait") {
					t.Fatalf("%s (%s) with %d pending", d.Phase, d.Reason, counts.Pending)
				}
				return
			}
			if !c.step() {
				t.Fatalf("it runs, and nothing will ever happen: %+v", d)
			}
		}
		t.Fatal("it never ends")
	})
}

// Edges hold at a second try as at a first one: what succeeded may have been taken back since.
func TestSecondTryObeysItsDependency(t *testing.T) {
	c := newClockwork(3, dependent(WaitForTarget))
	c.outcome[1] = Unreachable
	for c.state.Targets[2].State != Succeeded {
		c.decide()
		if !c.step() {
			t.Fatal("y never ends")
		}
		if c.state.Targets[1].State == Unreachable {
			c.state.Targets[0].State = RolledBack
			c.state.Targets[2].State = Succeeded
		}
	}
	d := c.run()
	if d.Phase != WaveHeld || !strings.HasPrefix(d.Reason, "1 target waits for c, which is RolledBack") || len(c.started) != 2 {
		t.Errorf("got %s: %s after %v", d.Phase, d.Reason, c.started)
	}
}

// A target that waits in the same pace keeps nobody from a second try, and nobody from holding.
func TestSecondTryBehindOneThatWaits(t *testing.T) {
	s := dependent(WaitForTarget)
	s.Targets[0].State = Skipped
	s.Targets[1].Started, s.Targets[2].State, s.Targets[2].After = 1, Unreachable, nil
	c := newClockwork(3, s)
	d := c.run()
	if d.Phase != WaveHeld || !strings.HasPrefix(d.Reason, "1 target waits for c, which is Skipped") || c.state.Targets[2].State != Succeeded {
		t.Errorf("got %s: %s, targets %+v", d.Phase, d.Reason, c.state.Targets)
	}
}
