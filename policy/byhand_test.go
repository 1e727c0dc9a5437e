package policy

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// What went back by hand holds the rollout until somebody resumes, whatever else it would do.
func TestDecideHoldsForWhatWentBackByHand(t *testing.T) {
	holds := func(returning, lost int, p Progress) Progress {
		p.ByHand = ByHand{Holding: true, Returning: returning, Lost: lost, Taken: []Taken{{Target: "b", Wave: 1, By: "ann", Reason: "write latency"}}}
		return p
	}
	with := func(p Progress, change func(*Progress)) Progress { change(&p); return p }
	tests := []struct {
		name    string
		p       Progress
		action  Action
		ending  Ending
		holds   bool
		returns bool
		says    string
	}{
		{"in the place of the next wave", holds(0, 0, progressOf(WaveDone, WavePending)), ActWait, "", true, false, `b went back by hand (ann: "write latency"): resume goes on without it; rollback, reject or abort ends it`},
		{"while a wave runs", holds(0, 0, progressOf(WaveRunning)), ActWait, "", true, false, "b went back by hand"},
		{"in the place of the end", holds(0, 0, progressOf(WaveDone)), ActWait, "", true, false, "b went back by hand"},
		{"while it is on its way", holds(1, 0, progressOf(WaveDone, WavePending)), ActWait, "", true, true, `taking back b by hand (ann: "write latency"); then the rollout holds`},
		{"with one that did not come back", holds(0, 1, progressOf(WaveDone, WavePending)), ActWait, "", true, false, "1 target did not come back: see who needs attention"},
		{"an approval is asked for all the same", with(holds(0, 0, progressOf(WaveDone, WavePending)), func(p *Progress) { p.Plan.Waves[1].Approvals = []Consent{{Min: 1}} }), ActAsk, "", false, false, ""},
		{"a rollback of everything is stronger", with(holds(0, 0, progressOf(WaveDone, WavePending)), func(p *Progress) { p.Stop.Cause = StoppedRollback }), ActRollBack, "", false, true, ""},
		{"an abort waits for what is on its way", with(progressOf(WaveDone), func(p *Progress) { p.Stop.Cause, p.ByHand.Returning = StoppedAbort, 1 }), ActWait, "", false, true, ""},
		{"after a resume the next wave opens", with(progressOf(WaveStopped, WavePending), func(p *Progress) { p.Waves[0].ByHand = true }), ActOpen, "", false, false, ""},
		{"the end says how many went back", with(progressOf(WaveDone), func(p *Progress) { p.Waves[0].Counts.Taken = 1 }), ActEnd, EndSucceeded, false, false, "each wave is done; 1 target went back by hand"},
		{"none left is no success", with(progressOf(WaveDone), func(p *Progress) {
			p.Waves[0] = WaveProgress{Phase: WaveDone, Counts: WaveCounts{Skipped: 2, Taken: 2}}
		}), ActEnd, EndRolledBack, false, false, "2 targets went back by hand"},
		{"nor is one that stayed", with(progressOf(WaveDone), func(p *Progress) {
			p.Waves[0] = WaveProgress{Phase: WaveDone, Reached: 1, Counts: WaveCounts{Skipped: 1, Taken: 1, Failures: 1}}
		}), ActEnd, EndRollbackIncomplete, false, false, "1 did not come back"},
		{"a reject after all went back is no Rejected", with(progressOf(WaveDone), func(p *Progress) {
			p.Waves[0] = WaveProgress{Phase: WaveDone, Counts: WaveCounts{Skipped: 2, Taken: 2}}
			p.Stop.Cause = StoppedReject
		}), ActEnd, EndRolledBack, false, false, "2 by hand before"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := Decide(tt.p, t0)
			if d.Action != tt.action || d.Ending != tt.ending || d.Holding != tt.holds || d.RollingBack != tt.returns || !strings.Contains(d.Reason, tt.says) {
				t.Errorf("got %+v, want %s %s, holding %t, rolling back %t, %q", d, tt.action, tt.ending, tt.holds, tt.returns, tt.says)
			}
			lifted := slices.ContainsFunc(d.Waits, func(w Wait) bool { return w.Rule == "rollback" && strings.Contains(w.Lifts, "resume") })
			if lifted != (tt.holds && !tt.returns) {
				t.Errorf("waits %+v, want one that resume lifts: %t", d.Waits, tt.holds && !tt.returns)
			}
		})
	}
}

// A target that came back by hand has left its wave: it is no success, no failure, and takes no room in a budget.
func TestDecideWaveWithoutWhatWentBackByHand(t *testing.T) {
	back := TargetProgress{Name: "b", State: RolledBack, ByHand: true}
	lost := TargetProgress{Name: "b", State: NeedsRecovery, ByHand: true, Counted: true, Reached: true}
	fine := TargetProgress{Name: "a", State: Succeeded, Reached: true}
	half := Budget{MaxFailures: Amount{Value: 50, Percent: true}, Size: 2}
	one := Budget{MaxFailures: Amount{Value: 1}, Size: 2}
	tests := []struct {
		name  string
		s     WaveState
		phase WavePhase
	}{
		{"the others decide", WaveState{Targets: []TargetProgress{fine, back}}, WaveVerified},
		{"it is never started again", WaveState{Targets: []TargetProgress{fine, back}, MaxConcurrency: 2, Control: ControlRun}, WaveVerified},
		{"none left holds", WaveState{Targets: []TargetProgress{back, {Name: "c", State: Skipped}}}, WaveHeld},
		{"it leaves the denominator", WaveState{Targets: []TargetProgress{back, {Name: "c", State: Failed, Counted: true}}, Budget: &half}, WaveBreached},
		{"one that stayed is a failure", WaveState{Targets: []TargetProgress{fine, lost}, Budget: &Budget{Size: 2}}, WaveBreached},
		{"within budget the wave goes on", WaveState{Targets: []TargetProgress{fine, lost}, Budget: &one}, WaveVerified},
		{"no success is no verdict before the resume", WaveState{Targets: []TargetProgress{lost}, Budget: &one, Control: ControlPause}, WaveRunning},
		{"and one after it", WaveState{Targets: []TargetProgress{lost}, Budget: &one, Control: ControlRun}, WaveFailed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := DecideWave(tt.s, time.Time{}); d.Phase != tt.phase || len(d.Start) > 0 {
				t.Errorf("got %+v, want %s and nothing started", d, tt.phase)
			}
		})
	}
}
