package workflows

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// Subject says which rollout a workflow belongs to.
type Subject struct {
	Rollout     string `json:"rollout"`
	Deployment  string `json:"deployment"`
	Environment string `json:"environment"`
	Version     string `json:"version"`
	Plan        string `json:"plan"`
}

// TargetInput is one attempt at one target.
type TargetInput struct {
	Subject Subject `json:"subject"`
	Target  string  `json:"target"`
	Wave    int     `json:"wave"`
	Attempt int     `json:"attempt"`
	// Direction is apply, or restore: back to From.
	Direction executors.Direction `json:"direction"`
	// From and FromKnown say what to return to, in a restore.
	From      string `json:"from,omitempty"`
	FromKnown bool   `json:"fromKnown,omitempty"`
	// Broken reports, in a restore, that the change had failed: the target may then run neither version.
	Broken bool `json:"broken,omitempty"`
	// Again reports, in an apply, that an earlier attempt had reached it: that it runs the version already is then no
	// sign that nothing was changed, and the checks are owed.
	Again bool `json:"again,omitempty"`
	// Baselines are values from before the change, when an earlier attempt has made it.
	Baselines map[int]map[string]any `json:"baselines,omitempty"`
	// Part is the part of the rollback that this restore belongs to; 0 in a wave.
	Part int `json:"part,omitempty"`
	// SkipVerify leaves the reading back out, in a restore.
	SkipVerify bool            `json:"skipVerify,omitempty"`
	Deadline   policy.Duration `json:"deadline"`
	// Checks reports that metrics are measured after the change.
	Checks bool `json:"checks,omitempty"`
	// Control is what already holds when it starts.
	Control policy.Control `json:"control,omitempty"`
}

// TargetResult is how an attempt ended.
type TargetResult struct {
	State policy.TargetState `json:"state"`
	// Reason is one sentence for people.
	Reason string `json:"reason,omitempty"`
	// Reached reports that the target was asked to change, and is not known to be back.
	Reached   bool   `json:"reached,omitempty"`
	From      string `json:"from,omitempty"`
	FromKnown bool   `json:"fromKnown,omitempty"`
	// Held reports that the checks came to no conclusion.
	Held bool `json:"held,omitempty"`
	// Output is the tail of what a failed change printed.
	Output string `json:"output,omitempty"`
	// Asked is when the change was last asked for: earlier askings were refused for the moment. Zero: never.
	Asked time.Time `json:"asked,omitzero"`
	// Baselines are values from before the change, for the soak.
	Baselines map[int]map[string]any `json:"baselines,omitempty"`
}

// maxIntents is how often one attempt asks again for a change that provably never started. Three survive two crashes
// in the moment between intent and request; more than that is a fault to look at.
const maxIntents = 3

// blockedPause is how long a refused change waits before it asks again; it doubles up to blockedPauseMax.
const (
	blockedPause    = 5 * time.Second
	blockedPauseMax = time.Minute
)

// target is one run of Target.
type target struct {
	in      TargetInput
	control policy.Control
	stage   policy.TargetState
	// intents counts askings for the change since it was last blocked, blocked how often it was.
	intents, blocked int
	// asking reports that the change may have been asked for, and has not ended.
	asking bool
	// portable reports that the baselines are small enough for the wave's soak.
	portable bool
	result   TargetResult
}

// Target changes one target and says what became of it: Observe, Submit once, Await, Verify, and the checks. It always
// reaches a safe point: between Submit and Verify nothing interrupts it.
func Target(cancellable workflow.Context, in TargetInput) (TargetResult, error) {
	t := &target{in: in, control: in.Control, stage: policy.Preparing}
	ctx, _ := workflow.NewDisconnectedContext(cancellable)
	if err := workflow.SetQueryHandlerWithOptions(ctx, StatusQuery, func() (TargetStatus, error) { return t.status(), nil },
		workflow.QueryHandlerOptions{Description: "Where this target stands."}); err != nil {
		return TargetResult{}, err
	}
	listen(cancellable, ctx, func(_ workflow.Context, c policy.Control) { t.control = c })
	t.details(ctx)
	if in.Direction == executors.Restore {
		t.restore(ctx)
	} else {
		t.apply(ctx)
	}
	t.stage = t.result.State
	t.details(ctx)
	if !t.portable {
		t.result.Baselines = nil
	}
	return t.result, nil
}

