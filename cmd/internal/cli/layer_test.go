package cli

import (
	"testing"

	"github.com/seed-a0a4f4e3/sluice/tests/layers"
)

func TestLayer(t *testing.T) {
	layers.Guard(t, []string{"cmd/internal/config", "cmd/internal/out", "cmd/internal/wire", "activities", "executors", "inventory", "policy", "policy/load", "workflows"}, "go.temporal.io/server")
}
