package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
)

// Bundle brings uploaded documents into the ledger: parts come as signals, are stored as they come, and are put
// together and checked against their digest at the end. It ends by itself when the sender does not go on.
func Bundle(ctx workflow.Context, in BundleInput) error {
	parts := workflow.GetSignalChannelWithOptions(ctx, chunkSignal, workflow.SignalChannelOptions{Description: "Not for operators: the command line sends the documents with it, a part at a time."})
	stored := map[int]bool{}
	for len(stored) < in.Chunks {
		var part BundleChunk
		// A minute without a part means that the sender is gone; sending again starts anew.
		if ok, _ := parts.ReceiveWithTimeout(ctx, time.Minute, &part); !ok {
			return fmt.Errorf("only %d of %d parts of the documents arrived", len(stored), in.Chunks)
		}
		if part.Index < 0 || part.Index >= in.Chunks || stored[part.Index] {
			continue
		}
		if err := workflow.ExecuteActivity(bookkeeping(ctx, fmt.Sprintf("Store part %d", part.Index+1)), acts.StoreChunk,
			activities.ChunkInput{Digest: in.Digest, Index: part.Index, Data: part.Data}).Get(ctx, nil); err != nil {
			return err
		}
		stored[part.Index] = true
	}
	return workflow.ExecuteActivity(bookkeeping(ctx, "Check and store the documents"), acts.StoreBundle,
		activities.BundleRef(in)).Get(ctx, nil)
}
