package workflows

import (
	"cmp"
	"fmt"
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
)

// listen hears commands, reports and the cancellation of the workflow.
func (r *rollout) listen(cancellable, ctx workflow.Context) {
	// What arrives in one moment is taken in this order: stops first, and a pause after a resume, so that the safe
	// reading wins. The Temporal UI lists the commands as CommandNames does.
	for _, name := range CommandNames() {
		workflow.GetSignalChannelWithOptions(ctx, name, workflow.SignalChannelOptions{Description: descriptions[name]})
	}
	for _, name := range []string{Abort, RollBack, Reject, Resume, Approve, Skip, Retry, Pause} {
		channel := workflow.GetSignalChannel(ctx, name)
		workflow.Go(ctx, func(ctx workflow.Context) {
			for {
				var raw converter.RawValue
				channel.Receive(ctx, &raw)
				r.command(ctx, name, raw.Payload())
			}
		})
	}
	reports := workflow.GetSignalChannelWithOptions(ctx, reportSignal, workflow.SignalChannelOptions{Description: "Not for operators: waves and rollbacks report with it."})
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var report Report
			reports.Receive(ctx, &report)
			r.heard(ctx, report)
		}
	})
	outcomes := workflow.GetSignalChannelWithOptions(ctx, outcomeSignal, workflow.SignalChannelOptions{Description: "Not for operators: batches say with it what came of their targets."})
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var o BatchOutcome
			outcomes.Receive(ctx, &o)
			r.batchEnded(o)
		}
	})
	workflow.Go(ctx, func(ctx workflow.Context) {
		cancellable.Done().Receive(ctx, nil)
		r.apply(ctx, Abort, Command{By: whoTemporal, Reason: causeCancels}, "", TargetFacts{})
	})
}

// command takes one signal.
func (r *rollout) command(ctx workflow.Context, name string, payload *commonpb.Payload) {
	c, remark, err := ParseCommand(name, payload)
	c.ID, c.By, c.Reason, c.Target = clip(c.ID, 100), person(c.By), clip(c.Reason, clipCommand), clip(c.Target, 200)
	if err != nil {
		r.receipt(ctx, name, c, false, err.Error())
		return
	}
	if c.ID != "" {
		// With its name: an id that was copied from another command must not swallow a stop.
		if r.seen[name+" "+c.ID] {
			return // the same command again: its receipt stands
		}
		if len(r.seen) < maxRemember {
			r.seen[name+" "+c.ID] = true
		}
	}
	if name == RollBack {
		if scope := misspeltScope(payload); scope != "" && workflow.GetVersion(ctx, changeByHand, workflow.DefaultVersion, 1) != workflow.DefaultVersion {
			r.receipt(ctx, name, c, false, fmt.Sprintf(`unknown field %q; one target goes back with {"target":"NAME"}, one wave with {"wave":2}, everything without either; nothing was stopped`, clip(scope, 60)))
			return
		}
	}
	if name == RollBack && (c.Target != "" || c.Wave != 0) && r.planned {
		r.earlier = workflow.GetVersion(ctx, changeByHand, workflow.DefaultVersion, 1) == workflow.DefaultVersion
		r.commandByHand(ctx, newReceipt, c, remark)
		return
	}
	if (name == Skip || name == Retry) && c.Target != "" && r.planned {
		// Which wave holds the target is looked up beside everything else, so that no stop ever waits for it.
		workflow.Go(ctx, func(ctx workflow.Context) {
			facts, err := r.find(ctx, c.Target)
			if err != nil {
				r.receipt(ctx, name, c, false, "the target could not be looked up: "+cause(err))
				return
			}
			if name == Retry && r.progress.Plan.Depends() && r.outcomeOf(c.Target) != nil {
				waits, err := r.lateWaits(ctx, c.Target, facts.Wave)
				if err != nil {
					r.receipt(ctx, name, c, false, "what the target waits for could not be looked up: "+cause(err))
					return
				}
				facts = r.factsOf(c.Target) // as of now
				facts.Waits = waits
			}
			r.apply(ctx, name, c, remark, facts)
		})
		return
	}
	r.apply(ctx, name, c, remark, TargetFacts{})
}

// person is who somebody says they are: one spelling for one person, and blanks are no name.
func person(by string) string { return clip(strings.TrimSpace(by), 100) }

// find says what is known of a target.
func (r *rollout) find(ctx workflow.Context, name string) (TargetFacts, error) {
	if facts := r.factsOf(name); facts.Wave != 0 {
		return facts, nil
	}
	// A few at a time: a parent that asks for thousands at once is not let go on by the engine.
	if err := workflow.Await(ctx, func() bool { return r.looking < maxLooking }); err != nil {
		return TargetFacts{}, err
	}
	r.looking++
	defer func() { r.looking-- }()
	var f TargetFacts
	err := workflow.ExecuteActivity(bookkeeping(ctx, "Find target "+clip(name, 100)), acts.FindTarget,
		activities.TargetRef{Plan: r.progress.Plan.Digest, Target: name}).Get(ctx, &f.Wave)
	return f, err
}

// apply has ApplyCommand decide about a command and carries out what it says.
func (r *rollout) apply(ctx workflow.Context, name string, c Command, remark string, facts TargetFacts) {
	r.applyTo(ctx, newReceipt, name, c, remark, facts)
}

// newReceipt stands for the number of a receipt that is still to be written.
const newReceipt = -1

