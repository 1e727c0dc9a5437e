package workflows

import (
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
)

// heartbeatTimeout is how soon a dead worker's activity is noticed. Activities beat every few seconds; fifteen leave
// room for a loaded machine, where a false alarm costs one more read and never a second change.
const heartbeatTimeout = 15 * time.Second

// reading are the options of what only reads a target: tried a few times over some ten seconds, so that one lost
// packet does not make a target unreachable, and no longer, so that a dead one does not hold its slot.
func reading(ctx workflow.Context, summary string, attempts int32) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           TargetQueue,
		StartToCloseTimeout: time.Minute, // a script's check may take half of it
		HeartbeatTimeout:    heartbeatTimeout,
		WaitForCancellation: true,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second, MaximumAttempts: attempts},
		Summary:             summary,
	})
}

// Attempts at reading a target: before a change a target that does not answer is unreachable and nothing is lost;
// after one its real state must be known, so that is tried for some minutes.
const (
	readAttempts   = 4
	verifyAttempts = 20
)

// submitting are the options of Submit: one attempt, whatever happens. A second one could change the target twice.
func submitting(ctx workflow.Context, summary string) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           TargetQueue,
		StartToCloseTimeout: time.Minute, // an asking takes a second or two; more means that the answer is lost
		HeartbeatTimeout:    heartbeatTimeout,
		WaitForCancellation: true,
		RetryPolicy:         &temporal.RetryPolicy{MaximumAttempts: 1},
		Summary:             summary,
	})
}

// awaiting are the options of Await: retried for as long as the step's deadline says. Waiting for a blocked target takes
// nothing of that: a change that was given up on while it is at work could meet the next one.
func awaiting(ctx workflow.Context, summary string, deadline time.Duration) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:              TargetQueue,
		StartToCloseTimeout:    2 * time.Minute, // one call follows an operation for a minute
		ScheduleToCloseTimeout: deadline,
		HeartbeatTimeout:       heartbeatTimeout,
		WaitForCancellation:    true,
		RetryPolicy:            &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 1.5, MaximumInterval: 10 * time.Second},
		Summary:                summary,
	})
}

// checking are the options of Check: each call measures for about a minute, the next goes on from its counts. The
// metrics' own limits end it, so it has no deadline of its own.
func checking(ctx workflow.Context, queue, summary string) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           queue,
		StartToCloseTimeout: 5 * time.Minute,
		HeartbeatTimeout:    heartbeatTimeout,
		WaitForCancellation: false, // a read-only look must not delay a stop
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 1.5, MaximumInterval: 10 * time.Second},
		Summary:             summary,
	})
}

// looking are the options of what waits for something outside of the rollout: each call looks once, and the next is
// timed by the server, for as long as it takes.
func looking(ctx workflow.Context, summary string) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           ControlQueue,
		StartToCloseTimeout: time.Minute, // one read of the ledger
		HeartbeatTimeout:    heartbeatTimeout,
		WaitForCancellation: false, // a read-only look must not delay a stop
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 1.5, MaximumInterval: 15 * time.Second,
			NonRetryableErrorTypes: []string{activities.TypeInvalid}},
		Summary: summary,
	})
}

// lookingOnce is looking for an answer as of now.
func lookingOnce(ctx workflow.Context, summary string) workflow.Context {
	o := workflow.GetActivityOptions(looking(ctx, summary))
	once := *o.RetryPolicy
	once.MaximumAttempts = 1
	o.RetryPolicy = &once
	return workflow.WithActivityOptions(ctx, o)
}

// bookkeeping are the options of what reads and writes the ledger: tried for ever, since nothing may be lost; its
// failures show in the Temporal UI while forward movement holds.
func bookkeeping(ctx workflow.Context, summary string) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           ControlQueue,
		StartToCloseTimeout: 2 * time.Minute, // planning 10,000 targets takes seconds
		HeartbeatTimeout:    heartbeatTimeout,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: 15 * time.Second,
			NonRetryableErrorTypes: []string{activities.TypeInvalid}},
		Summary: summary,
	})
}

// marking are the options of the mark of a stop. It is made within the workflow's task, whose commands wait for it: it gets
// hardly longer than one write takes, and is never tried twice.
func marking(ctx workflow.Context) workflow.Context {
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		ScheduleToCloseTimeout: time.Second,
		RetryPolicy:            &temporal.RetryPolicy{MaximumAttempts: 1},
		Summary:                "Mark the stop for changes that are about to be asked for",
	})
}

// child are the options of every child workflow: told to stop, not killed, when its parent goes.
func child(ctx workflow.Context, id, queue, summary string, attributes ...temporal.SearchAttributeUpdate) workflow.Context {
	return workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID:            id,
		TaskQueue:             queue,
		ParentClosePolicy:     enumspb.PARENT_CLOSE_POLICY_REQUEST_CANCEL,
		WaitForCancellation:   true,
		TypedSearchAttributes: temporal.NewSearchAttributes(attributes...),
		StaticSummary:         summary,
	})
}

// Search attribute keys.
var (
	environmentKey = temporal.NewSearchAttributeKeyKeyword(SluiceEnvironment)
	deploymentKey  = temporal.NewSearchAttributeKeyKeyword(SluiceDeployment)
	versionKey     = temporal.NewSearchAttributeKeyKeyword(SluiceVersion)
	rolloutKey     = temporal.NewSearchAttributeKeyKeyword(SluiceRollout)
	stateKey       = temporal.NewSearchAttributeKeyKeyword(SluiceState)
	targetKey      = temporal.NewSearchAttributeKeyKeyword(SluiceTarget)
)

// attributes are those that every workflow of a rollout carries.
func (s Subject) attributes() []temporal.SearchAttributeUpdate {
	return []temporal.SearchAttributeUpdate{environmentKey.ValueSet(s.Environment), deploymentKey.ValueSet(s.Deployment),
		versionKey.ValueSet(s.Version), rolloutKey.ValueSet(s.Rollout)}
}
