package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// migrations holds the steps of the schema, named NNNN_what.sql and numbered from 0001 without a gap. A released one is
// never edited; a change is a new one.
//
//go:embed migrations/*.sql
var migrations embed.FS

// versionTable tells a ledger from any other database and says which steps it has been through.
const versionTable = "schema_version"

// migrate takes the schema from whatever it is to the newest, in one transaction.
func (s *Store) migrate(ctx context.Context) error {
	steps, err := fs.Glob(migrations, "migrations/*.sql") // sorted
	if err != nil {
		return err
	}
	return s.update(ctx, func(tx *sql.Tx) error {
		version, err := schemaVersion(ctx, tx)
		if err != nil {
			return err
		}
		if version > len(steps) {
			return fmt.Errorf("it has schema %d and this binary knows %d: a newer Sluice has written it; use that one, or another file", version, len(steps))
		}
		for i, name := range steps {
			number := i + 1
			if prefix := fmt.Sprintf("migrations/%04d_", number); !strings.HasPrefix(name, prefix) {
				return fmt.Errorf("migration %s is not number %d", name, number)
			}
			if number <= version {
				continue
			}
			statements, err := fs.ReadFile(migrations, name)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, string(statements)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if _, err := tx.ExecContext(ctx, "INSERT INTO "+versionTable+" (version) VALUES (?)", number); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}

// schemaVersion returns the number of the last step taken, and makes the table for it in an empty database.
func schemaVersion(ctx context.Context, tx *sql.Tx) (int, error) {
	var tables, ours int
	err := tx.QueryRowContext(ctx, "SELECT count(*), count(*) FILTER (WHERE name = ?) FROM sqlite_master WHERE type = 'table'", versionTable).Scan(&tables, &ours)
	switch {
	case err != nil:
		return 0, err
	case tables == 0:
		_, err := tx.ExecContext(ctx, "CREATE TABLE "+versionTable+` (
			version    INTEGER PRIMARY KEY,
			applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
		) STRICT`)
		return 0, err
	case ours == 0:
		return 0, errors.New("it is the database of something else; choose another file")
	}
	var version int
	err = tx.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM "+versionTable).Scan(&version)
	return version, err
}
