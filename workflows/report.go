package workflows

import (
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/policy"
)

// Report is what a Wave or a Rollback tells its Rollout while it runs: cumulative, so that a later one replaces an
// earlier one.
type Report struct {
	// Wave is the wave's number, Batch that of a batch that says which of its targets it has let go; Part, for a rollback,
	// its part.
	Wave  int `json:"wave,omitempty"`
	Batch int `json:"batch,omitempty"`
	Part  int `json:"part,omitempty"`
	// Sequence grows with each report of one sender.
	Sequence int                        `json:"sequence"`
	Phase    policy.WavePhase           `json:"phase"`
	Reason   string                     `json:"reason,omitempty"`
	Counts   policy.WaveCounts          `json:"counts"`
	States   map[policy.TargetState]int `json:"states,omitempty"`
	// Breached is why the budget was breached.
	Breached  string    `json:"breached,omitempty"`
	SoakUntil time.Time `json:"soakUntil,omitzero"`
	// Attention are the first targets that a person should look at, AttentionTotal how many there are.
	Attention      []TargetStatus `json:"attention,omitempty"`
	AttentionTotal int            `json:"attentionTotal,omitempty"`
	// Stopped reports that the sender has stopped starting; Reached are then the targets to bring back that are not in
	// flight, and InFlight names those that are.
	Stopped  bool            `json:"stopped,omitempty"`
	Reached  []TargetOutcome `json:"reached,omitempty"`
	InFlight []string        `json:"inFlight,omitempty"`
	// ByHand are the targets that go or went back by hand, the first of them; Returning is how many are still under way.
	ByHand    []TargetStatus `json:"byHand,omitempty"`
	Returning int            `json:"returning,omitempty"`
	// Answers are what became of the target orders so far.
	Answers []OrderAnswer `json:"answers,omitempty"`
	// Waits are what targets wait for besides slots.
	Waits []policy.Wait `json:"waits,omitempty"`
}

// maxAttention is how many targets that need a person are named in a report.
const maxAttention = 20

// tell sends the Rollout a report when there is something to tell: at once on a failure, a stop, an answer or a new
// phase, else whenever a twentieth of the wave has ended. One report is under way at a time.
func (w *walk) tell(ctx workflow.Context) {
	w.teller.tell(ctx, w.subject, w.current(), reach{done: terminal(w.state.Targets), started: w.started, size: len(w.state.Targets)}, func() { w.changed = true })
}

func (w *walk) current() Report {
	r := Report{Sequence: w.teller.report.Sequence + 1, Phase: w.phase, Reason: clip(w.reason, maxReason), Counts: w.state.Count(), States: map[policy.TargetState]int{},
		Breached: w.state.Breached, Answers: w.answers}
	for _, wait := range w.waits[:min(len(w.waits), maxWaits)] {
		wait.Wave, wait.Reason = w.number, clip(wait.Reason, maxReason)
		r.Waits = append(r.Waits, wait)
	}
	if w.soak != nil {
		r.SoakUntil = w.soak.until
	}
	if w.restores {
		r.Part = w.number
	} else {
		r.Wave = w.number
	}
	if w.share != nil {
		r.Batch, r.Answers = w.share.batch, nil // the wave answers
	}
	if w.phase == policy.WaveVerified {
		r.Phase = policy.WaveSoaking
	}
	for i, t := range w.state.Targets {
		if r.States[t.State]++; w.waitOf(i) != nil {
			r.States[t.State]--
			r.States[policy.Waiting]++
		}
		if t.ByHand {
			if t.InFlight {
				r.Returning++
			}
			if len(r.ByHand) < maxAttention {
				r.ByHand = append(r.ByHand, w.targetStatus(i))
			}
		}
		if t.State.Attention() && !t.InFlight {
			if r.AttentionTotal++; len(r.Attention) < maxAttention {
				r.Attention = append(r.Attention, w.targetStatus(i))
			}
		}
	}
	if w.state.Control == policy.ControlStop {
		r.Stopped = true
		for i, t := range w.state.Targets {
			switch {
			case t.InFlight:
				if len(r.InFlight) < maxAttention {
					r.InFlight = append(r.InFlight, t.Name)
				}
			case t.Reached:
				o := w.outcome(i)
				o.Reason = ""
				r.Reached = append(r.Reached, o)
			}
		}
	}
	return r
}

