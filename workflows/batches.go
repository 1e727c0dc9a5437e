package workflows

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// batched is a Wave whose targets Batches share. It owns the counts and the slots; which target takes a slot, a batch
// decides.
type batched struct {
	in      WaveInput
	id      string
	slice   activities.WaveSlice
	state   policy.BatchedWave
	batches []*batchLine // beside state.Batches; empty until they are opened

	phase   policy.WavePhase
	reason  string
	soak    *soak // nil: not begun
	soaks   int
	ending  policy.WavePhase // how it ends once its batches have closed; empty: it goes on
	lost    string           // why it can't go on: a batch ended without a result
	answers []OrderAnswer
	passed  []*passedOrder
	paced   []time.Time // when the newest target of each pace started
	teller  teller
	changed bool
}

// batchLine is one batch, and what has passed between it and its wave.
type batchLine struct {
	line    *line
	id      string
	report  BatchReport // the newest
	lease   Lease       // the newest, sent or not
	sending bool
	asked   int // the Sequence of the newest lease that wanted a report
	unsent  bool
}

// passedOrder is an order that batches are asked to carry out.
type passedOrder struct {
	order   Order
	of      []int // indices of the batches that were asked
	answers map[int]OrderAnswer
}

// waveOfBatches is Wave for more targets than one workflow is the parent of.
func waveOfBatches(cancellable, ctx workflow.Context, in WaveInput) (WaveResult, error) {
	b := &batched{in: in, id: WaveID(in.Subject.Environment, in.Subject.Deployment, in.Subject.Rollout, in.Wave), phase: policy.WaveRunning, paced: in.Paced}
	b.state.Control, b.state.Before, b.teller.tells = in.Control, in.Before, in.Tells/2
	if err := b.setup(cancellable, ctx); err != nil {
		return WaveResult{}, err
	}
	read, err := readWave(ctx, activities.WaveRef{Plan: in.Subject.Plan, Wave: in.Wave}, fmt.Sprintf("Read wave %d of the plan", in.Wave), &b.slice,
		func() bool { return b.state.Control == policy.ControlStop || b.state.Breached != "" })
	if err != nil {
		return WaveResult{}, err
	}
	if !read {
		return WaveResult{Phase: policy.WaveStopped, Reason: stoppedEarly}, nil
	}
	b.begin(ctx)
	if err := b.settle(ctx); err != nil {
		return WaveResult{}, err
	}
	b.show(ctx)
	r := WaveResult{Phase: b.phase, Reason: clip(b.reason, maxReason), Counts: b.state.Count(), Answers: b.answers, Paced: b.paced, Opened: len(b.batches)}
	for n, one := range b.batches {
		if one.unsent {
			r.Lost = append(r.Lost, n+1)
		}
	}
	return r, nil
}

// setup registers what the wave answers and hears.
func (b *batched) setup(cancellable, ctx workflow.Context) error {
	if err := workflow.SetQueryHandlerWithOptions(ctx, TargetsQuery, b.page, workflow.QueryHandlerOptions{
		Description: "The workflows that hold the targets: ask these."}); err != nil {
		return err
	}
	listen(cancellable, ctx, b.control)
	orders := workflow.GetSignalChannelWithOptions(ctx, targetSignal, workflow.SignalChannelOptions{
		Description: "Not for operators: the Rollout passes commands on with it. Commands go to the Rollout."})
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var o Order
			orders.Receive(ctx, &o)
			b.order(ctx, o)
		}
	})
	reports := workflow.GetSignalChannelWithOptions(ctx, batchSignal, workflow.SignalChannelOptions{Description: "Not for operators: batches report with it."})
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var r BatchReport
			reports.Receive(ctx, &r)
			b.heard(ctx, r)
		}
	})
	return nil
}

// page answers TargetsQuery.
func (b *batched) page(TargetsPage) (TargetsAnswer, error) {
	out := TargetsAnswer{Total: b.slice.Wave.Size, Targets: []TargetStatus{}}
	for _, one := range b.batches {
		out.Batches = append(out.Batches, one.id)
	}
	return out, nil
}

