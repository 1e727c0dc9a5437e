package tests

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

// TestExamplesAreValid has `sluice validate` read every folder of documents under deploy/examples. If it fails, somebody
// copies an example that starts nothing.
func TestExamplesAreValid(t *testing.T) {
	root := filepath.Join("..", "deploy", "examples")
	var folders, configurations []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ext := filepath.Ext(path); !entry.IsDir() && (ext == ".yaml" || ext == ".yml") {
			switch entry.Name() {
			case "worker.yaml": // a worker's configuration
				configurations = append(configurations, path)
				return nil
			case "scenario.yaml": // a simulated fleet
				_, err := fleet.Load(path)
				return err
			}
			if folder := filepath.Dir(path); !slices.Contains(folders, folder) {
				folders = append(folders, folder)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(folders) == 0 {
		t.Fatalf("no document was found under %s", root)
	}
	for _, folder := range folders {
		t.Run(filepath.ToSlash(strings.TrimPrefix(folder, root+string(filepath.Separator))), func(t *testing.T) {
			output, err := exec.Command(filepath.Join(bin, "sluice"), "validate", "-f", folder).CombinedOutput()
			if err != nil || !strings.HasPrefix(string(output), "valid sha256:") {
				t.Errorf("sluice validate -f %s: %v\n%s", folder, err, output)
			}
		})
	}
	for _, file := range configurations {
		t.Run(filepath.ToSlash(strings.TrimPrefix(file, root+string(filepath.Separator))), func(t *testing.T) {
			// A worker that takes its configuration gets as far as asking for a Temporal that is not there.
			worker := exec.Command(filepath.Join(bin, "sluice"), "worker", "--config", file, "--data", t.TempDir())
			worker.Env = append(os.Environ(), "DD_API_KEY=any", "DD_APP_KEY=any", "TEMPORAL_ADDRESS=127.0.0.1:1")
			output, err := worker.CombinedOutput()
			if err == nil || !strings.Contains(string(output), "cannot reach Temporal at 127.0.0.1:1") {
				t.Errorf("sluice worker --config %s: %v\n%s", file, err, output)
			}
		})
	}
}