// maxWaits is how many waits a report tells.
const maxWaits = 10

// teller sends a Rollout the reports of a wave or a rollback.
type teller struct {
	report    Report // the newest that was sent
	reporting bool
	done      int // terminal targets at the last report
	// tells is how many reports about nothing but waits may be sent, told how many were.
	tells, told int
}

// reach is how far a wave or a rollback has come: how many of its targets are terminal, and how many were ever started.
type reach struct{ done, started, size int }

// tell sends a report if it says enough that is new, and none is under way; sent is called once it has arrived.
func (t *teller) tell(ctx workflow.Context, s Subject, now Report, r reach, sent func()) {
	if t.reporting || !t.worth(ctx, now, r) {
		return
	}
	t.report, t.done, t.reporting = now, r.done, true
	arrival := workflow.SignalExternalWorkflow(ctx, RolloutID(s.Environment, s.Deployment), "", reportSignal, now)
	workflow.Go(ctx, func(ctx workflow.Context) {
		// An error means that the Rollout is gone; a cancellation of this workflow is on its way.
		if err := arrival.Get(ctx, nil); err != nil {
			workflow.GetLogger(ctx).Warn("The rollout could not be told how this wave stands", "error", err)
		}
		t.reporting = false
		sent()
	})
}

// mayTell reports whether a report about nothing but changed waits may be sent. All waves together send tells of them, so
// that a rollout never hears as often as the engine bears, and a stop is still heard; what is left is spread over the wave.
func (t *teller) mayTell(r reach) bool {
	return t.told < 2+t.tells*(r.started+1)/max(1, r.size)
}

// worth reports whether a report says enough that is new.
func (t *teller) worth(ctx workflow.Context, now Report, r reach) bool {
	was := t.report
	if was.Sequence == 0 || now.Phase != was.Phase || now.Breached != was.Breached || now.Stopped != was.Stopped ||
		now.Counts.Failures != was.Counts.Failures || now.Counts.Unreachable != was.Counts.Unreachable || now.Counts.Skipped != was.Counts.Skipped ||
		len(now.Answers) != len(was.Answers) || now.SoakUntil != was.SoakUntil {
		return true
	}
	if len(now.Answers) > 0 && now.Answers[len(now.Answers)-1] != was.Answers[len(was.Answers)-1] {
		return true
	}
	if now.Returning != was.Returning || len(now.ByHand) != len(was.ByHand) {
		return true
	}
	if now.Stopped && len(now.InFlight) != len(was.InFlight) {
		return true
	}
	if !slices.Equal(now.Waits, was.Waits) && t.mayTell(r) {
		t.told++
		return true
	}
	if now.Part > 0 && now.Counts.Pending == 0 && was.Counts.Pending > 0 {
		return true // the next part may begin
	}
	if r.done != t.done && (r.done == r.size || (r.done-t.done)*20 >= r.size) {
		return true
	}
	if strings.HasPrefix(was.Reason, "paused") && now.Reason != was.Reason &&
		workflow.GetVersion(ctx, changeGoesOn, workflow.DefaultVersion, 1) != workflow.DefaultVersion {
		return true
	}
	return now.AttentionTotal != was.AttentionTotal && workflow.GetVersion(ctx, changeTellsHeld, workflow.DefaultVersion, 1) != workflow.DefaultVersion
}

func terminal(targets []policy.TargetProgress) int {
	n := 0
	for _, t := range targets {
		if t.State.Terminal() && !t.InFlight {
			n++
		}
	}
	return n
}