// listen passes controls on as they come; a cancellation of the workflow means stop. What is final stays.
func listen(cancellable, ctx workflow.Context, set func(workflow.Context, policy.Control)) {
	var last policy.Control
	take := func(ctx workflow.Context, c policy.Control) {
		if final(last, c) {
			return
		}
		last = c
		set(ctx, c)
	}
	channel := workflow.GetSignalChannelWithOptions(ctx, controlSignal, workflow.SignalChannelOptions{
		Description: "Not for operators: the parent workflow tells with it to run, pause, finish or stop. Commands go to the Rollout."})
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var c policy.Control
			channel.Receive(ctx, &c)
			take(ctx, c)
		}
	})
	workflow.Go(ctx, func(ctx workflow.Context) {
		cancellable.Done().Receive(ctx, nil)
		take(ctx, policy.ControlStop)
	})
}

// hear lets the coroutines that listen take what has arrived, before something is decided. A workflow hears of all that
// happened since its last task at once, and its coroutines run in the order in which they began: the one that waited for
// an activity's answer would otherwise act on it before a stop that came with it, or before it, is heard.
func hear(ctx workflow.Context) {
	heard := false
	// The condition fails once, which gives every other coroutine its turn. No error: ctx is never cancelled.
	_ = workflow.Await(ctx, func() bool {
		was := heard
		heard = true
		return was
	})
}

func (t *target) status() TargetStatus {
	return TargetStatus{Name: t.in.Target, Wave: t.in.Wave, State: t.stage, Reason: t.result.Reason, Reached: t.result.Reached || t.asking,
		From: t.result.From, Attempt: t.in.Attempt}
}

func (t *target) details(ctx workflow.Context) {
	text := fmt.Sprintf("**%s** %s", escape(t.in.Target), t.stage)
	if t.result.Reason != "" {
		text += ": " + escape(t.result.Reason)
	}
	workflow.SetCurrentDetails(ctx, text)
}

// stopped reports whether nothing new may begin here any more.
func (t *target) stopped() bool {
	return t.control == policy.ControlStop || t.control == policy.ControlFinish
}

func (t *target) end(state policy.TargetState, format string, args ...any) {
	t.result.State = state
	t.result.Reason = clip(fmt.Sprintf(format, args...), maxReason)
}

// ref names the change for the activities.
func (t *target) ref() activities.ChangeRef {
	ref := activities.ChangeRef{Plan: t.in.Subject.Plan, Rollout: t.in.Subject.Rollout, Target: t.in.Target, Direction: t.in.Direction,
		Version: t.in.Subject.Version, From: t.result.From}
	if t.in.Direction == executors.Restore {
		ref.Version, ref.From = t.in.From, t.in.Subject.Version
	}
	return ref
}

// apply brings the rollout's version to the target.
func (t *target) apply(ctx workflow.Context) {
	var seen activities.Observed
	if err := t.read(ctx, "Read the running version", &seen, readAttempts); err != nil {
		t.end(policy.Unreachable, "its running version could not be read: %s", cause(err))
		return
	}
	t.result.From, t.result.FromKnown = seen.Reading.Version, seen.Reading.Known
	t.result.Baselines, t.portable = seen.Baselines, seen.Portable
	if t.in.Again && len(t.in.Baselines) > 0 {
		// What it was before the change, only the attempt that changed it could see.
		t.result.Baselines, t.portable = t.in.Baselines, true
	}
	there := seen.Reading.Known && seen.Reading.Version == t.in.Subject.Version
	if there && !t.in.Again {
		t.end(policy.NoChange, "it runs %s already", t.in.Subject.Version)
		return
	}
	if !t.mayBegin(ctx) {
		return
	}
	t.stage = policy.Applying
	if there {
		t.end(policy.Succeeded, "an earlier attempt brought it %s", t.in.Subject.Version)
	} else if !t.change(ctx) {
		return
	}
	ended := workflow.Now(ctx)
	if !t.in.Checks {
		return
	}
	hear(ctx)
	if t.control == policy.ControlStop {
		t.unchecked()
		return
	}
	t.check(ctx, ended)
}

