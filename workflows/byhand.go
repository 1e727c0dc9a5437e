package workflows

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// Rollbacks by hand, of one target or of one wave. A target of the open wave goes back inside that wave, which alone knows
// what it is doing; what a closed wave reached, and an open wave that goes back as a whole, go back as any rollback does,
// by Rollback workflows. The rollout holds until a person resumes.

// handOrder is a rollback of one target that an open wave was asked for and has not answered.
type handOrder struct {
	command Command
	remark  string
	wave    int // its index
	receipt int
}

// commandByHand takes the rollback of one target or wave. Where the target is comes from memory whenever it may have been
// reached: no ledger is waited for.
func (r *rollout) commandByHand(ctx workflow.Context, receipt int, c Command, remark string) {
	if facts, known := r.place(c); known || (c.Rollout != "" && c.Rollout != r.in.Rollout) {
		r.applyTo(ctx, receipt, RollBack, c, remark, facts)
		return
	}
	workflow.Go(ctx, func(ctx workflow.Context) {
		facts, err := r.find(ctx, c.Target)
		if err != nil {
			r.refuse(ctx, receipt, RollBack, c, "the target could not be looked up: "+cause(err))
			return
		}
		if now := r.factsOf(c.Target); now.Wave != 0 {
			facts = now // its wave has opened and closed meanwhile
		}
		r.applyTo(ctx, receipt, RollBack, c, remark, facts)
	})
}

// place says where that is what a rollback by hand names, as far as it can be told at once. A target of no closed wave is
// taken to be in the open one, which answers for itself.
func (r *rollout) place(c Command) (f TargetFacts, known bool) {
	if c.Target == "" {
		if c.Wave >= 1 && c.Wave <= len(r.progress.Waves) {
			f.Wave = c.Wave
			f.Retrying = len(r.lateOf(&wayBack{wave: c.Wave})) > 0
			f.Returning = slices.ContainsFunc(r.ways, func(w *wayBack) bool { return w.wave == c.Wave && w.target == "" })
		}
		return f, true
	}
	if f = r.factsOf(c.Target); f.Wave != 0 {
		return f, true
	}
	for i, w := range r.progress.Waves {
		if w.Open && w.Phase != policy.WaveFailed && (c.Wave == 0 || c.Wave == i+1) {
			return TargetFacts{Wave: i + 1}, true
		}
	}
	return TargetFacts{}, false
}

// factsOf says what is known of a target of a closed wave.
func (r *rollout) factsOf(name string) TargetFacts {
	t := r.outcomeOf(name)
	if t == nil {
		return TargetFacts{}
	}
	return TargetFacts{Wave: t.Wave, State: t.State, Retrying: r.late[name], Reached: t.Reached, From: t.From, FromKnown: t.FromKnown,
		Returning: r.onWay[name] || slices.ContainsFunc(r.ways, func(w *wayBack) bool { return w.covers(t) })}
}

// covers reports whether a rollback by hand takes this target.
func (w *wayBack) covers(t *TargetOutcome) bool {
	return w.wave == t.Wave && (w.target == t.Name || (w.target == "" && t.Reached))
}

// lateOf names the targets of a rollback by hand that are being retried.
func (r *rollout) lateOf(w *wayBack) []string {
	var out []string
	for _, name := range workflow.DeterministicKeys(r.late) {
		if t := r.outcomeOf(name); t != nil && t.Wave == w.wave && (w.target == "" || w.target == name) {
			out = append(out, name)
		}
	}
	return out
}

// wanted reports whether a target that is being retried is to go back by hand.
func (r *rollout) wanted(name string) bool {
	return slices.ContainsFunc(r.ways, func(w *wayBack) bool { return slices.Contains(r.lateOf(w), name) })
}

// askWave has an open wave bring one of its targets back. The wave hears first that nothing new starts.
func (r *rollout) askWave(ctx workflow.Context, order Order, asked handOrder) {
	r.asked[order.Number] = asked
	r.countByHand(ctx)
	r.tellWaves(ctx)
	workflow.Go(ctx, func(ctx workflow.Context) {
		line := r.waves[asked.wave]
		if err := workflow.Await(ctx, func() bool { return !line.sending }); err != nil {
			return
		}
		if _, waits := r.asked[order.Number]; waits {
			line.child.SignalChildWorkflow(ctx, targetSignal, order)
		}
	})
}

