package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

const (
	// chunkSize is what one signal carries. JSON writes bytes as base64, so that 180 KiB become 240: no payload may be
	// above 256 KiB.
	chunkSize = 180 << 10
	// maxChunks bounds an upload: the workflow's history holds every part, and the engine ends one at 50 MiB.
	maxChunks = 100
	// uploadTimeout is how long a worker may take to store the documents. It takes well under a second; but one that could
	// not, on a full disk, leaves up to 15 s between two tries.
	uploadTimeout = 20 * time.Second
)

// upload hands documents to a worker, which stores them under their digest. Handing over the same documents again, at
// the same time too, does no harm.
func (t *temporal) upload(ctx context.Context, packed []byte, digest, program string) error {
	chunks, err := cutUp(packed)
	if err != nil {
		return err
	}
	id := workflows.BundleID(digest)
	options := client.StartWorkflowOptions{
		ID:                       id,
		TaskQueue:                workflows.ControlQueue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,
		WorkflowIDReusePolicy:    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		// Parts that never come must not leave a workflow that waits for ever.
		WorkflowExecutionTimeout: time.Hour,
		StaticSummary:            "Store documents " + digest,
	}
	var run client.WorkflowRun
	err = t.call(ctx, "hand over the documents", func(ctx context.Context) (err error) {
		run, err = t.ExecuteWorkflow(ctx, options, workflows.BundleType, workflows.BundleInput{Digest: digest, Chunks: len(chunks)})
		return err
	})
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, uploadTimeout)
	defer cancel()
	for i, chunk := range chunks {
		err := t.call(waiting, "hand over the documents", func(ctx context.Context) error {
			return t.SignalWorkflow(ctx, id, run.GetRunID(), workflows.ChunkSignal, workflows.BundleChunk{Index: i, Data: chunk})
		})
		if err != nil && exitCode(err) == exitNotFound {
			break // another upload of the same documents has completed it
		}
		if err != nil {
			return err
		}
	}
	err = run.Get(waiting, nil)
	var late *serviceerror.DeadlineExceeded // from a server that was asked with the little time that was left
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &late), waiting.Err() != nil:
		if why := t.trouble(ctx, id, run.GetRunID()); why != "" {
			return failf(exitError, "the worker cannot store the documents, and nothing was started: %s; mend that and start again", why)
		}
		return failf(exitUnavailable, "no worker stored the documents within %s; nothing was started. Is a worker running? Start one with `%s worker`", uploadTimeout, program)
	}
	return fmt.Errorf("hand over the documents: %w", err)
}

// cutUp compresses documents and cuts them into parts.
func cutUp(packed []byte) ([][]byte, error) {
	var zipped bytes.Buffer
	// Without a name and a time in its header the same documents give the same bytes.
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(packed); err != nil {
		return nil, fmt.Errorf("compress the documents: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress the documents: %w", err)
	}
	data := zipped.Bytes()
	var chunks [][]byte
	for len(data) > 0 {
		n := min(chunkSize, len(data))
		chunks = append(chunks, data[:n])
		data = data[n:]
	}
	if len(chunks) > maxChunks {
		return nil, usagef("the documents are too large: %d KiB compressed, at most %d are allowed", zipped.Len()>>10, maxChunks*chunkSize>>10)
	}
	return chunks, nil
}
