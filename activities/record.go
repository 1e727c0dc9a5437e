package activities

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
)

// maxBundle bounds what an upload may unpack to: sixteen times the largest set of documents that the loader takes.
const maxBundle = 256 << 20

// ChunkInput is one part of an upload.
type ChunkInput struct {
	Digest string `json:"digest"`
	Index  int    `json:"index"`
	Data   []byte `json:"data"`
}

// StoreChunk keeps one part of an upload. Idempotent.
func (a *Activities) StoreChunk(ctx context.Context, in ChunkInput) error {
	defer heartbeat(ctx)()
	if err := a.Blobs.PutBlob(ctx, ledger.Chunk, chunkKey(in.Digest, in.Index), in.Data); err != nil {
		return fmt.Errorf("activities: store part %d of the documents: %w", in.Index, err)
	}
	return nil
}

func chunkKey(digest string, index int) string { return digest + "/" + strconv.Itoa(index) }

// BundleRef names an upload and says in how many parts it came.
type BundleRef struct {
	Digest string `json:"digest"`
	Chunks int    `json:"chunks"`
}

// StoreBundle puts an upload's parts together, checks its digest and stores it. Idempotent.
func (a *Activities) StoreBundle(ctx context.Context, ref BundleRef) error {
	defer heartbeat(ctx)()
	var packed bytes.Buffer
	for i := range ref.Chunks {
		data, err := a.Blobs.Blob(ctx, ledger.Chunk, chunkKey(ref.Digest, i))
		if errors.Is(err, ledger.ErrNotFound) {
			if _, err := a.Blobs.Blob(ctx, ledger.Bundle, ref.Digest); err == nil {
				return nil // an earlier attempt got as far as removing the parts
			}
		}
		if err != nil {
			return fmt.Errorf("activities: read part %d of the documents: %w", i, err)
		}
		packed.Write(data)
	}
	unzipped, err := gzip.NewReader(&packed)
	if err != nil {
		return invalid(fmt.Errorf("activities: the documents are not gzip: %w", err))
	}
	data, err := io.ReadAll(io.LimitReader(unzipped, maxBundle))
	if err != nil {
		return invalid(fmt.Errorf("activities: unpack the documents: %w", err))
	}
	if got := ledger.Digest(data); got != ref.Digest {
		return invalid(fmt.Errorf("activities: the documents arrived as %s, not as %s", got, ref.Digest))
	}
	if err := a.Blobs.PutBlob(ctx, ledger.Bundle, ref.Digest, data); err != nil {
		return fmt.Errorf("activities: store the documents: %w", err)
	}
	for i := range ref.Chunks {
		if err := a.Blobs.DropBlob(ctx, ledger.Chunk, chunkKey(ref.Digest, i)); err != nil {
			return fmt.Errorf("activities: remove part %d of the documents: %w", i, err)
		}
	}
	return nil
}

// RolloutRecord is the ledger's record, under the name by which workflows know it.
type RolloutRecord = ledger.Record

// TargetRecord is one target of a RolloutRecord.
type TargetRecord = ledger.TargetRecord

// Record stores what came of a rollout so far. r.Targets are those that changed since the last record, at most one
// wave's; the others stay as recorded. Idempotent; an older record never replaces a newer one.
func (a *Activities) Record(ctx context.Context, r ledger.Record) error {
	a.at("record.begin", "")
	defer heartbeat(ctx)()
	before, err := a.Log.Record(ctx, r.Rollout)
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return fmt.Errorf("activities: record rollout %s: %w", r.Rollout, err)
	}
	r.Targets = merge(before.Targets, r.Targets)
	if err := a.Log.PutRecord(ctx, r); err != nil {
		return fmt.Errorf("activities: record rollout %s: %w", r.Rollout, err)
	}
	a.at("record.end", "")
	return nil
}

// merge puts newer target records in the place of older ones of the same name, and new names at the end.
func merge(before, newer []ledger.TargetRecord) []ledger.TargetRecord {
	at := make(map[string]int, len(before))
	out := slices.Clone(before)
	for i, t := range out {
		at[t.Name] = i
	}
	for _, t := range newer {
		if i, known := at[t.Name]; known {
			out[i] = t
			continue
		}
		at[t.Name] = len(out)
		out = append(out, t)
	}
	return out
}

// RecordPage asks for a rollout's record with the targets from Offset on, at most Limit.
type RecordPage struct {
	Rollout string `json:"rollout"`
	Offset  int    `json:"offset"`
	Limit   int    `json:"limit"`
}

// RecordAnswer is one page of a record.
type RecordAnswer struct {
	// Missing reports that the ledger knows no such rollout.
	Missing bool          `json:"missing,omitempty"`
	Record  ledger.Record `json:"record"`
	// Total is how many targets the whole record has.
	Total int `json:"total"`
}

// LoadRecord returns a page of a rollout's record. Idempotent and read-only.
func (a *Activities) LoadRecord(ctx context.Context, in RecordPage) (RecordAnswer, error) {
	defer heartbeat(ctx)()
	r, err := a.Log.Record(ctx, in.Rollout)
	if errors.Is(err, ledger.ErrNotFound) {
		return RecordAnswer{Missing: true}, nil
	}
	if err != nil {
		return RecordAnswer{}, fmt.Errorf("activities: read the record of rollout %s: %w", in.Rollout, err)
	}
	total := len(r.Targets)
	from := min(max(0, in.Offset), total)
	to := min(total, from+max(1, in.Limit))
	r.Targets = r.Targets[from:to]
	return RecordAnswer{Record: r, Total: total}, nil
}
