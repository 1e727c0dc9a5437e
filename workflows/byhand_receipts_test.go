package workflows

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"

	"github.com/seed-a0a4f4e3/sluice/policy"
)

// What a rollback by hand answers, and how the status tells of it.

func TestWhatIsNotThereToTakeBackIsRefused(t *testing.T) {
	for _, open := range []bool{true, false} {
		t.Run(fmt.Sprintf("open %t", open), func(t *testing.T) {
			p := tolerant(1, "a,b,f", "c")
			p.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
			if open {
				p.Waves.Waves[0].Soak = policy.Duration(2 * time.Hour)
			}
			w := newWorld(t, p, "a", "b", "f", "c")
			w.fleet.versions["a"] = "v2"
			w.fleet.on["apply f"] = fails("disk full")
			for i, c := range []map[string]any{
				{"target": "a", "id": "no change"}, {"target": "c", "id": "not begun"}, {"target": "z", "id": "unknown"}, {"target": "b", "wave": 2, "id": "elsewhere"},
				{"wave": 3, "id": "out of range"}, {"wave": -1, "id": "negative"}, {"wave": 2, "id": "wave"}, {"target": "c", "wave": 1, "id": "other wave"}, {"target": "f", "id": "went back"},
			} {
				w.send(time.Duration(10+i)*time.Minute, RollBack, c)
			}
			var after RolloutStatus
			w.at(30*time.Minute, &after)
			w.send(4*time.Hour, Approve, map[string]any{"by": "bob"})
			s := w.run()
			for id, says := range map[string]string{"no change": "NoChange", "not begun": "wave 2 has not begun", "unknown": `no target "z"`, "elsewhere": "b is in wave 1, not in wave 2",
				"out of range": "there is no wave 3; the plan has 2", "negative": "there is no wave -1", "wave": "wave 2 has not begun", "other wave": "c is in wave 2, not in wave 1"} {
				if open && id == "elsewhere" {
					says = "wave" // only the open wave knows, and it is not asked
				}
				wantReceipt(t, s, id, false, says)
			}
			wantReceipt(t, s, "went back", true, "f runs v1 again already")
			if after.State != AwaitingApproval && !open || after.State == Holding || s.State != SucceededWithFailures {
				t.Errorf("after the refusals: %s (%s); end %s", after.State, after.Reason, s.State)
			}
		})
	}
}

// The timeline says of each command once what became of it, also of one that a wave was asked for.
func TestTheTimelineTellsRefusedCommandsFromOthers(t *testing.T) {
	p := waves("a,b", "c", "d")
	p.Waves.Waves[0].Soak = policy.Duration(2 * time.Hour)
	w := newWorld(t, p, "a", "b", "c", "d")
	w.send(10*time.Minute, RollBack, takesBack("nope", "1"))
	w.send(11*time.Minute, RollBack, takesBack("c", "2"))
	w.send(12*time.Minute, RollBack, takesBack("a", "3"))
	w.send(13*time.Minute, Retry, map[string]any{"by": "ann", "target": "b", "id": "4"})
	w.send(14*time.Minute, Resume, map[string]any{"by": "ann"})
	s := w.run()
	var got []string
	for _, e := range s.Timeline {
		if e.Who == "ann" {
			got = append(got, e.What+": "+e.Why)
		}
	}
	want := []string{"rollout of v2 to prod asked for: ", `rollback nope refused: the plan has no target "nope"`, "rollback c refused: c has not been reached: wave 2 has not begun; skip leaves it out",
		"rollback a: write latency", "retry b refused: the rollout is paused; resume it first", "resume: "}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	wantReceipt(t, s, "1", false, `the plan has no target "nope"`)
}

// What the status says of rollbacks by hand counts each target once, and the time of the last of them.
func TestTheStatusCountsWhatWentBackOnce(t *testing.T) {
	for _, open := range []bool{true, false} {
		t.Run(fmt.Sprintf("open %t", open), func(t *testing.T) {
			p := waves("a,b", "c,d", "e")
			p.Waves.Waves[2].Approval = &policy.Approval{Min: 1}
			if open {
				p.Waves.Waves[0].Soak = policy.Duration(10 * time.Hour)
			}
			w := newWorld(t, p, "a", "b", "c", "d", "e")
			w.send(10*time.Minute, RollBack, takesBack("a", "1"))
			w.send(20*time.Minute, Resume, nil)
			w.send(21*time.Minute, Retry, map[string]any{"target": "a", "id": "retry"})
			w.send(40*time.Minute, RollBack, takesBack("a", "2"))
			w.send(41*time.Minute, RollBack, takesBack("mars", "3"))
			var twice, wave RolloutStatus
			w.at(45*time.Minute, &twice)
			w.send(50*time.Minute, RollBack, takesBack(1, "4"))
			w.at(60*time.Minute, &wave)
			w.send(70*time.Minute, RollBack, map[string]any{"by": "ann", "id": "all"})
			s := w.run()
			for name, c := range map[string]struct {
				s     RolloutStatus
				count int
				since time.Duration
			}{"a twice": {twice, 1, 40 * time.Minute}, "its wave": {wave, 2, 50 * time.Minute}} {
				back := c.s.Rollback
				if back.Targets != c.count || back.Counts[policy.RolledBack] != c.count || len(back.Counts) != 1 || back.InFlight != 0 {
					t.Errorf("%s: %+v; want %d targets, each RolledBack", name, back, c.count)
				}
				if at := back.StartedAt.Sub(c.s.StartedAt); at != c.since || back.EndedAt.Sub(back.StartedAt) > time.Second || back.EndedAt.IsZero() {
					t.Errorf("%s: begun after %s, ended after %s; want %s, and at once", name, at, back.EndedAt.Sub(back.StartedAt), c.since)
				}
			}
			// Where everything goes back in the end, that alone is shown: of an open wave nothing is left, else c and d.
			if back := s.Rollback; s.State != RolledBack || back.Targets != 2 || back.Counts[policy.RolledBack] != 2 || back.ByHand != open {
				t.Errorf("%s (%s): %+v", s.State, s.Reason, s.Rollback)
			}
		})
	}
}

