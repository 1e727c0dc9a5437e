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

// rollout is one run of a lane. state is all that would have to survive; the rest is of this run of the code.
type rollout struct {
	in       RolloutInput
	progress policy.Progress
	phase    Phase
	reason   string
	waits    []policy.Wait
	started  time.Time
	ended    time.Time
	planned  bool

	// outcomes are the targets of closed waves, by wave; reports the newest of open ones.
	outcomes [][]TargetOutcome
	reports  []Report
	batched  [][]batchView // the batches of each wave that has some
	openedAt []time.Time
	closedAt []time.Time
	waves    []*line

	back     RollbackStatus
	way      *wayBack        // the rollback of everything, or of the wave that breached
	backOpen []*backPart     // the parts of all rollbacks that are under way
	onWay    map[string]bool // their targets
	backDone []TargetOutcome // what came of way's
	backs    []TargetOutcome // what came of all, oldest first
	parts    int

	byHand     RollbackStatus // all rollbacks of single targets and waves, as one
	byHandDone []byHandResult
	ways       []*wayBack        // those under way, outside of open waves
	asked      map[int]handOrder // order number → rollback of a target that an open wave was asked for
	unwritten  int               // records under way

	late      map[string]bool  // targets being retried after their wave has closed
	lateOpen  map[string]*line // their attempts
	skips     []Order          // for waves that have not been opened
	paced     []time.Time      // when the newest target of each pace started
	orders    int
	pending   map[int]int // order number → index of its receipt
	receipts  []Receipt
	dropped   int // receipts that were forgotten
	looking   int // targets being looked up
	seen      map[string]bool
	earlier   bool // it began when no single target could be taken back
	marked    bool // its stop is on record
	timeline  []Event
	sequence  int // of records
	recording bool
	toRecord  []activities.TargetRecord
	shown     Phase
	changed   bool
}

// planPatience is how long a rollout that was stopped before it had a plan still waits for it: longer than planning
// takes.
const planPatience = time.Minute

// Limits of what a status carries.
const (
	maxReceipts  = 50
	maxTimeline  = 200
	maxListed    = 50
	maxRemember  = 2000 // command ids remembered for idempotency
	maxLooking   = 100  // targets looked up at once
	clipCommand  = 300
	maxTells     = 4000 // reports of all waves about nothing but waits: the engine bears 10,000 signals, stops among them
	whoSluice    = "sluice"
	whoTemporal  = "temporal"
	causeCancels = "the workflow was cancelled"
)

// Rollout walks one version through one environment: it plans, opens wave after wave as policy.Decide says, hears the
// eight commands, and takes back what was reached when it must. It is the lane: one open run at a time.
func Rollout(cancellable workflow.Context, in RolloutInput) (RolloutResult, error) {
	ctx, _ := workflow.NewDisconnectedContext(cancellable)
	r := &rollout{in: in, phase: Planned, started: workflow.Now(ctx), late: map[string]bool{}, lateOpen: map[string]*line{}, pending: map[int]int{}, seen: map[string]bool{},
		onWay: map[string]bool{}, asked: map[int]handOrder{}}
	r.progress.Author = person(in.By)
	if err := workflow.SetQueryHandlerWithOptions(ctx, StatusQuery, func() (RolloutStatus, error) { return r.status(), nil },
		workflow.QueryHandlerOptions{Description: "Where this rollout stands, what it waits for, and what became of each command."}); err != nil {
		return RolloutResult{}, err
	}
	r.listen(cancellable, ctx)
	r.note(ctx, cmp.Or(in.By, whoSluice), fmt.Sprintf("%s of %s to %s asked for", in.Mode, in.Version.Name, in.Environment), in.Reason)
	r.show(ctx)

	var err error
	if in.Mode == ModeRollback {
		err = r.prepareRollback(ctx)
	} else {
		err = r.plan(ctx)
	}
	if err != nil {
		return RolloutResult{}, err
	}
	for begun := r.phase == Planned; ; {
		if begun {
			if err := r.walk(ctx); err != nil {
				return RolloutResult{}, err
			}
		}
		r.ended = workflow.Now(ctx)
		r.note(ctx, whoSluice, string(r.phase), r.reason)
		r.show(ctx)
		if !r.planned {
			break
		}
		if err := r.record(ctx); err != nil {
			return RolloutResult{}, err
		}
		// The record may have taken its time, and a command that was accepted meanwhile is carried out.
		if hear(ctx); !begun || policy.Decide(r.progress, r.ended).Action == policy.ActEnd {
			break
		}
		r.phase, r.ended = Running, time.Time{}
	}
	return RolloutResult{Rollout: in.Rollout, State: r.phase, Reason: clip(r.reason, 1000), Unplanned: !r.planned}, nil
}

