package workflows

import (
	"testing"

	"github.com/seed-a0a4f4e3/sluice/tests/layers"
)

func TestLayer(t *testing.T) {
	layers.Guard(t, []string{"inventory", "policy", "executors", "activities"}, "go.temporal.io/server", "github.com/google/cel-go", "github.com/teambition/rrule-go", "time/tzdata")
}