// A wave says that it goes on, and does not leave it to its next target that ends.
func TestAWaveSaysThatItGoesOnAfterAResume(t *testing.T) {
	p := waves("a,b,c")
	p.Waves.Waves[0].MaxConcurrency = amount(1)
	for name, stop := range map[string]func(*world){
		"a pause":            func(w *world) { w.send(10*time.Minute, Pause, map[string]any{"by": "ann"}) },
		"a rollback by hand": func(w *world) { w.send(10*time.Minute, RollBack, takesBack("a", "1")) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, p, "a", "b", "c")
			w.hangChanges(map[string]time.Duration{"apply b": 20 * time.Minute, "apply c": 2 * time.Hour})
			stop(w)
			w.send(30*time.Minute, Resume, map[string]any{"by": "ann"})
			var paused, on RolloutStatus
			w.at(25*time.Minute, &paused)
			w.at(time.Hour, &on)
			w.run()
			if !strings.Contains(paused.Waves[0].Reason, "paused") {
				t.Errorf("before the resume: wave %+v", paused.Waves[0])
			}
			if on.State != Running || strings.Contains(on.Reason+on.Waves[0].Reason, "paused") || on.Waves[0].InFlight != 1 {
				t.Errorf("after the resume: %s (%s), wave %+v", on.State, on.Reason, on.Waves[0])
			}
		})
	}
}

