// Package sqlite keeps the ledger in one SQLite file: the default for a laptop, a demo or a site without a database.
//
// Several goroutines and several processes may use one file at a time. It must hold no rule about what is recorded;
// those are in the ports of package ledger.
package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// busyTimeout is how long a statement waits for another process's write. Writes here take milliseconds, so one that
// waits longer has met something stuck, and its activity is retried.
const busyTimeout = 10 * time.Second

// readers is how many reads run at once. WAL lets them pass a write.
const readers = 4

// Store is a ledger in a SQLite file.
type Store struct {
	db   *sql.DB
	path string
	// write is held by the one goroutine that writes. SQLite would make the others poll, and the unlucky one time out.
	write chan struct{}
}

var (
	_ ledger.Blobs = (*Store)(nil)
	_ ledger.Log   = (*Store)(nil)
)

// Open opens the ledger at path and brings its schema up to date. A missing file is created with mode 0600, in a folder
// created with mode 0700. A file with a newer schema, or one that is no ledger, is an error and stays as it is.
func Open(ctx context.Context, path string) (_ *Store, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	if err := createFile(path); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	options := url.Values{}
	options.Set("mode", "rw")
	options.Set("_txlock", "immediate") // a transaction that becomes a write halfway can't wait, it can only fail
	options.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()))
	options.Add("_pragma", "journal_mode(WAL)")
	// A record that says "this target was reached" must survive a power cut.
	options.Add("_pragma", "synchronous(FULL)")
	dsn := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: options.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	db.SetMaxOpenConns(readers)
	db.SetMaxIdleConns(readers)
	s := &Store{db: db, path: path, write: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			_ = db.Close()
		}
	}()
	if err := s.connect(ctx); err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	if err := s.migrate(ctx); err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	return s, nil
}

// createFile makes sure that the file is there and its owner's alone. SQLite gives the mode to its side files too.
func createFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = f.Chmod(0o600)
	}
	return errors.Join(err, f.Close())
}

// connect opens the first connection. The switch to WAL is the one statement that does not wait for a busy file, so it
// is repeated while another process opens the same new ledger.
func (s *Store) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	for {
		err := s.db.PingContext(ctx)
		var refused *driver.Error
		if err == nil || !errors.As(err, &refused) || refused.Code()&0xff != sqlite3.SQLITE_BUSY {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Close closes the file. Idempotent.
func (s *Store) Close() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close ledger %s: %w", s.path, err)
	}
	return nil
}

// PutBlob implements ledger.Blobs.
func (s *Store) PutBlob(ctx context.Context, kind, key string, data []byte) error {
	if data == nil {
		data = []byte{} // nil would be stored as NULL
	}
	err := s.update(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, "INSERT INTO blobs (kind, key, data) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", kind, key, data)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 1 {
			return err
		}
		var stored []byte
		if err := tx.QueryRowContext(ctx, "SELECT data FROM blobs WHERE kind = ? AND key = ?", kind, key).Scan(&stored); err != nil {
			return err
		}
		if !bytes.Equal(stored, data) {
			return ledger.ErrConflict
		}
		return nil
	})
	return s.explain(err, "put %s %s", kind, key)
}

// Blob implements ledger.Blobs.
func (s *Store) Blob(ctx context.Context, kind, key string) ([]byte, error) {
	var data []byte
	err := s.db.QueryRowContext(ctx, "SELECT data FROM blobs WHERE kind = ? AND key = ?", kind, key).Scan(&data)
	return data, s.explain(err, "get %s %s", kind, key)
}

// DropBlob implements ledger.Blobs.
func (s *Store) DropBlob(ctx context.Context, kind, key string) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM blobs WHERE kind = ? AND key = ?", kind, key)
		return err
	})
	return s.explain(err, "drop %s %s", kind, key)
}

// PutRecord implements ledger.Log.
func (s *Store) PutRecord(ctx context.Context, r ledger.Record) error {
	if r.Rollout == "" {
		return fmt.Errorf("ledger %s: put record: it names no rollout", s.path)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return s.explain(err, "encode record of rollout %s", r.Rollout)
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO records (rollout, of, environment, deployment, sequence, started_at, record)
			VALUES (?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (rollout) DO UPDATE SET
				of = excluded.of, environment = excluded.environment, deployment = excluded.deployment,
				sequence = excluded.sequence, started_at = excluded.started_at, record = excluded.record
			WHERE excluded.sequence > records.sequence`,
			r.Rollout, r.Of, r.Environment, r.Deployment, r.Sequence, r.StartedAt.UnixMicro(), string(data))
		return err
	})
	return s.explain(err, "put record %d of rollout %s", r.Sequence, r.Rollout)
}

// Record implements ledger.Log.
func (s *Store) Record(ctx context.Context, rollout string) (ledger.Record, error) {
	r, err := decode(s.db.QueryRowContext(ctx, "SELECT record FROM records WHERE rollout = ?", rollout))
	return r, s.explain(err, "get record of rollout %s", rollout)
}

// LastRecord implements ledger.Log. Of two that started in the same microsecond the one with the later id counts.
func (s *Store) LastRecord(ctx context.Context, environment, deployment string) (ledger.Record, error) {
	r, err := decode(s.db.QueryRowContext(ctx, `
		SELECT record FROM records
		WHERE environment = ? AND deployment = ?
		ORDER BY started_at DESC, rollout DESC LIMIT 1`, environment, deployment))
	return r, s.explain(err, "get last record of %s in %s", deployment, environment)
}

func decode(row *sql.Row) (r ledger.Record, err error) {
	var data []byte
	if err := row.Scan(&data); err != nil {
		return ledger.Record{}, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return ledger.Record{}, err
	}
	return r, nil
}

// update runs f in a write transaction.
func (s *Store) update(ctx context.Context, f func(*sql.Tx) error) error {
	select {
	case s.write <- struct{}{}:
		defer func() { <-s.write }()
	case <-ctx.Done():
		return ctx.Err()
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// explain names the file and the operation of an error, and translates an absent row.
func (s *Store) explain(err error, operation string, args ...any) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, sql.ErrNoRows) {
		err = ledger.ErrNotFound
	}
	return fmt.Errorf("ledger %s: %s: %w", s.path, fmt.Sprintf(operation, args...), err)
}
