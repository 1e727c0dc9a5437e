package datadog

import (
	"testing"

	"github.com/seed-a0a4f4e3/sluice/tests/layers"
)

func TestLayer(t *testing.T) {
	layers.Guard(t, []string{"activities/metrics", "inventory", "policy"}, "go.temporal.io")
}
