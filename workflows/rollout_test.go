package workflows

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/policy"
)

func TestRolloutWalksWavesInOrder(t *testing.T) {
	w := newWorld(t, waves("a", "b,c", "d"), "d", "c", "b", "a")
	s := w.run()
	if s.State != Succeeded {
		t.Fatalf("state = %s (%s), want Succeeded", s.State, s.Reason)
	}
	want := []string{"apply a v2", "apply c v2", "apply b v2", "apply d v2"}
	if got := w.fleet.log(); got[0] != want[0] || got[3] != want[3] || !slices.Contains(got[1:3], want[1]) || len(got) != 4 {
		t.Errorf("asked %v, want %v", got, want)
	}
}

func TestRolloutWaitsForSoakToTheSecond(t *testing.T) {
	p := waves("a", "b")
	p.Waves.Waves[0].Soak = policy.Duration(30 * time.Minute)
	w := newWorld(t, p, "a", "b")
	s := w.run()
	if s.State != Succeeded {
		t.Fatalf("state = %s (%s)", s.State, s.Reason)
	}
	if got := s.Waves[1].StartedAt.Sub(s.Waves[0].StartedAt); got < 30*time.Minute || got > 30*time.Minute+5*time.Second {
		t.Errorf("wave 2 opened %s after wave 1, want 30m", got)
	}
}