// applyTo is apply for a command that has been noted before, under the number of its receipt.
func (r *rollout) applyTo(ctx workflow.Context, n int, name string, c Command, remark string, facts TargetFacts) {
	next, effect, answer, err := ApplyCommand(r.progress, name, c, CommandFacts{Rollout: r.in.Rollout, Planned: r.planned, Target: facts, Earlier: r.earlier,
		Limited: r.in.limited(), Now: workflow.Now(ctx)})
	if err != nil {
		r.refuse(ctx, n, name, c, err.Error())
		return
	}
	if remark != "" {
		answer += "; " + remark
	}
	r.progress = next
	asked := c
	c.Wave = max(c.Wave, effect.Wave, facts.Wave)
	if n == newReceipt {
		n = r.receipt(ctx, name, c, true, answer)
	} else if n >= r.dropped {
		receipt := &r.receipts[n-r.dropped]
		receipt.Accepted, receipt.Pending, receipt.Answer, receipt.Wave = true, false, clip(answer, clipCommand), c.Wave
	}
	if effect.Order == "" { // else the wave may refuse it yet
		r.noteCommand(ctx, name, c, "")
	}
	order := Order{Do: name, Target: c.Target, By: c.By, Reason: c.Reason}
	switch {
	case effect.Order != "":
		r.orders++
		order.Number = r.orders
		r.pending[order.Number] = n
		if n >= r.dropped {
			r.receipts[n-r.dropped].Accepted, r.receipts[n-r.dropped].Pending = false, true
		}
		if name == RollBack {
			r.askWave(ctx, order, handOrder{command: asked, remark: remark, wave: effect.Wave - 1, receipt: n})
			return
		}
		r.waves[effect.Wave-1].child.SignalChildWorkflow(ctx, targetSignal, order)
	case effect.SkipLater:
		r.skips = append(r.skips, order)
	case effect.SkipClosed:
		r.skipClosed(c)
		r.countByHand(ctx) // one that did not come back by hand is left out now
	case effect.RetryLate:
		r.retryLate(ctx, c.Target)
	case effect.TakeTarget:
		r.takeByHand(ctx, &wayBack{wave: effect.Wave, target: c.Target, byHand: true}, c)
	case effect.TakeWave:
		r.takeByHand(ctx, &wayBack{wave: effect.Wave, byHand: true}, c)
	case effect.ResumeBack:
		if r.way != nil {
			r.way.free = true
		}
		for _, part := range r.backOpen {
			part.way.free = true
			r.orders++
			order.Number = r.orders
			part.child.SignalChildWorkflow(ctx, targetSignal, order)
		}
	}
	if isStop(name) || name == Resume {
		r.tellWaves(ctx)
	}
}

// noteCommand adds a command that has been decided to the timeline. Most that are refused have a receipt alone; one that was
// passed on held what was asked, and has a line.
func (r *rollout) noteCommand(ctx workflow.Context, name string, c Command, refused string) {
	what, why := name+targetOf(name, c), c.Reason
	if refused != "" {
		what, why = what+" refused", refused
	}
	r.note(ctx, cmp.Or(c.By, "somebody"), what, why)
}

func targetOf(name string, c Command) string {
	switch {
	case c.Target != "":
		return " " + c.Target
	case name == RollBack && c.Wave != 0:
		return fmt.Sprintf(" wave %d", c.Wave)
	}
	return ""
}

// refuse notes that a command changes nothing.
func (r *rollout) refuse(ctx workflow.Context, n int, name string, c Command, why string) {
	if n == newReceipt {
		r.receipt(ctx, name, c, false, why)
		return
	}
	r.noteCommand(ctx, name, c, why)
	r.refused(n, why)
}

// refused completes the receipt of a command that changes nothing.
func (r *rollout) refused(n int, why string) {
	if r.changed = true; n >= r.dropped {
		receipt := &r.receipts[n-r.dropped]
		receipt.Accepted, receipt.Pending, receipt.Answer = false, false, clip(why, clipCommand)
	}
}

// receipt notes what became of a command and returns its number.
func (r *rollout) receipt(ctx workflow.Context, name string, c Command, accepted bool, answer string) int {
	r.changed = true
	r.receipts = append(r.receipts, Receipt{ID: c.ID, Name: name, By: c.By, At: workflow.Now(ctx), Reason: c.Reason, Wave: c.Wave, Target: c.Target,
		Accepted: accepted, Answer: clip(answer, clipCommand)})
	if len(r.receipts) > maxReceipts {
		r.receipts = r.receipts[1:]
		r.dropped++
	}
	return r.dropped + len(r.receipts) - 1
}

// answer completes the receipt of a command that was passed to a wave.
func (r *rollout) answer(ctx workflow.Context, a OrderAnswer) {
	if asked, ok := r.asked[a.Number]; ok {
		delete(r.asked, a.Number)
		defer r.answered(ctx, asked, a)
	}
	n, ok := r.pending[a.Number]
	if !ok {
		return
	}
	delete(r.pending, a.Number)
	if n < r.dropped {
		return
	}
	receipt := &r.receipts[n-r.dropped]
	receipt.Accepted, receipt.Answer, receipt.Pending = a.Accepted, clip(a.Answer, clipCommand), false
	c := Command{By: receipt.By, Reason: receipt.Reason, Target: receipt.Target, Wave: receipt.Wave}
	switch {
	case a.Accepted:
		r.noteCommand(ctx, receipt.Name, c, "")
	case !a.Unknown: // else it is looked for in the other waves first
		r.noteCommand(ctx, receipt.Name, c, a.Answer)
	}
}
