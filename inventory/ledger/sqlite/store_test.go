package sqlite

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/ledgertest"
)

// childPath is set in the environment of a copy of this test binary that writes to that ledger.
const childPath = "SLUICE_LEDGER_TEST_PATH"

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		if err := writeMany(context.Background(), path, "child"); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// writes is how many blobs and records one process puts in.
const writes = 50

// writeMany opens a ledger and writes to it.
func writeMany(ctx context.Context, path, who string) (err error) {
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	fmt.Println("open") // the parent waits for it
	for i := range writes {
		key := fmt.Sprintf("%s-%d", who, i)
		if err := s.PutBlob(ctx, ledger.Chunk, key, []byte(key)); err != nil {
			return err
		}
		if err := s.PutRecord(ctx, ledger.Record{Rollout: key, StartedAt: time.Now()}); err != nil {
			return err
		}
	}
	return nil
}

func TestConformance(t *testing.T) {
	ledgertest.Run(t, func(t *testing.T) ledgertest.Open {
		path := filepath.Join(t.TempDir(), "ledger.db")
		return func(ctx context.Context) (ledgertest.Store, error) { return Open(ctx, path) }
	})
}

func TestTwoProcessesShareALedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childPath+"="+path)
	child.Stderr = os.Stderr
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() || lines.Text() != "open" {
		t.Errorf("child: %q", lines.Text())
	}
	if err := writeMany(t.Context(), path, "parent"); err != nil {
		t.Error(err)
	}
	for lines.Scan() {
		t.Errorf("child: %s", lines.Text())
	}
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for _, who := range []string{"child", "parent"} {
		for i := range writes {
			if _, err := s.Record(t.Context(), fmt.Sprintf("%s-%d", who, i)); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestManyCanOpenANewLedgerAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			s, err := Open(t.Context(), path)
			if err != nil {
				t.Error(err)
				return
			}
			_ = s.Close()
		})
	}
	group.Wait()
}

func TestOnlyTheOwnerCanReadTheFiles(t *testing.T) {
	// A name that would be misread if it were pasted into a URI unescaped.
	path := filepath.Join(t.TempDir(), "state 100%20?#", "ledger.db")
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.PutBlob(t.Context(), ledger.Plan, "key", nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{filepath.Dir(path): 0o700, path: 0o600, path + "-wal": 0o600} {
		info, err := os.Stat(name)
		if err != nil {
			t.Error(err)
		} else if got := info.Mode().Perm(); got != want {
			t.Errorf("mode of %s: got %04o, want %04o", name, got, want)
		}
	}
}

func TestCommitsReachTheDisk(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "10000"} {
		var got string
		if err := s.db.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil {
			t.Error(err)
		} else if got != want {
			t.Errorf("%s: got %s, want %s", pragma, got, want)
		}
	}
}

// exec1 runs one statement on the file of a ledger that nobody has open.
func exec1(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func TestUnusableFilesAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, path string)
		want    string
	}{
		{"newer schema", func(t *testing.T, path string) {
			s, err := Open(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			exec1(t, path, "INSERT INTO schema_version (version) VALUES (99)")
		}, "it has schema 99 and this binary knows 1: a newer Sluice has written it"},
		{"somebody's database", func(t *testing.T, path string) {
			exec1(t, path, "CREATE TABLE songs (name TEXT)")
		}, "database of something else"},
		{"no database", func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("no database", 100)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a database"},
		{"a folder", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "is a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger.db")
			tt.prepare(t, path)
			s, err := Open(t.Context(), path)
			if err == nil {
				_ = s.Close()
				t.Fatal("opened")
			}
			for _, want := range []string{tt.want, "open ledger", path} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not contain %q", err, want)
				}
			}
		})
	}
}

func TestAFullDiskIsNamedAndLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.PutBlob(t.Context(), ledger.Plan, "before", []byte("data")); err != nil {
		t.Fatal(err)
	}
	s.db.SetMaxOpenConns(1) // the limit is a connection's
	if _, err := s.db.ExecContext(t.Context(), "PRAGMA max_page_count = 1"); err != nil {
		t.Fatal(err)
	}
	err = s.PutBlob(t.Context(), ledger.Plan, "large", make([]byte, 1<<20))
	if err == nil {
		t.Fatal("a full disk took a megabyte")
	}
	for _, want := range []string{"ledger " + path, "put plan large", "full"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not contain %q", err, want)
		}
	}
	if _, err := s.db.ExecContext(t.Context(), "PRAGMA max_page_count = 1000000"); err != nil {
		t.Fatal(err)
	}
	if err := s.PutBlob(t.Context(), ledger.Plan, "large", make([]byte, 1<<20)); err != nil {
		t.Errorf("after space was freed: %v", err)
	}
	if _, err := s.Blob(t.Context(), ledger.Plan, "before"); err != nil {
		t.Error(err)
	}
}
