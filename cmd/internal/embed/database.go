package embed

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/headers"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/persistence"
	"go.temporal.io/server/common/persistence/serialization"
	temporalsql "go.temporal.io/server/common/persistence/sql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/common/resolver"
	"go.temporal.io/server/common/searchattribute/sadefs"
	schema "go.temporal.io/server/schema/sqlite"
	"google.golang.org/protobuf/types/known/durationpb"
)

// ErrSchema: the data folder was written for another schema. The server neither checks nor migrates its SQLite schema,
// so running on would fail later and worse.
var ErrSchema = errors.New("data folder has another schema")

// clusterName is the name that Temporal's development servers use; it is in every namespace and cannot change.
const clusterName = "active"

// sidecar says beside the database what it was created for.
type sidecar struct {
	// Schema is the digest of the statements that created the tables.
	Schema string `json:"schema"`
	// Server is the version that created the database, for the message.
	Server string `json:"server"`
}

// openDatabase makes sure that the database of a data folder exists and has this server's schema. It returns how the
// server connects to it, and its path.
func openDatabase(ctx context.Context, o Options) (*config.SQL, string, error) {
	if o.DataDir == "" {
		// The plug-in creates the tables of an in-memory database itself. The name keeps two servers of one process apart.
		return &config.SQL{
			PluginName:        sqlite.PluginName,
			DatabaseName:      "sluice-" + rand.Text(),
			ConnectAttributes: map[string]string{"mode": "memory", "cache": "shared"},
		}, "", nil
	}

	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, "", fmt.Errorf("data folder %s: %w", o.DataDir, err)
	}
	path := filepath.Join(dir, databaseFile)
	synchronous := "2" // FULL, see https://www.sqlite.org/pragma.html#pragma_synchronous
	if o.Synchronous == SynchronousNormal {
		synchronous = "1"
	}
	cfg := &config.SQL{
		PluginName: sqlite.PluginName,
		// The plug-in pastes the name into a URI as it is, so that "?" or "%" in a folder's name would be read as one.
		DatabaseName: (&url.URL{Path: path}).EscapedPath(),
		ConnectAttributes: map[string]string{
			"mode":         "rwc",
			"journal_mode": "wal",
			"synchronous":  synchronous,
			"busy_timeout": "5000", // ms; a backup tool may hold the file for a moment
		},
	}
	if err := createSchema(ctx, dir, cfg.DatabaseName); err != nil {
		return nil, "", err
	}
	return cfg, path, nil
}

// createSchema creates the tables in one transaction when there are none, and otherwise compares the sidecar.
//
// The sidecar is written first: a crash in between leaves a sidecar without tables, which the next start overwrites,
// while tables without one could be anything.
func createSchema(ctx context.Context, dir, name string) (err error) {
	path := filepath.Join(dir, databaseFile)
	// Created here for its mode, which SQLite gives to the write-ahead log as well.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open database: %w; free space or fix its permissions, or choose another data folder", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("open database %s: %w", path, err)
	}
	want, err := schemaDigest()
	if err != nil {
		return err
	}

	db, err := sql.Open("sqlite", "file:"+name+"?mode=rwc&_pragma=journal_mode=wal&_pragma=synchronous=2&_pragma=busy_timeout=5000")
	if err != nil {
		return fmt.Errorf("open database %s: %w", path, err)
	}
	defer func() {
		if closed := db.Close(); err == nil && closed != nil {
			err = fmt.Errorf("close database %s: %w", path, closed)
		}
	}()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("open database %s: %w", path, err)
	}
	defer func() { _ = tx.Rollback() }()
	var tables int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type = 'table'").Scan(&tables); err != nil {
		return fmt.Errorf("read database %s: %w; it may not be one", path, err)
	}
	if tables > 0 {
		return checkSidecar(dir, want)
	}
	if err := writeSidecar(dir, sidecar{Schema: want, Server: headers.ServerVersion}); err != nil {
		return err
	}
	if err := schema.SetupSchemaOnDB(&statements{exec: func(statement string) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	}}); err != nil {
		return fmt.Errorf("create tables in %s: %w", path, err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("create tables in %s: %w", path, err)
	}
	return nil
}

// statements takes the place of a database in schema.SetupSchemaOnDB, which otherwise hides what it runs and commits
// each statement by itself. Nothing but Exec is called.
type statements struct {
	sqlplugin.AdminDB
	exec func(statement string) error
}

func (s *statements) Exec(statement string, _ ...any) error { return s.exec(statement) }

