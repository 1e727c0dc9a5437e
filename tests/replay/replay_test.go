// Package replay proves that today's workflow code can go on with the histories of yesterday's. The histories were
// written by released code (go test ./cmd/internal/e2e -run TestHistoriesReplay -write-histories) and are never written
// anew to make this test pass: a change that breaks one needs workflow.GetVersion.
package replay

import (
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// stored are the scenarios and how many histories each has at least: one that has lost its files proves nothing.
var stored = map[string]int{"finished": 8, "rejected": 2, "rolled-back": 10, "aborted": 4, "by-hand": 14, "gradual": 8, "waiting": 3, "batches-breached": 7, "stopped": 8}

func TestStoredHistoriesReplay(t *testing.T) {
	for scenario, atLeast := range stored {
		t.Run(scenario, func(t *testing.T) {
			files, err := filepath.Glob(filepath.Join("histories", scenario, "*.json.gz"))
			if err != nil {
				t.Fatal(err)
			}
			if len(files) < atLeast {
				t.Fatalf("%d histories, want at least %d", len(files), atLeast)
			}
			r := worker.NewWorkflowReplayer()
			workflows.RegisterAll(r)
			for _, name := range files {
				replayOne(t, r, name)
			}
		})
	}
}

func replayOne(t *testing.T, r worker.WorkflowReplayer, name string) {
	t.Helper()
	file, err := os.Open(name) //nolint:gosec // a file of this test
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	history, err := client.HistoryFromJSON(z, client.HistoryJSONOptions{})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := r.ReplayWorkflowHistory(nil, history); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}
