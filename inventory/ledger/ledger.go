// Package ledger is the record of what was planned and what came of it: bundles, snapshots and plans by digest, and
// each rollout's outcome by key.
//
// Temporal is the truth for what is open, the ledger for what is closed. The ledger holds flat records of its own; it
// must not know policies, workflows or executors. Nothing needs it between a stop and the last restored target.
package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"
)

// ErrNotFound: the ledger holds nothing under that key.
var ErrNotFound = errors.New("not found in the ledger")

// ErrConflict: something else is already stored under that key.
var ErrConflict = errors.New("something else is stored under this key")

// Kinds of blobs.
const (
	Bundle   = "bundle"   // documents as uploaded
	Snapshot = "snapshot" // the fleet as planned
	Plan     = "plan"     // waves and targets
	Chunk    = "chunk"    // a part of an upload that is not complete yet
	Stopped  = "stopped"  // a mark: the rollout of this key asks for no further change
)

// Digest returns the key of a blob: "sha256:" and the hex digest of its bytes.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Blobs stores bytes by kind and key. Blobs never change once stored.
type Blobs interface {
	// PutBlob stores data. Idempotent for equal bytes; ErrConflict if other bytes are stored under the key.
	PutBlob(ctx context.Context, kind, key string, data []byte) error
	// Blob returns the bytes, or ErrNotFound.
	Blob(ctx context.Context, kind, key string) ([]byte, error)
	// DropBlob removes a blob; removing what is not there is no error.
	DropBlob(ctx context.Context, kind, key string) error
}

// Record is what came of one rollout. It is written when a rollout starts, after each wave and at its end, and replaced
// by later ones of the same rollout.
type Record struct {
	// Rollout is the key, a ULID.
	Rollout string `json:"rollout"`
	// Of is the rollout that this one takes back, if it is a rollback of a closed one.
	Of          string `json:"of,omitempty"`
	Environment string `json:"environment"`
	Deployment  string `json:"deployment"`
	Version     string `json:"version"`
	State       string `json:"state"`
	Cause       string `json:"cause,omitempty"`
	By          string `json:"by,omitempty"`
	// Sequence grows with each write of one rollout; an older one never replaces a newer one.
	Sequence       int       `json:"sequence"`
	BundleDigest   string    `json:"bundleDigest,omitempty"`
	SnapshotDigest string    `json:"snapshotDigest,omitempty"`
	PlanDigest     string    `json:"planDigest,omitempty"`
	StartedAt      time.Time `json:"startedAt"`
	EndedAt        time.Time `json:"endedAt,omitzero"`
	// Targets are those that the rollout reached, in the order in which they were.
	Targets []TargetRecord `json:"targets,omitempty"`
}

// TargetRecord is one target of a Record.
type TargetRecord struct {
	Name  string `json:"name"`
	Wave  int    `json:"wave"`
	State string `json:"state"`
	// Reached reports whether the target was asked to change and has not been brought back since.
	Reached bool `json:"reached"`
	// From is the version read before the change: the one to return to. FromKnown tells "" (not installed) from unknown.
	From      string `json:"from,omitempty"`
	FromKnown bool   `json:"fromKnown,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// Log stores records by rollout and lane.
type Log interface {
	// PutRecord stores r unless a record of the same rollout with the same or a higher sequence is there. Idempotent.
	PutRecord(ctx context.Context, r Record) error
	// Record returns the rollout's record, or ErrNotFound.
	Record(ctx context.Context, rollout string) (Record, error)
	// LastRecord returns the newest record (by StartedAt) of a lane, a rollback's too, or ErrNotFound.
	LastRecord(ctx context.Context, environment, deployment string) (Record, error)
}
