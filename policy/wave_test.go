package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// targetsOf reads one letter a target: P pending, a in flight, S succeeded, N no change, F failed, f failed and on its
// way back, R needs recovery, U unreachable, T unreachable and tried, K skipped, H held.
func targetsOf(text string) []TargetProgress {
	var out []TargetProgress
	for i, c := range text {
		t := TargetProgress{Name: fmt.Sprint(i), State: Pending}
		switch c {
		case 'a':
			t.State, t.InFlight = Applying, true
		case 'S':
			t.State = Succeeded
		case 'N':
			t.State = NoChange
		case 'F':
			t.State, t.Counted = Failed, true
		case 'f':
			t.State, t.Counted, t.InFlight = Restoring, true, true
		case 'R':
			t.State, t.Counted = NeedsRecovery, true
		case 'U':
			t.State = Unreachable
		case 'T':
			t.State, t.Tried = Unreachable, true
		case 'K':
			t.State = Skipped
		case 'H':
			t.State, t.Held = Waiting, true
		}
		out = append(out, t)
	}
	return out
}

func TestDecideWave(t *testing.T) {
	budget := func(failures int) *Budget {
		return &Budget{MaxFailures: Amount{Value: failures}, MaxUnreachable: Amount{Value: failures}, Size: 10}
	}
	percentOf := func(p, size int) *Budget {
		return &Budget{MaxFailures: Amount{Value: p, Percent: true}, MaxUnreachable: Amount{Value: p, Percent: true}, Size: size}
	}
	bounded := func(failures int) *Budget {
		b := budget(failures)
		b.Bounded = true
		return b
	}
	tests := []struct {
		name    string
		targets string
		state   WaveState
		start   []int
		again   []int
		phase   WavePhase
		breach  bool
	}{
		{"starts as many as may be in flight, in order", "PPPP", WaveState{MaxConcurrency: 2}, []int{0, 1}, nil, WaveRunning, false},
		{"fills a freed slot with the next", "SaPP", WaveState{MaxConcurrency: 2}, []int{2}, nil, WaveRunning, false},
		{"a failed target frees its slot", "FaPP", WaveState{MaxConcurrency: 2, Budget: budget(1)}, []int{2}, nil, WaveRunning, false},
		{"a target on its way back holds its slot", "faPP", WaveState{MaxConcurrency: 2, Budget: budget(1)}, nil, nil, WaveRunning, false},
		{"a count above the budget is a breach", "FFPa", WaveState{MaxConcurrency: 4, Budget: budget(1)}, nil, nil, WaveDraining, true},
		{"a count at the budget is none", "FPPP", WaveState{MaxConcurrency: 1, Budget: budget(1)}, []int{1}, nil, WaveRunning, false},
		{"no budget written is zero", "FP", WaveState{MaxConcurrency: 1, Budget: budget(0)}, nil, nil, WaveBreached, true},
		{"needs recovery counts as failed", "RP", WaveState{MaxConcurrency: 1, Budget: budget(0)}, nil, nil, WaveBreached, true},
		{"failures anywhere are counted before any target starts", "PPPF", WaveState{MaxConcurrency: 4, Budget: budget(0)}, nil, nil, WaveBreached, true},
		{"earlier waves use up the rollout's budget", "FP", WaveState{MaxConcurrency: 1, Budget: budget(5), Rollout: budget(2), Before: WaveCounts{Failures: 2}}, nil, nil, WaveBreached, true},
		{"unreachable ones have a budget of their own", "UUPP", WaveState{MaxConcurrency: 4, Budget: budget(1)}, nil, nil, WaveBreached, true},
		{"unreachable is not failed", "UPFP", WaveState{MaxConcurrency: 4, Budget: budget(1)}, []int{1, 3}, nil, WaveRunning, false},
		{"unreachable ones are tried again when all else is done", "USS", WaveState{MaxConcurrency: 4, Budget: budget(1)}, nil, []int{0}, WaveRunning, false},
		{"and then left", "TSS", WaveState{MaxConcurrency: 4, Budget: budget(1)}, nil, nil, WaveVerified, false},
		{"not while paused", "USS", WaveState{MaxConcurrency: 4, Budget: budget(1), Control: ControlPause}, nil, nil, WaveRunning, false},
		{"skipped ones leave the denominator", "FKKKKKKKKP", WaveState{MaxConcurrency: 1, Budget: percentOf(20, 10)}, nil, nil, WaveBreached, true},
		{"a percentage is rounded down", "FSSSP", WaveState{MaxConcurrency: 1, Budget: percentOf(39, 5)}, []int{4}, nil, WaveRunning, false},
		{"a breach stays when a retry has succeeded", "SSPP", WaveState{MaxConcurrency: 2, Budget: budget(0), Breached: "2 failed"}, nil, nil, WaveBreached, true},
		{"pause starts nothing", "aPPP", WaveState{MaxConcurrency: 4, Control: ControlPause}, nil, nil, WaveRunning, false},
		{"stop starts nothing and waits for what is in flight", "aPPP", WaveState{MaxConcurrency: 4, Control: ControlStop}, nil, nil, WaveDraining, false},
		{"stop ends with nothing in flight", "SPPP", WaveState{MaxConcurrency: 4, Control: ControlStop}, nil, nil, WaveStopped, false},
		{"an inconclusive target holds the wave", "HPPP", WaveState{MaxConcurrency: 4}, nil, nil, WaveHeld, false},
		{"bounded keeps budget + 1 - failures in flight", "PPPPPPPPPP", WaveState{MaxConcurrency: 8, Budget: bounded(2)}, []int{0, 1, 2}, nil, WaveRunning, false},
		{"bounded counts failures and what is in flight", "FaPPPPPPPP", WaveState{MaxConcurrency: 8, Budget: bounded(2)}, []int{2}, nil, WaveRunning, false},
		{"bounded over the rollout counts earlier waves", "PPPPPPPPPP", WaveState{MaxConcurrency: 8, Rollout: bounded(3), Before: WaveCounts{Failures: 2}}, []int{0, 1}, nil, WaveRunning, false},
		{"all terminal with a success is verified", "SFN", WaveState{MaxConcurrency: 1, Budget: budget(1)}, nil, nil, WaveVerified, false},
		{"ours: all failing is never a success, whatever the budget", "FFFF", WaveState{MaxConcurrency: 5, Budget: budget(4)}, nil, nil, WaveFailed, false},
		{"no change is a success", "NN", WaveState{MaxConcurrency: 1}, nil, nil, WaveVerified, false},
		{"all skipped asks a person", "KK", WaveState{MaxConcurrency: 1}, nil, nil, WaveHeld, false},
		{"and passes when one lets it", "KK", WaveState{MaxConcurrency: 1, AllSkippedAccepted: true}, nil, nil, WaveVerified, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.state.Targets = targetsOf(tt.targets)
			d := DecideWave(tt.state, time.Time{})
			if fmt.Sprint(d.Start) != fmt.Sprint(tt.start) || fmt.Sprint(d.Again) != fmt.Sprint(tt.again) || d.Phase != tt.phase || (d.Breached != "") != tt.breach {
				t.Errorf("start %v, again %v, %s, breached %q; want start %v, again %v, %s, breached %t", d.Start, d.Again, d.Phase, d.Breached, tt.start, tt.again, tt.phase, tt.breach)
			}
		})
	}
}