// begin opens all batches: one that has no slots costs next to nothing, and knows its targets when it is given some.
func (b *batched) begin(ctx workflow.Context) {
	wave := b.slice.Wave
	b.state.MaxConcurrency, b.state.Budget, b.state.Rollout = wave.MaxConcurrency, &wave.Budget, &b.slice.Budget
	if len(b.slice.Paces) > 0 {
		b.state.Turns = make([]int, len(b.slice.Paces)+1)
	}
	plain := len(b.slice.Paces) == 0 && len(b.slice.Dependencies) == 0
	for n := range wave.Batches {
		from, to := wave.Batch(n + 1)
		one := policy.BatchProgress{Size: to - from, Counts: policy.WaveCounts{Pending: to - from}, Known: plain}
		if plain {
			one.Room = one.Size // what else there is to wait for, the batch says
		}
		b.state.Batches = append(b.state.Batches, one)
	}
	d := policy.DecideBatches(b.state)
	for n := range wave.Batches {
		b.state.Batches[n].Granted = d.Grants[n]
		subject := b.in.Subject
		one := &batchLine{id: BatchID(subject.Environment, subject.Deployment, subject.Rollout, b.in.Wave, n+1)}
		b.batches = append(b.batches, one)
		one.lease = b.leaseOf(n)
		one.lease.Sequence = 1
		in := BatchInput{Subject: subject, Wave: b.in.Wave, Batch: n + 1, Control: b.state.Control, Before: b.in.Before, Skips: b.in.Skips,
			Tells: b.in.Tells / 2 / wave.Batches, Lease: one.lease}
		summary := fmt.Sprintf("wave %d (%s), batch %d: %d targets to %s", b.in.Wave, wave.Name, n+1, b.state.Batches[n].Size, subject.Version)
		opened := workflow.ExecuteChildWorkflow(child(ctx, one.id, ControlQueue, clip(summary, 300), subject.attributes()...), BatchType, in)
		one.line = &line{child: opened}
		workflow.Go(ctx, func(ctx workflow.Context) {
			var result BatchResult
			err := opened.Get(ctx, &result)
			b.ended(ctx, n, result, err)
		})
	}
}

// settle runs the wave until nothing more will happen.
func (b *batched) settle(ctx workflow.Context) error {
	for {
		hear(ctx)
		b.changed = false
		if b.decide(ctx) {
			return nil
		}
		b.lease(ctx)
		b.tell(ctx)
		b.show(ctx)
		if err := workflow.Await(ctx, func() bool { return b.changed }); err != nil {
			return err
		}
	}
}

// decide carries out what policy.DecideBatches says, and reports whether the wave has ended.
func (b *batched) decide(ctx workflow.Context) bool {
	done := !slices.ContainsFunc(b.state.Batches, func(one policy.BatchProgress) bool { return !one.Ended })
	switch {
	case b.lost != "":
		b.phase, b.reason = policy.WaveDraining, b.lost
		if done {
			b.phase = policy.WaveFailed
		}
		return done
	case b.ending != "":
		if done {
			b.phase = b.ending
		}
		return done
	}
	for n, one := range b.batches {
		b.state.Batches[n].Current = one.report.Asked >= one.asked
	}
	d := policy.DecideBatches(b.state)
	if d.Breached != "" && b.state.Breached == "" {
		b.breach(ctx, d.Breached)
	}
	b.state.Again, b.state.Turns = d.Again, d.Turns
	for n, slots := range d.Grants {
		b.state.Batches[n].Granted += slots
	}
	b.phase, b.reason = d.Phase, d.Reason
	switch d.Phase {
	case policy.WaveStopped, policy.WaveBreached:
		return true
	case policy.WaveVerified:
		if b.soakOver(ctx) && len(b.passed) == 0 {
			b.ending = policy.WaveDone
		}
	case policy.WaveFailed:
		if len(b.passed) == 0 {
			b.ending = policy.WaveFailed
		}
	case policy.WavePending, policy.WavePassed, policy.WaveRunning, policy.WaveHeld, policy.WaveDraining, policy.WaveSoaking, policy.WaveDone:
	}
	return false
}

// soakOver reports whether the wave has soaked, as walk.soakOver does. Its batches measure their targets.
func (b *batched) soakOver(ctx workflow.Context) bool {
	wave := b.slice.Wave
	if wave.Soak == 0 && !b.slice.SoakChecks {
		return true
	}
	if b.soak == nil {
		s := &soak{since: workflow.Now(ctx)}
		s.until = s.since.Add(time.Duration(wave.Soak))
		b.soak = s
		b.soaks++
		workflow.Go(ctx, func(ctx workflow.Context) {
			if err := workflow.NewTimerWithOptions(ctx, time.Duration(wave.Soak), workflow.TimerOptions{Summary: "Soak of wave " + wave.Name}).Get(ctx, nil); err != nil {
				workflow.GetLogger(ctx).Warn("The soak's timer ended early", "error", err)
				return
			}
			s.over = true
			b.changed = true
		})
	}
	measured := !b.slice.SoakChecks || !slices.ContainsFunc(b.batches, func(one *batchLine) bool { return one.report.Soaked < b.soaks })
	return b.soak.over && measured
}