func (r *rollout) subject() Subject {
	return Subject{Rollout: r.in.Rollout, Deployment: r.in.Deployment, Environment: r.in.Environment, Version: r.in.Version.Name, Plan: r.progress.Plan.Digest}
}

// note adds a line to the timeline.
func (r *rollout) note(ctx workflow.Context, who, what, why string) {
	r.timeline = append(r.timeline, Event{At: workflow.Now(ctx), Who: who, What: clip(what, clipCommand), Why: clip(why, clipCommand)})
	if len(r.timeline) > maxTimeline {
		r.timeline = slices.Delete(r.timeline, 1, len(r.timeline)-maxTimeline+1) // the first line says who began it
	}
}

// plan has the rollout planned; a refusal ends it with nothing started.
func (r *rollout) plan(ctx workflow.Context) error {
	in := activities.PlanInput{Want: r.in.PlanDigest, Request: policy.Request{Deployment: r.in.Deployment, Environment: r.in.Environment,
		Version: r.in.Version, BundleDigest: r.in.BundleDigest, Unguarded: r.in.Unguarded}}
	var out activities.PlanOutput
	var err error
	planned := false
	workflow.Go(ctx, func(ctx workflow.Context) {
		err = workflow.ExecuteActivity(bookkeeping(ctx, "Plan "+clip(r.in.Version.Name, 100)), acts.MakePlan, in).Get(ctx, &out)
		planned = true
	})
	if err := workflow.Await(ctx, func() bool { return planned || stopsForGood(r.progress) }); err != nil {
		return err
	}
	if !planned {
		// It is stopped, and only the plan says of what; but a ledger that is down must not keep the lane.
		if _, err := workflow.AwaitWithOptions(ctx, workflow.AwaitOptions{Timeout: planPatience,
			TimerOptions: workflow.TimerOptions{Summary: "Stopped; wait for the plan"}}, func() bool { return planned }); err != nil {
			return err
		}
	}
	switch {
	case err != nil:
		return err
	case !planned:
		d := policy.Decide(r.progress, workflow.Now(ctx))
		r.phase, r.reason = Phase(d.Ending), d.Reason
		return nil
	}
	if out.Refused != "" {
		r.phase, r.reason = Failed, "refused, nothing was started: "+out.Refused
		return nil
	}
	if r.progress.Author == "" {
		for _, w := range out.Plan.Waves {
			for _, a := range w.Approvals {
				if a.NotAuthor {
					r.phase, r.reason = Failed, fmt.Sprintf(`refused, nothing was started: policy %q wants approval by somebody other than whoever starts it, and nobody says who that is; start it with "by"`, a.Policy)
					return nil
				}
			}
		}
	}
	r.take(out.Plan)
	r.note(ctx, whoSluice, "planned "+counted(out.Plan.Targets, "target")+" in "+counted(len(out.Plan.Waves), "wave"), "plan "+out.Plan.Digest)
	if r.progress.TimeScale = out.TimeScale; out.TimeScale > 1 {
		r.note(ctx, whoSluice, fmt.Sprintf("time passes %g times as fast as the documents say", float64(out.TimeScale)), "the worker's time scale, for development only")
	}
	return nil
}

func (r *rollout) take(p policy.Plan) {
	r.progress.Plan = p
	r.planned = true
	n := len(p.Waves)
	r.progress.Waves = make([]policy.WaveProgress, n)
	for i := range r.progress.Waves {
		r.progress.Waves[i].Phase = policy.WavePending
	}
	r.outcomes, r.reports, r.waves = make([][]TargetOutcome, n), make([]Report, n), make([]*line, n)
	r.batched = make([][]batchView, n)
	r.openedAt, r.closedAt = make([]time.Time, n), make([]time.Time, n)
	r.changed = true
}

