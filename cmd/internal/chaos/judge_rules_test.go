package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// judgeStops wants no change forth to begin after a stop was acknowledged, for good or until a person resumed.
func (c *court) judgeStops() {
	var stops []order
	for _, name := range []string{workflows.Pause, workflows.RollBack, workflows.Reject, workflows.Abort} {
		stops = append(stops, c.accepted(name)...)
	}
	for _, o := range stops {
		// A rollback by hand of what is back already holds nothing.
		if o.seen.IsZero() || strings.Contains(o.receipt.Answer, "changes nothing") {
			continue
		}
		var until time.Time
		if o.name == workflows.Pause || o.name == workflows.RollBack && !o.all() {
			for _, resume := range c.accepted(workflows.Resume) {
				if resume.receipt.At.After(o.receipt.At) && (until.IsZero() || resume.tried.Before(until)) {
					until = resume.tried
				}
			}
		}
		from := c.from(o.seen)
		for _, ch := range c.changes {
			if ch.direction() == executors.Apply && ch.beginAt.After(from) && (until.IsZero() || ch.beginAt.Before(until)) {
				c.fault("%s began %s after %s was acknowledged", ch.id, ch.beginAt.Sub(o.seen), o.name)
			}
		}
	}
}

// judgeReturns wants each way back to have a cause, and no more of them at once than may be.
func (c *court) judgeReturns() {
	for _, ch := range c.changes {
		if ch.direction() != executors.Restore {
			continue
		}
		if !c.hasCause(ch) {
			c.fault("%s began, and nothing had it taken back", ch.id)
		}
		t, _ := c.scenario.named(ch.target)
		if c.inItsWave(t) {
			continue
		}
		back := 1
		for _, other := range c.changes {
			t, _ := c.scenario.named(other.target)
			if other.direction() == executors.Restore && other.during(ch.begin) && !c.inItsWave(t) {
				back++
			}
		}
		if back > c.scenario.backAtOnce {
			c.fault("%s made it %d on their way back, and %d may be", ch.id, back, c.scenario.backAtOnce)
		}
	}
}

// inItsWave reports whether a target may go back beside those of a rollback: because it failed, or alone and by hand.
func (c *court) inItsWave(t target) bool {
	failed := slices.ContainsFunc(c.of(t.name, executors.Apply), func(ch *change) bool { return ch.failed })
	return failed && c.scenario.onTargetFailed == policy.TargetGoesBack || c.taken(t)
}

// hasCause reports whether anything has a target go back.
func (c *court) hasCause(ch *change) bool {
	t, _ := c.scenario.named(ch.target)
	if c.scenario.onTargetFailed == policy.TargetGoesBack && c.failedAt(t.name, ch.begin) {
		return true
	}
	if c.later != nil && !ch.beginAt.Before(c.later.began) {
		return true
	}
	for _, o := range c.accepted(workflows.RollBack) {
		if o.tried.Before(ch.beginAt) && (o.all() || o.covers(t)) {
			return true
		}
	}
	for _, o := range c.accepted(workflows.Reject) {
		if o.tried.Before(ch.beginAt) && c.scenario.onReject == policy.RejectRolloutBack {
			return true
		}
	}
	switch c.scenario.onBreach {
	case policy.BreachRolloutAll:
		return c.mayBreachAny()
	case policy.BreachWaveBack:
		return c.mayBreach(t.wave) || c.mayBreach(-1)
	case policy.BreachHolds, policy.BreachFails:
	}
	return false
}

// judgeReceipts wants each command that the server had taken while the run went on to have one receipt.
func (c *court) judgeReceipts(e ending) {
	for _, s := range e.sent {
		n := 0
		for _, receipt := range e.status.Commands {
			if receipt.ID == s.command.ID {
				n++
				if receipt.Pending {
					c.fault("%s was never answered", s.command.ID)
				}
			}
		}
		if n > 1 {
			c.fault("%s has %d receipts", s.command.ID, n)
		}
		if n == 0 && !s.taken.IsZero() && s.taken.Before(e.status.EndedAt) {
			c.fault("%s was taken and has no receipt", s.command.ID)
		}
	}
}

// judgeEnd looks at how the rollout ended, at its record, and at each target's state and version.
func (c *court) judgeEnd() {
	state := c.first.status.State
	c.judgeCause(state)
	c.judgeRecord(c.first)
	if c.later == nil {
		c.judgeStates(c.first.record)
	}
	for _, ch := range c.changes {
		// A target that failed and has the old version again does not count as reached.
		if state == workflows.Rejected && ch.direction() == executors.Apply && !ch.failed {
			c.fault("it is Rejected, and %s was reached", ch.target)
		}
	}
	if state == workflows.RolledBack {
		c.wantBack("it is RolledBack")
	}
}