// mayBegin waits out a pause, and reports false, with the result set, when a stop came before the change was asked for.
func (t *target) mayBegin(ctx workflow.Context) bool {
	hear(ctx)
	if t.control == policy.ControlPause {
		t.stage = policy.Waiting
		t.result.Reason = "the rollout is paused"
		// The condition needs no time limit: a resume or a stop always comes as a signal.
		if err := workflow.Await(ctx, func() bool { return t.control != policy.ControlPause }); err != nil {
			t.end(policy.Pending, "not started: %v", err)
			return false
		}
		t.result.Reason = ""
	}
	if t.stopped() {
		t.end(policy.Pending, "not started: a stop came first")
		return false
	}
	return true
}

// read runs Observe.
func (t *target) read(ctx workflow.Context, summary string, into *activities.Observed, attempts int32) error {
	return workflow.ExecuteActivity(reading(ctx, summary, attempts), acts.Observe, t.ref()).Get(ctx, into)
}

// change asks for the change and follows it until the target has been read back. It reports whether the wanted version
// runs; if not, the result says why.
func (t *target) change(ctx workflow.Context) bool {
	deadline := workflow.Now(ctx).Add(time.Duration(t.in.Deadline))
	pause := blockedPause
	for {
		r, asked := t.ask(ctx)
		t.asking = false
		t.result.Reached = t.result.Reached || asked
		switch r.Outcome {
		case "": // a stop came before the change had been asked for
			return false
		case executors.Succeeded:
			return t.verify(ctx, r)
		case executors.Failed:
			t.result.Output = r.Output
			t.end(policy.Failed, "%s%s", r.Reason, lastLine(r.Output))
			return false
		case executors.Indeterminate:
			return t.readBack(ctx, r.Reason)
		case executors.Unreachable:
			t.end(policy.Unreachable, "%s", r.Reason)
			return false
		case executors.Blocked:
			left := deadline.Sub(workflow.Now(ctx))
			if left <= 0 {
				t.end(policy.Failed, "blocked until its deadline of %s: %s", t.in.Deadline, r.Reason)
				return false
			}
			t.stage = policy.Waiting
			t.result.Reason = clip(r.Reason, maxReason)
			t.details(ctx)
			// A stop ends the wait at once; in a restore nothing does but the deadline.
			if _, err := workflow.AwaitWithOptions(ctx, workflow.AwaitOptions{Timeout: min(pause, left),
				TimerOptions: workflow.TimerOptions{Summary: "Blocked: " + clip(r.Reason, 200)}}, func() bool { return t.stopped() && t.in.Direction == executors.Apply }); err != nil {
				t.end(policy.Failed, "%v", err)
				return false
			}
			pause = min(2*pause, blockedPauseMax)
			t.result.Reason = ""
			since := workflow.Now(ctx)
			if t.in.Direction == executors.Apply && !t.mayBegin(ctx) {
				return false
			}
			deadline = deadline.Add(workflow.Now(ctx).Sub(since)) // a pause is not the target's
			if !deadline.After(workflow.Now(ctx)) {
				// The refusals have used up the time; it is not asked once more.
				t.end(policy.Failed, "blocked until its deadline of %s: %s", t.in.Deadline, r.Reason)
				return false
			}
			t.stage = policy.Applying
			t.intents, t.blocked = 0, t.blocked+1
		}
	}
}