// prepareRollback loads what a closed rollout had reached, so that the same engine takes it back.
func (r *rollout) prepareRollback(ctx workflow.Context) error {
	const page = 500
	for offset := 0; ; offset += page {
		var answer activities.RecordAnswer
		in := activities.RecordPage{Rollout: r.in.Of, Offset: offset, Limit: page}
		if err := workflow.ExecuteActivity(bookkeeping(ctx, "Read what rollout "+clip(r.in.Of, 40)+" reached"), acts.LoadRecord, in).Get(ctx, &answer); err != nil {
			return err
		}
		if answer.Missing {
			r.phase, r.reason = Failed, fmt.Sprintf("refused, nothing was started: the ledger has no rollout %q", r.in.Of)
			return nil
		}
		if offset == 0 {
			if answer.Record.Deployment != r.in.Deployment || answer.Record.Environment != r.in.Environment {
				r.phase, r.reason = Failed, fmt.Sprintf("refused, nothing was started: rollout %s belongs to %s in %s", r.in.Of, answer.Record.Deployment, answer.Record.Environment)
				return nil
			}
			r.in.Version.Name = answer.Record.Version
			var plan policy.Plan
			if err := workflow.ExecuteActivity(bookkeeping(ctx, "Read its plan"), acts.LoadPlan, answer.Record.PlanDigest).Get(ctx, &plan); err != nil {
				return err
			}
			r.take(plan)
		}
		for _, t := range answer.Record.Targets {
			if t.Wave < 1 || t.Wave > len(r.outcomes) {
				continue
			}
			r.outcomes[t.Wave-1] = append(r.outcomes[t.Wave-1], TargetOutcome{Name: t.Name, Wave: t.Wave, State: policy.TargetState(t.State), Reason: t.Reason,
				Reached: t.Reached, From: t.From, FromKnown: t.FromKnown, Started: len(r.outcomes[t.Wave-1]) + 1})
		}
		if offset+page >= answer.Total {
			if !Phase(answer.Record.State).Ended() {
				r.cutOff(ctx)
			}
			break
		}
	}
	if refused := r.limit(); refused != "" {
		r.phase, r.reason = Failed, "refused, nothing was started: "+refused
		r.take(policy.Plan{})
		r.planned = false
		return nil
	}
	for i := range r.progress.Waves {
		r.progress.Waves[i].Phase = policy.WaveDone
		r.recount(i)
	}
	if r.progress.Stop.Cause == policy.NotStopped {
		r.progress.Stop = policy.Stop{Cause: policy.StoppedRollback, By: r.in.By, Reason: r.in.Reason}
		if only := r.in.limited(); only != "" {
			r.progress.Stop.Reason = strings.TrimSuffix("only "+only+": "+r.in.Reason, ": ")
		}
	}
	return nil
}

// cutOff takes a rollout whose workflow was ended from outside: what it did is on record up to its last closed wave, and
// the next one may have been open.
func (r *rollout) cutOff(ctx workflow.Context) {
	for i, w := range r.progress.Plan.Waves {
		if w.Size > 0 && len(r.outcomes[i]) == 0 {
			r.lost(ctx, i)
			return
		}
	}
}

// recount brings a closed wave's counts in line with its outcomes.
func (r *rollout) recount(i int) {
	w := &r.progress.Waves[i]
	w.Reached, w.Counts = 0, policy.WaveCounts{}
	if w.ByHand {
		w.Counts.Skipped = r.progress.Plan.Waves[i].Size - len(r.outcomes[i]) // left out before they had been read
	}
	for _, t := range r.outcomes[i] {
		if t.Reached {
			w.Reached++
		}
		switch {
		case t.State == policy.Skipped:
			w.Counts.Skipped++
		case t.ByHand && t.State == policy.RolledBack:
			w.Counts.Skipped++
			w.Counts.Taken++
		case t.Counted:
			w.Counts.Failures++
		case t.State == policy.Unreachable:
			w.Counts.Unreachable++
		case t.State == policy.Succeeded || t.State == policy.NoChange:
			w.Counts.Succeeded++
		}
	}
}

