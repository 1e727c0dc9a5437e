package workflows

import (
	"fmt"
	"slices"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// outcomeOf returns the outcome of a target of a closed wave.
func (r *rollout) outcomeOf(target string) *TargetOutcome {
	for i := range r.outcomes {
		for n := range r.outcomes[i] {
			if r.outcomes[i][n].Name == target {
				return &r.outcomes[i][n]
			}
		}
	}
	return nil
}

func (r *rollout) skipClosed(c Command) {
	if t := r.outcomeOf(c.Target); t != nil {
		t.State, t.Counted = policy.Skipped, false
		t.Reason = clip("left out"+byAndWhy(c.By, c.Reason), maxReason)
		r.recount(t.Wave - 1)
		r.remember([]TargetOutcome{*t})
	}
}

// retryLate tries one target of a closed wave again, and brings it back if that fails and the policy says so.
func (r *rollout) retryLate(ctx workflow.Context, target string) {
	byHand := r.outcomeOf(target).ByHand
	r.outcomeOf(target).ByHand = false // an ordinary attempt again
	r.late[target] = true
	r.progress.LateInFlight = len(r.late)
	workflow.Go(ctx, func(ctx workflow.Context) {
		t := r.outcomeOf(target)
		wave := t.Wave
		result := r.attemptLate(ctx, t, executors.Apply)
		// No wave is open that could hold for a person: inconclusive is not a success, and neither are checks that were
		// cut off although nothing was stopped.
		if result.Held || (result.State == policy.Verifying && r.progress.Stop.Cause == policy.NotStopped && !r.wanted(target)) {
			result.State = policy.Failed
		}
		if !t.FromKnown && !t.Reached {
			t.From, t.FromKnown = result.From, result.FromKnown
		}
		if result.State != policy.Pending { // a stop came first: it stays what it was
			t.State, t.Reason = result.State, result.Reason
		} else {
			t.ByHand = byHand
		}
		t.Reached = t.Reached || result.Reached
		switch t.State {
		case policy.Failed, policy.NeedsRecovery:
			t.Counted = true
		case policy.Succeeded, policy.NoChange:
			t.Counted = false
		case policy.Pending, policy.Waiting, policy.Preparing, policy.Applying, policy.Verifying, policy.Restoring, policy.Unreachable, policy.Deferred,
			policy.Skipped, policy.Removed, policy.RolledBack:
		}
		plan := r.progress.Plan
		if t.State == policy.Failed && t.Reached && t.FromKnown && plan.NoReturn == "" && (t.From != "" || plan.Step.Uninstalls) && plan.Rollback.OnTargetFailed == policy.TargetGoesBack && r.control() != policy.ControlStop && !r.wanted(target) {
			back := r.attemptLate(ctx, t, executors.Restore)
			if t.Reached = back.Reached; t.Reached {
				t.State = policy.NeedsRecovery
			}
			t.Reason = clip(t.Reason+"; "+back.Reason, maxReason)
		}
		delete(r.late, target)
		r.progress.LateInFlight = len(r.late)
		r.recount(wave - 1)
		r.remember([]TargetOutcome{*t})
		r.note(ctx, whoSluice, fmt.Sprintf("%s: %s after another try", target, t.State), t.Reason)
		r.changed = true
		if over := r.progress.Overspent(); over != "" {
			r.stop(ctx, policy.StoppedBreach, wave-1, over)
		}
	})
}

// attemptLate runs one attempt at a target of a closed wave to its end.
func (r *rollout) attemptLate(ctx workflow.Context, t *TargetOutcome, direction executors.Direction) TargetResult {
	t.Attempt++
	in := TargetInput{Subject: r.subject(), Target: t.Name, Wave: t.Wave, Attempt: t.Attempt, Direction: direction, From: t.From, FromKnown: t.FromKnown,
		Broken: direction == executors.Restore, Deadline: r.progress.Plan.Step.Deadline, Checks: direction == executors.Apply, Again: t.Reached}
	if in.Control = policy.ControlRun; direction == executors.Apply {
		in.Control = r.control()
	}
	id := TargetID(LateID(r.in.Environment, r.in.Deployment, r.in.Rollout), t.Name, t.Attempt)
	attributes := append(r.subject().attributes(), targetKey.ValueSet(t.Name))
	future := workflow.ExecuteChildWorkflow(child(ctx, id, TargetQueue, clip(fmt.Sprintf("%s: tried again, %s", t.Name, direction), 200), attributes...), TargetType, in)
	r.lateOpen[t.Name] = &line{child: future}
	var result TargetResult
	err := future.Get(ctx, &result)
	delete(r.lateOpen, t.Name)
	if err != nil {
		return TargetResult{State: policy.NeedsRecovery, Reached: true, Reason: clip("its workflow ended without a result: "+cause(err), maxReason)}
	}
	return result
}

// lateWaits says what a target of a closed wave has to wait for before it is tried again; nothing: it need not.
func (r *rollout) lateWaits(ctx workflow.Context, target string, wave int) (string, error) {
	slice, err := r.loadWave(ctx, wave-1)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(slice.Wave.Targets, func(t policy.PlannedTarget) bool { return t.Name == target })
	if at < 0 {
		return "", nil
	}
	// The closed wave as it stands, so that the same rule decides as in an open one.
	state := policy.WaveState{Targets: make([]policy.TargetProgress, len(slice.Wave.Targets))}
	for i, t := range slice.Wave.Targets {
		state.Targets[i] = policy.TargetProgress{Name: t.Name, State: policy.Pending, After: t.After}
		if o := r.outcomeOf(t.Name); o != nil {
			state.Targets[i].State, state.Targets[i].InFlight = o.State, r.late[t.Name]
		}
	}
	for _, d := range slice.Dependencies {
		state.Dependencies = append(state.Dependencies, policy.DependencyState{Policy: d.Policy, Name: d.Name, Kind: d.Kind, Here: d.Here})
	}
	for _, n := range slice.Wave.Targets[at].After {
		d := slice.Dependencies[n]
		if !d.Kind.Outside() {
			continue
		}
		in := activities.DependencyInput{Kind: d.Kind, Name: d.Name, Environment: r.in.Environment, Deployment: r.in.Deployment, Version: r.in.Version.Name, Targets: []string{target}}
		var out activities.DependencyOutput
		if err := workflow.ExecuteActivity(lookingOnce(ctx, "Look whether "+string(d.Kind)+" "+clip(d.Name, 100)+" has succeeded"), acts.AwaitDependency, in).Get(ctx, &out); err == nil {
			state.Dependencies[n].Met = map[int]bool{at: len(out.Met) > 0}
		} else if typeOf(err) != activities.TypeRunning {
			return "", err
		}
	}
	return state.WaitsFor(at), nil
}