// ask submits once and awaits the end, adopting the operation when the answer was lost. asked reports whether the
// target may have been asked.
func (t *target) ask(ctx workflow.Context) (r executors.Result, asked bool) {
	for {
		t.intents++
		ref := t.ref()
		ref.Operation = t.operation()
		t.result.Asked = workflow.Now(ctx)
		var ticket executors.Ticket
		err := workflow.ExecuteActivity(submitting(ctx, t.summary("Ask for")), acts.Submit, ref).Get(ctx, &ticket)
		switch failure := typeOf(err); {
		case failure == activities.TypeRejected || failure == activities.TypeInvalid:
			return executors.Result{Outcome: executors.Failed, Reason: "refused: " + cause(err)}, false
		case failure == activities.TypeBlocked:
			return executors.Result{Outcome: executors.Blocked, Reason: cause(err)}, false
		case failure == activities.TypeUnreachable:
			return executors.Result{Outcome: executors.Unreachable, Reason: cause(err)}, false
		case failure == activities.TypeStopped:
			t.awaitStop(ctx, cause(err))
			return executors.Result{}, false
		}
		// Any other error means that the effect is unknown: Await finds out.
		t.asking = true
		in := activities.AwaitInput{Change: ref, Ticket: ticket}
		err = workflow.ExecuteActivity(awaiting(ctx, t.summary("Wait for"), max(time.Duration(t.in.Deadline), time.Second)), acts.Await, in).Get(ctx, &r)
		switch typeOf(err) {
		case "":
			return r, true
		case activities.TypeNotSubmitted:
			t.asking = false
			if t.in.Direction == executors.Apply && !t.mayBegin(ctx) {
				return executors.Result{}, false
			}
			if t.intents < maxIntents {
				continue
			}
			return executors.Result{Outcome: executors.Failed, Reason: fmt.Sprintf("the change could not be asked for in %d tries: %s", maxIntents, cause(err))}, false
		default:
			return executors.Result{Outcome: executors.Indeterminate, Reason: "what became of the change is unknown: " + cause(err)}, true
		}
	}
}

// awaitStop waits for the stop whose mark kept the change from being asked for. It needs no time limit: the signal is under
// way, however late, and what was only not asked must not end as failed at its deadline.
func (t *target) awaitStop(ctx workflow.Context, marked string) {
	t.stage, t.result.Reason = policy.Waiting, marked
	t.details(ctx)
	if err := workflow.Await(ctx, t.stopped); err != nil {
		marked = err.Error()
	}
	t.end(policy.Pending, "not started: %s", marked)
}

// operation is the idempotency key of the current intent.
func (t *target) operation() string {
	attempt := strconv.Itoa(t.in.Attempt)
	if t.in.Part > 1 {
		// Each part counts attempts anew, and a later one may try again what an earlier one could not bring back.
		attempt = fmt.Sprintf("back%d.%s", t.in.Part, attempt)
	}
	return fmt.Sprintf("%s/%s/%s/%s.%d.%d", t.in.Subject.Rollout, t.in.Target, t.in.Direction, attempt, t.blocked, t.intents)
}

func (t *target) summary(verb string) string {
	version := t.ref().Version
	if version == "" {
		version = "no version"
	}
	return verb + " " + clip(version, 100)
}

// verify reads the target back after a change that says it succeeded.
func (t *target) verify(ctx workflow.Context, r executors.Result) bool {
	if t.in.SkipVerify {
		t.end(policy.Succeeded, "not read back: rollback verify: false")
		return true
	}
	t.stage = policy.Verifying
	t.details(ctx)
	var back executors.Result
	err := workflow.ExecuteActivity(reading(ctx, "Read the target back", verifyAttempts), acts.Verify, t.ref()).Get(ctx, &back)
	switch {
	case err != nil:
		t.end(policy.NeedsRecovery, "the change says it succeeded, and the target cannot be read back: %s", cause(err))
		return false
	case back.Outcome == executors.Succeeded:
		t.end(policy.Succeeded, "%s", back.Reason)
		return true
	}
	t.result.Output = r.Output
	t.end(policy.Failed, "the change says it succeeded, but %s", back.Reason)
	return false
}

// readBack decides from the target's real state when the effect of a change is unknown.
func (t *target) readBack(ctx workflow.Context, unknown string) bool {
	t.stage = policy.Verifying
	t.details(ctx)
	var back executors.Result
	err := workflow.ExecuteActivity(reading(ctx, "Read the target's real state", verifyAttempts), acts.Verify, t.ref()).Get(ctx, &back)
	if err == nil && back.Outcome == executors.Succeeded && back.Reading.Known {
		t.end(policy.Succeeded, "%s; the target itself says it runs %s", unknown, t.ref().Version)
		return true
	}
	detail := back.Reason
	if err != nil {
		detail = cause(err)
	}
	t.end(policy.NeedsRecovery, "%s; reading the target does not settle it: %s", unknown, detail)
	return false
}

