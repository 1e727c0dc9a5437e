package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Taken is what a person has taken back: one target, or one wave.
type Taken struct {
	// Target is empty when the whole wave is meant.
	Target string `json:"target,omitempty"`
	// Wave is 0 until it is known which wave holds the target.
	Wave   int    `json:"wave,omitempty"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// ByHand is how the rollbacks of single targets and waves stand, after each of which the rollout holds.
type ByHand struct {
	// Holding: nothing new starts until a person resumes.
	Holding bool `json:"holding,omitempty"`
	// Taken is what it holds for, oldest first.
	Taken []Taken `json:"taken,omitempty"`
	// Returning is how many of these rollbacks are under way.
	Returning int `json:"returning,omitempty"`
	// Lost is how many targets were to come back by hand and did not.
	Lost int `json:"lost,omitempty"`
	// Held is why one of them pauses for a person: the rollback's own budget is exceeded.
	Held string `json:"held,omitempty"`
}

// Names are what was taken back, each once.
func (h ByHand) Names(p Plan) string {
	var names []string
	for _, t := range h.Taken {
		name := t.Target
		if name == "" {
			name = fmt.Sprintf("wave %d (%s)", t.Wave, p.Waves[t.Wave-1].Name)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if n := len(names) - 5; n > 0 {
		names = append(names[:5], fmt.Sprintf("%d more", n))
	}
	return strings.Join(names, ", ")
}

// byHand holds a rollout that would go on until a person has resumed it. What asks people is not held.
func (p Progress) byHand(d Decision) Decision {
	switch d.Action {
	case ActAsk, ActPass, ActRollBack:
		return d
	case ActOpen, ActEnd:
		if !p.ByHand.Holding {
			return d
		}
		d = Decision{}
		if p.Paused {
			d = p.paused(d)
		}
	case ActWait:
	}
	d.Action = ActWait
	d.RollingBack = d.RollingBack || p.ByHand.Returning > 0
	if p.ByHand.Held != "" {
		d.Waits = append([]Wait{{Reason: p.ByHand.Held, Rule: "rollback.maxFailures", Policy: p.Plan.Rollback.Policy, Lifts: "resume goes on with the others; abort leaves them"}}, d.Waits...)
	}
	if !p.ByHand.Holding {
		return d
	}
	d.Holding = true
	names, why := p.ByHand.Names(p.Plan), p.ByHand.why()
	wait := Wait{Rule: "rollback"}
	if p.ByHand.Returning > 0 {
		d.Reason = fmt.Sprintf("taking back %s by hand%s; then the rollout holds", names, why)
		wait.Reason, wait.Lifts = d.Reason, "the way back, once it has ended, and then a person; rollback, reject or abort ends it"
	} else {
		without := "it"
		if len(p.ByHand.Taken) > 1 || p.ByHand.Taken[0].Target == "" {
			without = "them"
		}
		d.Reason = fmt.Sprintf("%s went back by hand%s", names, why)
		if p.ByHand.Lost > 0 {
			d.Reason = fmt.Sprintf("%s taken back by hand%s, and %s did not come back: see who needs attention", names, why, count(p.ByHand.Lost, "target"))
		}
		wait.Reason = d.Reason
		wait.Lifts = fmt.Sprintf("resume goes on without %s; rollback, reject or abort ends it", without)
		if p.Plan.Depends() {
			wait.Lifts = fmt.Sprintf("resume goes on without %s, but what waits for %s still waits; rollback, reject or abort ends it", without, without)
		}
		d.Reason += ": " + wait.Lifts
	}
	d.Waits = append([]Wait{wait}, d.Waits...)
	return d
}

// why says who took the last of them back, and why, in brackets.
func (h ByHand) why() string {
	last := h.Taken[len(h.Taken)-1]
	switch {
	case last.By == "" && last.Reason == "":
		return ""
	case last.Reason == "":
		return " (" + last.By + ")"
	case last.By == "":
		return fmt.Sprintf(" (%q)", last.Reason)
	}
	return fmt.Sprintf(" (%s: %q)", last.By, last.Reason)
}

// GoesBack reports whether a stop takes back everything that was reached.
func (p Progress) GoesBack() bool {
	switch p.Stop.Cause {
	case StoppedRollback:
		return true
	case StoppedReject:
		return p.Plan.Rollback.OnReject != RejectHolds
	case StoppedBreach:
		return p.Plan.Rollback.OnBreach == BreachRolloutAll
	case NotStopped, StoppedAbort, StoppedFailed, StoppedSuperseded:
	}
	return false
}

// taken is how many targets went back by hand.
func (p Progress) taken() int {
	n := 0
	for _, w := range p.Waves {
		n += w.Counts.Taken
	}
	return n
}
