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
	w := &wayBack{wave: scope}
	r.way = w
	r.back = RollbackStatus{Cause: r.progress.Stop.Reason, StartedAt: workflow.Now(ctx)}
	if r.back.Cause == "" {
		r.back.Cause = string(r.progress.Stop.Cause)
	}
	who := cmp.Or(r.progress.Stop.By, whoSluice)
	r.note(ctx, who, "rollback begins", r.reason)
	r.tellWaves(ctx)
	r.freeByHand(ctx)
	workflow.Go(ctx, func(ctx workflow.Context) {
		r.bringBack(ctx, w)
		r.progress.Back.Ended = true
		r.progress.Back.Held = ""
		r.back.EndedAt = workflow.Now(ctx)
		r.changed = true
	})
}

// wayBack is one rollback under way: of everything or of one wave after a stop, or of one target or wave by hand.
type wayBack struct {
	// wave and target are what goes back; without both it is everything.
	wave   int
	target string
	// byHand: the rollout only holds; see byhand.go.
	byHand bool
	// targets is how many were to come back so far, lost how many of them did not.
	targets, lost int
	free          bool // a person let it go on over its budget
}

// backPart is one Rollback workflow that is under way.
type backPart struct {
	way    *wayBack
	number int
	child  workflow.ChildWorkflowFuture
	names  []string // its targets
	report Report   // the newest
}

// starting reports whether the part has targets that it has not begun to bring back.
func (p *backPart) starting() bool {
	return p.report.Sequence == 0 || p.report.Counts.Pending > 0 || p.report.Phase == policy.WaveHeld
}

// partsOf are the open parts of one rollback.
func (r *rollout) partsOf(w *wayBack) []*backPart {
	var out []*backPart
	for _, part := range r.backOpen {
		if part.way == w {
			out = append(out, part)
		}
	}
	return out
}

// freeSlots is how many targets a next part of a rollback may have in flight beside those that are under way.
func (r *rollout) freeSlots(w *wayBack) int {
	size := r.progress.TotalReached() + w.targets
	if w.byHand {
		size = w.targets + len(r.reached(w, nil))
	}
	free := r.progress.Plan.Rollback.MaxConcurrency.Of(max(1, size))
	for _, part := range r.backOpen {
		free -= part.report.Counts.InFlight
	}
	return free
}

// bringBack runs the parts of a rollback, in order: one begins when each target of those before it is at least under way
// and a slot is free, so that one that hangs holds no other.
func (r *rollout) bringBack(ctx workflow.Context, w *wayBack) {
	tried := map[string]bool{}
	for {
		// A wave that is still open says, once it has stopped starting, which of its targets are not in flight.
		if err := workflow.Await(ctx, func() bool {
			for i, wave := range r.progress.Waves {
				if !w.of(i) || !wave.Open {
					continue
				}
				if stopped, _ := r.released(i); !stopped {
					return false
				}
			}
			parts := r.partsOf(w)
			return !slices.ContainsFunc(parts, (*backPart).starting) && (len(parts) == 0 || r.freeSlots(w) > 0)
		}); err != nil {
			return
		}
		targets := r.reached(w, tried)
		if ends := r.ends(w); len(targets) == 0 || ends {
			if len(r.partsOf(w)) == 0 && (ends || !r.flying(w)) {
				return
			}
			r.changed = true
			was := len(r.backOpen)
			if err := workflow.Await(ctx, func() bool {
				return len(r.backOpen) != was || (r.ends(w) || !r.flying(w)) && len(r.partsOf(w)) == 0 || !r.ends(w) && len(r.reached(w, tried)) > 0
			}); err != nil {
				return
			}
			continue
		}
		if len(targets) > MaxBatchTargets {
			targets = targets[:MaxBatchTargets]
		}
		for _, t := range targets {
			tried[t.Name] = true
		}
		r.part(ctx, w, targets)
	}
}

// of reports whether wave i may have targets that go back.
func (w *wayBack) of(i int) bool { return w.wave == 0 || w.wave == i+1 || !w.byHand }

// ends reports whether a rollback begins nothing more: it was aborted, or the rollback of everything does the rest.
func (r *rollout) ends(w *wayBack) bool {
	return r.progress.Stop.Cause == policy.StoppedAbort || (w.byHand && r.progress.GoesBack())
}

// flying reports whether targets that concern a rollback are still in flight outside of it.
func (r *rollout) flying(w *wayBack) bool {
	if !w.byHand {
		return len(r.late) > 0 || slices.ContainsFunc(r.backOpen, func(p *backPart) bool { return p.way != w }) ||
			slices.ContainsFunc(r.progress.Waves, func(w policy.WaveProgress) bool { return w.Open })
	}
	if w.target != "" {
		return r.late[w.target]
	}
	return r.progress.Waves[w.wave-1].Open || len(r.lateOf(w)) > 0
}

// inFlight names what is in flight outside the rollback.
func (r *rollout) inFlight() []string {
	out := workflow.DeterministicKeys(r.late)
	for i, w := range r.progress.Waves {
		if w.Open {
			out = append(out, r.flyingIn(i)...)
		}
	}
	return out
}