// schemaDigest returns the digest of the schema that this server version creates.
func schemaDigest() (string, error) {
	sum := sha256.New()
	err := schema.SetupSchemaOnDB(&statements{exec: func(statement string) error {
		_, err := fmt.Fprintf(sum, "%s;\n", strings.TrimSpace(statement))
		return err
	}})
	if err != nil {
		return "", fmt.Errorf("read the server's schema: %w", err)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// checkSidecar returns ErrSchema unless the sidecar says want.
func checkSidecar(dir, want string) error {
	data, err := os.ReadFile(filepath.Join(dir, sidecarFile))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %s holds a database but no %s, so its schema is not known; choose another data folder", ErrSchema, dir, sidecarFile)
	}
	if err != nil {
		return fmt.Errorf("read schema digest: %w", err)
	}
	var got sidecar
	if err := json.Unmarshal(data, &got); err != nil {
		return fmt.Errorf("%w: %s in %s cannot be read (%w); restore it from a backup, or choose another data folder", ErrSchema, sidecarFile, dir, err)
	}
	if got.Schema != want {
		return fmt.Errorf("%w: %s was created by Temporal server %s with schema %.19s, this binary holds server %s with schema %.19s; start it with the binary that created it, or choose another data folder",
			ErrSchema, dir, got.Server, got.Schema, headers.ServerVersion, want)
	}
	return nil
}

// writeSidecar writes the sidecar in a way that leaves the old one or the new one, whole.
func writeSidecar(dir string, s sidecar) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, sidecarFile)
	f, err := os.CreateTemp(dir, "."+sidecarFile+"-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write schema digest: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write schema digest: %w", err)
	}
	return nil
}

// ensureNamespace creates a namespace when it is missing and gives it the search attributes that it lacks.
//
// It writes to the tables and not through the API: an attribute added through the API is unknown to the services that
// have the namespace cached, for some seconds, and a workflow started in between would fail its task.
func ensureNamespace(ctx context.Context, cfg *config.SQL, name string, attributes []string) error {
	types := make(map[string]enumspb.IndexedValueType, len(attributes))
	for _, a := range attributes {
		types[a] = enumspb.INDEXED_VALUE_TYPE_KEYWORD
	}
	namespace, err := schema.NewNamespaceConfig(clusterName, name, false, types)
	if err != nil {
		return fmt.Errorf("create namespace %q: %w", name, err)
	}
	namespace.Detail.Config.Retention = durationpb.New(retention)
	if err := schema.CreateNamespaces(cfg, namespace); err != nil {
		return fmt.Errorf("create namespace %q: %w", name, err)
	}
	if err := addSearchAttributes(ctx, cfg, name, attributes); err != nil {
		return fmt.Errorf("add search attributes to namespace %q: %w", name, err)
	}
	return nil
}

// addSearchAttributes gives an existing namespace the attributes that it lacks. Each takes one of the ten Keyword
// columns; those that are taken, by ours or by an operator's own attributes, stay as they are.
func addSearchAttributes(ctx context.Context, cfg *config.SQL, name string, attributes []string) error {
	db, err := temporalsql.NewSQLDB(sqlplugin.DbKindUnknown, cfg, resolver.NewNoopResolver(), log.NewNoopLogger(), metrics.NoopMetricsHandler)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	rows, err := db.SelectFromNamespace(ctx, sqlplugin.NamespaceFilter{Name: &name})
	if err != nil {
		return err
	}
	row := rows[0]
	serializer := serialization.NewSerializer()
	detail, err := serializer.NamespaceDetailFromBlob(persistence.NewDataBlob(row.Data, row.DataEncoding))
	if err != nil {
		return err
	}

	aliases := detail.GetConfig().GetCustomSearchAttributeAliases()
	if aliases == nil {
		aliases = map[string]string{}
	}
	present := map[string]string{} // attribute → column
	for column, attribute := range aliases {
		present[attribute] = column
	}
	columns := sadefs.GetDBIndexSearchAttributes(nil).CustomSearchAttributes
	var free []string
	for column, kind := range columns {
		if _, taken := aliases[column]; !taken && kind == enumspb.INDEXED_VALUE_TYPE_KEYWORD {
			free = append(free, column)
		}
	}
	slices.Sort(free)

	changed := false
	for _, attribute := range attributes {
		if column, ok := present[attribute]; ok {
			if kind := columns[column]; kind != enumspb.INDEXED_VALUE_TYPE_KEYWORD {
				return fmt.Errorf("%s exists as %s and must be Keyword; remove it, or choose another namespace", attribute, kind)
			}
			continue
		}
		if len(free) == 0 {
			return fmt.Errorf("no column is left for %s: SQLite has room for ten Keyword attributes; remove one, or choose another namespace", attribute)
		}
		aliases[free[0]] = attribute
		free = free[1:]
		changed = true
	}
	if !changed {
		return nil
	}
	detail.Config.CustomSearchAttributeAliases = aliases
	blob, err := serializer.NamespaceDetailToBlob(detail)
	if err != nil {
		return err
	}
	row.Data, row.DataEncoding = blob.GetData(), blob.GetEncodingType().String()
	_, err = db.UpdateNamespace(ctx, &row)
	return err
}