func TestApplyCommandByHand(t *testing.T) {
	progress := func(change func(*policy.Progress)) policy.Progress {
		p := policy.Progress{Plan: policy.Plan{Digest: "d", Waves: []policy.Wave{{Name: "one", Size: 2}, {Name: "two", Size: 2}, {Name: "three", Size: 2}}},
			Waves: []policy.WaveProgress{{Phase: policy.WaveDone, Reached: 2}, {Phase: policy.WaveRunning, Open: true}, {Phase: policy.WavePending}}}
		if change != nil {
			change(&p)
		}
		return p
	}
	stopped := func(cause policy.StopCause) func(*policy.Progress) {
		return func(p *policy.Progress) { p.Stop.Cause = cause }
	}
	done := TargetFacts{Wave: 1, State: policy.Succeeded, Reached: true, From: "v1", FromKnown: true}
	with := func(f TargetFacts, change func(*TargetFacts)) TargetFacts { change(&f); return f }
	for name, test := range map[string]struct {
		p      policy.Progress
		c      Command
		f      CommandFacts
		effect Effect
		holds  bool
		says   string // of a refusal when it begins with "no: "
	}{
		"a closed wave's target":       {progress(nil), Command{Target: "a"}, CommandFacts{Planned: true, Target: done}, Effect{TakeTarget: true, Wave: 1}, true, "a goes back to v1"},
		"an open wave's target":        {progress(nil), Command{Target: "a"}, CommandFacts{Planned: true, Target: TargetFacts{Wave: 2}}, Effect{Order: RollBack, Wave: 2}, true, "passed to wave 2"},
		"a closed wave":                {progress(nil), Command{Wave: 1}, CommandFacts{Planned: true}, Effect{TakeWave: true, Wave: 1}, true, "wave 1 (one) goes back"},
		"an open wave":                 {progress(nil), Command{Wave: 2}, CommandFacts{Planned: true}, Effect{TakeWave: true, Wave: 2}, true, "wave 2 (two) goes back"},
		"before the plan":              {policy.Progress{}, Command{Target: "a"}, CommandFacts{}, Effect{}, false, "no: there is no plan yet"},
		"under an earlier release":     {progress(nil), Command{Target: "a"}, CommandFacts{Planned: true, Earlier: true, Target: done}, Effect{}, false, "no: this rollout began under a release"},
		"in a run of one target alone": {progress(nil), Command{}, CommandFacts{Planned: true, Limited: "b"}, Effect{}, false, "no: this run takes back b"},
		"while it aborts":              {progress(stopped(policy.StoppedAbort)), Command{Target: "a"}, CommandFacts{Planned: true, Target: done}, Effect{}, false, "no: it is aborting"},
		"while everything goes back":   {progress(stopped(policy.StoppedRollback)), Command{Target: "a"}, CommandFacts{Planned: true, Target: done}, Effect{}, false, "this changes nothing"},
		"after a breach":               {progress(stopped(policy.StoppedBreach)), Command{Target: "a"}, CommandFacts{Planned: true, Target: done}, Effect{TakeTarget: true, Wave: 1}, false, "that it was stopped (breach) stands"},
		"that it is on its way":        {progress(nil), Command{Target: "a"}, CommandFacts{Planned: true, Target: with(done, func(f *TargetFacts) { f.Returning = true })}, Effect{}, false, "on its way back already"},
		"that is back": {progress(nil), Command{Target: "a"}, CommandFacts{Planned: true, Target: with(done, func(f *TargetFacts) { f.State, f.Reached = policy.RolledBack, false })},
			Effect{}, false, "a runs v1 again already"},
		"that was skipped":          {progress(nil), Command{Target: "a"}, CommandFacts{Planned: true, Target: TargetFacts{Wave: 1, State: policy.Skipped}}, Effect{}, false, "no: a was not reached (Skipped)"},
		"of a wave to come":         {progress(nil), Command{Target: "a"}, CommandFacts{Planned: true, Target: TargetFacts{Wave: 3}}, Effect{}, false, "no: a has not been reached: wave 3 has not begun"},
		"of another wave":           {progress(nil), Command{Target: "a", Wave: 2}, CommandFacts{Planned: true, Target: done}, Effect{}, false, "no: a is in wave 1, not in wave 2"},
		"an unknown target":         {progress(nil), Command{Target: "z"}, CommandFacts{Planned: true}, Effect{}, false, `no: the plan has no target "z"`},
		"a wave out of range":       {progress(nil), Command{Wave: 4}, CommandFacts{Planned: true}, Effect{}, false, "no: there is no wave 4; the plan has 3"},
		"a wave to come":            {progress(nil), Command{Wave: 3}, CommandFacts{Planned: true}, Effect{}, false, "no: wave 3 has not begun"},
		"a wave that is on its way": {progress(func(p *policy.Progress) { p.Waves[1].ByHand = true }), Command{Wave: 2}, CommandFacts{Planned: true}, Effect{}, false, "is going back by hand already"},
		"a wave with nothing left":  {progress(func(p *policy.Progress) { p.Waves[0].Reached, p.Waves[0].Counts.Taken = 0, 2 }), Command{Wave: 1}, CommandFacts{Planned: true}, Effect{}, false, "is back already"},
	} {
		t.Run(name, func(t *testing.T) {
			next, effect, answer, err := ApplyCommand(test.p, RollBack, test.c, test.f)
			says, refused := strings.CutPrefix(test.says, "no: ")
			if err != nil {
				answer = err.Error()
			}
			if refused != (err != nil) || !strings.Contains(answer, says) || effect != test.effect || next.ByHand.Holding != test.holds {
				t.Errorf("effect %+v, holding %t, %q (%v); want %+v, %t, %q", effect, next.ByHand.Holding, answer, err, test.effect, test.holds, test.says)
			}
			if test.p.ByHand.Holding || len(test.p.ByHand.Taken) > 0 {
				t.Error("it changed the progress that it was given")
			}
		})
	}
}

// A misspelt scope that was ignored would take back everything where a person named one target; anything else that is
// unknown keeps nobody from stopping.
func TestMisspeltScopeTakesBackNothing(t *testing.T) {
	for payload, want := range map[string]string{
		`{"targets":["a"]}`:            "targets",
		`{"wav":2}`:                    "wav",
		`{"waveNumber":2,"by":"ann"}`:  "waveNumber",
		`{"resource":"a"}`:             "resource",
		`{"target":"a","Cluster":"b"}`: "Cluster",
		`{"extra":1}`:                  "",
		`{"why":"errors","by":"ann"}`:  "",
		`{"Target":"a","wave":1}`:      "",
		`[1]`:                          "",
	} {
		if got := misspeltScope(&commonpb.Payload{Data: []byte(payload)}); got != want {
			t.Errorf("%s: got %q, want %q", payload, got, want)
		}
	}
	w := newWorld(t, linear(10*time.Minute), "a", "b", "c")
	w.send(12*time.Minute, RollBack, map[string]any{"by": "ann", "tragets": "a"})
	s := w.run()
	if r := s.Commands; s.State != Succeeded || len(r) != 1 || r[0].Accepted || !strings.Contains(r[0].Answer, `unknown field "tragets"`) {
		t.Errorf("%s (%s), %+v", s.State, s.Reason, r)
	}
	wantStarts(t, w, "apply a v2 +0s", "apply b v2 +10m", "apply c v2 +20m")
}
