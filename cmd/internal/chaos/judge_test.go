package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// evidence is all that a rollout is judged by. Of the product only its words are used: what it must do is said here once
// more.
type evidence struct {
	scenario scenario
	effects  []effect
	runs     map[string]string
	downs    []down
	first    ending
	later    *ending // the rollback after the end; nil if there was none
}

// change is one operation, as the log tells.
type change struct {
	id, target, version string
	wave                int
	// asked counts requests; begin and end are places in the log, end -1 while it runs.
	asked, begin, end int
	beginAt, endAt    time.Time
	failed            bool
	runs              string
}

func (c *change) direction() executors.Direction { return direction(c.version) }

// during reports whether it was under way at a place in the log.
func (c *change) during(place int) bool { return c.begin < place && (c.end < 0 || c.end > place) }

// court is one judgement.
type court struct {
	evidence
	changes []*change // those that began, in the order in which they did
	faults  []string
}

func (c *court) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(c.faults, text) {
		c.faults = append(c.faults, text)
	}
}

// judge says what was not as it must be; nothing if all was.
func judge(e evidence) []string {
	c := &court{evidence: e}
	c.readLog()
	c.judgeTargets()
	c.judgeSlots()
	c.judgeOrder()
	c.judgeStops()
	c.judgeReturns()
	c.judgeReceipts(e.first)
	c.judgeEnd()
	if e.later != nil {
		c.judgeReceipts(*e.later)
		c.judgeLater()
	}
	return c.faults
}

// readLog makes changes of the log: each is asked for once, begins at most once, and ends.
func (c *court) readLog() {
	byID := map[string]*change{}
	open := map[string]*change{}
	for place, e := range c.effects {
		t, known := c.scenario.named(e.target)
		if !known {
			c.fault("%s is no target, and was touched", e.target)
			continue
		}
		if e.version != before && e.version != after {
			c.fault("%s was asked to go to %q", e.target, e.version)
			continue
		}
		ch := byID[e.operation]
		if ch == nil {
			ch = &change{id: e.operation, target: e.target, version: e.version, wave: t.wave, begin: -1, end: -1}
			byID[e.operation] = ch
		}
		switch e.what {
		case asked:
			if ch.asked++; ch.asked > 1 {
				c.fault("%s was asked for twice", e.operation)
			}
		case refused:
			if e.why != fenced && (e.why != dropped || !t.dropped) {
				c.fault("%s was refused: %s", e.operation, e.why)
			}
		case started:
			if ch.begin >= 0 {
				c.fault("%s began twice", e.operation)
				continue
			}
			if other := open[e.target]; other != nil {
				c.fault("%s began while %s was under way", e.operation, other.id)
			}
			ch.begin, ch.beginAt = place, e.at
			open[e.target] = ch
			c.changes = append(c.changes, ch)
		case finished:
			if ch.begin < 0 || ch.end >= 0 {
				c.fault("%s ended, and had not begun or had ended already", e.operation)
				continue
			}
			ch.end, ch.endAt, ch.failed, ch.runs = place, e.at, e.failed, e.runs
			delete(open, e.target)
		}
	}
	for _, ch := range c.changes {
		if ch.end < 0 {
			c.fault("%s has not ended", ch.id)
		}
	}
}

// of are the changes of one target in one direction.
func (c *court) of(name string, d executors.Direction) []*change {
	var out []*change
	for _, ch := range c.changes {
		if ch.target == name && ch.direction() == d {
			out = append(out, ch)
		}
	}
	return out
}

// judgeTargets follows each target from version to version: forth once, and once more for each retry; back as often as it
// was brought forth, and once more for each time it did not come back.
func (c *court) judgeTargets() {
	for _, t := range c.scenario.targets {
		runs := before
		if t.there {
			runs = after
		}
		stayed := 0
		for _, ch := range c.changes {
			if ch.target != t.name {
				continue
			}
			if ch.version == runs {
				c.fault("%s was asked for, and %s ran %s already", ch.id, t.name, runs)
			}
			if ch.end >= 0 {
				runs = ch.runs
			}
			if ch.direction() == executors.Restore && ch.failed {
				stayed++
			}
		}
		forth, back := len(c.of(t.name, executors.Apply)), len(c.of(t.name, executors.Restore))
		if most := 1 + c.count(workflows.Retry, t.name); forth > most {
			c.fault("%s was changed %d times, and %d may be", t.name, forth, most)
		}
		if back > forth+stayed {
			c.fault("%s was taken back %d times, having been brought forth %d times", t.name, back, forth)
		}
		if t.there && forth+back > 0 {
			c.fault("%s ran the version already, and was changed", t.name)
		}
		if got := c.runs[t.name]; got != runs {
			c.fault("%s runs %q, and the log leaves it with %q", t.name, got, runs)
		}
	}
}

