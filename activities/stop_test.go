package activities

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/ledgertest"
)

// asker is an executor that notes what it is asked for.
type asker struct {
	executors.Executor
	asked []executors.Direction
}

func (a *asker) Submit(_ context.Context, c executors.Change) (executors.Ticket, error) {
	a.asked = append(a.asked, c.Direction)
	return executors.Ticket{}, nil
}

// brokenMarks cannot read marks.
type brokenMarks struct{ *ledgertest.Memory }

func (b brokenMarks) Blob(ctx context.Context, kind, key string) ([]byte, error) {
	if kind == ledger.Stopped {
		return nil, errors.New("disk on fire")
	}
	return b.Memory.Blob(ctx, kind, key)
}

// A mark keeps the changes of its own rollout from being asked for, and nothing else.
func TestSubmitLooksForAStop(t *testing.T) {
	for name, test := range map[string]struct {
		rollout   string
		direction executors.Direction
		broken    bool
		refused   bool
	}{
		"a change":                          {"R1", executors.Apply, false, true},
		"a way back":                        {"R1", executors.Restore, false, false},
		"another rollout's change":          {"R2", executors.Apply, false, false},
		"a change, and no mark can be read": {"R1", executors.Apply, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			e := &asker{}
			b.a.Executors = executors.Registry{"none": e}
			for range 2 { // marking twice is marking once
				if _, err := b.env.ExecuteActivity(b.a.MarkStopped, "R1"); err != nil {
					t.Fatal(err)
				}
			}
			if test.broken {
				b.a.Blobs = brokenMarks{b.shelf}
			}
			_, err := b.env.ExecuteActivity(b.a.Submit, ChangeRef{Plan: "sha256:p", Rollout: test.rollout, Target: "a", Direction: test.direction, Version: "v2", Operation: "o"})
			if refused := err != nil && strings.Contains(err.Error(), "the rollout has been stopped"); refused != test.refused || err != nil && !refused {
				t.Errorf("%v; want it refused: %t", err, test.refused)
			}
			if asked := len(e.asked) > 0; asked == test.refused {
				t.Errorf("asked: %t", asked)
			}
		})
	}
}
