package activities

import (
	"testing"

	"github.com/seed-a0a4f4e3/sluice/tests/layers"
)

func TestLayer(t *testing.T) {
	layers.Guard(t, []string{"inventory", "inventory/ledger", "policy", "executors", "activities/metrics"}, "github.com/google/cel-go", "go.temporal.io/server")
}
