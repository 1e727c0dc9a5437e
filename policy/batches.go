package policy

import (
	"cmp"
	"fmt"
	"slices"
)

// BatchTargets is the most targets that one workflow is the parent of: with a child each they stay far below what an
// engine's history bears. A larger wave is cut into batches.
const BatchTargets = 500

// Batch returns which targets of the wave batch number, from 1, holds: [from, to). Batches differ by one target at most.
func (w Wave) Batch(number int) (from, to int) {
	n := max(1, w.Batches)
	return w.Size * (number - 1) / n, w.Size * number / n
}

// batches is how many batches a wave of this size is cut into; 0: it is none too large for one workflow.
func batches(size int) int {
	if size <= BatchTargets {
		return 0
	}
	return (size + BatchTargets - 1) / BatchTargets
}

// Beside is what a batch knows of the rest of its wave.
type Beside struct {
	// Counts are over the other batches.
	Counts WaveCounts `json:"counts"`
	// Held: one of them holds for a person, so that nothing starts in any.
	Held bool `json:"held,omitempty"`
	// Again: all else has ended, and what was out of reach is tried once more.
	Again bool `json:"again,omitempty"`
	// Turns says for which paces targets may start here; [0] is for targets that keep none, where others do. nil: for all.
	Turns []bool `json:"turns,omitempty"`
	// Dependencies are how the targets of the other batches stand that dependencies wait for.
	Dependencies []Standing `json:"dependencies,omitempty"`
}

// overall adds what is known of the rest of the wave to counts of this part of it.
func (s WaveState) overall(c WaveCounts) WaveCounts {
	if s.Beside == nil {
		return c
	}
	return c.plus(s.Beside.Counts)
}

func (c WaveCounts) plus(other WaveCounts) WaveCounts {
	return WaveCounts{Failures: c.Failures + other.Failures, Unreachable: c.Unreachable + other.Unreachable, Skipped: c.Skipped + other.Skipped,
		Succeeded: c.Succeeded + other.Succeeded, InFlight: c.InFlight + other.InFlight, Pending: c.Pending + other.Pending, Taken: c.Taken + other.Taken}
}

// turn reports whether targets of a pace may start in this part of the wave.
func (s WaveState) turn(pace int) bool {
	return s.Beside == nil || s.Beside.Turns == nil || pace == 0 && s.MaxUnpaced == 0 || s.Beside.Turns[pace]
}

// Untried is how many targets are to be tried once more at the end of the wave.
func (s WaveState) Untried() int {
	n := 0
	for _, t := range s.Targets {
		if unreached(t) {
			n++
		}
	}
	return n
}

// stuck reports whether no candidate starts, now or later by itself, and nothing is in flight; a lack of slots is no reason.
func (s WaveState) stuck(chosen choice, c WaveCounts, candidate func(TargetProgress) bool) bool {
	return chosen.stuck(c) && (s.Beside == nil || s.roomFor(candidate, s.metHere()) == 0)
}

// Room is how many slots the targets could use, those included that they do: what waits for anything but a slot or its
// pace's next moment needs none. A target on its way back has given its slot away.
func (s WaveState) Room() int {
	met := s.metHere()
	room := s.roomFor(pending, met)
	if s.Beside != nil && s.Beside.Again && room == 0 {
		room = s.roomFor(unreached, met)
	}
	return room
}

func (s WaveState) roomFor(candidate func(TargetProgress) bool, met []bool) int {
	flying, next := make([]int, len(s.Paces)+1), make([]int, len(s.Paces)+1)
	blocked := make([]bool, len(s.Paces)+1) // what starts one after the other waits for the first that waits
	for i, t := range s.Targets {
		switch {
		case t.InFlight && t.State != Restoring:
			flying[t.Pace]++
		case !candidate(t):
		case s.unmet(i, met) >= 0:
			blocked[t.Pace] = t.Pace > 0 && !s.Paces[t.Pace-1].Overlap
		case s.turn(t.Pace) && !blocked[t.Pace]:
			next[t.Pace]++
		}
	}
	room := flying[0] + next[0]
	if s.MaxUnpaced > 0 {
		room = max(flying[0], min(room, s.MaxUnpaced))
	}
	for k, pace := range s.Paces {
		if all := flying[k+1] + next[k+1]; pace.Overlap {
			room += all
		} else {
			room += min(1, all)
		}
	}
	return room
}