// wantBack wants no target to run what was brought.
func (c *court) wantBack(since string) {
	for _, t := range c.scenario.targets {
		if !t.there && c.runs[t.name] != before {
			c.fault("%s, and %s runs %s", since, t.name, c.runs[t.name])
		}
	}
}

// judgeCause wants the end to be one that was asked for, or came of what failed.
func (c *court) judgeCause(state workflows.Phase) {
	aborts, rejects := len(c.accepted(workflows.Abort)) > 0, len(c.accepted(workflows.Reject)) > 0
	rollbacks, byHand := false, false
	for _, o := range c.accepted(workflows.RollBack) {
		rollbacks = rollbacks || o.all()
		byHand = byHand || !o.all()
	}
	breach := c.mayBreachAny()
	lost := slices.ContainsFunc(c.scenario.targets, func(t target) bool {
		return c.left(t) == after && slices.ContainsFunc(c.of(t.name, executors.Restore), func(ch *change) bool { return ch.failed })
	})
	back := breach && c.scenario.onBreach == policy.BreachRolloutAll || byHand && !slices.ContainsFunc(c.scenario.targets, c.good)
	var permitted []workflows.Phase
	switch {
	case aborts:
		permitted = append(permitted, workflows.Aborted)
	case rollbacks, rejects:
		permitted = append(permitted, workflows.RolledBack)
		if rejects {
			permitted = append(permitted, workflows.Rejected)
		}
		if lost {
			permitted = append(permitted, workflows.RollbackIncomplete)
		}
	default:
		if back {
			permitted = append(permitted, workflows.RolledBack)
		}
		if back && lost {
			permitted = append(permitted, workflows.RollbackIncomplete)
		}
		if breach && c.scenario.onBreach == policy.BreachFails || c.failedWave() {
			permitted = append(permitted, workflows.Failed)
		}
		// Retries, skips and what went back by hand take failures out of the count.
		failed := c.failures(-1, c.end())
		over := failed > c.scenario.budget
		for i := range c.scenario.waves {
			over = over || c.failures(i, c.end()) > c.scenario.waveBudget(i)
		}
		meddled := slices.ContainsFunc(c.scenario.targets, func(t target) bool { return c.excused(t.name) && c.failedOnce(t.name) })
		if !over && (failed == 0 || meddled) {
			permitted = append(permitted, workflows.Succeeded)
		}
		if !over && (failed > 0 || meddled) {
			permitted = append(permitted, workflows.SucceededWithFailures)
		}
	}
	if !slices.Contains(permitted, state) {
		c.fault("it ended as %s (%s); permitted is %v", state, c.first.status.Reason, permitted)
	}
	if state == workflows.Succeeded || state == workflows.SucceededWithFailures {
		for _, t := range c.scenario.targets {
			if !t.there && !c.excused(t.name) && len(c.of(t.name, executors.Apply)) == 0 {
				c.fault("it is %s, and %s was forgotten", state, t.name)
			}
		}
	}
}

// failedOnce reports whether any change of a target failed.
func (c *court) failedOnce(name string) bool {
	return slices.ContainsFunc(c.changes, func(ch *change) bool { return ch.target == name && ch.failed })
}

// left is what a target ran when the first run had ended.
func (c *court) left(t target) string {
	runs := before
	if t.there {
		runs = after
	}
	for _, ch := range c.changes {
		if ch.target == t.name && ch.end >= 0 && (c.later == nil || ch.beginAt.Before(c.later.began)) {
			runs = ch.runs
		}
	}
	return runs
}

// good reports whether a target is on the new version without a failure or anybody's doing. One that ran it before counts
// if somebody has looked.
func (c *court) good(t target) bool {
	if t.there {
		return slices.ContainsFunc(c.first.record.Targets, func(r ledger.TargetRecord) bool { return r.Name == t.name && r.State == string(policy.NoChange) })
	}
	return c.left(t) == after && !c.failedAt(t.name, c.end()) && !c.taken(t)
}

// failedWave reports whether a wave has begun and none of its targets has succeeded, or none of the rollout has.
func (c *court) failedWave() bool {
	for i := range c.scenario.waves {
		began, good := false, false
		for _, t := range c.scenario.targets {
			began = began || t.wave == i && len(c.of(t.name, executors.Apply)) > 0
			good = good || t.wave == i && c.good(t) && !c.excused(t.name)
		}
		if began && !good {
			return true
		}
	}
	return !slices.ContainsFunc(c.scenario.targets, c.good)
}