// check measures the target after its change.
func (t *target) check(ctx workflow.Context, since time.Time) {
	t.stage = policy.Verifying
	t.result.Reason = ""
	t.details(ctx)
	in := activities.CheckInput{Plan: t.in.Subject.Plan, Version: t.in.Subject.Version, During: policy.DuringApply, Since: since,
		Targets: []activities.CheckedTarget{{Name: t.in.Target, Baselines: t.result.Baselines}}}
	stoppable, cancel := workflow.WithCancel(ctx)
	var out activities.CheckOutput
	var err error
	done := false
	workflow.Go(stoppable, func(ctx workflow.Context) {
		err = workflow.ExecuteActivity(checking(ctx, TargetQueue, "Check the target"), acts.Check, in).Get(ctx, &out)
		done = true
	})
	if waitErr := workflow.Await(ctx, func() bool { return done || t.control == policy.ControlStop }); waitErr != nil {
		err = waitErr
	}
	cancel()
	switch {
	case !done:
		t.unchecked()
	case err != nil:
		t.hold("its checks could not be carried out: " + cause(err))
	case len(out.Changed) == 0:
		t.end(policy.Succeeded, "")
	case out.Changed[0].Verdict == policy.VerdictFailed:
		t.end(policy.Failed, "%s", out.Changed[0].Reason)
	default:
		t.hold(out.Changed[0].Reason)
	}
}

// unchecked ends a target that a stop kept from its checks: it runs the new version, and that is all that is known.
func (t *target) unchecked() {
	t.end(policy.Verifying, "stopped before its checks had ended: whether it runs well is not known")
}

func (t *target) hold(reason string) {
	t.end(policy.Waiting, "%s", reason)
	t.result.Held = true
}

// restore brings the target back to the version read before the change.
func (t *target) restore(ctx workflow.Context) {
	t.stage = policy.Restoring
	t.details(ctx)
	t.result.Reached, t.result.From, t.result.FromKnown = true, t.in.From, t.in.FromKnown
	if !t.in.FromKnown {
		t.end(policy.NeedsRecovery, "it cannot go back: the version it ran before could not be read")
		return
	}
	var seen activities.Observed
	if err := t.read(ctx, "Read the running version", &seen, verifyAttempts); err != nil {
		t.end(policy.NeedsRecovery, "it did not go back: its running version could not be read: %s", cause(err))
		return
	}
	switch now := seen.Reading; {
	case !now.Known:
		t.end(policy.NeedsRecovery, "it did not go back: its running version cannot be told")
		return
	case now.Version == t.in.From:
		t.result.Reached = false
		t.end(policy.RolledBack, "it runs %s already", versionOr(now.Version))
		return
	case now.Version != t.in.Subject.Version && !t.in.Broken:
		t.result.Reached = false
		t.end(policy.Skipped, "left alone: it runs %s now, which this rollout did not bring", versionOr(now.Version))
		return
	}
	if !t.change(ctx) {
		t.result.Reached = true
		if t.result.State == policy.Unreachable {
			t.result.State = policy.NeedsRecovery
		}
		t.result.Reason = clip("it did not go back: "+t.result.Reason, maxReason)
		return
	}
	t.result.Reached = false
	t.end(policy.RolledBack, "it runs %s again", versionOr(t.in.From))
}

// lastLine is the last line that a failed change printed: mostly the one that says why.
func lastLine(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return `; it said "` + clip(last, 120) + `"`
	}
	return ""
}

func versionOr(version string) string {
	if version == "" {
		return "no version"
	}
	return version
}

// maxReason keeps a wave's outcomes of 500 targets well below what one payload may hold.
const maxReason = 200

// clip shortens text to at most n bytes.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	cut := n - len("…")
	for cut > 0 && text[cut]&0xC0 == 0x80 { // not inside a UTF-8 sequence
		cut--
	}
	return text[:cut] + "…"
}

// typeOf is the type of an activity's application error; "other" for any other error, "" for none.
func typeOf(err error) string {
	if err == nil {
		return ""
	}
	var app *temporal.ApplicationError
	if errors.As(err, &app) && app.Type() != "" {
		return app.Type()
	}
	return "other"
}

// cause is the innermost message of an activity's error, for people.
func cause(err error) string {
	var app *temporal.ApplicationError
	if errors.As(err, &app) {
		return app.Message()
	}
	var timeout *temporal.TimeoutError
	if errors.As(err, &timeout) {
		if last := timeout.Unwrap(); last != nil && errors.As(last, &app) {
			return "it ran out of time; last: " + app.Message()
		}
		return "it ran out of time, or the worker died"
	}
	return err.Error()
}