// Uses says for which paces this part of the wave has targets that are not done with it, and Flying for which it has targets in
// flight; [0] is for those that keep none.
func (s WaveState) Uses() (uses, flying []bool) {
	uses, flying = make([]bool, len(s.Paces)+1), make([]bool, len(s.Paces)+1)
	met := s.metHere()
	for i, t := range s.Targets {
		if t.Pace == 0 && s.MaxUnpaced == 0 {
			continue
		}
		overlap := t.Pace > 0 && s.Paces[t.Pace-1].Overlap
		// What waits for others holds only those up that must start after it.
		passed := (t.Pace == 0 || overlap) && s.unmet(i, met) >= 0
		switch {
		case t.InFlight:
			// Where starts may overlap, the next one waits for no end.
			uses[t.Pace] = uses[t.Pace] || !overlap
			flying[t.Pace] = flying[t.Pace] || !overlap
		case t.State == Pending, s.Beside != nil && s.Beside.Again && unreached(t):
			uses[t.Pace] = uses[t.Pace] || !passed
		}
	}
	return uses, flying
}

// Share is a batch's account of the slots that its wave leases to it.
type Share struct {
	// Granted is how many slots the batch was ever given, Returned how many it has given back.
	Granted, Returned int
	// failures and unreachable are what was counted when the account was last settled.
	failures, unreachable int
}

// Settle gives slots back, and sets how many targets of the batch may be in flight. A slot goes back with each failure and each
// target out of reach, since only the wave knows whether it may be used again, and when nothing here could use it; one that a
// success leaves free is used again.
func (a *Share) Settle(s *WaveState) {
	c := s.Count()
	lost := max(0, c.Failures-a.failures) + max(0, c.Unreachable-a.unreachable)
	a.failures, a.unreachable = c.Failures, c.Unreachable
	a.Returned += min(lost, a.Granted-a.Returned)
	a.Returned += max(0, a.Granted-a.Returned-s.Room())
	s.MaxConcurrency = a.Granted - a.Returned
}

// BatchProgress is one batch as its wave knows it: by its newest report, which may be older than the newest word to it.
type BatchProgress struct {
	Size int
	// Known reports that it has said what it could use.
	Known  bool
	Counts WaveCounts
	// Granted is how many slots it was ever given, Returned how many it has given back.
	Granted, Returned int
	// Room is how many slots it could use, those included that it does.
	Room int
	// Untried is how many of its targets are to be tried once more, Held how many hold for a person.
	Untried, Held int
	// Stuck says why nothing of it starts, whatever slots it has, until something happens in another batch.
	Stuck string
	// Current reports that it knew all that could change Stuck, or end a turn.
	Current bool
	// ByHand reports that a person had some of its targets taken back.
	ByHand bool
	// Ended reports that its workflow has.
	Ended bool
	// Uses and Flying are what WaveState.Uses returned, Turns the Beside.Turns that it had heard of.
	Uses, Flying, Turns []bool
}

// holds is how many slots a batch holds.
func (b BatchProgress) holds() int { return b.Granted - b.Returned }

// BatchedWave is all that DecideBatches looks at.
type BatchedWave struct {
	Batches        []BatchProgress
	MaxConcurrency int
	// Budget is the wave's, Rollout that over the whole rollout, Before what earlier waves have used of it.
	Budget, Rollout *Budget
	Before          WaveCounts
	Control         Control
	// Breached is why the budget was breached; once set it stays.
	Breached string
	// Again is as last decided.
	Again bool
	// Turns is the batch whose turn it is, for each pace as in Beside.Turns, from 1; 0: nobody's. As last decided.
	Turns              []int
	AllSkippedAccepted bool
}

// BatchesDecision is what a wave of batches does next.
type BatchesDecision struct {
	Phase    WavePhase
	Reason   string
	Breached string
	// Grants are the slots that each batch is given now, beside those that it holds.
	Grants []int
	// Again: what was out of reach is tried once more.
	Again bool
	// Turns is whose turn it is. A batch may start targets of a pace only when it is also the first to use it, see Turn.
	Turns []int
}

// Count counts over all batches, by their newest reports.
func (s BatchedWave) Count() WaveCounts {
	var c WaveCounts
	for _, b := range s.Batches {
		c = c.plus(b.Counts)
	}
	return c
}

