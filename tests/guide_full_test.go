//go:build full

package tests

import (
	"os"
	"path/filepath"
	"testing"
)

// TestGuidePageWorksAsWritten walks the page of the multi-region example, and wants the output that it shows.
func TestGuidePageWorksAsWritten(t *testing.T) {
	dir := copyTree(t)
	page, err := os.ReadFile(filepath.Join(dir, "deploy", "examples", "multi-region", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	steps := tourSteps(t, string(page), "watch it")
	if len(steps) < 4 {
		t.Fatalf("the page has %d steps; its section or its fences were not understood", len(steps))
	}
	walk(t, dir, steps)
}