// judgeRecord wants the ledger to say what the status says.
func (c *court) judgeRecord(e ending) {
	if e.record.State != string(e.status.State) {
		c.fault("the ledger says %s, and the status %s", e.record.State, e.status.State)
	}
	if e.later() {
		return // its counts are of what it took back
	}
	recorded := map[policy.TargetState]int{}
	for _, t := range e.record.Targets {
		recorded[policy.TargetState(t.State)]++
	}
	for _, state := range policy.TargetStates() {
		if state != policy.Pending && recorded[state] != e.status.Counts[state] {
			c.fault("the ledger has %d targets %s, and the status %d", recorded[state], state, e.status.Counts[state])
		}
	}
	total := 0
	for _, n := range e.status.Counts {
		total += n
	}
	if total != len(c.scenario.targets) {
		c.fault("the status counts %d targets, and there are %d", total, len(c.scenario.targets))
	}
}

// later reports whether the run took another one back.
func (e ending) later() bool { return e.status.Mode == workflows.ModeRollback }

// judgeStates compares each target's state with what it runs.
func (c *court) judgeStates(record ledger.Record) {
	for _, t := range c.scenario.targets {
		var state policy.TargetState
		reached := false
		for _, got := range record.Targets {
			if got.Name == t.name {
				state, reached = policy.TargetState(got.State), got.Reached
			}
		}
		runs := c.runs[t.name]
		back := c.of(t.name, executors.Restore)
		wrong := ""
		switch state {
		case "", policy.Pending:
			if len(c.of(t.name, executors.Apply)) > 0 {
				wrong = "was changed"
			}
		case policy.Succeeded:
			if runs != after {
				wrong = "runs " + runs
			}
		case policy.NoChange:
			if !t.there {
				wrong = "did not run the version before"
			}
		case policy.RolledBack:
			if runs != before {
				wrong = "runs " + runs
			}
		case policy.Failed:
			if !c.failedOnce(t.name) {
				wrong = "nothing of it failed"
			}
		case policy.Skipped:
			if !c.excused(t.name) {
				wrong = "nobody left it out"
			}
		case policy.NeedsRecovery:
			if len(back) == 0 || !back[len(back)-1].failed {
				wrong = "nothing of it is unknown"
			}
		case policy.Waiting, policy.Preparing, policy.Applying, policy.Verifying, policy.Restoring, policy.Unreachable, policy.Deferred, policy.Removed:
			wrong = "cannot end so"
		}
		if wrong != "" {
			c.fault("%s is %s, and %s", t.name, stateOr(state), wrong)
		}
		switch {
		case runs == after && !reached && !t.there:
			c.fault("%s runs %s, and does not count as reached", t.name, runs)
		case reached && len(c.of(t.name, executors.Apply)) == 0:
			c.fault("%s counts as reached, and was never changed", t.name)
		case reached && runs == before && (state == policy.Succeeded || state == policy.RolledBack):
			c.fault("%s is back, and counts as reached", t.name)
		}
	}
}

func stateOr(s policy.TargetState) string {
	if s == "" {
		return "not recorded"
	}
	return string(s)
}

// judgeLater looks at a rollback that began once the rollout had ended: nothing goes forth any more, and all that was
// reached is back, but for what does not go back.
func (c *court) judgeLater() {
	want := workflows.RolledBack
	for _, t := range c.scenario.targets {
		if c.runs[t.name] == after && t.stuck {
			want = workflows.RollbackIncomplete
			continue
		}
		if !t.there && c.runs[t.name] != before {
			c.fault("it was taken back later, and %s runs %s", t.name, c.runs[t.name])
		}
	}
	if got := c.later.status.State; got != want {
		c.fault("the later rollback ended as %s (%s), not %s", got, c.later.status.Reason, want)
	}
	c.judgeRecord(*c.later)
	for _, ch := range c.changes {
		if ch.direction() == executors.Apply && ch.beginAt.After(c.later.began) {
			c.fault("%s began during the later rollback", ch.id)
		}
	}
}

// timeline is what a status tells of its run.
func timeline(s workflows.RolloutStatus) string {
	var b strings.Builder
	for _, e := range s.Timeline {
		fmt.Fprintf(&b, "\n  %s %s: %s (%s)", e.At.Format("15:04:05.000"), e.Who, e.What, e.Why)
	}
	return b.String()
}
