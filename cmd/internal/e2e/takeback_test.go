package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// log is what the fleet was asked for, in order, as "apply c01".
func (s *simSite) order() []string {
	s.t.Helper()
	var out []string
	for _, e := range s.entries() {
		if e.Kind == fleet.KindRequest {
			out = append(out, string(towards(e.Version))+" "+e.Target)
		}
	}
	return out
}

// restored are the targets that were asked to go back, sorted.
func restored(asked []string) []string {
	var out []string
	for _, a := range asked {
		if name, found := strings.CutPrefix(a, string(executors.Restore)+" "); found {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// TestWhatIsTakenBackByHandGoesBackAlone fails when a rollback of one target or wave asks any other target to go back, when
// anything new is asked for between the signal and the resume, or when the rollout does not go on without it afterwards.
// The signal comes while the second wave has targets in flight: the fleet hangs on c04.
func TestWhatIsTakenBackByHandGoesBackAlone(t *testing.T) {
	t.Parallel()
	const n = 9
	for name, test := range map[string]struct {
		command workflows.Command
		back    []string
		// flies reports that the target in flight is among those that go back.
		flies bool
		// out are never asked for at all.
		out    []string
		counts map[policy.TargetState]int
	}{
		"target of a closed wave":        {workflows.Command{Target: "c02"}, []string{"c02"}, false, nil, map[policy.TargetState]int{policy.RolledBack: 1, policy.Succeeded: 8}},
		"target that is done":            {workflows.Command{Target: "c05"}, []string{"c05"}, false, nil, map[policy.TargetState]int{policy.RolledBack: 1, policy.Succeeded: 8}},
		"target in flight":               {workflows.Command{Target: "c04"}, []string{"c04"}, true, nil, map[policy.TargetState]int{policy.RolledBack: 1, policy.Succeeded: 8}},
		"closed wave":                    {workflows.Command{Wave: 1}, []string{"c01", "c02", "c03"}, false, nil, map[policy.TargetState]int{policy.RolledBack: 3, policy.Succeeded: 6}},
		"open wave with one not started": {workflows.Command{Wave: 2}, []string{"c04", "c05"}, true, []string{"c06"}, map[policy.TargetState]int{policy.RolledBack: 2, policy.Skipped: 1, policy.Succeeded: 6}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, s := newLane(t), newSimSite(t, scenario(n))
			// c05 is done and c04 in flight when the signal comes; c06 would have the slot of c05, but for a gate.
			flight, next := newGate("await.begin", "c04"), newGate("observe.end", "c06")
			l.options.At = func(point, target string) {
				flight.at(point, target)
				next.at(point, target)
			}
			openFlight, openNext := onceClose(flight), onceClose(next)
			t.Cleanup(openFlight)
			t.Cleanup(openNext)
			l.startWorker()
			in := l.start(s.documents(n, `  - waves:
      - {name: first, select: 'target.name < "c04"', maxConcurrency: 3}
      - {name: second, select: 'target.name < "c07"', maxConcurrency: 2}
      - {name: rest, select: 'true', maxConcurrency: 3}
`), "v2")
			eventually(t, "c04 is in flight and c06 about to begin", func() bool { return flight.full() && next.full() }, func() string { return fmt.Sprint(s.order()) })
			before := s.order()
			test.command.By, test.command.ID = "ann", "back"
			l.signal(workflows.RollBack, test.command)
			l.until("it is accepted", func(s workflows.RolloutStatus) bool { return len(s.Commands) == 1 && s.Commands[0].Accepted })
			wave := workflows.WaveID("Production", "web", in.Rollout, 2)
			eventually(t, "c06 has heard of it", func() bool { return l.heardControl(workflows.TargetID(wave, "c06", 1)) }, func() string { return "" })
			openNext()
			if test.flies {
				l.until("it waits for c04", func(s workflows.RolloutStatus) bool {
					return s.State == workflows.RollingBack && slices.Contains(s.Rollback.WaitingFor, "c04")
				})
			}
			openFlight()
			held := l.until("it holds", func(s workflows.RolloutStatus) bool { return s.State == workflows.Holding })
			if !strings.Contains(held.Reason, "went back by hand (ann)") {
				t.Errorf("it holds, since %s", held.Reason)
			}
			l.signal(workflows.RollBack, workflows.Command{By: "ann", ID: "again", Target: test.command.Target, Wave: test.command.Wave})
			l.until("the second is answered", func(s workflows.RolloutStatus) bool {
				return len(s.Commands) == 2 && s.Commands[1].Accepted && strings.Contains(s.Commands[1].Answer, "changes nothing")
			})
			since := s.order()[len(before):]
			if got := restored(since); !slices.Equal(got, test.back) || len(since) != len(got) {
				t.Errorf("between the signal and the resume the fleet was asked for %v; want %v back, and nothing else", since, test.back)
			}
			l.signal(workflows.Resume, workflows.Command{By: "ann"})
			l.wantEnd(in, workflows.Succeeded, test.counts)
			runs, asked := all(n, "v2"), changes(all(n, "v2"), executors.Apply)
			for _, name := range test.back {
				runs[name] = "v1"
				asked = append(asked, "restore "+name)
			}
			for _, name := range test.out {
				runs[name] = "v1"
				asked = slices.DeleteFunc(asked, func(a string) bool { return a == "apply "+name })
			}
			wantSite(t, s, asked, runs)
		})
	}
}

// onceClose opens a gate, at most once.
func onceClose(g *gate) func() { return sync.OnceFunc(func() { close(g.open) }) }

// TestATargetWhoseRealChecksFailGoesBackAlone fails when a target whose checks fail does not go back by itself within the
// budget, when any other does, or when one that fails to go back is not named.
func TestATargetWhoseRealChecksFailGoesBackAlone(t *testing.T) {
	t.Parallel()
	const n = 6
	for name, test := range map[string]struct {
		budget int
		stuck  bool // its way back fails
		end    workflows.Phase
		counts map[policy.TargetState]int
		runs   string // what c02 runs in the end
	}{
		"within budget":         {1, false, workflows.SucceededWithFailures, map[policy.TargetState]int{policy.Failed: 1, policy.Succeeded: 5}, "v1"},
		"and cannot":            {1, true, workflows.SucceededWithFailures, map[policy.TargetState]int{policy.NeedsRecovery: 1, policy.Succeeded: 5}, "v2"},
		"with nothing to spare": {0, false, workflows.Aborted, map[policy.TargetState]int{policy.Failed: 1, policy.Succeeded: 1, policy.Pending: 4}, "v1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world := scenario(n)
			if test.stuck {
				world.Failures = []fleet.Failure{{Match: fleet.Match{Targets: []string{"c02"}}, Version: "v1"}}
			}
			l, s := newLane(t), newSimSite(t, world)
			health := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				latency := 20
				if name := filepath.Base(r.URL.Path); name == "c02" && s.runs()[name] == "v2" {
					latency = 900
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"latency": %d}`, latency)
			}))
			t.Cleanup(health.Close)
			l.startWorker()
			in := l.start(s.documents(n, fmt.Sprintf(`  - waves:
      - {name: first, select: 'target.name < "c04"', maxConcurrency: 2, maxFailures: %d}
      - {name: rest, select: 'true', maxConcurrency: 3}
  - failureThreshold: {maxFailures: %d}
  - verification:
      metrics:
        - {name: latency, provider: {type: http, url: '%s/{{.target.name}}'}, successCondition: 'result.json.latency < 100', interval: 1s, count: 2}
`, test.budget, test.budget, health.URL)), "v2")
			if test.end == workflows.Aborted {
				held := l.until("it holds for the breach", func(s workflows.RolloutStatus) bool {
					return s.State == workflows.Holding && s.Waves[0].State == string(policy.WaveBreached)
				})
				if !strings.Contains(held.Reason, "budget breached") {
					t.Errorf("it holds, since %s", held.Reason)
				}
				l.signal(workflows.Abort, workflows.Command{By: "bob"})
			}
			l.wantEnd(in, test.end, test.counts)
			if got := restored(s.order()); !slices.Equal(got, []string{"c02"}) {
				t.Errorf("asked to go back: %v, want c02 alone, once", got)
			}
			if got := s.runs()["c02"]; got != test.runs {
				t.Errorf("c02 runs %s, want %s", got, test.runs)
			}
		})
	}
}

// TestARollbackByHandIsTakenWithNoWorkerAlive fails when a rollback of one target that comes while no worker is alive is
// lost, or when an approval that comes with it opens the next wave first.
func TestARollbackByHandIsTakenWithNoWorkerAlive(t *testing.T) {
	t.Parallel()
	const n = 4
	l, s := newLane(t), newSimSite(t, scenario(n))
	l.startWorker()
	in := l.start(s.documents(n, `  - waves:
      - {name: first, select: 'target.name < "c03"', maxConcurrency: 2}
      - {name: rest, select: 'true', maxConcurrency: 2, approval: {min: 1}}
`), "v2")
	l.until("wave 2 asks", func(s workflows.RolloutStatus) bool { return s.State == workflows.AwaitingApproval })
	before := len(s.order())
	l.stopWorker()
	l.signal(workflows.Approve, workflows.Command{By: "bob", Wave: 2})
	l.signal(workflows.RollBack, workflows.Command{By: "ann", Target: "c01"})
	l.startWorker()
	l.until("it holds", func(s workflows.RolloutStatus) bool { return s.State == workflows.Holding && len(s.Approvals) == 1 })
	if since := s.order()[before:]; !slices.Equal(since, []string{"restore c01"}) {
		t.Errorf("asked for %v, want c01 back and nothing else", since)
	}
	l.signal(workflows.Resume, workflows.Command{By: "ann"})
	l.wantEnd(in, workflows.Succeeded, map[policy.TargetState]int{policy.RolledBack: 1, policy.Succeeded: 3})
}
