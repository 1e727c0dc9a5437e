package workflows

import (
	"cmp"
	"fmt"
	"slices"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/policy"
)

// takeBack brings back what was reached: at once what is not in flight, then, as each reaches a safe point, the rest.
func (r *rollout) takeBack(ctx workflow.Context, scope int) {
	r.progress.Back = policy.Back{Begun: true, Scope: scope}
	r.backFree = false
	r.back = RollbackStatus{Cause: r.progress.Stop.Reason, StartedAt: workflow.Now(ctx)}
	if r.back.Cause == "" {
		r.back.Cause = string(r.progress.Stop.Cause)
	}
	who := cmp.Or(r.progress.Stop.By, whoSluice)
	r.note(ctx, who, "rollback begins", r.reason)
	r.tellWaves(ctx)
	workflow.Go(ctx, func(ctx workflow.Context) {
		r.bringBack(ctx, scope)
		r.progress.Back.Ended = true
		r.progress.Back.Held = ""
		r.back.EndedAt = workflow.Now(ctx)
		r.changed = true
	})
}

// backPart is one Rollback workflow that is under way.
type backPart struct {
	number int
	child  workflow.ChildWorkflowFuture
	report Report // the newest
}

// starting reports whether the part has targets that it has not begun to bring back.
func (p *backPart) starting() bool {
	return p.report.Sequence == 0 || p.report.Counts.Pending > 0 || p.report.Phase == policy.WaveHeld
}

// freeSlots is how many targets a next part of the rollback may have in flight beside those that are under way.
func (r *rollout) freeSlots() int {
	free := r.progress.Plan.Rollback.MaxConcurrency.Of(max(1, r.progress.TotalReached()+r.back.Targets))
	for _, part := range r.backOpen {
		free -= part.report.Counts.InFlight
	}
	return free
}

// bringBack runs the parts of a rollback, in order: one begins when each target of those before it is at least under way
// and a slot is free, so that one that hangs holds no other.
func (r *rollout) bringBack(ctx workflow.Context, scope int) {
	tried := map[string]bool{}
	for {
		// A wave that is still open says, once it has stopped starting, which of its targets are not in flight.
		if err := workflow.Await(ctx, func() bool {
			for i, w := range r.progress.Waves {
				if w.Open && !r.reports[i].Stopped {
					return false
				}
			}
			return !slices.ContainsFunc(r.backOpen, (*backPart).starting) && (len(r.backOpen) == 0 || r.freeSlots() > 0)
		}); err != nil {
			return
		}
		targets := r.reached(scope, tried)
		if aborted := r.progress.Stop.Cause == policy.StoppedAbort; len(targets) == 0 || aborted {
			if len(r.backOpen) == 0 && (aborted || !r.flying()) {
				return
			}
			r.changed = true
			was := len(r.backOpen)
			if err := workflow.Await(ctx, func() bool {
				return len(r.backOpen) != was || !r.flying() && was == 0 || !aborted && len(r.reached(scope, tried)) > 0
			}); err != nil {
				return
			}
			continue
		}
		if len(targets) > MaxWaveTargets {
			targets = targets[:MaxWaveTargets]
		}
		for _, t := range targets {
			tried[t.Name] = true
		}
		r.part(ctx, targets)
	}
}

// flying reports whether targets are still in flight outside the rollback.
func (r *rollout) flying() bool {
	return len(r.late) > 0 || slices.ContainsFunc(r.progress.Waves, func(w policy.WaveProgress) bool { return w.Open })
}

// inFlight names what is in flight outside the rollback.
func (r *rollout) inFlight() []string {
	out := workflow.DeterministicKeys(r.late)
	for i, w := range r.progress.Waves {
		if w.Open {
			out = append(out, r.reports[i].InFlight...)
		}
	}
	return out
}

// reached lists the targets to bring back that have not been tried, in the order in which they go.
func (r *rollout) reached(scope int, tried map[string]bool) []TargetOutcome {
	var out []TargetOutcome
	for i, w := range r.progress.Waves {
		if scope != 0 && scope != i+1 {
			continue
		}
		targets := r.outcomes[i]
		if w.Open {
			targets = r.reports[i].Reached
		}
		first := len(out)
		for _, t := range targets {
			if t.Reached && !tried[t.Name] && !r.late[t.Name] {
				t.Reason = "" // the way back does not need it
				out = append(out, t)
			}
		}
		slices.SortStableFunc(out[first:], func(a, b TargetOutcome) int { return cmp.Compare(a.Started, b.Started) })
	}
	if r.progress.Plan.Rollback.Order == policy.OrderNewest {
		slices.Reverse(out)
	}
	return out
}