// answered takes a wave's answer to the rollback of one target. What changed nothing holds nothing.
func (r *rollout) answered(ctx workflow.Context, asked handOrder, a OrderAnswer) {
	if a.Accepted && !a.Idle {
		r.beginByHand(ctx, asked.command)
		return
	}
	r.letGo(asked.command)
	r.countByHand(ctx)
	r.tellWaves(ctx)
	if a.Unknown {
		// The wave cannot tell a later wave's target from no target at all.
		r.refused(asked.receipt, a.Answer)
		c := asked.command
		workflow.Go(ctx, func(ctx workflow.Context) {
			facts, err := r.find(ctx, c.Target)
			if err == nil && (facts.Wave == 0 || !r.progress.Waves[facts.Wave-1].Open) {
				r.applyTo(ctx, asked.receipt, RollBack, c, asked.remark, facts)
				return
			}
			r.noteCommand(ctx, RollBack, c, a.Answer)
			r.changed = true
		})
	}
}

// askAgain decides anew about what a wave was asked for and did not answer before it closed.
func (r *rollout) askAgain(ctx workflow.Context, i int) {
	for _, n := range workflow.DeterministicKeys(r.asked) {
		if asked := r.asked[n]; asked.wave == i {
			delete(r.asked, n)
			delete(r.pending, n)
			r.letGo(asked.command)
			r.commandByHand(ctx, asked.receipt, asked.command, asked.remark)
		}
	}
	r.countByHand(ctx)
}

// letGo takes back what the receipt of a rollback by hand had begun to hold for.
func (r *rollout) letGo(c Command) {
	h := &r.progress.ByHand
	for i, t := range slices.Backward(h.Taken) {
		if t.Target == c.Target {
			h.Taken = slices.Delete(slices.Clone(h.Taken), i, i+1)
			break
		}
	}
	h.Holding = h.Holding && len(h.Taken) > 0
}

// beginByHand shows a rollback by hand in the status. One that begins beside others is counted with them; after them the
// time begins anew.
func (r *rollout) beginByHand(ctx workflow.Context, c Command) {
	what := c.Target
	if what == "" {
		what = "wave " + strconv.Itoa(c.Wave)
	}
	r.byHand.Cause = clip(fmt.Sprintf("by hand: %s%s", what, byAndWhy(c.By, c.Reason)), clipCommand)
	r.byHand.ByHand = true
	if r.byHand.StartedAt.IsZero() || !r.byHand.EndedAt.IsZero() {
		r.byHand.StartedAt, r.byHand.EndedAt = workflow.Now(ctx), time.Time{}
	}
	r.countByHand(ctx)
}

// takeByHand brings back what waves have let go of: one target of a closed wave, or what one wave reached.
func (r *rollout) takeByHand(ctx workflow.Context, w *wayBack, c Command) {
	r.ways = append(r.ways, w)
	r.beginByHand(ctx, c)
	r.tellWaves(ctx)
	for _, name := range r.lateOf(w) {
		if line := r.lateOpen[name]; line != nil {
			line.tell(ctx, policy.ControlStop)
		}
	}
	workflow.Go(ctx, func(ctx workflow.Context) {
		r.bringBack(ctx, w)
		r.ways = slices.DeleteFunc(r.ways, func(one *wayBack) bool { return one == w })
		r.countByHand(ctx)
		r.changed = true
	})
}

// takenBack takes what a Rollback by hand has brought back.
func (r *rollout) takenBack(ctx workflow.Context, targets []TargetOutcome) {
	for _, t := range targets {
		if t.ByHand {
			r.cameByHand(t.Name, t.State)
			r.note(ctx, whoSluice, fmt.Sprintf("rollback of %s by hand: %s", t.Name, t.State), t.Reason)
		}
		if !r.progress.Waves[t.Wave-1].Open {
			r.recount(t.Wave - 1)
		}
	}
	r.countByHand(ctx)
	r.recordSoon(ctx)
	if over := r.progress.Overspent(); over != "" && len(targets) > 0 {
		r.stop(ctx, policy.StoppedBreach, targets[0].Wave-1, over)
	}
}

// byHand says what the result of a Rollback means for a target that a person took back.
func byHand(t *TargetOutcome) {
	switch t.State {
	case policy.Pending: // an abort came first: it stays what it was
		return
	case policy.RolledBack, policy.Skipped:
		t.Counted = false
	case policy.Failed, policy.NeedsRecovery, policy.Unreachable, policy.Waiting, policy.Preparing, policy.Applying, policy.Verifying, policy.Restoring,
		policy.Succeeded, policy.NoChange, policy.Deferred, policy.Removed:
		t.State, t.Counted = policy.NeedsRecovery, true
	}
	t.ByHand = true
}