// walk carries out what policy.Decide says until it says that the rollout has ended.
func (r *rollout) walk(ctx workflow.Context) error {
	if err := r.record(ctx); err != nil {
		return err
	}
	for {
		hear(ctx)
		r.changed = false
		now := workflow.Now(ctx)
		d := policy.Decide(r.progress, now)
		r.reason, r.waits = d.Reason, append(d.Waits, r.stepsInFlight()...)
		switch d.Action {
		case policy.ActEnd:
			r.phase, r.waits = Phase(d.Ending), nil
			return nil
		case policy.ActAsk:
			r.progress.Waves[d.Wave-1].AskedAt = now
			r.note(ctx, whoSluice, fmt.Sprintf("approval asked for wave %d (%s)", d.Wave, r.progress.Plan.Waves[d.Wave-1].Name), "")
			continue
		case policy.ActPass:
			r.progress.Waves[d.Wave-1].Phase = policy.WavePassed
			r.note(ctx, whoSluice, fmt.Sprintf("wave %d (%s) passed over", d.Wave, r.progress.Plan.Waves[d.Wave-1].Name), r.progress.Plan.Waves[d.Wave-1].Passed)
			continue
		case policy.ActOpen:
			r.open(ctx, d.Wave)
			continue
		case policy.ActRollBack:
			r.takeBack(ctx, d.Wave)
			continue
		case policy.ActWait:
		}
		r.setPhase(ctx, d)
		r.show(ctx)
		wake := func() bool { return r.changed }
		var err error
		if d.Next.IsZero() {
			err = workflow.Await(ctx, wake)
		} else {
			_, err = workflow.AwaitWithOptions(ctx, workflow.AwaitOptions{Timeout: d.Next.Sub(now), TimerOptions: workflow.TimerOptions{Summary: clip(d.Reason, 300)}}, wake)
		}
		if err != nil {
			return err
		}
	}
}

// stepsInFlight are what a stopped rollout waits for that nobody can lift: the first of them by name.
func (r *rollout) stepsInFlight() []policy.Wait {
	names := r.inFlight()
	if len(names) == 0 || !stopsForGood(r.progress) {
		return nil
	}
	more := ""
	if n := len(names) - 10; n > 0 {
		names, more = names[:10], fmt.Sprintf(" and %d more", n)
	}
	return []policy.Wait{{Reason: "a step must end first on " + strings.Join(names, ", ") + more, Rule: "step", Lifts: "time: each step ends by itself, at its deadline at the latest"}}
}

// setPhase shows a waiting rollout: RollingBack over Paused over Holding over AwaitingApproval over Running.
func (r *rollout) setPhase(_ workflow.Context, d policy.Decision) {
	switch {
	case d.RollingBack:
		r.phase = RollingBack
	case r.progress.Paused:
		r.phase = Paused
	case d.Holding:
		r.phase = Holding
	case d.Awaiting:
		r.phase = AwaitingApproval
	default:
		r.phase = Running
	}
}

// control is what holds for waves now.
func (r *rollout) control() policy.Control {
	switch {
	case r.progress.Stop.Cause == policy.StoppedBreach && r.progress.Plan.Rollback.OnBreach != policy.BreachRolloutAll && r.progress.Plan.Rollback.OnBreach != policy.BreachWaveBack:
		return policy.ControlFinish // what is in flight finishes, its checks too
	case r.progress.Stop.Cause == policy.StoppedFailed:
		return policy.ControlFinish
	case r.progress.Stop.Cause != policy.NotStopped:
		return policy.ControlStop
	case r.progress.Paused || r.progress.ByHand.Holding:
		return policy.ControlPause
	}
	return policy.ControlRun
}

// controlOf is what holds for wave i now.
func (r *rollout) controlOf(i int) policy.Control {
	if r.progress.Waves[i].ByHand {
		return policy.ControlStop
	}
	return r.control()
}

// tellWaves passes the present control to all that is open.
func (r *rollout) tellWaves(ctx workflow.Context) {
	r.markStop(ctx)
	for i := range r.progress.Waves {
		if r.progress.Waves[i].Open {
			r.waves[i].tell(ctx, r.controlOf(i))
		}
	}
	c := r.control()
	for _, name := range workflow.DeterministicKeys(r.lateOpen) {
		r.lateOpen[name].tell(ctx, c)
	}
	if r.progress.Stop.Cause == policy.StoppedAbort {
		for _, part := range r.backOpen {
			part.child.SignalChildWorkflow(ctx, controlSignal, policy.ControlStop)
		}
	}
}

// markStop has a stop that nothing undoes noted where targets look before they ask: where many are in flight, the signals
// that tell them take their time.
func (r *rollout) markStop(ctx workflow.Context) {
	open := len(r.lateOpen) > 0 || slices.ContainsFunc(r.progress.Waves, func(w policy.WaveProgress) bool { return w.Open })
	if r.marked || !open || r.control() != policy.ControlStop || workflow.GetVersion(ctx, changeMarksStop, workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return
	}
	r.marked = true
	mark := workflow.ExecuteLocalActivity(marking(ctx), acts.MarkStopped, r.in.Rollout)
	workflow.Go(ctx, func(ctx workflow.Context) {
		if err := mark.Get(ctx, nil); err != nil {
			workflow.GetLogger(ctx).Warn("The stop could not be marked; targets hear of it by signal alone", "error", err)
		}
	})
}