// part begins one Rollback workflow.
func (r *rollout) part(ctx workflow.Context, targets []TargetOutcome) {
	r.parts++
	plan := r.progress.Plan
	r.back.Targets += len(targets)
	r.progress.Back.Targets += len(targets)
	in := RollbackInput{Subject: r.subject(), Part: r.parts, Targets: targets, Concurrency: min(plan.Rollback.MaxConcurrency.Of(len(targets)), max(1, r.freeSlots())), Verify: plan.Rollback.Verify,
		Deadline: plan.Step.Deadline, CanReturn: plan.NoReturn == "", NoReturn: plan.NoReturn, Uninstalls: plan.Step.Uninstalls}
	failed := r.progress.Back.Incomplete
	for _, open := range r.backOpen {
		failed += open.report.Counts.Failures
	}
	if plan.Rollback.MaxFailures != nil && !r.backFree {
		in.Budget = &policy.Budget{MaxFailures: *plan.Rollback.MaxFailures, MaxUnreachable: *plan.Rollback.MaxFailures, Size: r.back.Targets}
		in.Before.Failures = failed
	}
	id := BackID(r.in.Environment, r.in.Deployment, r.in.Rollout, r.parts)
	r.back.Workflows = append(r.back.Workflows, id)
	r.changed = true
	part := &backPart{number: r.parts, child: workflow.ExecuteChildWorkflow(child(ctx, id, ControlQueue, fmt.Sprintf("%d targets go back", len(targets)), r.subject().attributes()...), RollbackType, in)}
	r.backOpen = append(r.backOpen, part)
	workflow.Go(ctx, func(ctx workflow.Context) {
		var result WaveResult
		err := part.child.Get(ctx, &result)
		r.backOpen = slices.DeleteFunc(r.backOpen, func(p *backPart) bool { return p == part })
		r.holdBack()
		if err != nil {
			result.Targets = targets
			for i := range result.Targets {
				result.Targets[i].State, result.Targets[i].Reason = policy.NeedsRecovery, clip("the rollback's workflow ended without a result: "+cause(err), maxReason)
			}
		}
		if err == nil && result.Phase == policy.WaveStopped && r.progress.Stop.Cause != policy.StoppedAbort {
			// Somebody cancelled the rollback itself: that means abort, as it does for the rollout.
			r.apply(ctx, Abort, Command{By: whoTemporal, Reason: "the workflow of the rollback was cancelled"}, "", TargetFacts{})
		}
		r.returned(result.Targets)
		r.backDone = append(r.backDone, result.Targets...)
		r.changed = true
	})
}

// holdBack says whether a part of the rollback waits for a person.
func (r *rollout) holdBack() {
	r.progress.Back.Held = ""
	for _, part := range r.backOpen {
		if part.report.Phase == policy.WaveHeld {
			r.progress.Back.Held = "the rollback is over its budget: " + part.report.Reason
		}
	}
}

// returned writes what a rollback has done over what the waves had done.
func (r *rollout) returned(targets []TargetOutcome) {
	for _, t := range targets {
		if t.Reached {
			r.progress.Back.Incomplete++
		}
	}
	for i := range r.outcomes {
		r.overlay(i, targets)
	}
	r.remember(slices.DeleteFunc(slices.Clone(targets), func(t TargetOutcome) bool { return t.State == policy.Pending })) // not got to: as recorded
	for i := range r.progress.Waves {
		if !r.progress.Waves[i].Open {
			r.progress.Waves[i].Reached = 0
			for _, t := range r.outcomes[i] {
				if t.Reached {
					r.progress.Waves[i].Reached++
				}
			}
		}
	}
}

// overlay writes what a rollback has done over the outcomes of a closed wave. A target that the rollback has not got to
// stays what it was.
func (r *rollout) overlay(i int, targets []TargetOutcome) {
	for _, t := range targets {
		if t.Wave != i+1 || t.State == policy.Pending {
			continue
		}
		if at := slices.IndexFunc(r.outcomes[i], func(o TargetOutcome) bool { return o.Name == t.Name }); at >= 0 {
			was := &r.outcomes[i][at]
			was.State, was.Reason, was.Reached = t.State, t.Reason, t.Reached
		}
	}
}