// waveTookBack notes what an open wave has brought back by hand since its last report.
func (r *rollout) waveTookBack(ctx workflow.Context, before, now []TargetStatus) {
	was := map[string]policy.TargetState{}
	for _, t := range before {
		was[t.Name] = t.State
	}
	for _, t := range now {
		if t.State.Terminal() && was[t.Name] != t.State {
			r.note(ctx, whoSluice, fmt.Sprintf("rollback of %s by hand: %s", t.Name, t.State), t.Reason)
			if !slices.ContainsFunc(r.backs, func(b TargetOutcome) bool { return b.Name == t.Name && b.ByHand }) { // else its wave knows less
				r.cameByHand(t.Name, t.State)
			}
		}
	}
}

// byHandResult is what came of the last rollback by hand of a target.
type byHandResult struct {
	name  string
	state policy.TargetState
}

// cameByHand notes what came of a rollback by hand for the status, where each target is counted once.
func (r *rollout) cameByHand(name string, state policy.TargetState) {
	if i := slices.IndexFunc(r.byHandDone, func(d byHandResult) bool { return d.name == name }); i >= 0 {
		r.byHandDone[i].state = state
		return
	}
	r.byHandDone = append(r.byHandDone, byHandResult{name: name, state: state})
}

// countByHand brings up to date how many rollbacks by hand are under way and how many targets they have left behind.
func (r *rollout) countByHand(ctx workflow.Context) {
	h := &r.progress.ByHand
	h.Returning, h.Lost = len(r.ways), 0
	for i, w := range r.progress.Waves {
		if w.Open {
			h.Returning += r.reports[i].Returning
			for _, t := range r.reports[i].ByHand {
				if t.State == policy.NeedsRecovery {
					h.Lost++
				}
			}
		}
		for _, t := range r.outcomes[i] {
			if t.ByHand && t.State == policy.NeedsRecovery {
				h.Lost++
			}
		}
	}
	if h.Returning > 0 {
		r.byHand.EndedAt = time.Time{}
	} else if r.byHand.EndedAt.IsZero() && !r.byHand.StartedAt.IsZero() {
		r.byHand.EndedAt = workflow.Now(ctx)
	}
	h.Returning += len(r.asked) // what a wave has not agreed to moves no time
	r.changed = true
}

// closedByHand takes what a wave that has closed brought back by hand. Where the whole wave went back, the targets that
// it has not begun with are left out for good.
func (r *rollout) closedByHand(ctx workflow.Context, i int) {
	var now []TargetStatus
	for _, t := range r.outcomes[i] {
		if t.ByHand && (!t.Reached || t.State == policy.NeedsRecovery || t.State == policy.Skipped) {
			now = append(now, TargetStatus{Name: t.Name, State: t.State, Reason: t.Reason})
		}
	}
	r.waveTookBack(ctx, r.reports[i].ByHand, now)
	w := &r.progress.Waves[i]
	if !w.ByHand {
		return
	}
	const why = "left out: its wave went back by hand"
	for n := range r.outcomes[i] {
		if t := &r.outcomes[i][n]; t.State == policy.Pending && !t.Reached {
			t.State, t.Reason, t.Started = policy.Skipped, why, max(t.Started, n+1)
		}
	}
	if len(r.outcomes[i]) == r.progress.Plan.Waves[i].Size {
		return
	}
	// It was stopped before it had read its targets, or a batch of it was.
	workflow.Go(ctx, func(ctx workflow.Context) {
		slice, err := r.loadWave(ctx, i)
		if err != nil {
			workflow.GetLogger(ctx).Error("The targets of a wave that went back could not be listed", "error", err)
			return
		}
		listed := map[string]bool{}
		for _, t := range r.outcomes[i] {
			listed[t.Name] = true
		}
		for _, t := range slice.Wave.Targets {
			if !listed[t.Name] {
				r.outcomes[i] = append(r.outcomes[i], TargetOutcome{Name: t.Name, Wave: i + 1, State: policy.Skipped, Reason: why})
			}
		}
		r.recount(i)
		r.remember(r.outcomes[i])
		r.recordSoon(ctx)
		r.changed = true
	})
}