// order is an accepted command, as its receipt and its sender tell.
type order struct {
	sent
	receipt workflows.Receipt
}

// accepted are the accepted commands of that name in the first run, in the order in which they took effect.
func (c *court) accepted(name string) []order {
	var out []order
	for _, receipt := range c.first.status.Commands {
		i := slices.IndexFunc(c.first.sent, func(s sent) bool { return s.command.ID == receipt.ID })
		if i >= 0 && receipt.Accepted && receipt.Name == name {
			out = append(out, order{c.first.sent[i], receipt})
		}
	}
	slices.SortStableFunc(out, func(a, b order) int { return a.receipt.At.Compare(b.receipt.At) })
	return out
}

// count counts accepted commands about a target.
func (c *court) count(name, target string) int {
	n := 0
	for _, o := range c.accepted(name) {
		if o.command.Target == target {
			n++
		}
	}
	return n
}

// taken reports whether a person had the target or its wave taken back by itself.
func (c *court) taken(t target) bool {
	return slices.ContainsFunc(c.accepted(workflows.RollBack), func(o order) bool { return o.covers(t) })
}

// covers reports whether a rollback by hand is about a target.
func (o order) covers(t target) bool {
	return o.command.Target == t.name || o.command.Target == "" && o.command.Wave == t.wave+1
}

// all reports whether a rollback is one of everything.
func (o order) all() bool { return o.command.Target == "" && o.command.Wave == 0 }

// excused reports whether a person has meddled with a target, so that rules over its wave leave it out.
func (c *court) excused(name string) bool {
	t, _ := c.scenario.named(name)
	return c.taken(t) || c.count(workflows.Skip, name) > 0 || c.count(workflows.Retry, name) > 0
}

// failedAt reports whether a target's newest change forth had failed at a place in the log.
func (c *court) failedAt(name string, place int) bool {
	failed := false
	for _, ch := range c.of(name, executors.Apply) {
		if ch.end >= 0 && ch.end < place {
			failed = ch.failed
		} else if ch.during(place) {
			failed = false
		}
	}
	return failed
}

// failures counts the targets of a wave, or with -1 of all, that had failed at a place in the log.
func (c *court) failures(wave, place int) int {
	n := 0
	for _, t := range c.scenario.targets {
		if (wave < 0 || t.wave == wave) && !c.excused(t.name) && c.failedAt(t.name, place) {
			n++
		}
	}
	return n
}

// end is the place behind the log.
func (c *court) end() int { return len(c.effects) }

// mayBreach reports whether enough failed for a breach: wave is -1 for the rollout's budget. Whatever a person did
// afterwards does not undo it.
func (c *court) mayBreach(wave int) bool {
	n, budget := 0, c.scenario.budget
	if wave >= 0 {
		budget = c.scenario.waveBudget(wave)
	}
	for _, t := range c.scenario.targets {
		failed := slices.ContainsFunc(c.of(t.name, executors.Apply), func(ch *change) bool { return ch.failed })
		unreturned := slices.ContainsFunc(c.of(t.name, executors.Restore), func(ch *change) bool { return ch.failed })
		if (wave < 0 || t.wave == wave) && (failed || unreturned && c.taken(t)) {
			n++
		}
	}
	return n > budget
}

// mayBreachAny reports it of any budget.
func (c *court) mayBreachAny() bool {
	for i := range c.scenario.waves {
		if c.mayBreach(i) {
			return true
		}
	}
	return c.mayBreach(-1)
}

