package workflows

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/ledgertest"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// stopped reports whether the rollout's stop is marked.
func (w *world) stopped() bool {
	_, err := w.ledger.Blob(context.Background(), ledger.Stopped, w.input.Rollout)
	return err == nil
}

// markedLedger tells of a mark.
type markedLedger struct {
	*ledgertest.Memory
	mark context.CancelFunc
}

func (l markedLedger) PutBlob(ctx context.Context, kind, key string, data []byte) error {
	err := l.Memory.PutBlob(ctx, kind, key, data)
	if kind == ledger.Stopped {
		l.mark()
	}
	return err
}

// TestStopReachesWhatIsAboutToAsk stops a rollout when the asking for b has begun and nothing has been asked yet: no signal
// can reach it there any more, and it must not ask.
func TestStopReachesWhatIsAboutToAsk(t *testing.T) {
	for name, want := range map[string]Phase{RollBack: RolledBack, Abort: Aborted, Reject: RolledBack} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, waves("a", "b"), "a", "b")
			marked, mark := context.WithCancel(t.Context())
			w.acts.Blobs = markedLedger{w.ledger, mark}
			w.acts.At = func(point, target string) {
				if point != "submit.begin" || target != "b" || w.stopped() {
					return
				}
				w.env.SignalWorkflow(name, Command{By: "bob"})
				patient, enough := context.WithTimeout(marked, 10*time.Second)
				defer enough()
				if <-patient.Done(); !w.stopped() {
					t.Error("the stop was not marked")
				}
			}
			s := w.run()
			if s.State != want {
				t.Errorf("it ended as %s (%s), want %s", s.State, s.Reason, want)
			}
			if asked := w.fleet.log(); slices.Contains(asked, "apply b v2") || !slices.Contains(asked, "apply a v2") {
				t.Errorf("asked: %v; b was stopped before anything had been asked of it", asked)
			}
			if s.Counts[policy.Pending] != 1 {
				t.Errorf("counts %v; b was not started", s.Counts)
			}
			if backs := slices.Contains(w.fleet.log(), "restore a v1"); backs != (name != Abort) {
				t.Errorf("asked: %v; a mark keeps nothing from going back", w.fleet.log())
			}
		})
	}
}

// A target that was kept from asking waits for its stop, however late that comes: at its deadline it has not failed.
func TestAMarkedTargetWaitsForItsStop(t *testing.T) {
	w := newWorld(t, waves("a"), "a")
	if err := w.acts.MarkStopped(t.Context(), "R1"); err != nil {
		t.Fatal(err)
	}
	w.send(2*time.Hour, Abort, nil) // the deadline is one
	s := w.run()
	if s.State != Aborted || s.Counts[policy.Pending] != 1 || len(w.fleet.log()) != 0 {
		t.Errorf("%s (%s), %v, asked %v; nothing was asked, and nothing failed", s.State, s.Reason, s.Counts, w.fleet.log())
	}
}

// A pause, a rollback of one target, and a breach after which what has begun finishes with its checks, are no such stop.
func TestOnlyAStopForGoodIsMarked(t *testing.T) {
	w := newWorld(t, waves("a", "b"), "a", "b")
	w.plan.Waves[0].Soak = policy.Duration(time.Hour)
	w.send(time.Minute, Pause, Command{By: "bob"})
	w.send(2*time.Minute, Resume, Command{By: "bob"})
	w.send(3*time.Minute, RollBack, map[string]any{"by": "bob", "targets": []string{"a"}})
	if s := w.run(); w.stopped() {
		t.Errorf("%s: a stop is marked that never was", s.State)
	}
}

// A ledger that is down when the stop comes delays it by no more than the one try, and the stop is carried out.
func TestStopWithoutItsMark(t *testing.T) {
	w := newWorld(t, waves("a", "b"), "a", "b")
	w.plan.Waves[0].Soak = policy.Duration(time.Hour)
	w.env.OnActivity(acts.MarkStopped, mock.Anything, mock.Anything).Return(fmt.Errorf("disk full"))
	w.send(time.Minute, RollBack, Command{By: "bob"})
	if s := w.run(); s.State != RolledBack || w.fleet.version("a") != "v1" || w.stopped() {
		t.Errorf("%s (%s), a runs %s", s.State, s.Reason, w.fleet.version("a"))
	}
}

// A rollout that was stopped before marks were made replays as it was.
func TestAnEarlierRunMarksNothing(t *testing.T) {
	w := newWorld(t, waves("a", "b"), "a", "b")
	w.plan.Waves[0].Soak = policy.Duration(time.Hour)
	w.env.OnGetVersion(changeMarksStop, workflow.DefaultVersion, workflow.Version(1)).Return(workflow.DefaultVersion)
	w.send(time.Minute, RollBack, Command{By: "bob"})
	if s := w.run(); s.State != RolledBack || w.stopped() {
		t.Errorf("%s (%s), marked: %v", s.State, s.Reason, w.stopped())
	}
}
