package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// RollbackInput brings targets back. It carries everything: no ledger and no inventory is asked which targets or which
// versions.
type RollbackInput struct {
	Subject Subject `json:"subject"`
	Part    int     `json:"part"`
	// Targets are in the order in which they go back.
	Targets []TargetOutcome `json:"targets"`
	// Concurrency is how many may be in flight.
	Concurrency int `json:"concurrency"`
	// Budget is how many may fail to come back before a person is asked; nil: any number.
	Budget *policy.Budget `json:"budget,omitempty"`
	// Before is what earlier parts have used of it.
	Before   policy.WaveCounts `json:"before,omitzero"`
	Verify   bool              `json:"verify"`
	Deadline policy.Duration   `json:"deadline"`
	// CanReturn is false when the deployment cannot go back; each target is then listed as needing recovery.
	CanReturn bool   `json:"canReturn"`
	NoReturn  string `json:"noReturn,omitempty"`
	// Uninstalls reports that a first install can be taken back.
	Uninstalls bool `json:"uninstalls,omitempty"`
}

// Rollback brings targets back to the version that was read from each before the change: concurrency, a budget of its
// own and a reading back of each, and never a soak, a window or an approval. One target's failure stops no other.
func Rollback(cancellable workflow.Context, in RollbackInput) (WaveResult, error) {
	ctx, _ := workflow.NewDisconnectedContext(cancellable)
	w := &walk{subject: in.Subject, number: in.Part, restores: true, verify: in.Verify,
		id: BackID(in.Subject.Environment, in.Subject.Deployment, in.Subject.Rollout, in.Part)}
	w.state = policy.WaveState{MaxConcurrency: in.Concurrency, Budget: in.Budget, Control: policy.ControlRun,
		AllSkippedAccepted: true} // left alone is a fine end for all of them
	if in.Before.Failures > 0 {
		w.state.Budget, w.state.Rollout, w.state.Before = nil, in.Budget, in.Before
	}
	w.slice = activities.WaveSlice{Deadline: in.Deadline}
	for _, t := range in.Targets {
		p := policy.TargetProgress{Name: t.Name, State: policy.Pending, Reached: true, From: t.From, FromKnown: t.FromKnown}
		switch {
		case !in.CanReturn:
			p.State, p.Counted, p.Reason = policy.NeedsRecovery, true, clip("it cannot go back: "+in.NoReturn, maxReason)
		case t.FromKnown && t.From == "" && !in.Uninstalls:
			p.State, p.Counted, p.Reason = policy.NeedsRecovery, true, "it cannot go back: nothing was installed before, and the step cannot uninstall"
		}
		w.state.Targets = append(w.state.Targets, p)
		w.details = append(w.details, targetDetail{wave: t.Wave, broken: !runsWell(t.State)})
	}
	if err := w.setup(cancellable, ctx); err != nil {
		return WaveResult{}, err
	}
	if err := w.settle(ctx); err != nil {
		return WaveResult{}, err
	}
	return w.result(ctx), nil
}

// runsWell reports whether a target in this state was read back on the rollout's version: if it runs another one now,
// somebody else has changed it. In any other state that may as well be what a change left that did not come to its end.
func runsWell(s policy.TargetState) bool {
	return s == policy.Succeeded || s == policy.NoChange || s == policy.Verifying || s == policy.Waiting
}
