// Package layers lets each package guard its own place: which of our packages and which engines it may import, and that
// it says what it is for. Each guarded package calls it from a test of its own, so that a change of that package is what
// makes the test run again. It must not be imported by anything but tests.
package layers

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/seed-a0a4f4e3/sluice/"

// Guard fails unless the package in the test's folder imports of ours only what is allowed (paths below the module's
// root), none of the forbidden modules, and has a package comment.
func Guard(t *testing.T, allowed []string, forbidden ...string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	documented := false
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name) //nolint:gosec // a file of the package under test
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		documented = documented || parsed.Doc != nil
		for _, spec := range parsed.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if ours, is := strings.CutPrefix(path, module); is && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s; this layer may import of ours only: %s", name, ours, strings.Join(allowed, ", "))
			}
			for _, f := range forbidden {
				if path == f || strings.HasPrefix(path, f+"/") {
					t.Errorf("%s imports %s, which has no place in this layer", name, path)
				}
			}
		}
	}
	if !documented {
		t.Error("the package has no comment that says what it is for and what it must not do")
	}
}
