package policy

import (
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)

// progressOf is a rollout of waves of two targets in the given phases, with no rule beyond.
func progressOf(phases ...WavePhase) Progress {
	p := Progress{Author: "ann", Plan: Plan{Digest: "d1", Rollback: RollbackPlan{OnTargetFailed: TargetGoesBack, OnBreach: BreachHolds, OnReject: RejectRolloutBack}}}
	for i, phase := range phases {
		p.Plan.Waves = append(p.Plan.Waves, Wave{Number: i + 1, Name: string(rune('a' + i)), Size: 2})
		w := WaveProgress{Phase: phase, Open: phase == WaveRunning || phase == WaveHeld || phase == WaveSoaking || phase == WaveDraining}
		if phase == WaveDone {
			w.Reached, w.Counts.Succeeded = 2, 2
		}
		p.Waves = append(p.Waves, w)
	}
	return p
}

func TestDecide(t *testing.T) {
	asks := func(p Progress, wave int, c ...Consent) Progress {
		p.Plan.Waves[wave-1].Approvals = c
		return p
	}
	asked := func(p Progress, wave int) Progress {
		p.Waves[wave-1].AskedAt = t0
		return p
	}
	stopped := func(p Progress, cause StopCause, wave int) Progress {
		p.Stop = Stop{Cause: cause, Wave: wave, Reason: "why"}
		return p
	}
	onBreach := func(p Progress, b OnBreach) Progress {
		p.Plan.Rollback.OnBreach = b
		return p
	}
	with := func(p Progress, change func(*Progress)) Progress { change(&p); return p }
	approved := func(p Progress, by ...string) Progress {
		for _, b := range by {
			p.Approvals = append(p.Approvals, Approved{By: b, Wave: 1, Plan: "d1"})
		}
		return p
	}
	tests := []struct {
		name   string
		p      Progress
		at     time.Duration
		action Action
		wave   int
		ending Ending
		holds  bool
		says   string
	}{
		{"the first wave opens", progressOf(WavePending, WavePending), 0, ActOpen, 1, "", false, ""},
		{"the next opens when the one before is done", progressOf(WaveDone, WavePending), 0, ActOpen, 2, "", false, ""},
		{"not while the one before runs", progressOf(WaveRunning, WavePending), 0, ActWait, 0, "", false, "wave 1 (a) is running"},
		{"not while it soaks", progressOf(WaveSoaking, WavePending), 0, ActWait, 0, "", false, "soaking"},
		{"not while paused", with(progressOf(WaveDone, WavePending), func(p *Progress) { p.Paused = true }), 0, ActWait, 0, "", false, "paused"},
		{"not before the ledger holds what the one before did", with(progressOf(WaveDone, WavePending), func(p *Progress) { p.Unrecorded = true }), 0, ActWait, 0, "", false, "ledger"},
		{"a rollback does not wait for the ledger", stopped(with(progressOf(WaveDone, WavePending), func(p *Progress) { p.Unrecorded = true }), StoppedRollback, 0), 0, ActRollBack, 0, "", false, ""},
		{"an empty wave is passed over", with(progressOf(WavePending), func(p *Progress) { p.Plan.Waves[0].Size = 0 }), 0, ActPass, 1, "", false, ""},
		{"an approval is asked for first", asks(progressOf(WavePending), 1, Consent{Min: 1}), 0, ActAsk, 1, "", false, ""},
		{"beside the soak of the one before", asks(progressOf(WaveSoaking, WavePending), 2, Consent{Min: 1}), 0, ActAsk, 2, "", false, ""},
		{"an early approval does not shorten the soak", with(asked(asks(progressOf(WaveSoaking, WavePending), 2, Consent{Min: 1}), 2), func(p *Progress) { p.Approvals = []Approved{{By: "bob", Wave: 2, Plan: "d1"}} }), 0, ActWait, 0, "", false, "soaking"},
		{"and waited for", asked(asks(progressOf(WavePending), 1, Consent{Min: 2}), 1), 0, ActWait, 0, "", false, "needs 2 approvals more"},
		{"one person counts once", approved(asked(asks(progressOf(WavePending), 1, Consent{Min: 2}), 1), "bob", "bob"), 0, ActWait, 0, "", false, "needs 1 approval more"},
		{"enough people open the wave", approved(asked(asks(progressOf(WavePending), 1, Consent{Min: 2}), 1), "bob", "eve"), 0, ActOpen, 1, "", false, ""},
		{"the author does not count where that is written", approved(asked(asks(progressOf(WavePending), 1, Consent{Min: 1, NotAuthor: true}), 1), "ann"), 0, ActWait, 0, "", false, "needs 1 approval more"},
		{"an approval of another plan does not count", with(asked(asks(progressOf(WavePending), 1, Consent{Min: 1}), 1), func(p *Progress) { p.Approvals = []Approved{{By: "bob", Wave: 1, Plan: "d0"}} }), 0, ActWait, 0, "", false, "needs 1 approval"},
		{"each policy's demand is needed", approved(asked(asks(progressOf(WavePending), 1, Consent{Min: 1}, Consent{Policy: "q", Min: 2}), 1), "bob"), 0, ActWait, 0, "", false, "needs 1 approval"},
		{"within its time the question stands", asked(asks(progressOf(WavePending), 1, Consent{Min: 1, Within: Duration(time.Hour)}), 1), time.Hour - 1, ActWait, 0, "", false, ""},
		{"after it the rollout holds", asked(asks(progressOf(WavePending), 1, Consent{Min: 1, Within: Duration(time.Hour)}), 1), time.Hour, ActWait, 0, "", true, "are over"},
		{"a wave that came to no conclusion holds", progressOf(WaveHeld, WavePending), 0, ActWait, 0, "", true, "wave 1 (a) holds"},
		{"all done is success", progressOf(WaveDone, WavePassed), 0, ActEnd, 0, EndSucceeded, false, ""},
		{"failures within budget are told", with(progressOf(WaveDone), func(p *Progress) { p.Waves[0].Counts.Failures = 1 }), 0, ActEnd, 0, EndSucceededWithFailures, false, "1 failed"},
		{"so is what stayed out of reach", with(progressOf(WaveDone), func(p *Progress) { p.Waves[0].Counts.Unreachable = 1 }), 0, ActEnd, 0, EndSucceededWithFailures, false, "1 out of reach"},
		{"a late retry is waited for", with(progressOf(WaveDone), func(p *Progress) { p.LateInFlight = 1 }), 0, ActWait, 0, "", false, "being retried"},

		{"a breach holds by default", stopped(progressOf(WaveBreached, WavePending), StoppedBreach, 1), 0, ActWait, 0, "", true, "budget breached"},
		{"or fails, once nothing is in flight", onBreach(stopped(progressOf(WaveDraining), StoppedBreach, 1), BreachFails), 0, ActWait, 0, "", false, "safe point"},
		{"then it ends", onBreach(stopped(progressOf(WaveBreached), StoppedBreach, 1), BreachFails), 0, ActEnd, 0, EndFailed, false, ""},
		{"or takes everything back", onBreach(stopped(progressOf(WaveDone, WaveDraining), StoppedBreach, 2), BreachRolloutAll), 0, ActRollBack, 0, "", false, ""},
		{"or the wave", onBreach(stopped(with(progressOf(WaveDone, WaveBreached), func(p *Progress) { p.Waves[1].Reached = 1 }), StoppedBreach, 2), BreachWaveBack), 0, ActRollBack, 2, "", false, ""},
		{"and then holds", onBreach(stopped(with(progressOf(WaveDone, WaveBreached), func(p *Progress) { p.Back = Back{Begun: true, Ended: true, Scope: 2, Targets: 1} }), StoppedBreach, 2), BreachWaveBack), 0, ActWait, 0, "", true, "earlier waves stay"},
		{"a rollback of everything begins anew after one of a wave", stopped(with(progressOf(WaveDone, WaveBreached), func(p *Progress) { p.Back = Back{Begun: true, Ended: true, Scope: 2, Targets: 1} }), StoppedRollback, 0), 0, ActRollBack, 0, "", false, ""},
		{"a wave without a success fails the rollout", stopped(progressOf(WaveFailed), StoppedFailed, 1), 0, ActEnd, 0, EndFailed, false, ""},
		{"a rollback takes back what was reached", stopped(progressOf(WaveDone, WaveRunning), StoppedRollback, 0), 0, ActRollBack, 0, "", false, ""},
		{"and waits for it", stopped(with(progressOf(WaveDone), func(p *Progress) { p.Back.Begun = true }), StoppedRollback, 0), 0, ActWait, 0, "", false, "rolling back"},
		{"and ends", stopped(with(progressOf(WaveDone), func(p *Progress) { p.Back = Back{Begun: true, Ended: true, Targets: 2} }), StoppedRollback, 0), 0, ActEnd, 0, EndRolledBack, false, ""},
		{"incomplete when a target did not come back", stopped(with(progressOf(WaveDone), func(p *Progress) { p.Back = Back{Begun: true, Ended: true, Targets: 2, Incomplete: 1} }), StoppedRollback, 0), 0, ActEnd, 0, EndRollbackIncomplete, false, "1 target"},
		{"nothing reached: a rollback is done at once", stopped(progressOf(WavePending), StoppedRollback, 0), 0, ActEnd, 0, EndRolledBack, false, "nothing had been reached"},
		{"nothing reached: a reject ends as Rejected", stopped(progressOf(WavePending), StoppedReject, 0), 0, ActEnd, 0, EndRejected, false, ""},
		{"nothing reached in the end: also when something was in flight", stopped(with(progressOf(WaveStopped), func(p *Progress) { p.Back = Back{Begun: true, Ended: true} }), StoppedReject, 0), 0, ActEnd, 0, EndRejected, false, ""},
		{"a wave that has gone back had been reached: a reject ends as RolledBack", stopped(with(progressOf(WaveBreached, WavePending), func(p *Progress) { p.Back = Back{Begun: true, Ended: true, Scope: 1, Targets: 2} }), StoppedReject, 0), 0, ActEnd, 0, EndRolledBack, false, "is back"},
		{"a reject takes back what was reached", stopped(progressOf(WaveDone), StoppedReject, 0), 0, ActRollBack, 0, "", false, ""},
		{"or holds where that is written", with(stopped(progressOf(WaveDone), StoppedReject, 0), func(p *Progress) { p.Plan.Rollback.OnReject = RejectHolds }), 0, ActWait, 0, "", true, "rejected"},
		{"an abort waits for what is in flight", stopped(progressOf(WaveDraining), StoppedAbort, 0), 0, ActWait, 0, "", false, "safe point"},
		{"and ends without a rollback", stopped(progressOf(WaveDone), StoppedAbort, 0), 0, ActEnd, 0, EndAborted, false, ""},
		{"a rollback over its budget asks a person", stopped(with(progressOf(WaveDone), func(p *Progress) { p.Back = Back{Begun: true, Held: "over"} }), StoppedRollback, 0), 0, ActWait, 0, "", false, "rolling back"},
		{"a paused rollout rolls back all the same", with(stopped(progressOf(WaveDone), StoppedRollback, 0), func(p *Progress) { p.Paused = true }), 0, ActRollBack, 0, "", false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := Decide(tt.p, t0.Add(tt.at))
			if d.Action != tt.action || d.Wave != tt.wave || d.Ending != tt.ending || d.Holding != tt.holds || !strings.Contains(d.Reason, tt.says) {
				t.Errorf("got %s wave %d %s holding %t: %q; want %s wave %d %s holding %t, saying %q", d.Action, d.Wave, d.Ending, d.Holding, d.Reason,
					tt.action, tt.wave, tt.ending, tt.holds, tt.says)
			}
			if d.Action == ActWait && d.Reason == "" {
				t.Error("it waits without a reason")
			}
		})
	}
}

func TestEveryWaitSaysWhatWouldLiftIt(t *testing.T) {
	p := progressOf(WaveSoaking, WavePending)
	p.Waves[0].SoakUntil = t0.Add(time.Minute)
	p.Plan.Waves[0].SoakFrom = []string{"prod"}
	p.Plan.Waves[1].Approvals = []Consent{{Policy: "people", Min: 1}}
	p.Waves[1].AskedAt = t0
	p.Paused = true
	d := Decide(p, t0)
	if len(d.Waits) != 3 {
		t.Fatalf("waits = %+v, want the approval, the soak and the pause", d.Waits)
	}
	for _, w := range d.Waits {
		if w.Reason == "" || w.Rule == "" || w.Lifts == "" {
			t.Errorf("wait %+v lacks a reason, a rule or what lifts it", w)
		}
	}
	if d.Waits[1].Policy != "prod" || d.Waits[0].Policy != "people" {
		t.Errorf("waits = %+v, want the policies behind them", d.Waits)
	}
}
