package activities

import (
	"context"
	"errors"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
)

// MarkStopped notes that a rollout asks for no further change, ever. Idempotent.
//
// A stop reaches each target by way of its wave. With hundreds of targets in flight on a busy server that takes seconds, in
// which those that have been begun would still ask; the mark takes one write, and each Submit looks at it. It is an aid
// only: without it the stop comes as it always does.
func (a *Activities) MarkStopped(ctx context.Context, rollout string) error {
	return a.Blobs.PutBlob(ctx, ledger.Stopped, rollout, []byte("stopped"))
}

// mayAsk returns an error when a change is not to be asked for any more. A ledger that cannot say stops nothing.
func (a *Activities) mayAsk(ctx context.Context, ref ChangeRef) error {
	if ref.Direction != executors.Apply {
		return nil
	}
	_, err := a.Blobs.Blob(ctx, ledger.Stopped, ref.Rollout)
	switch {
	case err == nil:
		return temporal.NewNonRetryableApplicationError("the rollout has been stopped", TypeStopped, nil)
	case !errors.Is(err, ledger.ErrNotFound):
		activity.GetLogger(ctx).Warn("Whether the rollout has been stopped could not be read; its own stop comes as a signal", "error", err)
	}
	return nil
}