// heard takes a batch's report.
func (b *batched) heard(ctx workflow.Context, r BatchReport) {
	if n := r.Batch - 1; n >= 0 && n < len(b.batches) && r.Sequence > b.batches[n].report.Sequence {
		b.take(ctx, n, r)
	}
}

func (b *batched) take(ctx workflow.Context, n int, r BatchReport) {
	b.changed = true
	b.batches[n].report = r
	one := &b.state.Batches[n]
	one.Known, one.Counts, one.Returned, one.Room, one.Untried, one.Held, one.Stuck = true, r.Report.Counts, r.Returned, r.Room, r.Untried, r.Held, r.Stuck
	one.ByHand, one.Uses, one.Flying, one.Turns = len(r.Report.ByHand) > 0, r.Uses, r.Flying, r.Turns
	for k, last := range r.Paced {
		if k >= len(b.paced) {
			b.paced = append(b.paced, last)
		} else if last.After(b.paced[k]) {
			b.paced[k] = last
		}
	}
	for _, a := range r.Report.Answers {
		b.answered(n, a)
	}
	if r.Report.Breached != "" && b.state.Breached == "" && b.lost == "" {
		b.breach(ctx, r.Report.Breached) // it has stopped itself
	}
}

// ended takes a batch's result.
func (b *batched) ended(ctx workflow.Context, n int, result BatchResult, err error) {
	b.changed = true
	one := &b.state.Batches[n]
	one.Ended = true
	if err != nil {
		b.batches[n].unsent = true
		one.Counts = policy.WaveCounts{Failures: one.Size} // what became of its targets is not known
		if b.lost == "" {
			b.lost = fmt.Sprintf("the workflow of batch %d ended without a result: %s", n+1, cause(err))
			b.pass(ctx, policy.ControlFinish)
		}
		return
	}
	b.batches[n].unsent = result.Unsent
	b.take(ctx, n, result.Report)
	if result.Report.Report.Phase == policy.WaveStopped && b.state.Control != policy.ControlStop && b.ending == "" {
		// Somebody cancelled the batch itself: that stops the wave, and means abort, as it does for the wave.
		b.control(ctx, policy.ControlStop)
	}
}

// breach notes that the budget is exceeded.
func (b *batched) breach(ctx workflow.Context, reason string) {
	b.state.Breached = reason
	b.pass(ctx, policy.ControlFinish)
}

// control takes what the Rollout says.
func (b *batched) control(ctx workflow.Context, c policy.Control) {
	if c == b.state.Control {
		return
	}
	b.state.Control = c
	b.changed = true
	if c == policy.ControlFinish && b.state.Breached == "" {
		b.breach(ctx, "the rollout was stopped: its budget is exceeded outside of this wave")
		return
	}
	// After a breach only a stop says anything new.
	if b.state.Breached == "" || c == policy.ControlStop {
		b.pass(ctx, c)
	}
}

// pass tells all batches.
func (b *batched) pass(ctx workflow.Context, c policy.Control) {
	for n, one := range b.batches {
		if !b.state.Batches[n].Ended {
			one.line.tell(ctx, c)
		}
	}
}

// leaseOf is what batch n is to know now.
func (b *batched) leaseOf(n int) Lease {
	l := Lease{Granted: b.state.Batches[n].Granted, Paced: b.paced, Soak: b.soaks, Close: b.ending != ""}
	if b.soak != nil {
		l.SoakSince, l.SoakUntil = b.soak.since, b.soak.until
	}
	l.Beside = policy.Beside{Again: b.state.Again, Turns: b.state.Turn(n)}
	if len(b.slice.Dependencies) > 0 {
		l.Beside.Dependencies = b.standings(n)
	}
	for other, one := range b.state.Batches {
		if other == n {
			continue
		}
		l.Beside.Held = l.Beside.Held || one.Held > 0
		l.Beside.Counts.Failures += one.Counts.Failures
		l.Beside.Counts.Unreachable += one.Counts.Unreachable
		l.Beside.Counts.Skipped += one.Counts.Skipped
	}
	return l
}

// standings says how the plan's dependencies stand in all batches but one; -1: in all.
func (b *batched) standings(without int) []policy.Standing {
	out := make([]policy.Standing, len(b.slice.Dependencies))
	for other, one := range b.batches {
		for k := range out {
			if other == without {
				continue
			}
			if k < len(one.report.Standings) {
				out[k] = out[k].Plus(one.report.Standings[k])
			} else {
				out[k].Open, out[k].Missing = true, out[k].Missing+1 // it has not said yet
			}
		}
	}
	return out
}