// open opens a wave.
func (r *rollout) open(ctx workflow.Context, number int) {
	i := number - 1
	plan := r.progress.Plan.Waves[i]
	in := WaveInput{Subject: r.subject(), Wave: number, Control: r.control()}
	for n, w := range r.progress.Waves {
		if n != i {
			in.Before.Failures += w.Counts.Failures
			in.Before.Unreachable += w.Counts.Unreachable
			in.Before.Skipped += w.Counts.Skipped
		}
	}
	in.Batches, r.batched[i] = plan.Batches, make([]batchView, plan.Batches)
	in.Skips, in.Paced, in.Tells = r.skips, r.paced, maxTells/len(r.progress.Waves)
	id := WaveID(r.in.Environment, r.in.Deployment, r.in.Rollout, number)
	summary := fmt.Sprintf("wave %d (%s): %d targets to %s", number, plan.Name, plan.Size, r.in.Version.Name)
	w := &r.progress.Waves[i]
	w.Phase, w.Open = policy.WaveRunning, true
	r.openedAt[i] = workflow.Now(ctx)
	wave := workflow.ExecuteChildWorkflow(child(ctx, id, ControlQueue, clip(summary, 300), r.subject().attributes()...), WaveType, in)
	r.waves[i] = &line{child: wave}
	r.note(ctx, whoSluice, fmt.Sprintf("wave %d (%s) opened: %s, %d at a time", number, plan.Name, counted(plan.Size, "target"), plan.MaxConcurrency), "")
	workflow.Go(ctx, func(ctx workflow.Context) {
		var result WaveResult
		err := wave.Get(ctx, &result)
		r.closed(ctx, i, result, err)
	})
}

// closed takes a wave's result.
func (r *rollout) closed(ctx workflow.Context, i int, result WaveResult, err error) {
	w := &r.progress.Waves[i]
	if err == nil && result.Opened > 0 {
		result.Targets, err = r.gather(ctx, i, result.Opened, result.Lost)
	}
	r.closedAt[i] = workflow.Now(ctx)
	r.changed = true
	if err != nil {
		w.Phase, w.Reason = policy.WaveFailed, "its workflow ended without a result: "+cause(err)
		// Until its targets are listed it counts as open, so that no rollback ends without them, and as stopped, so that
		// none of the others waits for the list.
		r.reports[i].Stopped = len(r.batched[i]) == 0
		r.changed = true
		r.lost(ctx, i)
		w.Open = false
		r.unanswered(ctx, i)
		r.countByHand(ctx)
		r.stop(ctx, policy.StoppedFailed, i, w.Reason)
		r.changed = true
		return
	}
	w.Open = false
	w.Phase, w.Reason, w.Counts, w.Waits = result.Phase, result.Reason, result.Counts, nil
	if result.Paced != nil {
		r.paced = result.Paced
	}
	r.outcomes[i] = result.Targets
	r.closedByHand(ctx, i)
	r.overlay(i, r.backs) // some may have gone back while others were still in flight
	r.recount(i)
	r.remember(r.outcomes[i])
	r.note(ctx, whoSluice, fmt.Sprintf("wave %d (%s) %s: %d succeeded, %d failed", i+1, r.progress.Plan.Waves[i].Name, result.Phase, result.Counts.Succeeded, result.Counts.Failures), result.Reason)
	for _, a := range result.Answers {
		r.answer(ctx, a)
	}
	r.unanswered(ctx, i)
	r.finishByHand(ctx, i)
	r.countByHand(ctx)
	switch result.Phase {
	case policy.WaveBreached:
		r.stop(ctx, policy.StoppedBreach, i, result.Reason)
	case policy.WaveFailed:
		r.stop(ctx, policy.StoppedFailed, i, result.Reason)
	case policy.WaveStopped:
		if r.progress.Stop.Cause == policy.NotStopped && !w.ByHand {
			// Somebody cancelled the wave itself: that means abort, as it does for the rollout.
			r.apply(ctx, Abort, Command{By: whoTemporal, Reason: fmt.Sprintf("the workflow of wave %d was cancelled", i+1)}, "", TargetFacts{})
		}
	case policy.WavePending, policy.WavePassed, policy.WaveRunning, policy.WaveHeld, policy.WaveDraining, policy.WaveVerified, policy.WaveSoaking, policy.WaveDone:
	}
	r.recordSoon(ctx)
}

