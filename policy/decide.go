package policy

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// StopCause is why nothing new may start any more. The set is closed.
type StopCause string

// The causes. The empty one means that the rollout may go on.
const (
	NotStopped      StopCause = ""
	StoppedBreach   StopCause = "breach"   // a budget was exceeded
	StoppedReject   StopCause = "reject"   // a person rejected
	StoppedRollback StopCause = "rollback" // a person asked for the rollback
	StoppedAbort    StopCause = "abort"    // a person aborted, or the workflow was cancelled
	StoppedFailed   StopCause = "failed"   // a wave ended without a success
	// StoppedSuperseded: nothing had been started, and the lane is wanted for the rollback of an earlier rollout.
	StoppedSuperseded StopCause = "superseded"
)

// Stop is the one decisive stop of a rollout; a stronger one replaces a weaker one.
type Stop struct {
	Cause  StopCause `json:"cause"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Wave   int       `json:"wave,omitempty"`
}

// WaveProgress is one wave as its rollout sees it.
type WaveProgress struct {
	Phase  WavePhase `json:"phase"`
	Reason string    `json:"reason,omitempty"`
	// Open reports that the wave's workflow is open.
	Open   bool       `json:"open,omitempty"`
	Counts WaveCounts `json:"counts"`
	// Reached is how many targets were reached and have not come back.
	Reached int `json:"reached,omitempty"`
	// ByHand reports that a person had the whole wave taken back: nothing of it starts any more, and later waves go on.
	ByHand bool `json:"byHand,omitempty"`
	// AskedAt is when its approval was asked for; zero: not yet.
	AskedAt time.Time `json:"askedAt,omitzero"`
	// SoakUntil is when its soak ends, once it soaks.
	SoakUntil time.Time `json:"soakUntil,omitzero"`
	// Waits are what its targets wait for besides slots.
	Waits []Wait `json:"waits,omitempty"`
}

// Back is how a rollback stands.
type Back struct {
	Begun bool `json:"begun,omitempty"`
	// Scope is the wave that goes back; 0 means everything that was reached.
	Scope int  `json:"scope,omitempty"`
	Ended bool `json:"ended,omitempty"`
	// Targets is how many were to come back.
	Targets int `json:"targets,omitempty"`
	// Incomplete is how many targets did not come back, once it has ended.
	Incomplete int `json:"incomplete,omitempty"`
	// Held is why it pauses for a person: its own budget is exceeded.
	Held string `json:"held,omitempty"`
}

// Progress is all that Decide looks at: what has happened in a rollout so far.
type Progress struct {
	// Plan is the plan's summary.
	Plan Plan `json:"plan"`
	// TimeScale is how fast the times of the plan pass.
	TimeScale TimeScale `json:"timeScale,omitempty"`
	// Author is whoever started the rollout.
	Author    string         `json:"author,omitempty"`
	Waves     []WaveProgress `json:"waves"`
	Approvals []Approved     `json:"approvals,omitempty"`
	Paused    bool           `json:"paused,omitempty"`
	Stop      Stop           `json:"stop"`
	Back      Back           `json:"back"`
	ByHand    ByHand         `json:"byHand,omitzero"`
	// Unrecorded reports that the ledger does not hold yet what the last wave did.
	Unrecorded bool `json:"unrecorded,omitempty"`
	// LateInFlight is how many single targets are being retried after their wave has closed.
	LateInFlight int `json:"lateInFlight,omitempty"`
}

// Action is what a rollout does next. The set is closed.
type Action string

// The actions.
const (
	ActWait     Action = "wait"     // until something happens or Next
	ActAsk      Action = "ask"      // begin to ask for the approval of Wave
	ActOpen     Action = "open"     // open Wave
	ActPass     Action = "pass"     // pass over the empty Wave
	ActRollBack Action = "rollback" // take back what Scope says
	ActEnd      Action = "end"      // as Ending
)

// Ending is how a rollout ends. The set is closed.
type Ending string

// The endings.
const (
	EndSucceeded             Ending = "Succeeded"
	EndSucceededWithFailures Ending = "SucceededWithFailures"
	EndFailed                Ending = "Failed"
	EndRolledBack            Ending = "RolledBack"
	EndRollbackIncomplete    Ending = "RollbackIncomplete"
	EndRejected              Ending = "Rejected"
	EndAborted               Ending = "Aborted"
	EndSuperseded            Ending = "Superseded"
)

// Decision is what a rollout does next, and why.
type Decision struct {
	Action Action
	// Wave is the number of the wave to ask for, open or pass; for a rollback the wave that goes back, 0 for all.
	Wave int
	// Ending is set with ActEnd.
	Ending Ending
	// Reason is one sentence on what the rollout is doing or waiting for.
	Reason string
	// Awaiting, Holding and RollingBack tell how the rollout shows while it waits.
	Awaiting, Holding, RollingBack bool
	// Waits are everything that must be lifted.
	Waits []Wait
	// Next is the next moment to look by itself; zero means: only when something happens.
	Next time.Time
}

// Decide says what a rollout does next. It alone decides: workflows carry out what it says and ask again whenever
// something has happened, or at Next.
func Decide(p Progress, now time.Time) Decision { return p.byHand(p.decide(now)) }

func (p Progress) decide(now time.Time) Decision {
	if p.Stop.Cause != NotStopped {
		return p.stopped()
	}
	if p.Back.Ended {
		// A wave went back and nothing has been decided since.
		return p.held("a wave went back", "rollback", "rollback, reject or abort ends it")
	}
	for i, w := range p.Waves {
		if w.ByHand && !w.Open {
			continue
		}
		switch w.Phase {
		case WaveDone, WavePassed:
			continue
		case WavePending:
			return p.before(i, now)
		case WaveHeld:
			d := p.held(fmt.Sprintf("%s holds: %s", p.waveName(i), w.Reason), "verification",
				fmt.Sprintf("approve accepts it and goes on; retry measures it again; reject does what a reject does (wave %d)", i+1))
			d.Waits[0].Wave = i + 1
			if w.Counts.Skipped >= p.Plan.Waves[i].Size {
				d.Waits[0].Rule, d.Waits[0].Lifts = "waves", fmt.Sprintf("approve goes on without them; retry tries one of them; reject does what a reject does (wave %d)", i+1)
			}
			if len(w.Waits) > 0 {
				d.Waits = w.Waits
			}
			return p.paused(d)
		case WaveVerified, WaveSoaking:
			return p.beside(i, now)
		case WaveRunning, WaveDraining, WaveBreached, WaveFailed, WaveStopped:
			d := Decision{Action: ActWait, Reason: p.waveName(i) + " is running", Waits: slices.Clone(w.Waits)}
			if w.Reason != "" {
				d.Reason += ": " + w.Reason
			} else if w.Counts.InFlight == 0 && len(w.Waits) > 0 {
				d.Reason = fmt.Sprintf("%s waits: %s", p.waveName(i), w.Waits[0].Reason)
			}
			return p.paused(d)
		}
	}
	return p.finished()
}

// paused adds the pause to what a waiting rollout waits for.
func (p Progress) paused(d Decision) Decision {
	if p.Paused {
		d.Reason = "paused: nothing new starts"
		d.Waits = append(d.Waits, Wait{Reason: "the rollout is paused", Rule: "pause", Lifts: "resume"})
	}
	return d
}

func (p Progress) waveName(i int) string {
	return fmt.Sprintf("wave %d (%s)", i+1, p.Plan.Waves[i].Name)
}

// before decides about a wave that has not been opened, with all earlier ones done.
func (p Progress) before(i int, now time.Time) Decision {
	wave := p.Plan.Waves[i]
	if wave.Size == 0 {
		return Decision{Action: ActPass, Wave: i + 1, Reason: fmt.Sprintf("%s is passed over: %s", p.waveName(i), wave.Passed)}
	}
	if len(wave.Approvals) > 0 && p.Waves[i].AskedAt.IsZero() {
		return Decision{Action: ActAsk, Wave: i + 1, Reason: p.waveName(i) + " needs approval"}
	}
	d := p.approval(i, now)
	if p.Unrecorded {
		// Forward starts hold while the ledger is down; nothing else does.
		d.Waits = append(d.Waits, Wait{Reason: "the ledger has not recorded yet what the rollout has done", Rule: "ledger", Wave: i + 1,
			Lifts: "the ledger, once it can be written again; the pending activity says what is wrong"})
		d.Reason = cmp.Or(d.Reason, "waiting for the ledger")
	}
	if len(d.Waits) > 0 || p.Paused {
		return p.paused(d)
	}
	return Decision{Action: ActOpen, Wave: i + 1, Reason: p.waveName(i) + " may start"}
}

// beside decides while a wave soaks: the approval of the next one is asked for beside the soak.
func (p Progress) beside(i int, now time.Time) Decision {
	next := slices.IndexFunc(p.Plan.Waves[i+1:], func(w Wave) bool { return w.Size > 0 }) + i + 1
	d := Decision{Action: ActWait}
	if next > i && len(p.Plan.Waves[next].Approvals) > 0 {
		if p.Waves[next].AskedAt.IsZero() {
			return Decision{Action: ActAsk, Wave: next + 1, Reason: p.waveName(next) + " needs approval"}
		}
		d = p.approval(next, now)
	}
	if until := p.Waves[i].SoakUntil; !until.IsZero() {
		d.Waits = append(d.Waits, Wait{Reason: p.waveName(i) + " is soaking", Rule: "soak", Policy: firstOf(p.Plan.Waves[i].SoakFrom),
			Lifts: "time: it ends at " + until.UTC().Format(time.RFC3339), Wave: i + 1, Next: until})
	}
	if d.Reason == "" {
		d.Reason = p.waveName(i) + " is soaking"
	}
	return p.paused(d)
}

func firstOf(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// approval says what is still missing before wave i: one wait for each policy whose demand is not met.
func (p Progress) approval(i int, now time.Time) Decision {
	d := Decision{Action: ActWait}
	for _, c := range p.Plan.Waves[i].Approvals {
		missing := c.Min - p.people(i+1, c)
		if missing <= 0 {
			continue
		}
		what := p.waveName(i)
		if c.Rollout {
			what = "the rollout"
		}
		wait := Wait{Rule: "approval", Policy: c.Policy, Wave: i + 1, Reason: fmt.Sprintf("%s needs %s more", what, count(missing, "approval")),
			Lifts: fmt.Sprintf("approve, by %s", count(missing, "person"))}
		if missing > 1 {
			wait.Lifts = fmt.Sprintf("approve, by %d different people", missing)
		}
		if c.NotAuthor {
			wait.Lifts += " other than " + nameOr(p.Author, "whoever started it")
		}
		d.Awaiting = true
		if c.Within > 0 {
			end := p.Waves[i].AskedAt.Add(p.TimeScale.Of(time.Duration(c.Within)))
			if now.Before(end) {
				wait.Next = end
				if d.Next.IsZero() || end.Before(d.Next) {
					d.Next = end
				}
			} else {
				d.Holding = true
				wait.Reason += fmt.Sprintf(", and the %s to give it are over", c.Within)
			}
		}
		if d.Reason == "" {
			d.Reason = wait.Reason
		}
		d.Waits = append(d.Waits, wait)
	}
	return d
}

func nameOr(name, otherwise string) string {
	if name == "" {
		return otherwise
	}
	return name
}

// people counts the distinct people whose approval of a wave counts for a demand.
func (p Progress) people(wave int, c Consent) int {
	seen := map[string]bool{}
	for _, a := range p.Approvals {
		if a.Wave == wave && a.Plan == p.Plan.Digest && (!c.NotAuthor || a.By != p.Author) {
			seen[a.By] = true
		}
	}
	return len(seen)
}

// Asked returns the number of the wave whose approval is asked for and not yet given, or 0.
func (p Progress) Asked() int {
	if p.Stop.Cause != NotStopped {
		return 0
	}
	for i, w := range p.Waves {
		if w.Phase != WavePending || w.AskedAt.IsZero() {
			continue
		}
		for _, c := range p.Plan.Waves[i].Approvals {
			if p.people(i+1, c) < c.Min {
				return i + 1
			}
		}
	}
	return 0
}

// Held returns the number of the wave that holds for a person, or 0.
func (p Progress) Held() int {
	if p.Stop.Cause != NotStopped {
		return 0
	}
	for i, w := range p.Waves {
		if w.Phase == WaveHeld {
			return i + 1
		}
	}
	return 0
}

func (p Progress) held(reason, rule, lifts string) Decision {
	return Decision{Action: ActWait, Holding: true, Reason: reason, Waits: []Wait{{Reason: reason, Rule: rule, Policy: p.Plan.Rollback.Policy, Lifts: lifts}}}
}

// open reports whether targets may still be in flight.
func (p Progress) open() bool {
	return p.LateInFlight > 0 || p.ByHand.Returning > 0 || slices.ContainsFunc(p.Waves, func(w WaveProgress) bool { return w.Open })
}

// TotalReached is how many targets carry the change.
func (p Progress) TotalReached() int {
	n := 0
	for _, w := range p.Waves {
		n += w.Reached
	}
	return n
}

// Begun reports whether a wave has been opened.
func (p Progress) Begun() bool {
	return slices.ContainsFunc(p.Waves, func(w WaveProgress) bool { return w.Phase != WavePending && w.Phase != WavePassed })
}

// Overspent says how the rollout's budget is exceeded over all waves, or nothing. Waves look after it while they are
// open; this is for what happens to single targets afterwards.
func (p Progress) Overspent() string {
	s := WaveState{Rollout: &p.Plan.Budget}
	for _, w := range p.Waves {
		s.Before.Failures += w.Counts.Failures
		s.Before.Unreachable += w.Counts.Unreachable
		s.Before.Skipped += w.Counts.Skipped
	}
	return s.breach(WaveCounts{})
}

// stopped decides what follows from a stop.
func (p Progress) stopped() Decision {
	drain := Decision{Action: ActWait, Reason: "stopped; targets in flight reach a safe point"}
	switch p.Stop.Cause {
	case StoppedAbort:
		if p.open() || (p.Back.Begun && !p.Back.Ended) {
			return drain
		}
		return Decision{Action: ActEnd, Ending: EndAborted, Reason: p.stopReason("aborted")}
	case StoppedSuperseded:
		return Decision{Action: ActEnd, Ending: EndSuperseded, Reason: p.stopReason("it had started nothing")}
	case StoppedFailed:
		if p.open() {
			return drain
		}
		return Decision{Action: ActEnd, Ending: EndFailed, Reason: p.Stop.Reason}
	case StoppedRollback:
		return p.takeBack(0, EndRolledBack)
	case StoppedReject:
		if p.Plan.Rollback.OnReject == RejectHolds {
			return p.held(p.stopReason("rejected"), "rollback.onReject", "rollback or abort ends it")
		}
		return p.takeBack(0, EndRejected)
	case StoppedBreach:
		switch p.Plan.Rollback.OnBreach {
		case BreachRolloutAll:
			return p.takeBack(0, EndRolledBack)
		case BreachWaveBack:
			if !p.Back.Ended {
				return p.takeBack(p.Stop.Wave, EndRolledBack)
			}
			return p.held(fmt.Sprintf("%s went back; earlier waves stay: %s", p.waveName(p.Stop.Wave-1), p.Stop.Reason), "rollback.onBreach", "rollback, reject or abort ends it")
		case BreachFails:
			if p.open() {
				return drain
			}
			return Decision{Action: ActEnd, Ending: EndFailed, Reason: p.Stop.Reason}
		case BreachHolds:
		}
		return p.held("budget breached: "+p.Stop.Reason, "failureThreshold", "rollback, reject or abort ends it; the others stay on their version meanwhile")
	case NotStopped:
	}
	return drain
}

// takeBack decides about a rollback that follows from a stop. nothing is how the rollout ends if no target was reached.
func (p Progress) takeBack(scope int, nothing Ending) Decision {
	// A rollback of everything begins anew after one of a single wave.
	if !p.Back.Begun || (p.Back.Ended && p.Back.Scope != 0 && scope == 0) {
		if p.TotalReached() == 0 && !p.open() {
			return p.nothingLeft(nothing)
		}
		return Decision{Action: ActRollBack, Wave: scope, Reason: p.stopReason("rolling back"), RollingBack: true}
	}
	if !p.Back.Ended || p.open() {
		d := Decision{Action: ActWait, RollingBack: true, Reason: p.stopReason("rolling back")}
		if p.Back.Held != "" {
			d.Waits = []Wait{{Reason: p.Back.Held, Rule: "rollback.maxFailures", Policy: p.Plan.Rollback.Policy, Lifts: "resume goes on with the others; abort leaves them"}}
		}
		return d
	}
	if p.Back.Targets == 0 {
		return p.nothingLeft(nothing)
	}
	if p.Back.Incomplete > 0 {
		return Decision{Action: ActEnd, Ending: EndRollbackIncomplete, Reason: fmt.Sprintf("%s did not come back: see who needs attention", count(p.Back.Incomplete, "target"))}
	}
	return Decision{Action: ActEnd, Ending: EndRolledBack, Reason: p.stopReason("each target that was reached is back")}
}

// nothingLeft ends a rollback that found nothing to take back.
func (p Progress) nothingLeft(nothing Ending) Decision {
	if n := p.taken(); n > 0 {
		return Decision{Action: ActEnd, Ending: EndRolledBack, Reason: p.stopReason(fmt.Sprintf("each target that was reached is back, %d by hand before", n))}
	}
	if p.Back.Ended && p.Back.Targets > 0 {
		// A wave had been reached, and went back after its breach.
		return Decision{Action: ActEnd, Ending: EndRolledBack, Reason: p.stopReason("each target that was reached is back")}
	}
	return Decision{Action: ActEnd, Ending: nothing, Reason: p.stopReason("nothing had been reached")}
}

func (p Progress) stopReason(what string) string {
	out := what + ": " + string(p.Stop.Cause)
	if p.Stop.By != "" {
		out += " by " + p.Stop.By
	}
	if p.Stop.Reason != "" {
		out += ", " + p.Stop.Reason
	}
	return out
}

// finished decides when each wave is done.
func (p Progress) finished() Decision {
	if p.LateInFlight > 0 {
		return Decision{Action: ActWait, Reason: "a single target is being retried"}
	}
	var failures, unreachable, succeeded int
	for _, w := range p.Waves {
		succeeded += w.Counts.Succeeded
		failures += w.Counts.Failures
		unreachable += w.Counts.Unreachable
	}
	byHand := ""
	if taken := p.taken(); taken > 0 {
		byHand = fmt.Sprintf("; %s went back by hand", count(taken, "target"))
		if succeeded == 0 {
			// Without a success among the others it is none.
			if p.TotalReached() > 0 {
				return Decision{Action: ActEnd, Ending: EndRollbackIncomplete, Reason: fmt.Sprintf("no target is left on the version%s; %d did not come back: see who needs attention", byHand, p.TotalReached())}
			}
			return Decision{Action: ActEnd, Ending: EndRolledBack, Reason: "no target is left on the version" + byHand}
		}
	}
	if succeeded == 0 {
		// A person let pass what was left out, and yet nothing runs the version because of this rollout.
		return Decision{Action: ActEnd, Ending: EndFailed, Reason: "no target succeeded: each was left out"}
	}
	if failures+unreachable > 0 {
		return Decision{Action: ActEnd, Ending: EndSucceededWithFailures, Reason: fmt.Sprintf("%d failed and %d out of reach, within budget%s", failures, unreachable, byHand)}
	}
	return Decision{Action: ActEnd, Ending: EndSucceeded, Reason: "each wave is done" + byHand}
}