// lease tells the batches what has changed for them: one signal at a time to each, and the newest only.
func (b *batched) lease(ctx workflow.Context) {
	for n, one := range b.batches {
		if b.state.Batches[n].Ended {
			continue
		}
		next, was := b.leaseOf(n), one.lease
		tellings := func(all []policy.Standing) (out []policy.Standing) {
			for _, s := range all {
				out = append(out, s.Telling())
			}
			return out
		}
		// What decides what it starts next it must have heard before anything is concluded from its silence.
		ask := next.Beside.Again != was.Beside.Again || !slices.Equal(next.Beside.Turns, was.Beside.Turns) ||
			!slices.Equal(tellings(next.Beside.Dependencies), tellings(was.Beside.Dependencies))
		active := b.state.Batches[n].Counts.Pending > 0 || b.state.Batches[n].Counts.InFlight > 0
		if !ask && next.Granted == was.Granted && next.Beside.Held == was.Beside.Held && next.Soak == was.Soak && next.Close == was.Close &&
			(!active || next.Beside.Counts == was.Beside.Counts) {
			continue
		}
		next.Sequence = was.Sequence + 1
		if next.Ask = ask || one.asked > one.report.Asked; ask {
			one.asked = next.Sequence
		}
		one.lease = next
		if !one.sending {
			one.sending = true
			workflow.Go(ctx, func(ctx workflow.Context) { b.send(ctx, one) })
		}
	}
}

// send tells a batch of its newest lease, until there is no newer one.
func (b *batched) send(ctx workflow.Context, one *batchLine) {
	defer func() { one.sending = false }()
	if err := one.line.child.GetChildWorkflowExecution().Get(ctx, nil); err != nil {
		return // its end says why
	}
	for sent := 0; sent < one.lease.Sequence; {
		sent = one.lease.Sequence
		// An error means that it has ended.
		if err := one.line.child.SignalChildWorkflow(ctx, leaseSignal, one.lease).Get(ctx, nil); err != nil {
			return
		}
	}
}

// order passes on what a person wants. Which batch holds a target only the batches know.
func (b *batched) order(ctx workflow.Context, o Order) {
	b.changed = true
	switch {
	case b.ending != "" || b.lost != "":
		return // the Rollout answers once the wave has closed
	case o.Do == RollBack && b.state.Control == policy.ControlStop:
		return // likewise: it decides anew then
	case len(b.batches) == 0:
		b.answer(OrderAnswer{Number: o.Number, Answer: fmt.Sprintf("wave %d has only just begun: nothing of it was reached; send it again", b.in.Wave)})
		return
	}
	passed := &passedOrder{order: o, answers: map[int]OrderAnswer{}}
	for n, one := range b.state.Batches {
		if !one.Ended && (o.Do != Approve || one.Held > 0) {
			passed.of = append(passed.of, n)
		}
	}
	if o.Do == Approve && len(passed.of) == 0 {
		b.answer(b.accept(o))
		return
	}
	b.passed = append(b.passed, passed)
	for _, n := range passed.of {
		b.batches[n].line.child.SignalChildWorkflow(ctx, targetSignal, o)
	}
}

// accept answers an approval that is about no target's checks.
func (b *batched) accept(o Order) OrderAnswer {
	a := OrderAnswer{Number: o.Number}
	switch {
	case b.phase == policy.WaveHeld && b.state.Count().Skipped < b.slice.Wave.Size:
		a.Answer = "an approval does not lift what it holds for: " + b.reason
	case b.phase == policy.WaveHeld:
		b.state.AllSkippedAccepted = true
		a.Accepted, a.Answer = true, "the wave passes without its skipped targets"
	default:
		a.Answer = fmt.Sprintf("wave %d does not hold for anything", b.in.Wave)
	}
	return a
}

// answered takes what a batch says of an order. The batch that has the target answers for all; an approval is for each that
// holds.
func (b *batched) answered(n int, a OrderAnswer) {
	at := slices.IndexFunc(b.passed, func(p *passedOrder) bool { return p.order.Number == a.Number })
	if at < 0 {
		return
	}
	p := b.passed[at]
	p.answers[n] = a
	missing := slices.ContainsFunc(p.of, func(of int) bool { _, has := p.answers[of]; return !has && !b.state.Batches[of].Ended })
	switch {
	case p.order.Do == Approve && missing, p.order.Do != Approve && a.Unknown && missing:
		return
	case p.order.Do == Approve:
		for _, of := range p.of {
			if one := p.answers[of]; one.Accepted {
				a.Accepted = true
				if of != n {
					a.Lifted += one.Lifted
				}
			}
		}
		if a.Accepted {
			a.Answer = acceptedOf(a.Lifted)
		}
	case p.order.Do == Retry && a.Accepted:
		b.soak = nil // it runs from the moment at which the last target is terminal
	}
	b.passed = slices.Delete(b.passed, at, at+1)
	b.answer(a)
}

