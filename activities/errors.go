package activities

import (
	"errors"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

// Types of the errors that activities return, as histories show them. Whether one is tried again is decided here and
// nowhere else.
const (
	TypeUnreachable  = "Unreachable"  // retried as often as the caller's policy says
	TypeRejected     = "Rejected"     // final: asking again will not help
	TypeBlocked      = "Blocked"      // final for this call: the workflow waits and asks again
	TypeStopped      = "Stopped"      // final: the rollout's stop is marked, and on its way to the target's workflow
	TypeNotSubmitted = "NotSubmitted" // final: the operation never started and never will
	TypeRunning      = "StillRunning" // retried: it is no error at all
	TypeInvalid      = "Invalid"      // final: the input cannot be acted on
)

// classify turns an executor's error into what Temporal understands.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, executors.ErrRunning):
		return temporal.NewApplicationErrorWithOptions(err.Error(), TypeRunning, temporal.ApplicationErrorOptions{
			NextRetryDelay: awaitPause, Category: temporal.ApplicationErrorCategoryBenign})
	case errors.Is(err, executors.ErrNotSubmitted):
		return temporal.NewNonRetryableApplicationError(err.Error(), TypeNotSubmitted, nil)
	case errors.Is(err, executors.ErrRejected):
		return temporal.NewNonRetryableApplicationError(err.Error(), TypeRejected, nil)
	case errors.Is(err, executors.ErrBlocked):
		return temporal.NewNonRetryableApplicationError(err.Error(), TypeBlocked, nil)
	case errors.Is(err, executors.ErrUnreachable):
		return temporal.NewApplicationErrorWithOptions(err.Error(), TypeUnreachable, temporal.ApplicationErrorOptions{
			Category: temporal.ApplicationErrorCategoryBenign})
	}
	return err
}

// invalid is an error that no retry mends.
func invalid(err error) error {
	return temporal.NewNonRetryableApplicationError(err.Error(), TypeInvalid, nil)
}

// awaitPause is how long a target whose operation takes long is left alone between two looks: long enough that a
// thousand of them cost little, short enough that nobody waits for it.
const awaitPause = 5 * time.Second
