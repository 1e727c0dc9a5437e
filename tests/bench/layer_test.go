package main

import (
	"testing"

	"github.com/seed-a0a4f4e3/sluice/tests/layers"
)

// The bench drives programs: what it imported of them would be measured in its own process, and not where it runs.
func TestLayer(t *testing.T) {
	layers.Guard(t, []string{"executors/sim/fleet", "workflows"})
}