// reached lists the targets to bring back that have not been tried, in the order in which they go.
func (r *rollout) reached(w *wayBack, tried map[string]bool) []TargetOutcome {
	var out []TargetOutcome
	for i, wave := range r.progress.Waves {
		if w.wave != 0 && w.wave != i+1 {
			continue
		}
		targets := r.outcomes[i]
		if wave.Open {
			_, targets = r.released(i)
		}
		first := len(out)
		for _, t := range targets {
			if t.Reached && !tried[t.Name] && !r.late[t.Name] && !r.onWay[t.Name] && (w.target == "" || w.target == t.Name) {
				t.Reason = "" // the way back does not need it
				out = append(out, t)
			}
		}
		slices.SortStableFunc(out[first:], func(a, b TargetOutcome) int {
			return cmp.Or(cmp.Compare(a.Begun, b.Begun), cmp.Compare(a.Started, b.Started))
		})
	}
	if r.progress.Plan.Rollback.Order == policy.OrderNewest {
		slices.Reverse(out)
	}
	return out
}

// part begins one Rollback workflow.
func (r *rollout) part(ctx workflow.Context, w *wayBack, targets []TargetOutcome) {
	r.parts++
	plan := r.progress.Plan
	w.targets += len(targets)
	shown := &r.back
	if w.byHand {
		shown = &r.byHand
	} else {
		r.progress.Back.Targets += len(targets)
		shown.Targets += len(targets)
	}
	in := RollbackInput{Subject: r.subject(), Part: r.parts, Targets: targets, Concurrency: min(plan.Rollback.MaxConcurrency.Of(len(targets)), max(1, r.freeSlots(w))), Verify: plan.Rollback.Verify,
		Deadline: plan.Step.Deadline, CanReturn: plan.NoReturn == "", NoReturn: plan.NoReturn, Uninstalls: plan.Step.Uninstalls}
	failed := w.lost
	for _, open := range r.partsOf(w) {
		failed += open.report.Counts.Failures
	}
	if plan.Rollback.MaxFailures != nil && !w.free {
		in.Budget = &policy.Budget{MaxFailures: *plan.Rollback.MaxFailures, MaxUnreachable: *plan.Rollback.MaxFailures, Size: w.targets}
		in.Before.Failures = failed
	}
	id := BackID(r.in.Environment, r.in.Deployment, r.in.Rollout, r.parts)
	shown.Workflows = append(shown.Workflows, id)
	r.changed = true
	part := &backPart{way: w, number: r.parts, child: workflow.ExecuteChildWorkflow(child(ctx, id, ControlQueue, fmt.Sprintf("%d targets go back", len(targets)), r.subject().attributes()...), RollbackType, in)}
	for _, t := range targets {
		part.names = append(part.names, t.Name)
		r.onWay[t.Name] = true
	}
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
		for _, name := range part.names {
			delete(r.onWay, name)
		}
		r.returned(ctx, w, result.Targets)
		r.changed = true
	})
}

// holdBack says whether a part of a rollback waits for a person.
func (r *rollout) holdBack() {
	r.progress.Back.Held, r.progress.ByHand.Held = "", ""
	for _, part := range r.backOpen {
		if part.report.Phase != policy.WaveHeld {
			continue
		}
		why := "the rollback is over its budget: " + part.report.Reason
		if part.way.byHand {
			r.progress.ByHand.Held = why
		} else {
			r.progress.Back.Held = why
		}
	}
}

// returned writes what a rollback has done over what the waves had done.
func (r *rollout) returned(ctx workflow.Context, w *wayBack, targets []TargetOutcome) {
	for i := range targets {
		if w.byHand {
			byHand(&targets[i])
		}
		if targets[i].Reached {
			if w.lost++; !w.byHand {
				r.progress.Back.Incomplete++
			}
		}
	}
	for i := range r.outcomes {
		r.overlay(i, targets)
	}
	r.backs = append(r.backs, targets...)
	r.remember(slices.DeleteFunc(slices.Clone(targets), func(t TargetOutcome) bool { return t.State == policy.Pending })) // not got to: as recorded
	if w.byHand {
		r.takenBack(ctx, targets)
		return
	}
	r.backDone = append(r.backDone, targets...)
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

// overlay writes what rollbacks have done over the outcomes of a closed wave. A target that the rollback has not got to
// stays what it was.
func (r *rollout) overlay(i int, targets []TargetOutcome) {
	at := make(map[string]int, len(r.outcomes[i]))
	for n, o := range r.outcomes[i] {
		at[o.Name] = n
	}
	for _, t := range targets {
		n, known := at[t.Name]
		if t.Wave != i+1 || t.State == policy.Pending || !known {
			continue
		}
		was := &r.outcomes[i][n]
		was.State, was.Reason, was.Reached = t.State, t.Reason, t.Reached
		if t.ByHand {
			was.ByHand, was.Counted = true, t.Counted
		}
	}
}
