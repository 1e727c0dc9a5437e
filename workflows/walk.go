package workflows

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// acts names the activities; it is never called.
var acts *activities.Activities

// TargetOutcome is where a target stands when its wave has closed: all that a rollback needs.
type TargetOutcome struct {
	Name    string             `json:"name"`
	Wave    int                `json:"wave"`
	State   policy.TargetState `json:"state"`
	Reason  string             `json:"reason,omitempty"`
	Attempt int                `json:"attempt,omitempty"`
	// Started is its place in the order of starts: of its wave, or of its batch. Begun is when that was, in milliseconds, where
	// batches share a wave.
	Started   int    `json:"started,omitempty"`
	Begun     int64  `json:"begun,omitempty"`
	Reached   bool   `json:"reached,omitempty"`
	From      string `json:"from,omitempty"`
	FromKnown bool   `json:"fromKnown,omitempty"`
	Counted   bool   `json:"counted,omitempty"`
	// ByHand reports that a person had it taken back; its state says what came of it.
	ByHand bool `json:"byHand,omitempty"`
}

// Order tells a wave what a person wants of it: to skip, retry or bring back one target, to accept what it holds for, or to go on
// with a rollback that is over its budget.
type Order struct {
	// Number tells orders apart.
	Number int    `json:"number"`
	Do     string `json:"do"` // skip, retry, rollback, approve, resume
	Target string `json:"target,omitempty"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// OrderAnswer is what became of an Order.
type OrderAnswer struct {
	Number   int    `json:"number"`
	Accepted bool   `json:"accepted"`
	Answer   string `json:"answer"`
	// Idle reports that it was accepted and changes nothing, Unknown that the wave has no such target.
	Idle    bool `json:"idle,omitempty"`
	Unknown bool `json:"unknown,omitempty"`
	// Lifted is for how many targets it lifted what the wave held for.
	Lifted int `json:"lifted,omitempty"`
}

// walk starts Target workflows for a list of targets as policy.DecideWave says. A Wave and a Rollback are both walks.
type walk struct {
	subject  Subject
	id       string // this workflow's own id, under which the targets' ids are
	number   int    // wave, or part of a rollback
	restores bool   // a rollback
	slice    activities.WaveSlice
	verify   bool // read targets back after a restore

	state   policy.WaveState
	details []targetDetail // beside state.Targets
	started int
	phase   policy.WavePhase
	reason  string
	soak    *soak // nil: not begun
	answers []OrderAnswer
	// waits and waiting are what targets wait for besides slots, as last decided.
	waits   []policy.Wait
	waiting []policy.TargetWait

	changed  bool
	teller   teller
	pausedAt time.Time
	// share is what the walk is given as a batch of a wave; nil: it is the whole of one.
	share *share
}

// targetDetail is what a walk remembers of a target beside what decides.
type targetDetail struct {
	wave      int
	broken    bool  // its change failed, so that it may run neither version
	line      *line // to the present attempt
	baselines map[int]map[string]any
	failure   string    // why its change failed, while it goes back
	first     time.Time // when its first attempt began
	// begun is when its last attempt began; recalled: what it waits for went back before that had asked for the change.
	begun    time.Time
	recalled bool
	byWhom   string // who took it back by hand, and why
}

// settle runs the walk until nothing more will happen, and returns the phase it ended in.
func (w *walk) settle(ctx workflow.Context) error {
	for {
		hear(ctx)
		w.changed = false
		now := workflow.Now(ctx)
		w.takeShare()
		w.recall(ctx)
		w.state.Mark(now)
		d := policy.DecideWave(w.state, now)
		if d.Breached != "" && w.state.Breached == "" {
			w.breach(ctx, d.Breached)
		}
		w.phase, w.reason = d.Phase, d.Reason
		w.waits, w.waiting = d.Waits, d.Waiting
		for _, i := range d.Start {
			w.start(ctx, i)
		}
		for _, i := range d.Again {
			w.state.Targets[i].Tried = true
			w.start(ctx, i)
		}
		w.soakShare(ctx)
		switch d.Phase {
		case policy.WaveVerified:
			if w.share == nil && w.soakOver(ctx) || w.share != nil && w.share.lease.Close {
				w.phase = policy.WaveDone
				return nil
			}
		case policy.WaveBreached:
			if !w.restores {
				return nil
			}
			// A rollback over its budget pauses for a person.
			w.phase = policy.WaveHeld
		case policy.WaveFailed, policy.WaveStopped:
			return nil
		case policy.WaveRunning, policy.WaveHeld, policy.WaveDraining, policy.WavePending, policy.WavePassed, policy.WaveSoaking, policy.WaveDone:
		}
		if w.share == nil {
			w.tell(ctx)
		} else {
			w.tellShare(ctx, d)
		}
		w.show(ctx)
		if err := w.await(ctx, d, now); err != nil {
			return err
		}
	}
}

// await waits until something happens, or for the next moment that was decided.
func (w *walk) await(ctx workflow.Context, d policy.WaveDecision, now time.Time) error {
	wake := func() bool { return w.changed }
	if d.Next.IsZero() {
		return workflow.Await(ctx, wake)
	}
	summary := "Wait for the next start"
	if len(d.Waits) > 0 {
		summary = d.Waits[0].Reason
	}
	_, err := workflow.AwaitWithOptions(ctx, workflow.AwaitOptions{Timeout: d.Next.Sub(now), TimerOptions: workflow.TimerOptions{Summary: clip(summary, 200)}}, wake)
	return err
}

// breach notes that the budget is exceeded: nothing new starts, and targets that have not been asked yet are told.
func (w *walk) breach(ctx workflow.Context, reason string) {
	w.state.Breached = reason
	w.pass(ctx, policy.ControlFinish)
}

// pass tells all targets in flight. Restores are never told: a way back is always finished.
func (w *walk) pass(ctx workflow.Context, c policy.Control) {
	if w.restores {
		return
	}
	for i := range w.state.Targets {
		t := &w.state.Targets[i]
		if !t.InFlight || t.State == policy.Restoring {
			continue
		}
		w.details[i].line.tell(ctx, c)
	}
}

// control takes what the Rollout says.
func (w *walk) control(ctx workflow.Context, c policy.Control) {
	if c == w.state.Control {
		return
	}
	switch {
	case c == policy.ControlPause:
		w.pausedAt = workflow.Now(ctx)
	case w.state.Control == policy.ControlPause && c == policy.ControlRun:
		w.resumePaces(ctx)
	}
	w.state.Control = c
	w.changed = true
	if c == policy.ControlFinish && w.state.Breached == "" {
		w.breach(ctx, "the rollout was stopped: its budget is exceeded outside of this wave")
		return
	}
	// After a breach only a stop says anything new.
	if w.state.Breached == "" || c == policy.ControlStop {
		w.pass(ctx, c)
	}
}

// start begins an attempt at a target.
func (w *walk) start(ctx workflow.Context, i int) {
	direction := executors.Apply
	if w.restores {
		direction = executors.Restore
	}
	w.attempt(ctx, i, direction)
}

func (w *walk) attempt(ctx workflow.Context, i int, direction executors.Direction) {
	t, d := &w.state.Targets[i], &w.details[i]
	t.Attempt++
	if t.Started == 0 {
		w.started++
		t.Started, d.first = w.started, workflow.Now(ctx)
	}
	t.InFlight, t.State, t.Reason = true, policy.Applying, ""
	if direction == executors.Apply && t.Pace > 0 {
		w.state.Paces[t.Pace-1].Last = workflow.Now(ctx)
	}
	if direction == executors.Restore {
		t.State = policy.Restoring
	}
	in := TargetInput{Subject: w.subject, Target: t.Name, Wave: d.wave, Attempt: t.Attempt, Direction: direction, From: t.From, FromKnown: t.FromKnown,
		Broken: d.broken, SkipVerify: direction == executors.Restore && !w.verify, Deadline: w.slice.Deadline, Checks: direction == executors.Apply && w.checked(t.Metrics)}
	if direction == executors.Apply {
		in.Control, in.Again = w.state.Control, t.Reached
		if in.Again {
			in.Baselines = d.baselines
		}
		d.recalled, d.begun = false, workflow.Now(ctx)
	}
	if w.restores {
		in.Part = w.number
	}
	attrs := append(w.subject.attributes(), targetKey.ValueSet(t.Name))
	summary := fmt.Sprintf("%s: %s %s", t.Name, direction, versionOr(w.subject.Version))
	if direction == executors.Restore {
		summary = fmt.Sprintf("%s: back to %s", t.Name, versionOr(t.From))
	}
	attempt := workflow.ExecuteChildWorkflow(child(ctx, TargetID(w.id, t.Name, t.Attempt), TargetQueue, clip(summary, 200), attrs...), TargetType, in)
	d.line = &line{child: attempt}
	workflow.Go(ctx, func(ctx workflow.Context) {
		var r TargetResult
		err := attempt.Get(ctx, &r)
		w.ended(ctx, i, direction, r, err)
		w.changed = true
	})
}

// checked reports whether any of these metrics is measured during apply.
func (w *walk) checked(metrics []int) bool {
	for _, m := range metrics {
		if m < len(w.slice.Applied) && w.slice.Applied[m] {
			return true
		}
	}
	return false
}

// ended takes an attempt's result.
func (w *walk) ended(ctx workflow.Context, i int, direction executors.Direction, r TargetResult, err error) {
	t, d := &w.state.Targets[i], &w.details[i]
	t.InFlight = false
	if err != nil {
		// Terminated or timed out from outside: what it had done by then is unknown.
		t.State, t.Reason, t.Reached, t.Counted = policy.NeedsRecovery, clip("its workflow ended without a result: "+cause(err), maxReason), true, true
		return
	}
	if direction == executors.Restore {
		w.returned(i, r)
		return
	}
	d.failure = ""
	if r.FromKnown && !t.FromKnown && !t.Reached {
		// An attempt at a target that was reached before may read what the change left: the first reading is the one to
		// return to, and without it none is.
		t.From, t.FromKnown = r.From, true
	}
	w.keepPace(i, r.Asked)
	t.State, t.Reason, t.Reached, t.Held = r.State, r.Reason, r.Reached || t.Reached, r.Held
	d.baselines, d.broken = r.Baselines, r.State == policy.Failed
	if t.ByHand && w.state.Control != policy.ControlStop {
		w.takeBack(ctx, i)
		return
	}
	switch r.State {
	case policy.Failed, policy.NeedsRecovery:
		t.Counted = true
	case policy.Succeeded, policy.NoChange:
		t.Counted = false
	case policy.Verifying:
		// Somebody cancelled its workflow: checks that were cut off are not passed.
		if w.state.Control != policy.ControlStop {
			t.State, t.Held = policy.Waiting, true
		}
	case policy.Pending:
		if d.recalled && !t.ByHand {
			t.Reason = "" // it waits again
		} else if w.state.Control != policy.ControlStop && w.state.Breached == "" {
			// Likewise, before it was asked: it is left out, not begun again.
			t.State, t.Reason, t.Counted = policy.Skipped, "left out: its workflow was cancelled", false
		}
	case policy.Waiting, policy.Preparing, policy.Applying, policy.Restoring, policy.Unreachable, policy.Deferred, policy.Skipped,
		policy.Removed, policy.RolledBack:
	}
	if r.State == policy.Failed {
		w.goBack(ctx, i)
	}
}

// goBack brings one failed target back, if the policy says so and no stop is about to.
func (w *walk) goBack(ctx workflow.Context, i int) {
	t := &w.state.Targets[i]
	if t.Reached && t.FromKnown && w.slice.CanReturn && (t.From != "" || w.slice.Uninstalls) && w.slice.Rollback.OnTargetFailed == policy.TargetGoesBack && w.state.Control != policy.ControlStop {
		w.details[i].failure = t.Reason
		w.attempt(ctx, i, executors.Restore)
	}
}

// returned takes the result of a way back. In a wave the target stays what it was, failed, and says that it went back.
func (w *walk) returned(i int, r TargetResult) {
	t, d := &w.state.Targets[i], &w.details[i]
	t.Reached = r.Reached
	if t.ByHand && d.failure == "" {
		w.cameBack(i, r)
		return
	}
	if w.restores {
		t.State, t.Reason = r.State, r.Reason
		t.Counted = r.State == policy.Failed || r.State == policy.NeedsRecovery
		if r.State == policy.Skipped {
			t.Counted = false
		}
		return
	}
	t.State = policy.Failed
	if r.Reached {
		t.State = policy.NeedsRecovery
	}
	t.Counted = true
	back := clip("; "+r.Reason, maxReason/2)
	t.Reason = clip(d.failure, maxReason-len(back)) + back
}

// order carries out what a person wants, and answers.
func (w *walk) order(ctx workflow.Context, o Order) {
	a := OrderAnswer{Number: o.Number}
	if o.Do == RollBack {
		var answers bool
		if a, answers = w.bringBack(ctx, o); !answers {
			return
		}
	} else {
		held := w.held()
		if a.Accepted, a.Answer = w.obey(ctx, o); a.Accepted && o.Do == Approve {
			a.Lifted = held
		}
		// Another batch may have it.
		a.Unknown = w.share != nil && o.Target != "" && w.indexOf(o.Target) < 0
	}
	w.answers = append(w.answers, a)
	if len(w.answers) > 50 {
		w.answers = w.answers[len(w.answers)-50:]
	}
	w.changed = true
}

func (w *walk) obey(ctx workflow.Context, o Order) (bool, string) {
	switch o.Do {
	case Resume:
		if w.state.Breached == "" {
			return false, "it is not over its budget"
		}
		// A person has seen it: the budget has served its purpose.
		w.state.Breached, w.state.Budget, w.state.Rollout = "", nil, nil
		return true, "the rollback goes on with the others"
	case Approve:
		return w.accept(o)
	}
	i := w.indexOf(o.Target)
	if i < 0 {
		return false, fmt.Sprintf("wave %d has no target %q", w.number, o.Target)
	}
	t := &w.state.Targets[i]
	switch {
	case t.InFlight:
		return false, fmt.Sprintf("%s is in flight (%s) and finishes its steps first", t.Name, t.State)
	case o.Do == Skip && t.State == policy.RolledBack:
		return false, t.Name + " went back and is left out already"
	case o.Do == Skip && (t.State == policy.Succeeded || t.State == policy.NoChange):
		return false, fmt.Sprintf("%s is done already (%s)", t.Name, t.State)
	case o.Do == Skip:
		t.State, t.Counted, t.Held = policy.Skipped, false, false
		t.Reason = clip("left out"+byAndWhy(o.By, o.Reason), maxReason)
		if w.state.Breached != "" {
			return true, t.Name + " is left out; the breach stands"
		}
		return true, t.Name + " is left out"
	case o.Do == Retry && (w.state.Breached != "" || w.state.Control == policy.ControlStop):
		return false, "nothing new starts any more: " + cmp.Or(w.state.Breached, "the rollout was stopped")
	case o.Do == Retry && w.state.Control == policy.ControlPause:
		return false, "the rollout is paused; resume it first"
	case o.Do == Retry && t.Held && workflow.GetVersion(ctx, changeRetryHeld, workflow.DefaultVersion, 1) != workflow.DefaultVersion:
		t.State, t.Reason, t.Held = policy.Pending, "", false
		w.soak = nil
		return true, fmt.Sprintf("%s is measured again", t.Name)
	case o.Do == Retry && !retriable(t.State):
		return false, fmt.Sprintf("%s is %s: there is nothing to try again", t.Name, t.State)
	case o.Do == Retry:
		t.State, t.Reason, t.Held, t.Tried, t.ByHand = policy.Pending, "", false, false, false
		w.soak = nil // it runs from the moment at which the last target is terminal
		return true, fmt.Sprintf("%s is tried again with %s", t.Name, w.subject.Version)
	}
	return false, fmt.Sprintf("unknown order %q", o.Do)
}

// indexOf returns the index of a target, or -1.
func (w *walk) indexOf(target string) int {
	return slices.IndexFunc(w.state.Targets, func(t policy.TargetProgress) bool { return t.Name == target })
}

// retriable reports whether a person may have a target in this state tried again.
func retriable(s policy.TargetState) bool {
	return s == policy.Failed || s == policy.NeedsRecovery || s == policy.Unreachable || s == policy.Skipped || s == policy.RolledBack
}

// accept lets pass what the wave holds for.
func (w *walk) accept(o Order) (bool, string) {
	n := 0
	for i := range w.state.Targets {
		if t := &w.state.Targets[i]; t.Held && !t.InFlight {
			t.Held, t.State = false, policy.Succeeded
			t.Reason = clip("accepted"+byAndWhy(o.By, o.Reason)+"; it was: "+t.Reason, maxReason)
			n++
		}
	}
	if n > 0 {
		return true, acceptedOf(n)
	}
	if w.phase == policy.WaveHeld && w.state.Count().Skipped < len(w.state.Targets) {
		return false, "an approval does not lift what it holds for: " + w.reason
	}
	if w.phase == policy.WaveHeld {
		w.state.AllSkippedAccepted = true
		return true, "the wave passes without its skipped targets"
	}
	return false, fmt.Sprintf("wave %d does not hold for anything", w.number)
}

// held is how many targets hold for a person.
func (w *walk) held() int {
	n := 0
	for _, t := range w.state.Targets {
		if t.Held && !t.InFlight {
			n++
		}
	}
	return n
}

func acceptedOf(n int) string {
	return fmt.Sprintf("accepted what the checks of %d targets left open", n)
}

func byAndWhy(by, why string) string {
	out := ""
	if by != "" {
		out += " by " + by
	}
	if why != "" {
		out += ": " + why
	}
	return out
}

// reasonBytes is how much of a wave's result is reasons: with names and versions as long as they may be, the result of
// 500 targets stays below 256 KiB.
const reasonBytes = 32 << 10

// outcomes are all targets as they stand. When very many have long reasons the later ones are cut short; each Target's
// own workflow has them whole.
func (w *walk) outcomes() []TargetOutcome {
	out := make([]TargetOutcome, len(w.state.Targets))
	left := reasonBytes
	for i := range w.state.Targets {
		out[i] = w.outcome(i)
		out[i].Reason = clip(out[i].Reason, max(min(left, maxReason), 4))
		left -= len(out[i].Reason)
	}
	return out
}

func (w *walk) outcome(i int) TargetOutcome {
	t := w.state.Targets[i]
	o := TargetOutcome{Name: t.Name, Wave: w.details[i].wave, State: t.State, Reason: t.Reason, Attempt: t.Attempt, Started: t.Started,
		Reached: t.Reached, From: t.From, FromKnown: t.FromKnown, Counted: t.Counted, ByHand: t.ByHand}
	if w.share != nil && t.Started > 0 {
		o.Begun = w.details[i].first.UnixMilli()
	}
	return o
}

// targetStatus is one target for people.
func (w *walk) targetStatus(i int) TargetStatus {
	o := w.outcome(i)
	s := TargetStatus{Name: o.Name, Wave: o.Wave, State: o.State, Reason: o.Reason, Reached: o.Reached, From: o.From, Attempt: o.Attempt}
	if o.Attempt > 0 {
		s.Workflow = TargetID(w.id, o.Name, o.Attempt)
	}
	if wait := w.waitOf(i); wait != nil {
		s.State, s.Reason, s.Next = policy.Waiting, wait.Reason, wait.Next
	}
	return s
}

// waitOf returns what a target that has not started waits for besides a slot, or nil.
func (w *walk) waitOf(i int) *policy.TargetWait {
	at, found := slices.BinarySearchFunc(w.waiting, i, func(wait policy.TargetWait, i int) int { return cmp.Compare(wait.Target, i) })
	if !found || w.state.Targets[i].State != policy.Pending {
		return nil
	}
	return &w.waiting[at]
}

// page answers TargetsQuery.
func (w *walk) page(p TargetsPage) (TargetsAnswer, error) {
	total := len(w.state.Targets)
	from := min(max(0, p.Offset), total)
	limit := p.Limit
	if limit <= 0 || limit > MaxBatchTargets {
		limit = MaxBatchTargets
	}
	out := TargetsAnswer{Total: total, Targets: []TargetStatus{}}
	for i := from; i < min(total, from+limit); i++ {
		out.Targets = append(out.Targets, w.targetStatus(i))
	}
	return out, nil
}

// setup registers what every walk answers and hears.
func (w *walk) setup(cancellable, ctx workflow.Context) error {
	if err := workflow.SetQueryHandlerWithOptions(ctx, TargetsQuery, w.page, workflow.QueryHandlerOptions{
		Description: `The targets, a page at a time. JSON: {"offset":0,"limit":100}`}); err != nil {
		return err
	}
	listen(cancellable, ctx, w.control)
	orders := workflow.GetSignalChannelWithOptions(ctx, targetSignal, workflow.SignalChannelOptions{
		Description: "Not for operators: the Rollout passes commands on with it. Commands go to the Rollout."})
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var o Order
			orders.Receive(ctx, &o)
			w.order(ctx, o)
		}
	})
	return nil
}