// judgeSlots looks at each first change of a target at the moment at which it begins: at how many of its wave are under
// way, and at what has failed. One that has failed and is not known to has a slot still.
func (c *court) judgeSlots() {
	seen := map[string]bool{}
	for _, ch := range c.changes {
		if ch.direction() != executors.Apply || seen[ch.target] {
			continue
		}
		seen[ch.target] = true
		w := c.scenario.waves[ch.wave]
		flying, slots := 0, 0
		for _, other := range c.changes {
			if other.wave != ch.wave || !other.during(ch.begin) {
				continue
			}
			if other.direction() == executors.Apply {
				flying++
				slots++
			} else if !c.excused(other.target) {
				slots++ // one that has failed goes back in its place
			}
		}
		if slots >= w.concurrency {
			c.fault("%s began with %d of wave %d under way, and %d may be", ch.id, slots, ch.wave+1, w.concurrency)
		}
		for _, b := range []struct {
			of            string
			wave, allowed int
		}{{fmt.Sprintf("wave %d", ch.wave+1), ch.wave, c.scenario.waveBudget(ch.wave)}, {"the rollout", -1, c.scenario.budget}} {
			failed := c.failures(b.wave, ch.begin)
			if c.scenario.bounded && failed+flying > b.allowed {
				c.fault("%s began with %d failed of %s and %d under way, and its bounded budget is %d", ch.id, failed, b.of, flying, b.allowed)
			}
			if failed+flying > b.allowed+w.concurrency-1 {
				c.fault("%s began with %d failed of %s and %d under way: over its budget of %d", ch.id, failed, b.of, flying, b.allowed)
			}
		}
	}
	if !c.scenario.bounded {
		return
	}
	for i := range c.scenario.waves {
		if n := c.failures(i, c.end()); n > c.scenario.waveBudget(i)+1 {
			c.fault("%d of wave %d failed, and its bounded budget is %d", n, i+1, c.scenario.waveBudget(i))
		}
	}
	if n := c.failures(-1, c.end()); n > c.scenario.budget+1 {
		c.fault("%d of the rollout failed, and its bounded budget is %d", n, c.scenario.budget)
	}
}

// judgeOrder looks at the beginning of each wave: what was before it is over, has soaked, and its people have approved.
func (c *court) judgeOrder() {
	for i, w := range c.scenario.waves {
		at := slices.IndexFunc(c.changes, func(ch *change) bool { return ch.wave == i && ch.direction() == executors.Apply })
		if at < 0 {
			continue
		}
		ch := c.changes[at]
		c.judgeApproval(i, w, ch)
		for _, t := range c.scenario.targets {
			if t.wave >= i || t.there || c.excused(t.name) {
				continue
			}
			applies := c.of(t.name, executors.Apply)
			if len(applies) == 0 || applies[0].end < 0 || applies[0].end > ch.begin {
				c.fault("%s of wave %d began before %s of wave %d was done", ch.target, i+1, t.name, t.wave+1)
				continue
			}
			for _, back := range c.of(t.name, executors.Restore) {
				if back.during(ch.begin) {
					c.fault("%s of wave %d began while %s of wave %d went back", ch.target, i+1, t.name, t.wave+1)
				}
			}
			if soak := c.scenario.waves[t.wave].soak; ch.beginAt.Before(applies[0].endAt.Add(soak)) {
				c.fault("%s of wave %d began %s after %s of wave %d, which soaks for %s", ch.target, i+1, ch.beginAt.Sub(applies[0].endAt), t.name, t.wave+1, soak)
			}
		}
	}
}

// judgeApproval looks at the approvals of a wave that has begun with a change.
func (c *court) judgeApproval(i int, w wave, ch *change) {
	first := map[string]time.Time{}
	for _, o := range c.accepted(workflows.Approve) {
		by := o.command.By
		if o.command.Wave != i+1 || w.strangers && by == author {
			continue
		}
		if _, found := first[by]; !found {
			first[by] = o.tried
		}
	}
	in := 0
	for _, at := range first {
		if at.Before(ch.beginAt) {
			in++
		}
	}
	if in < w.approvals {
		c.fault("%s of wave %d began with %d approvals of %d", ch.target, i+1, in, w.approvals)
	}
}

// grace is the second in which a stop takes effect while a worker is alive, or after one has come back, and four for a
// machine that has other things to do.
const grace = 5 * time.Second

// from is when a stop that was acknowledged then must have taken effect.
func (c *court) from(acknowledged time.Time) time.Time {
	limit := acknowledged.Add(grace)
	downs := slices.Clone(c.downs)
	slices.SortFunc(downs, func(a, b down) int { return cmp.Compare(a.from.UnixNano(), b.from.UnixNano()) })
	for _, d := range downs {
		if d.from.Before(limit) && d.to.Add(grace).After(limit) {
			limit = d.to.Add(grace)
		}
	}
	return limit
}
