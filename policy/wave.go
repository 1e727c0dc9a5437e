package policy

import (
	"fmt"
	"slices"
	"time"
)

// Control is what a rollout tells its waves, and a wave its targets.
type Control string

// The controls. Stop is final.
const (
	ControlRun   Control = "run"
	ControlPause Control = "pause" // nothing new starts; what has begun finishes
	// ControlFinish: nothing new starts, ever; what has begun finishes all its steps, checks too. After a breach.
	ControlFinish Control = "finish"
	// ControlStop: nothing new starts, ever; what is in flight reaches a safe point and leaves its checks out.
	ControlStop Control = "stop"
)

// TargetProgress is one target as its wave sees it.
type TargetProgress struct {
	Name  string
	State TargetState
	// Reason is one sentence for people.
	Reason string
	// Attempt counts the Target workflows that were started for it.
	Attempt int
	// Started is its place in the order in which targets of the wave first started, from 1; 0 means never.
	Started int
	// InFlight reports that a Target workflow of it is open.
	InFlight bool
	// Reached reports that it was asked to change and has not come back since.
	Reached bool
	// From is the version read before the change; FromKnown tells "not installed" from "could not be read".
	From      string
	FromKnown bool
	// Counted reports that it counts as a failure. A target that failed stays counted after it went back; success on a
	// retry takes it out.
	Counted bool
	// Tried reports that an unreachable target has had its second try.
	Tried bool
	// Held reports that its checks came to no conclusion: the wave holds and asks a person.
	Held bool
	// ByHand reports that a person had it taken back: it is on its way back, or its state says what came of it. One that
	// has come back has left the wave as a skipped one has.
	ByHand bool
	// Metrics are indices into the plan's metrics.
	Metrics []int
	// Pace is the number of the WaveState's pace that it keeps, from 1; 0: none. After are indices of its dependencies.
	Pace  int
	After []int
	// Free is when everything that it waits for was there; zero: it is not.
	Free time.Time
}

// WaveCounts are counts over the targets of a wave.
type WaveCounts struct {
	Failures, Unreachable, Skipped, Succeeded, InFlight, Pending int
	// Taken is how many of the skipped ones went back by hand.
	Taken int `json:",omitempty"`
}

// WaveState is all that DecideWave looks at.
type WaveState struct {
	Targets        []TargetProgress
	MaxConcurrency int
	// MaxUnpaced is how many targets that keep no pace may be in flight; 0: MaxConcurrency.
	MaxUnpaced   int
	Paces        []PaceState
	Dependencies []DependencyState
	// Budget is the wave's own; nil means none.
	Budget *Budget
	// Rollout is the budget over the whole rollout, Before what earlier waves have used of it.
	Rollout *Budget
	Before  WaveCounts
	Control Control
	// Breached is why the budget was breached; once set it stays.
	Breached string
	// AllSkippedAccepted reports that a person let a wave pass whose targets were all skipped.
	AllSkippedAccepted bool
	// Beside is what is known of the rest of the wave when the targets are one batch of it, and MaxConcurrency then the
	// slots that the batch holds; nil: they are the whole wave.
	Beside *Beside
}

// Count counts over the whole wave, whatever the order of its targets.
func (s WaveState) Count() WaveCounts {
	var c WaveCounts
	for _, t := range s.Targets {
		if t.InFlight {
			c.InFlight++
		} else if t.State == Pending {
			c.Pending++
		}
		switch {
		case t.State == Skipped || t.State == Removed:
			c.Skipped++
		case t.ByHand && t.State == RolledBack:
			c.Skipped++
			c.Taken++
		case t.Counted:
			c.Failures++
		case t.State == Unreachable:
			c.Unreachable++
		case t.State == Succeeded || t.State == NoChange || t.State == RolledBack:
			c.Succeeded++
		}
	}
	return c
}

// WavePhase is where a wave stands. The set is closed.
type WavePhase string

