// Package ledgertest is the conformance suite of the ledger's ports. Every store runs it, so that one can take the place
// of another. It must not know any store.
package ledgertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
)

// Store is everything that a ledger implements.
type Store interface {
	ledger.Blobs
	ledger.Log
	// Close gives back what Open took. Everything stored before stays.
	Close() error
}

// Open opens the same ledger every time that it is called.
type Open func(ctx context.Context) (Store, error)

// Run checks a store. fresh returns how to open a ledger that is empty at first.
func Run(t *testing.T, fresh func(t *testing.T) Open) {
	for _, tt := range []struct {
		name string
		test func(t *testing.T, open Open)
	}{
		{"PutBlob is idempotent and never replaces", blobIsKept},
		{"blobs are kept apart by kind and key", blobsAreApart},
		{"blobs keep every byte", blobBytes},
		{"DropBlob removes, and is idempotent", blobIsDropped},
		{"absent blobs and records are ErrNotFound", absent},
		{"records come back as they went in", recordRoundTrip},
		{"an older record never replaces a newer one", recordSequence},
		{"a record without a rollout is refused", recordWithoutRollout},
		{"LastRecord is the newest of its lane", lastRecord},
		{"LastRecord is a rollback if that is the newest", lastRecordIsRollback},
		{"everything survives a close", survivesClose},
		{"two openers see each other's writes", sharedByOpeners},
		{"concurrent writers lose nothing", concurrentWriters},
		{"concurrent writers of one blob agree", concurrentBlob},
		{"a done context is an error", doneContext},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, fresh(t)) })
	}
}

// start is when the first record of a test started. Its microseconds check that they are not rounded away.
var start = time.Date(2026, 3, 1, 9, 30, 0, 123456000, time.UTC)

func opened(t *testing.T, open Open) Store {
	t.Helper()
	s, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got error %v, want %v", what, got, want)
	}
}

func wantBlob(t *testing.T, s Store, kind, key string, want []byte) {
	t.Helper()
	got, err := s.Blob(t.Context(), kind, key)
	if err != nil {
		t.Errorf("%s %s: %v", kind, key, err)
	} else if !bytes.Equal(got, want) {
		t.Errorf("%s %s: got %d bytes %.40q, want %d bytes %.40q", kind, key, len(got), got, len(want), want)
	}
}

func wantRecord(t *testing.T, s Store, want ledger.Record) {
	t.Helper()
	got, err := s.Record(t.Context(), want.Rollout)
	if err != nil {
		t.Error(err)
	} else if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record of %s (-want +got):\n%s", want.Rollout, diff)
	}
}

func wantLast(t *testing.T, s Store, environment, deployment, want string) {
	t.Helper()
	got, err := s.LastRecord(t.Context(), environment, deployment)
	if err != nil {
		t.Errorf("last record of %s in %s: %v", deployment, environment, err)
	} else if got.Rollout != want {
		t.Errorf("last record of %s in %s: got %s, want %s", deployment, environment, got.Rollout, want)
	}
}

// record returns a record with every field set.
func record(rollout string, sequence int) ledger.Record {
	return ledger.Record{
		Rollout: rollout, Environment: "Production", Deployment: "web", Version: "v1.2.3",
		State: "Succeeded", Cause: "every target verified", By: "ana", Sequence: sequence,
		BundleDigest: ledger.Digest([]byte("bundle")), SnapshotDigest: ledger.Digest([]byte("snapshot")), PlanDigest: ledger.Digest([]byte("plan")),
		StartedAt: start, EndedAt: start.Add(time.Hour),
		Targets: []ledger.TargetRecord{
			{Name: "eu-1", Wave: 1, State: "Succeeded", Reached: true, From: "v1.2.2", FromKnown: true},
			{Name: "eu-2", Wave: 1, State: "Succeeded", Reached: true, From: "", FromKnown: true},
			{Name: "ap-1", Wave: 2, State: "Failed", Reached: true, Reason: "check failed: \"latency\" > 200 ms\n"},
		},
	}
}

func blobIsKept(t *testing.T, open Open) {
	s := opened(t, open)
	data := []byte("waves: []")
	key := ledger.Digest(data)
	must(t, s.PutBlob(t.Context(), ledger.Plan, key, data))
	must(t, s.PutBlob(t.Context(), ledger.Plan, key, data))
	wantError(t, "other bytes under the key", s.PutBlob(t.Context(), ledger.Plan, key, []byte("waves: [x]")), ledger.ErrConflict)
	wantError(t, "no bytes under the key", s.PutBlob(t.Context(), ledger.Plan, key, nil), ledger.ErrConflict)
	wantBlob(t, s, ledger.Plan, key, data)
}

