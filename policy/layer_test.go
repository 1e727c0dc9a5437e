package policy

import (
	"testing"

	"github.com/seed-a0a4f4e3/sluice/tests/layers"
)

func TestLayer(t *testing.T) {
	layers.Guard(t, []string{"inventory"}, "go.temporal.io", "os", "net", "io", "math/rand", "time/tzdata", "github.com/google/cel-go", "github.com/goccy/go-yaml", "github.com/teambition/rrule-go")
}