// The phases.
const (
	WavePending  WavePhase = "pending"
	WavePassed   WavePhase = "passed" // empty: passed over
	WaveRunning  WavePhase = "running"
	WaveHeld     WavePhase = "held"     // asks a person
	WaveDraining WavePhase = "draining" // nothing starts any more; targets in flight reach a safe point
	WaveVerified WavePhase = "verified" // each target is terminal, with a success among them
	WaveSoaking  WavePhase = "soaking"
	WaveDone     WavePhase = "done"
	WaveBreached WavePhase = "breached" // over budget, and nothing in flight
	WaveFailed   WavePhase = "failed"   // ended without a success
	WaveStopped  WavePhase = "stopped"  // by a command, and nothing in flight
)

// WaveDecision is what a wave does next.
type WaveDecision struct {
	Phase WavePhase
	// Reason is one sentence on why.
	Reason string
	// Start are the targets to start now, as indices, in order.
	Start []int
	// Again are unreachable targets to try once more now, as indices.
	Again []int
	// Breached, when not empty, says why the budget is breached as of now.
	Breached string
	// Next is the next moment to look by itself; zero: when something has happened.
	Next time.Time
	// Waiting are the targets that wait for something other than a slot, Waits what must be lifted.
	Waiting []TargetWait
	Waits   []Wait
	// Waiters counts the targets that wait for each dependency.
	Waiters []int
	// Stuck says, of a batch, why nothing of it starts whatever slots it has, until something happens in another one.
	Stuck string
}

// DecideWave says what a wave does next. Failures are counted over the whole scope before any target is chosen to
// start, so that the order of names never changes the answer.
func DecideWave(s WaveState, now time.Time) WaveDecision {
	c := s.Count()
	all := s.overall(c)
	breached := s.Breached
	if breached == "" {
		breached = s.breach(all)
	}
	switch {
	case s.Control == ControlStop:
		return WaveDecision{Phase: orDraining(WaveStopped, c), Reason: "stopped: nothing new starts", Breached: breached}
	case breached != "":
		return WaveDecision{Phase: orDraining(WaveBreached, c), Reason: breached, Breached: breached}
	}
	held := 0
	for _, t := range s.Targets {
		if t.Held && !t.InFlight {
			held++
		}
	}
	if held > 0 {
		return WaveDecision{Phase: WaveHeld, Reason: fmt.Sprintf("the checks of %s came to no conclusion", count(held, "target"))}
	}
	if s.Beside != nil && s.Beside.Held {
		return WaveDecision{Phase: WaveRunning, Reason: "another batch of the wave holds for a person"}
	}
	again := s.Untried()
	if s.Control == ControlPause && (c.Pending > 0 || c.InFlight > 0 || again > 0) {
		return WaveDecision{Phase: WaveRunning, Reason: "paused: nothing new starts"}
	}
	behind := "" // why nothing of a batch starts that has not been tried
	if c.Pending > 0 {
		slots := Slots(SlotQuery{Concurrency: s.MaxConcurrency, InFlight: c.InFlight, Pending: c.Pending, Bounds: s.bounds(all)})
		chosen := s.choose(now, slots, pending, false)
		d := WaveDecision{Phase: WaveRunning, Start: chosen.start, Next: chosen.next, Waiting: chosen.waiting, Waits: chosen.waits, Waiters: chosen.waiters}
		switch {
		case !s.stuck(chosen, c, pending):
			return d
		case s.Beside != nil:
			if d.Stuck = chosen.why(); again == 0 || !s.Beside.Again {
				return d
			}
			behind = d.Stuck
		case again == 0:
			return chosen.holding(d, c)
		}
		// What the others wait for may be out of reach only for now.
	}
	if c.InFlight > 0 {
		return WaveDecision{Phase: WaveRunning}
	}
	if again > 0 && (s.Beside == nil || s.Beside.Again) {
		slots := Slots(SlotQuery{Concurrency: s.MaxConcurrency, Pending: again, Bounds: s.bounds(all)})
		chosen := s.choose(now, slots, unreached, true)
		d := WaveDecision{Phase: WaveRunning, Reason: "trying again what was out of reach", Again: chosen.start, Next: chosen.next,
			Waiting: chosen.waiting, Waits: chosen.waits, Waiters: chosen.waiters}
		if s.Beside != nil {
			if d.Stuck = behind; s.stuck(chosen, c, unreached) {
				d.Stuck = chosen.why()
			}
			return d
		}
		return chosen.holding(d, c)
	}
	if s.Beside != nil {
		return WaveDecision{Phase: WaveVerified} // what that means, the whole wave decides
	}
	return s.judged(c)
}

