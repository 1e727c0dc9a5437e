package main

import (
	"os/exec"
	"strings"
	"testing"
)

// The CLI and worker talk to an existing Temporal: a server linked in would be 100 MB that nobody runs, and a way for a
// laptop's settings into production.
func TestNoServerIsLinkedIn(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 100 {
		t.Fatalf("only %d packages: is this the program?", len(deps))
	}
	for _, dep := range deps {
		for _, banned := range []string{"go.temporal.io/server", "github.com/temporalio/ui-server", "github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"} {
			if dep == banned || strings.HasPrefix(dep, banned+"/") {
				t.Errorf("%s is linked in", dep)
			}
		}
	}
}