func (b *batched) answer(a OrderAnswer) {
	if b.answers = append(b.answers, a); len(b.answers) > 50 {
		b.answers = b.answers[len(b.answers)-50:]
	}
}

// tell sends the Rollout a report over all batches, as a wave without batches does.
func (b *batched) tell(ctx workflow.Context) {
	r := reach{size: b.slice.Wave.Size}
	for _, one := range b.batches {
		r.done += one.report.Done
		r.started += one.report.Started
	}
	b.teller.tell(ctx, b.in.Subject, b.current(), r, func() { b.changed = true })
}

func (b *batched) current() Report {
	r := Report{Wave: b.in.Wave, Sequence: b.teller.report.Sequence + 1, Phase: b.phase, Reason: clip(b.reason, maxReason), Counts: b.state.Count(),
		States: map[policy.TargetState]int{}, Breached: b.state.Breached, Answers: b.answers}
	if r.Phase == policy.WaveVerified {
		r.Phase = policy.WaveSoaking
	}
	if b.soak != nil {
		r.SoakUntil = b.soak.until
	}
	waiters := make([]int, len(b.slice.Dependencies))
	for n, one := range b.batches {
		if len(one.report.Report.States) == 0 { // it has said nothing, or was stopped before it had read its targets
			r.States[policy.Pending] += b.state.Batches[n].Size
			continue
		}
		of := one.report.Report
		for _, state := range policy.TargetStates() {
			if count := of.States[state]; count > 0 {
				r.States[state] += count
			}
		}
		r.Returning += of.Returning
		r.AttentionTotal += of.AttentionTotal
		r.Attention = append(r.Attention, of.Attention[:min(len(of.Attention), maxAttention-len(r.Attention))]...)
		r.ByHand = append(r.ByHand, of.ByHand[:min(len(of.ByHand), maxAttention-len(r.ByHand))]...)
		for k, waiting := range one.report.Waiters {
			waiters[k] += waiting
		}
		r.Waits = append(r.Waits, of.Waits...)
	}
	whole := policy.WaveState{Beside: &policy.Beside{Dependencies: b.standings(-1)}}
	for _, d := range b.slice.Dependencies {
		whole.Dependencies = append(whole.Dependencies, policy.DependencyState{Policy: d.Policy, Name: d.Name, Kind: d.Kind})
	}
	for _, wait := range whole.DependencyWaits(waiters) {
		wait.Wave, wait.Reason = b.in.Wave, clip(wait.Reason, maxReason)
		r.Waits = append(r.Waits, wait)
	}
	r.Waits = r.Waits[:min(len(r.Waits), maxWaits)]
	return r
}

// show brings the current details up to date.
func (b *batched) show(ctx workflow.Context) {
	c := b.state.Count()
	var text strings.Builder
	fmt.Fprintf(&text, "**%s** %d targets in %d batches: %d succeeded, %d failed, %d in flight, %d to start\n", b.phase, b.slice.Wave.Size, len(b.batches), c.Succeeded,
		c.Failures, c.InFlight, c.Pending)
	if b.reason != "" {
		fmt.Fprintf(&text, "\n%s\n", escape(b.reason))
	}
	if b.soak != nil {
		fmt.Fprintf(&text, "\nSoaks until %s\n", b.soak.until.UTC().Format(time.RFC3339))
	}
	text.WriteString("\n| batch | state | size | done | failed | in flight | slots |\n|---|---|---|---|---|---|---|\n")
	for n, one := range b.state.Batches {
		state := cmp.Or(string(b.batches[n].report.Report.Phase), string(policy.WavePending))
		fmt.Fprintf(&text, "| [%d](/namespaces/{namespace}/workflows/%s) | %s | %d | %d | %d | %d | %d |\n", n+1, strings.ReplaceAll(b.batches[n].id, "/", "%2F"),
			state, one.Size, one.Counts.Succeeded, one.Counts.Failures, one.Counts.InFlight, one.Granted-one.Returned)
	}
	workflow.SetCurrentDetails(ctx, clip(text.String(), maxDetails))
}