// finishByHand brings back what a person had taken back of a wave that was stopped before it could see to it.
func (r *rollout) finishByHand(ctx workflow.Context, i int) {
	if r.progress.Waves[i].ByHand || r.progress.GoesBack() || r.progress.Stop.Cause == policy.StoppedAbort {
		return
	}
	for _, t := range r.outcomes[i] {
		if t.ByHand && t.Reached && t.State != policy.NeedsRecovery {
			if t.State == policy.Skipped && workflow.GetVersion(ctx, changeSkipped, workflow.DefaultVersion, 1) != workflow.DefaultVersion {
				continue // it did not come back, and a person has left it as it is
			}
			r.takeByHand(ctx, &wayBack{wave: i + 1, target: t.Name, byHand: true}, Command{Target: t.Name})
		}
	}
}

// freeByHand lets rollbacks by hand go on over their budget once everything goes back: that one has a budget of its own.
func (r *rollout) freeByHand(ctx workflow.Context) {
	if !r.progress.GoesBack() {
		return
	}
	for _, part := range r.backOpen {
		if part.way.byHand && !part.way.free && part.report.Phase == policy.WaveHeld {
			part.way.free = true
			r.orders++
			part.child.SignalChildWorkflow(ctx, targetSignal, Order{Number: r.orders, Do: Resume})
		}
	}
}

// byHandStatus shows the rollbacks by hand as one.
func (r *rollout) byHandStatus() *RollbackStatus {
	back := r.byHand
	back.Counts, back.Targets = map[policy.TargetState]int{}, 0
	under := map[string]bool{} // on their way, so that what came of an earlier way counts no more
	for i, w := range r.progress.Waves {
		if !w.Open {
			continue
		}
		report := r.reports[i]
		unlisted := report.Counts.Taken
		for _, t := range report.ByHand {
			switch {
			case t.State == policy.RolledBack:
				unlisted--
			case !t.State.Terminal():
				under[t.Name] = true
				back.Counts[t.State]++
				back.InFlight++
				if t.State != policy.Restoring {
					back.WaitingFor = append(back.WaitingFor, t.Name)
				}
			}
		}
		if unlisted > 0 { // a report names the first of them only
			back.Counts[policy.RolledBack] += unlisted
			back.Targets += unlisted
		}
		if w.ByHand {
			back.WaitingFor = append(back.WaitingFor, r.flyingIn(i)...)
		}
	}
	for _, w := range r.ways {
		back.WaitingFor = append(back.WaitingFor, r.lateOf(w)...)
	}
	for _, part := range r.backOpen {
		if !part.way.byHand {
			continue
		}
		for _, name := range part.names {
			under[name] = true
		}
		for _, state := range policy.TargetStates() {
			if n := part.report.States[state]; n > 0 {
				back.Counts[state] += n
			}
		}
		back.InFlight += part.report.Counts.InFlight
	}
	back.Targets += len(under)
	for _, done := range r.byHandDone {
		if !under[done.name] {
			back.Counts[done.state]++
			back.Targets++
		}
	}
	return &back
}

// limit narrows a later rollback to the one target or wave that was asked for. What it leaves alone counts as not
// reached.
func (r *rollout) limit() (refused string) {
	if r.in.Target == "" && r.in.Wave == 0 {
		return ""
	}
	if r.in.Wave < 0 || r.in.Wave > len(r.outcomes) {
		return fmt.Sprintf("rollout %s has no wave %d; it has %d, counted from 1", r.in.Of, r.in.Wave, len(r.outcomes))
	}
	t := r.outcomeOf(r.in.Target)
	switch {
	case r.in.Target == "":
	case t == nil:
		return fmt.Sprintf("rollout %s has reached no target %q", r.in.Of, r.in.Target)
	case r.in.Wave != 0 && r.in.Wave != t.Wave:
		return fmt.Sprintf("%s is in wave %d, not in wave %d", t.Name, t.Wave, r.in.Wave)
	case t.State == policy.NoChange:
		return neverChanged(t.Name)
	case !t.Reached && isBack(t.State, t.FromKnown):
		return fmt.Sprintf("%s went back to %s already", t.Name, versionOr(t.From))
	case !t.Reached:
		return fmt.Sprintf("rollout %s has not reached %s (%s)", r.in.Of, t.Name, t.State)
	}
	left := 0
	for i := range r.outcomes {
		for n := range r.outcomes[i] {
			one := &r.outcomes[i][n]
			if (r.in.Target != "" && one.Name != r.in.Target) || (r.in.Wave != 0 && one.Wave != r.in.Wave) {
				one.Reached = false
			}
			if one.Reached {
				left++
			}
		}
	}
	if left == 0 {
		return fmt.Sprintf("nothing of wave %d of rollout %s was reached, or it is back already", r.in.Wave, r.in.Of)
	}
	return ""
}

