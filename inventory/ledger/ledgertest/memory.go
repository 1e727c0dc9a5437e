package ledgertest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
)

// Memory is a ledger for tests of what stands on one: it passes the suite, and lives as long as its value.
type Memory struct {
	mu      sync.Mutex
	blobs   map[[2]string][]byte
	records map[string]ledger.Record
}

// NewMemory returns an empty ledger.
func NewMemory() *Memory {
	return &Memory{blobs: map[[2]string][]byte{}, records: map[string]ledger.Record{}}
}

// PutBlob stores data under kind and key.
func (m *Memory) PutBlob(ctx context.Context, kind, key string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, there := m.blobs[[2]string{kind, key}]; there && !bytes.Equal(old, data) {
		return ledger.ErrConflict
	}
	m.blobs[[2]string{kind, key}] = slices.Clone(data)
	return ctx.Err()
}

// Blob returns what is stored under kind and key.
func (m *Memory) Blob(ctx context.Context, kind, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, there := m.blobs[[2]string{kind, key}]
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !there {
		return nil, ledger.ErrNotFound
	}
	return slices.Clone(data), nil
}

// DropBlob removes what is stored under kind and key.
func (m *Memory) DropBlob(ctx context.Context, kind, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.blobs, [2]string{kind, key})
	return ctx.Err()
}

// PutRecord stores r unless a newer one is there.
func (m *Memory) PutRecord(ctx context.Context, r ledger.Record) error {
	if r.Rollout == "" {
		return errors.New("a record needs a rollout")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, there := m.records[r.Rollout]; !there || old.Sequence < r.Sequence {
		r.Targets = slices.Clone(r.Targets)
		m.records[r.Rollout] = r
	}
	return nil
}

// Record returns a rollout's record.
func (m *Memory) Record(ctx context.Context, rollout string) (ledger.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return ledger.Record{}, err
	}
	if r, there := m.records[rollout]; there {
		return r, nil
	}
	return ledger.Record{}, ledger.ErrNotFound
}

// LastRecord returns the newest record of a lane.
func (m *Memory) LastRecord(ctx context.Context, environment, deployment string) (ledger.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return ledger.Record{}, err
	}
	var last ledger.Record
	for _, r := range m.records {
		if r.Environment != environment || r.Deployment != deployment {
			continue
		}
		// Two that began in the same moment are told apart by their ids, which are ordered by time.
		if c := r.StartedAt.Compare(last.StartedAt); last.Rollout == "" || c > 0 || c == 0 && r.Rollout > last.Rollout {
			last = r
		}
	}
	if last.Rollout == "" {
		return ledger.Record{}, ledger.ErrNotFound
	}
	return last, nil
}

// Close does nothing: the next opener finds everything again.
func (m *Memory) Close() error { return nil }