// judged says what a wave is, each target of which is terminal.
func (s WaveState) judged(c WaveCounts) WaveDecision {
	return judge(c, len(s.Targets), s.Control, s.AllSkippedAccepted, slices.ContainsFunc(s.Targets, func(t TargetProgress) bool { return t.ByHand }))
}

// judge is judged of counts: over size targets, byHand if a person had some of them taken back.
func judge(c WaveCounts, size int, control Control, accepted, byHand bool) WaveDecision {
	switch {
	case c.Skipped == size && !accepted && c.Taken > 0:
		return WaveDecision{Phase: WaveHeld, Reason: "each target of the wave was skipped or went back by hand"}
	case c.Skipped == size && !accepted:
		return WaveDecision{Phase: WaveHeld, Reason: "each target of the wave was skipped"}
	case c.Skipped == size:
		return WaveDecision{Phase: WaveVerified, Reason: "each target of the wave was skipped, and a person let it pass"}
	case c.Succeeded == 0 && control == ControlPause && byHand:
		// What a person took back is no verdict on the others before that person goes on.
		return WaveDecision{Phase: WaveRunning, Reason: "no target of the wave is left to succeed"}
	case c.Succeeded == 0:
		return WaveDecision{Phase: WaveFailed, Reason: "no target of the wave succeeded"}
	}
	return WaveDecision{Phase: WaveVerified}
}

// pending reports whether a target has still to start.
func pending(t TargetProgress) bool { return t.State == Pending && !t.InFlight }

// unreached reports whether a target is to be tried once more at the end of its wave.
func unreached(t TargetProgress) bool {
	return t.State == Unreachable && !t.Tried && !t.InFlight
}

func orDraining(ended WavePhase, c WaveCounts) WavePhase {
	if c.InFlight > 0 {
		return WaveDraining
	}
	return ended
}

// breach says which budget is exceeded, or nothing; c counts over the whole wave. A breach is a count above the budget.
func (s WaveState) breach(c WaveCounts) string {
	if b := s.Budget; b != nil {
		if limit := b.Failures(c.Skipped); c.Failures > limit {
			return fmt.Sprintf("%s failed in this wave, and its budget is %d", count(c.Failures, "target"), limit)
		}
		if limit := b.Unreachable(c.Skipped); c.Unreachable > limit {
			return fmt.Sprintf("%s of this wave out of reach, and its budget is %d", count(c.Unreachable, "target"), limit)
		}
	}
	if b := s.Rollout; b != nil {
		skipped := c.Skipped + s.Before.Skipped
		if all, limit := c.Failures+s.Before.Failures, b.Failures(skipped); all > limit {
			return fmt.Sprintf("%s failed in this rollout, and its budget is %d", count(all, "target"), limit)
		}
		if all, limit := c.Unreachable+s.Before.Unreachable, b.Unreachable(skipped); all > limit {
			return fmt.Sprintf("%s of this rollout out of reach, and its budget is %d", count(all, "target"), limit)
		}
	}
	return ""
}

// bounds returns what is left of each bounded budget; c counts over the whole wave.
func (s WaveState) bounds(c WaveCounts) []int {
	var out []int
	if b := s.Budget; b != nil && b.Bounded {
		out = append(out, b.Failures(c.Skipped)-c.Failures)
	}
	if b := s.Rollout; b != nil && b.Bounded {
		out = append(out, b.Failures(c.Skipped+s.Before.Skipped)-c.Failures-s.Before.Failures)
	}
	return out
}
