package tests

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExamplesAreValid has `sluice validate` read every folder of documents under deploy/examples. If it fails, somebody
// copies an example that starts nothing.
func TestExamplesAreValid(t *testing.T) {
	root := filepath.Join("..", "deploy", "examples")
	var folders []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ext := filepath.Ext(path); !entry.IsDir() && (ext == ".yaml" || ext == ".yml") {
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
}