// limited names what a later rollback is limited to; empty: nothing limits it.
func (in RolloutInput) limited() string {
	switch {
	case in.Target != "":
		return in.Target
	case in.Wave != 0:
		return fmt.Sprintf("wave %d", in.Wave)
	}
	return ""
}

// bringBack takes the order to bring one target of the wave back by hand. A wave that was stopped does not answer: its
// Rollout decides anew once it has closed.
func (w *walk) bringBack(ctx workflow.Context, o Order) (a OrderAnswer, answers bool) {
	a.Number = o.Number
	if w.state.Control == policy.ControlStop {
		return a, false
	}
	i := w.indexOf(o.Target)
	switch {
	case len(w.state.Targets) == 0:
		a.Unknown = w.share != nil
		a.Answer = fmt.Sprintf("wave %d has only just begun: nothing of it was reached; skip leaves a target out", w.number)
		return a, true
	case i < 0:
		a.Answer, a.Unknown = fmt.Sprintf("wave %d has no target %q", w.number, o.Target), true
		return a, true
	}
	const then = "; nothing new starts until resume, which goes on without it"
	t, d := &w.state.Targets[i], &w.details[i]
	switch {
	case t.InFlight && t.ByHand:
		a.Accepted, a.Idle, a.Answer = true, true, t.Name+" is on its way back already; this changes nothing"
	case t.InFlight && t.State == policy.Restoring:
		t.ByHand = true
		a.Accepted, a.Answer = true, t.Name+" failed and is on its way back already"+then
	case t.InFlight:
		t.ByHand, d.byWhom = true, byAndWhy(o.By, o.Reason)
		d.line.tell(ctx, policy.ControlStop)
		a.Accepted, a.Answer = true, t.Name+" reaches a safe point first, then it goes back"+then
	case !t.Reached && t.State == policy.NoChange:
		a.Answer = neverChanged(t.Name)
	case !t.Reached && isBack(t.State, t.FromKnown):
		a.Accepted, a.Idle, a.Answer = true, true, fmt.Sprintf("%s runs %s again already; this changes nothing", t.Name, versionOr(t.From))
	case !t.Reached && t.State == policy.Pending:
		a.Answer = t.Name + " has not been reached; skip leaves it out"
	case !t.Reached:
		a.Answer = fmt.Sprintf("%s was not reached (%s): there is nothing to take back", t.Name, t.State)
	default:
		t.ByHand, d.byWhom = true, byAndWhy(o.By, o.Reason)
		a.Accepted, a.Answer = true, fmt.Sprintf("%s goes back to %s%s", t.Name, backTo(t.From, t.FromKnown), then)
		w.takeBack(ctx, i)
	}
	return a, true
}

// takeBack begins the way back by hand of a target that is not in flight.
func (w *walk) takeBack(ctx workflow.Context, i int) {
	t, d := &w.state.Targets[i], &w.details[i]
	t.Held = false
	switch {
	case !t.Reached && t.State == policy.NoChange:
		t.ByHand, t.Counted = false, false
	case !t.Reached && (t.State == policy.Failed || t.State == policy.NeedsRecovery):
		t.Counted = true
	case !t.Reached:
		t.State, t.Counted = policy.Skipped, false
		t.Reason = clip("left out: taken back by hand"+d.byWhom+" before its change had been asked for", maxReason)
	case !w.slice.CanReturn:
		w.stays(i, cmp.Or(w.slice.NoReturn, "its deployment has no way back"))
	case t.FromKnown && t.From == "" && !w.slice.Uninstalls:
		w.stays(i, "nothing was installed before, and the step cannot uninstall")
	default:
		d.broken, d.failure = !runsWell(t.State), ""
		w.attempt(ctx, i, executors.Restore)
	}
}

// stays notes that a target cannot go back.
func (w *walk) stays(i int, why string) {
	t := &w.state.Targets[i]
	t.State, t.Counted, t.Reason = policy.NeedsRecovery, true, clip("it cannot go back: "+why, maxReason)
}

// cameBack takes the result of a way back by hand. One that has come back is neither a success nor a failure any more.
func (w *walk) cameBack(i int, r TargetResult) {
	t := &w.state.Targets[i]
	t.State, t.Counted = r.State, false
	if r.State != policy.RolledBack && r.State != policy.Skipped {
		t.State, t.Counted = policy.NeedsRecovery, true
	}
	t.Reason = clip("taken back by hand"+w.details[i].byWhom+"; "+r.Reason, maxReason)
}