func blobsAreApart(t *testing.T, open Open) {
	s := opened(t, open)
	for _, kind := range []string{ledger.Bundle, ledger.Snapshot, ledger.Plan, ledger.Chunk} {
		for _, key := range []string{"a", "A", "a/b", "a b"} {
			must(t, s.PutBlob(t.Context(), kind, key, []byte(kind+key)))
		}
	}
	for _, kind := range []string{ledger.Bundle, ledger.Snapshot, ledger.Plan, ledger.Chunk} {
		for _, key := range []string{"a", "A", "a/b", "a b"} {
			wantBlob(t, s, kind, key, []byte(kind+key))
		}
	}
}

func blobBytes(t *testing.T, open Open) {
	s := opened(t, open)
	large := make([]byte, 8<<20) // a snapshot of a few ten thousand targets
	for i := range large {
		large[i] = byte(i * 7)
	}
	for key, data := range map[string][]byte{"none": nil, "empty": {}, "binary": {0, 1, 0xff, 0, '\n'}, "large": large} {
		must(t, s.PutBlob(t.Context(), ledger.Snapshot, key, data))
		must(t, s.PutBlob(t.Context(), ledger.Snapshot, key, bytes.Clone(data)))
		wantBlob(t, s, ledger.Snapshot, key, data)
	}
}

func blobIsDropped(t *testing.T, open Open) {
	s := opened(t, open)
	must(t, s.PutBlob(t.Context(), ledger.Chunk, "1", []byte("one")))
	must(t, s.PutBlob(t.Context(), ledger.Chunk, "2", []byte("two")))
	must(t, s.DropBlob(t.Context(), ledger.Chunk, "1"))
	must(t, s.DropBlob(t.Context(), ledger.Chunk, "1"))
	must(t, s.DropBlob(t.Context(), ledger.Chunk, "never there"))
	_, err := s.Blob(t.Context(), ledger.Chunk, "1")
	wantError(t, "dropped blob", err, ledger.ErrNotFound)
	wantBlob(t, s, ledger.Chunk, "2", []byte("two"))
	must(t, s.PutBlob(t.Context(), ledger.Chunk, "1", []byte("other")))
	wantBlob(t, s, ledger.Chunk, "1", []byte("other"))
}

func absent(t *testing.T, open Open) {
	s := opened(t, open)
	must(t, s.PutBlob(t.Context(), ledger.Plan, "key", []byte("data")))
	must(t, s.PutRecord(t.Context(), record("01A", 1)))
	for _, b := range [][2]string{{ledger.Plan, "other"}, {ledger.Bundle, "key"}, {"", ""}} {
		_, err := s.Blob(t.Context(), b[0], b[1])
		wantError(t, "blob "+b[0]+" "+b[1], err, ledger.ErrNotFound)
	}
	_, err := s.Record(t.Context(), "01B")
	wantError(t, "record", err, ledger.ErrNotFound)
	for _, lane := range [][2]string{{"Production", "other"}, {"Staging", "web"}, {"web", "Production"}} {
		_, err := s.LastRecord(t.Context(), lane[0], lane[1])
		wantError(t, "last record of "+lane[1]+" in "+lane[0], err, ledger.ErrNotFound)
	}
}

func recordRoundTrip(t *testing.T, open Open) {
	s := opened(t, open)
	full := record("01A", 1)
	full.Of = "019"
	elsewhere := record("01B", 2)
	elsewhere.StartedAt = start.In(time.FixedZone("", -7*3600))
	open1 := ledger.Record{Rollout: "01C", Environment: "Production", Deployment: "web", StartedAt: start} // no end, no targets
	for _, r := range []ledger.Record{full, elsewhere, open1} {
		must(t, s.PutRecord(t.Context(), r))
		wantRecord(t, s, r)
	}
}

func recordSequence(t *testing.T, open Open) {
	s := opened(t, open)
	second := record("01A", 2)
	must(t, s.PutRecord(t.Context(), second))

	again := record("01A", 2)
	again.State = "Failed" // a retried write of the same step can't differ; if it does, the first stays
	older := record("01A", 1)
	older.State = "Running"
	must(t, s.PutRecord(t.Context(), second))
	must(t, s.PutRecord(t.Context(), again))
	must(t, s.PutRecord(t.Context(), older))
	wantRecord(t, s, second)

	third := record("01A", 3)
	third.State, third.Targets = "RolledBack", nil
	must(t, s.PutRecord(t.Context(), third))
	wantRecord(t, s, third)
}

func recordWithoutRollout(t *testing.T, open Open) {
	if err := opened(t, open).PutRecord(t.Context(), record("", 1)); err == nil {
		t.Error("it was stored")
	}
}