// DecideBatches says what a wave of batches does next. It hands out slots; which target takes one, a batch decides with
// DecideWave. Since a batch gives a slot back with each failure that it reports, the slots that batches hold never
// exceed budget + 1 - failures where the budget is bounded, however late a report comes.
func DecideBatches(s BatchedWave) BatchesDecision {
	c := s.Count()
	d := BatchesDecision{Grants: make([]int, len(s.Batches)), Breached: s.Breached, Again: s.Again, Turns: slices.Clone(s.Turns)}
	all := WaveState{Budget: s.Budget, Rollout: s.Rollout, Before: s.Before}
	if d.Breached == "" {
		d.Breached = all.breach(c)
	}
	ended := !slices.ContainsFunc(s.Batches, func(b BatchProgress) bool { return !b.Ended })
	switch {
	case s.Control == ControlStop:
		d.Phase, d.Reason = endedOr(WaveStopped, ended), "stopped: nothing new starts"
		return d
	case d.Breached != "":
		d.Phase, d.Reason = endedOr(WaveBreached, ended), d.Breached
		return d
	}
	held, untried, size, stuck, behind, byHand := 0, 0, 0, "", "", false
	moves := c.InFlight > 0 // something is under way, or can start
	for _, b := range s.Batches {
		held += b.Held
		untried += b.Untried
		size += b.Size
		byHand = byHand || b.ByHand
		behind = cmp.Or(behind, b.Stuck)
		if b.Counts.Pending == 0 {
			continue
		}
		stuck = cmp.Or(stuck, b.Stuck)
		moves = moves || b.Stuck == "" || !b.Current || !b.Known
	}
	switch {
	case held > 0:
		d.Phase, d.Reason = WaveHeld, fmt.Sprintf("the checks of %s came to no conclusion", count(held, "target"))
		return d
	case s.Control == ControlPause && (c.Pending > 0 || c.InFlight > 0 || untried > 0):
		d.Phase, d.Reason = WaveRunning, "paused: nothing new starts"
		return d
	}
	d.Phase = WaveRunning
	s.turns(&d)
	switch {
	case moves:
		// Once it is told, a batch tries again until all have had their second try; what a person retries comes first.
		d.Again = s.Again && untried > 0 && (c.Pending == 0 || stuck != "")
	case untried > 0:
		d.Again, d.Reason = true, "trying again what was out of reach"
		if s.Again && s.waiting() {
			d.Phase, d.Reason = WaveHeld, cmp.Or(stuck, behind)
		}
	case c.Pending > 0:
		d.Again, d.Phase, d.Reason = false, WaveHeld, stuck
	default:
		d.Again = false
		end := judge(c, size, s.Control, s.AllSkippedAccepted, byHand)
		d.Phase, d.Reason = end.Phase, end.Reason
		return d
	}
	s.grant(&d, all.bounds(c))
	return d
}

// waiting reports whether no batch can try anything again either.
func (s BatchedWave) waiting() bool {
	return !slices.ContainsFunc(s.Batches, func(b BatchProgress) bool { return !b.Current || b.Room > 0 })
}

func endedOr(phase WavePhase, ended bool) WavePhase {
	if ended {
		return phase
	}
	return WaveDraining
}

// grant gives free slots to the first batches that can use them. A target on its way back occupies what it takes up.
func (s BatchedWave) grant(d *BatchesDecision, bounds []int) {
	limit := s.MaxConcurrency
	for _, left := range bounds {
		limit = min(limit, left+1)
	}
	for _, b := range s.Batches {
		limit -= max(b.holds(), b.Counts.InFlight)
	}
	for i, b := range s.Batches {
		if !b.Known || limit <= 0 {
			break // what comes first takes first
		}
		if b.Ended {
			continue
		}
		d.Grants[i] = max(0, min(limit, b.Room-b.holds()))
		limit -= d.Grants[i]
	}
}

// turns moves each pace on to the first batch that uses it, once the one before has heard that its turn is over and has
// nothing of it in flight.
func (s BatchedWave) turns(d *BatchesDecision) {
	for k, holder := range d.Turns {
		first := s.first(k)
		if first == 0 || first == holder {
			continue
		}
		// A report from before the turn was last given says nothing of what has been started in it.
		if holder == 0 || s.Batches[holder-1].Ended || s.Batches[holder-1].Current && !s.Batches[holder-1].busy(k) {
			d.Turns[k] = first
		}
	}
}

// first is the first batch that uses a pace, from 1, or 0: none does, or it is not known.
func (s BatchedWave) first(pace int) int {
	for i, b := range s.Batches {
		switch {
		case b.Ended:
		case !b.Known:
			return 0
		case b.Uses[pace]:
			return i + 1
		}
	}
	return 0
}

// busy reports whether targets of a pace are in flight, or may be by now.
func (b BatchProgress) busy(pace int) bool {
	return b.Turns[pace] || b.Flying[pace]
}

// Turn says for which paces targets of a batch may start, see Beside.Turns; nil where there is no pace.
func (s BatchedWave) Turn(batch int) []bool {
	if len(s.Turns) == 0 {
		return nil
	}
	out := make([]bool, len(s.Turns))
	for k, holder := range s.Turns {
		out[k] = holder == batch+1 && s.first(k) == holder
	}
	return out
}