// recordSoon writes what has changed to the ledger beside everything else.
func (r *rollout) recordSoon(ctx workflow.Context) {
	r.progress.Unrecorded = true
	r.unwritten++
	workflow.Go(ctx, func(ctx workflow.Context) {
		if err := r.record(ctx); err != nil {
			workflow.GetLogger(ctx).Error("The rollout could not be recorded", "error", err)
		}
		r.unwritten--
		r.progress.Unrecorded = r.unwritten > 0
		r.changed = true
	})
}

// unanswered answers the orders that came too late for a wave.
func (r *rollout) unanswered(ctx workflow.Context, i int) {
	r.askAgain(ctx, i)
	for _, n := range workflow.DeterministicKeys(r.pending) {
		if o := r.pending[n]; o >= r.dropped && r.receipts[o-r.dropped].Wave == i+1 {
			r.answer(ctx, OrderAnswer{Number: n, Answer: "the wave closed before it could be carried out; send it again"})
		}
	}
}

// lost takes a wave that was ended from outside: which of its targets were reached is not known, so that each is listed
// as one that a person must look at, and none is forgotten by a rollback.
func (r *rollout) lost(ctx workflow.Context, i int) {
	if n := len(r.batched[i]); n > 0 {
		r.lostBatches(ctx, i, n)
	} else {
		slice, err := r.loadWave(ctx, i)
		if err != nil {
			workflow.GetLogger(ctx).Error("The targets of a lost wave could not be listed", "error", err)
			return
		}
		r.outcomes[i] = append(r.outcomes[i], lostTargets(i, 0, slice.Wave.Targets, "wave")...)
	}
	r.overlay(i, r.backs) // some may have gone back before
	r.recount(i)
	r.remember(r.outcomes[i])
}

// stop notes a stop that nobody sent. A person's stop is stronger.
func (r *rollout) stop(ctx workflow.Context, cause policy.StopCause, wave int, reason string) {
	if r.progress.Stop.Cause != policy.NotStopped {
		return
	}
	r.progress.Stop = policy.Stop{Cause: cause, Reason: reason, Wave: wave + 1}
	r.progress.Paused, r.progress.ByHand.Holding, r.progress.ByHand.Taken = false, false, nil
	r.note(ctx, whoSluice, fmt.Sprintf("wave %d (%s): nothing new starts", wave+1, r.progress.Plan.Waves[wave].Name), reason)
	r.tellWaves(ctx)
}

// heard takes a report.
func (r *rollout) heard(ctx workflow.Context, report Report) {
	r.changed = true
	if report.Batch > 0 {
		r.heardBatch(report)
		return
	}
	for _, a := range report.Answers {
		r.answer(ctx, a)
	}
	if report.Part > 0 {
		for _, part := range r.backOpen {
			if part.number == report.Part && report.Sequence > part.report.Sequence {
				part.report = report
			}
		}
		r.holdBack()
		r.freeByHand(ctx)
		return
	}
	i := report.Wave - 1
	if i < 0 || i >= len(r.reports) || !r.progress.Waves[i].Open || r.progress.Waves[i].Phase == policy.WaveFailed || report.Sequence <= r.reports[i].Sequence {
		return
	}
	before := r.reports[i]
	r.reports[i] = report
	w := &r.progress.Waves[i]
	if report.Phase != w.Phase && (report.Phase == policy.WaveSoaking || report.Phase == policy.WaveHeld) {
		r.note(ctx, whoSluice, fmt.Sprintf("wave %d (%s) %s", i+1, r.progress.Plan.Waves[i].Name, report.Phase), report.Reason)
	}
	w.Phase, w.Reason, w.Counts, w.SoakUntil, w.Waits = report.Phase, report.Reason, report.Counts, report.SoakUntil, report.Waits
	if len(report.ByHand) > 0 || len(before.ByHand) > 0 {
		r.waveTookBack(ctx, before.ByHand, report.ByHand)
		r.countByHand(ctx)
	}
	known := map[string]bool{}
	for _, t := range before.Attention {
		known[t.Name] = true
	}
	for _, t := range report.Attention {
		if !known[t.Name] {
			r.note(ctx, whoSluice, fmt.Sprintf("%s: %s", t.Name, t.State), t.Reason)
		}
	}
	breached := report.Breached
	if breached == "" {
		// The wave counts with what earlier waves had used when it opened; a late retry may have failed since.
		breached = r.progress.Overspent()
	}
	if breached != "" {
		r.stop(ctx, policy.StoppedBreach, i, breached)
	}
}

// counted is a number of things.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
