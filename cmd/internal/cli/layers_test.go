package cli

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Only package wire may import adapters, config and out know nothing of ours, and no server gets into the CLI.
func TestImportsStayInTheirLayer(t *testing.T) {
	const ours = "github.com/seed-a0a4f4e3/sluice/"
	allowed := map[string][]string{
		".":         {"cmd/internal/config", "cmd/internal/out", "cmd/internal/wire", "activities", "executors", "inventory", "policy", "policy/load", "workflows"},
		"../config": {}, "../out": {},
	}
	for dir, allow := range allowed {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files (%v)", dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range tree.Imports {
				path, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(path, "go.temporal.io/server") {
					t.Errorf("%s imports %s", file, path)
				}
				inner, found := strings.CutPrefix(path, ours)
				if !found {
					continue
				}
				known := false
				for _, one := range allow {
					known = known || one == inner
				}
				if !known {
					t.Errorf("%s imports %s, which is not in its layer", file, inner)
				}
			}
		}
	}
}