func lastRecord(t *testing.T, open Open) {
	s := opened(t, open)
	put := func(rollout, environment, deployment string, startedAt time.Time, sequence int) {
		t.Helper()
		r := record(rollout, sequence)
		r.Environment, r.Deployment, r.StartedAt = environment, deployment, startedAt
		must(t, s.PutRecord(t.Context(), r))
	}
	// Written out of order, and the newest with the lowest id and sequence: only the start counts.
	put("01B", "Production", "web", start.Add(time.Microsecond), 9)
	put("01A", "Production", "web", start.Add(2*time.Microsecond), 1)
	put("01C", "Production", "web", start, 5)
	put("01D", "Production", "api", start.Add(time.Hour), 1)
	put("01E", "Staging", "web", start.Add(time.Hour), 1)
	// A zone's offset must not count as time.
	put("01F", "Production", "web", start.In(time.FixedZone("", 10*3600)), 1)
	wantLast(t, s, "Production", "web", "01A")
	wantLast(t, s, "Production", "api", "01D")
	wantLast(t, s, "Staging", "web", "01E")

	put("01C", "Production", "web", start.Add(time.Minute), 6)
	wantLast(t, s, "Production", "web", "01C")
}

func lastRecordIsRollback(t *testing.T, open Open) {
	s := opened(t, open)
	must(t, s.PutRecord(t.Context(), record("01A", 1)))
	wantLast(t, s, "Production", "web", "01A")
	back := record("01B", 1)
	back.Of, back.StartedAt = "01A", start.Add(time.Hour)
	must(t, s.PutRecord(t.Context(), back))
	wantLast(t, s, "Production", "web", "01B")
	wantRecord(t, s, back)
}

func survivesClose(t *testing.T, open Open) {
	s, err := open(t.Context())
	must(t, err)
	must(t, s.PutBlob(t.Context(), ledger.Plan, "key", []byte("data")))
	must(t, s.PutRecord(t.Context(), record("01A", 3)))
	must(t, s.Close())

	s = opened(t, open)
	wantBlob(t, s, ledger.Plan, "key", []byte("data"))
	wantRecord(t, s, record("01A", 3))
	wantLast(t, s, "Production", "web", "01A")
	wantError(t, "other bytes after a reopen", s.PutBlob(t.Context(), ledger.Plan, "key", []byte("other")), ledger.ErrConflict)
	must(t, s.PutRecord(t.Context(), record("01A", 2)))
	wantRecord(t, s, record("01A", 3))
}

func sharedByOpeners(t *testing.T, open Open) {
	a, b := opened(t, open), opened(t, open)
	must(t, a.PutBlob(t.Context(), ledger.Plan, "key", []byte("data")))
	wantBlob(t, b, ledger.Plan, "key", []byte("data"))
	must(t, b.PutRecord(t.Context(), record("01A", 2)))
	must(t, a.PutRecord(t.Context(), record("01A", 1)))
	wantRecord(t, a, record("01A", 2))
}

func concurrentWriters(t *testing.T, open Open) {
	const writers, writes = 8, 10
	stores := []Store{opened(t, open), opened(t, open)}
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			s := stores[w%len(stores)]
			for i := range writes {
				key := fmt.Sprintf("%d-%d", w, i)
				if err := s.PutBlob(t.Context(), ledger.Chunk, key, []byte(key)); err != nil {
					t.Error(err)
				}
				// All write the one rollout, in no order; the highest sequence must be what is left.
				if err := s.PutRecord(t.Context(), record("01A", i*writers+w)); err != nil {
					t.Error(err)
				}
				if _, err := s.LastRecord(t.Context(), "Production", "web"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for w := range writers {
		for i := range writes {
			key := fmt.Sprintf("%d-%d", w, i)
			wantBlob(t, stores[0], ledger.Chunk, key, []byte(key))
		}
	}
	wantRecord(t, stores[0], record("01A", writers*writes-1))
}

func concurrentBlob(t *testing.T, open Open) {
	s := opened(t, open)
	const writers = 8
	results := make([]error, writers)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() { results[w] = s.PutBlob(t.Context(), ledger.Plan, "key", []byte{byte(w)}) })
	}
	group.Wait()
	stored, err := s.Blob(t.Context(), ledger.Plan, "key")
	must(t, err)
	for w, err := range results {
		if len(stored) == 1 && int(stored[0]) == w {
			if err != nil {
				t.Errorf("the writer whose bytes are stored: %v", err)
			}
		} else {
			wantError(t, "a writer whose bytes are not stored", err, ledger.ErrConflict)
		}
	}
}

func doneContext(t *testing.T, open Open) {
	s := opened(t, open)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, "PutBlob", s.PutBlob(ctx, ledger.Plan, "key", nil), context.Canceled)
	wantError(t, "PutRecord", s.PutRecord(ctx, record("01A", 1)), context.Canceled)
	_, err := s.Record(ctx, "01A")
	wantError(t, "Record", err, context.Canceled)
	_, err = s.Record(t.Context(), "01A")
	wantError(t, "record of a write that was not made", err, ledger.ErrNotFound)
}