// With a bounded budget, failures never exceed budget + 1, whichever targets fail in whichever order, and each target
// is started at most once.
func TestBoundedBudgetIsNeverOvershotByMoreThanOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 30).Draw(t, "size")
		limit := rapid.IntRange(0, 5).Draw(t, "budget")
		s := WaveState{Targets: targetsOf(strings.Repeat("P", size)), MaxConcurrency: rapid.IntRange(1, 20).Draw(t, "concurrency"),
			Budget: &Budget{MaxFailures: Amount{Value: limit}, MaxUnreachable: Amount{Value: size}, Size: size, Bounded: true}}
		started := map[int]int{}
		for range 10 * size {
			d := DecideWave(s, time.Time{})
			s.Breached = d.Breached
			for _, i := range d.Start {
				started[i]++
				s.Targets[i].InFlight, s.Targets[i].State = true, Applying
			}
			var flying []int
			for i, target := range s.Targets {
				if target.InFlight {
					flying = append(flying, i)
				}
			}
			if len(flying) > s.MaxConcurrency {
				t.Fatalf("%d in flight, %d allowed", len(flying), s.MaxConcurrency)
			}
			if len(flying) == 0 {
				break
			}
			i := rapid.SampledFrom(flying).Draw(t, "ends")
			s.Targets[i].InFlight = false
			if s.Targets[i].State = Succeeded; rapid.Bool().Draw(t, "fails") {
				s.Targets[i].State, s.Targets[i].Counted = Failed, true
			}
		}
		if c := s.Count(); c.Failures > limit+1 {
			t.Fatalf("%d failed with a bounded budget of %d", c.Failures, limit)
		}
		for i, times := range started {
			if times != 1 {
				t.Fatalf("target %d was started %d times", i, times)
			}
		}
	})
}
