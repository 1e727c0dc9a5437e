package workflows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// linear paces every target, and checks each after its change.
func linear(interval time.Duration) policy.Policy {
	return policy.Policy{Name: "gradual", Gradual: &policy.GradualRollout{Type: policy.Linear, Interval: policy.Duration(interval)},
		Verification: []policy.Metric{metric(policy.DuringApply)}}
}

// starts are the submits with their time since the first, e.g. "apply a v2 +10m".
func (w *world) starts() []string {
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	var out []string
	for i, asked := range w.fleet.asked {
		out = append(out, fmt.Sprintf("%s +%s", asked, policy.Duration(w.fleet.at[i].Sub(w.fleet.at[0]).Round(time.Second))))
	}
	return out
}

func wantStarts(t *testing.T, w *world, want ...string) {
	t.Helper()
	if got := w.starts(); !slices.Equal(got, want) {
		t.Errorf("asked:\n got %s\nwant %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
}

// failing answers the metric with a bad value for one target.
func failing(target string) func(string, time.Time) metrics.Sample {
	return func(name string, _ time.Time) metrics.Sample {
		v := 1.0
		if name == target {
			v = 99
		}
		return metrics.Sample{Result: map[string]any{"value": v}}
	}
}

func TestClustersTakeTheirTurnToTheSecond(t *testing.T) {
	w := newWorld(t, linear(10*time.Minute), "c", "a", "b")
	var between RolloutStatus
	w.env.RegisterDelayedCallback(func() { between = w.status() }, 7*time.Minute)
	s := w.run()
	if s.State != Succeeded {
		t.Fatalf("state = %s (%s)", s.State, s.Reason)
	}
	wantStarts(t, w, "apply c v2 +0s", "apply a v2 +10m", "apply b v2 +20m")
	var measured []string
	for _, at := range w.gauge.times {
		measured = append(measured, policy.Duration(at.Sub(w.fleet.at[0]).Round(time.Second)).String())
	}
	if want := []string{"1m", "2m", "3m", "4m", "5m", "11m", "12m", "13m", "14m", "15m", "21m", "22m", "23m", "24m", "25m"}; !slices.Equal(measured, want) {
		t.Errorf("measured at %v, want %v", measured, want)
	}
	if len(between.Waits) != 1 || between.Waits[0].Reason != "a is next: it starts 10m after c" || between.Waits[0].Policy != "gradual" || between.Waits[0].Wave != 1 ||
		!between.Waits[0].Next.Equal(w.fleet.at[0].Add(10*time.Minute).Truncate(time.Nanosecond)) {
		t.Errorf("between two it waits for %+v", between.Waits)
	}
	if between.State != Running || between.Glance != WaitingIt || between.Counts[policy.Waiting] != 2 || between.Counts[policy.Succeeded] != 1 || !strings.Contains(between.Reason, "a is next") {
		t.Errorf("between two: %s (%s), %s, counts %v", between.State, between.Reason, between.Glance, between.Counts)
	}
}

func TestOneBadSeriesStopsTheSpreadUntilAPersonDecides(t *testing.T) {
	w := newWorld(t, linear(10*time.Minute), "a", "b", "c", "d")
	w.gauge.value = failing("b")
	var held RolloutStatus
	w.env.RegisterDelayedCallback(func() { held = w.status() }, 10*time.Hour)
	w.send(24*time.Hour, RollBack, map[string]any{"by": "ann", "reason": "errors"})
	s := w.run()
	if held.State != Holding || held.Counts[policy.Failed] != 1 || held.Counts[policy.Succeeded] != 1 || held.Counts[policy.Pending] != 2 {
		t.Errorf("after the bad series: %s (%s), counts %v", held.State, held.Reason, held.Counts)
	}
	if len(held.Attention) != 1 || held.Attention[0].Name != "b" || !strings.Contains(held.Attention[0].Reason, "check latency") || !strings.Contains(held.Attention[0].Reason, "it runs v1 again") {
		t.Errorf("attention: %+v", held.Attention)
	}
	wantStarts(t, w, "apply a v2 +0s", "apply b v2 +10m", "restore b v1 +11m", "restore a v1 +24h")
	if s.State != RolledBack {
		t.Errorf("state = %s (%s)", s.State, s.Reason)
	}
}

// A failure within budget does not bring the next one forward, and the failed one goes back.
func TestFailureWithinBudgetKeepsThePace(t *testing.T) {
	p := linear(10 * time.Minute)
	p.FailureThreshold = &policy.FailureThreshold{MaxFailures: amount(1)}
	w := newWorld(t, p, "a", "b", "c")
	w.gauge.value = failing("a")
	s := w.run()
	wantStarts(t, w, "apply a v2 +0s", "restore a v1 +1m", "apply b v2 +10m", "apply c v2 +20m")
	if s.State != SucceededWithFailures {
		t.Errorf("state = %s (%s)", s.State, s.Reason)
	}
}

func TestPauseReleasesNoBacklog(t *testing.T) {
	w := newWorld(t, linear(10*time.Minute), "a", "b", "c", "d")
	w.send(6*time.Minute, Pause, map[string]any{"by": "ann"})
	w.send(time.Hour, Resume, map[string]any{"by": "ann"})
	if s := w.run(); s.State != Succeeded {
		t.Fatalf("state = %s (%s)", s.State, s.Reason)
	}
	wantStarts(t, w, "apply a v2 +0s", "apply b v2 +1h", "apply c v2 +1h10m", "apply d v2 +1h20m")
}

func TestStopWhileTheNextOneWaits(t *testing.T) {
	for name, command := range map[string]string{"rollback": RollBack, "reject": Reject, "abort": Abort} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, linear(10*time.Minute), "a", "b", "c")
			w.send(9*time.Minute, command, map[string]any{"by": "ann"})
			s := w.run()
			if name == "abort" {
				wantStarts(t, w, "apply a v2 +0s")
			} else {
				wantStarts(t, w, "apply a v2 +0s", "restore a v1 +9m")
			}
			if want := map[string]Phase{"rollback": RolledBack, "reject": RolledBack, "abort": Aborted}[name]; s.State != want {
				t.Errorf("state = %s (%s), want %s", s.State, s.Reason, want)
			}
		})
	}
}

func TestSkippedWhileItWaits(t *testing.T) {
	w := newWorld(t, linear(10*time.Minute), "a", "b", "c")
	w.send(6*time.Minute, Skip, map[string]any{"by": "ann", "target": "b"})
	if s := w.run(); s.State != Succeeded || s.Counts[policy.Skipped] != 1 {
		t.Fatalf("state = %s (%s), counts %v", s.State, s.Reason, s.Counts)
	}
	wantStarts(t, w, "apply a v2 +0s", "apply c v2 +20m")
}

func TestPaceGoesOnFromWaveToWave(t *testing.T) {
	p := linear(10 * time.Minute)
	p.Waves = &policy.Waves{Waves: []policy.WaveRule{{Name: "w1", Select: "a,b"}, {Name: "w2", Select: "c,d"}}}
	w := newWorld(t, p, "a", "b", "c", "d")
	if s := w.run(); s.State != Succeeded {
		t.Fatalf("state = %s (%s)", s.State, s.Reason)
	}
	wantStarts(t, w, "apply a v2 +0s", "apply b v2 +10m", "apply c v2 +20m", "apply d v2 +30m")
}

// late approval: the peer would release what the schedule has made of the waiting time.
func TestLateApprovalStartsThePace(t *testing.T) {
	p := linear(10 * time.Minute)
	p.Approval = &policy.Approval{Min: 1}
	w := newWorld(t, p, "a", "b", "c")
	w.send(5*time.Hour, Approve, map[string]any{"by": "bob"})
	if s := w.run(); s.State != Succeeded {
		t.Fatalf("state = %s (%s)", s.State, s.Reason)
	}
	wantStarts(t, w, "apply a v2 +0s", "apply b v2 +10m", "apply c v2 +20m")
}

func TestTimeScaleKeepsOrderAndCounts(t *testing.T) {
	p := linear(10 * time.Minute)
	p.Soak, p.Approval = policy.Duration(time.Hour), &policy.Approval{Min: 1, Within: policy.Duration(2 * time.Hour)}
	w := newWorld(t, p, "a", "b")
	w.acts.TimeScale = 60
	var asked RolloutStatus
	w.env.RegisterDelayedCallback(func() { asked = w.status() }, 3*time.Minute)
	w.send(4*time.Minute, Approve, map[string]any{"by": "bob"})
	s := w.run()
	wantStarts(t, w, "apply a v2 +0s", "apply b v2 +10s")
	if asked.State != Holding {
		t.Errorf("two hours to approve are two minutes: after three it is %s (%s), want Holding", asked.State, asked.Reason)
	}
	if n := len(w.gauge.times); n != 10 {
		t.Errorf("measured %d times, want 5 for each", n)
	}
	if apart := w.gauge.times[1].Sub(w.gauge.times[0]); apart.Round(100*time.Millisecond) != time.Second {
		t.Errorf("measured %s apart, want a minute's sixtieth", apart)
	}
	if took := s.EndedAt.Sub(w.fleet.at[0]).Round(time.Second); s.State != Succeeded || took < 75*time.Second || took > 80*time.Second {
		t.Errorf("%s after %s, want 10s + 5s + a soak of 1m", s.State, took)
	}
	if !slices.ContainsFunc(s.Timeline, func(e Event) bool { return strings.Contains(e.What, "60 times as fast") }) {
		t.Errorf("the timeline does not say so: %+v", s.Timeline)
	}
}

// canaries is a canary that is checked for an hour, and the rest that waits for it.
func canaries() []policy.Policy {
	hour := metric(policy.DuringApply)
	hour.Interval, hour.InitialDelay, hour.Count = policy.Duration(5*time.Minute), policy.Duration(5*time.Minute), 12
	return []policy.Policy{
		{Name: "canary", Selectors: []policy.Selector{{Resource: "c"}}, Verification: []policy.Metric{hour}},
		{Name: "rest", Selectors: []policy.Selector{{Resource: "x,y"}}, WaitFor: []policy.WaitFor{{Name: "c", Kind: policy.WaitForTarget}},
			Gradual: &policy.GradualRollout{Type: policy.Linear}, Verification: []policy.Metric{metric(policy.DuringApply)}},
	}
}

func TestTheRestWaitsForTheCanary(t *testing.T) {
	w := newWorldOf(t, canaries(), "x", "c", "y")
	var during RolloutStatus
	w.env.RegisterDelayedCallback(func() { during = w.status() }, 30*time.Minute)
	if s := w.run(); s.State != Succeeded {
		t.Fatalf("state = %s (%s)", s.State, s.Reason)
	}
	wantStarts(t, w, "apply c v2 +0s", "apply x v2 +1h", "apply y v2 +1h5m")
	if len(during.Waits) != 1 || during.Waits[0].Reason != "2 targets wait for c" || during.Waits[0].Policy != "rest" || during.Waits[0].Rule != "deploymentDependency" {
		t.Errorf("while the canary is checked it waits for %+v", during.Waits)
	}
}

func TestABadCanaryIsTheOnlyOne(t *testing.T) {
	w := newWorldOf(t, canaries(), "x", "c", "y")
	w.gauge.value = failing("c")
	w.send(24*time.Hour, Abort, map[string]any{"by": "ann"})
	s := w.run()
	wantStarts(t, w, "apply c v2 +0s", "restore c v1 +5m")
	if s.State != Aborted || w.fleet.version("x") != "v1" || w.fleet.version("c") != "v1" {
		t.Errorf("state = %s (%s), c runs %s", s.State, s.Reason, w.fleet.version("c"))
	}
}

// Within budget the canary's failure is no breach, and yet nobody may follow it: the wave holds, an approval does not
// lift that, a retry does.
func TestWhatWaitsForAFailedTargetAsksAPerson(t *testing.T) {
	policies := append(canaries(), policy.Policy{Name: "budget", FailureThreshold: &policy.FailureThreshold{MaxFailures: amount(1)}})
	w := newWorldOf(t, policies, "x", "c", "y")
	w.gauge.value = failing("c")
	var held, approved RolloutStatus
	w.env.RegisterDelayedCallback(func() { held = w.status() }, time.Hour)
	w.send(2*time.Hour, Approve, map[string]any{"by": "bob", "id": "1"})
	w.env.RegisterDelayedCallback(func() {
		approved = w.status()
		w.gauge.value = failing("nobody")
	}, 3*time.Hour)
	w.send(4*time.Hour, Retry, map[string]any{"by": "ann", "target": "c"})
	s := w.run()
	if held.State != Holding || !strings.Contains(held.Reason, "2 targets wait for c, which is Failed") || len(held.Waits) != 1 || !strings.HasPrefix(held.Waits[0].Lifts, "retry what failed") {
		t.Errorf("held: %s (%s), %+v", held.State, held.Reason, held.Waits)
	}
	if r := approved.Commands[0]; r.Accepted || !strings.Contains(r.Answer, "an approval does not lift what it holds for") {
		t.Errorf("the approval: %+v", r)
	}
	if s.State != Succeeded || w.fleet.version("y") != "v2" {
		t.Errorf("after the retry: %s (%s)", s.State, s.Reason)
	}
}

func TestAnotherEnvironmentIsWaitedFor(t *testing.T) {
	staging := func(version, state, of string, at int) ledger.Record {
		return ledger.Record{Rollout: fmt.Sprintf("S%d", at), Of: of, Environment: "staging", Deployment: "web", Version: version, State: state, Sequence: 1,
			StartedAt: time.Date(2026, 11, 1, at, 0, 0, 0, time.UTC), Targets: []ledger.TargetRecord{{Name: "s", State: "Succeeded"}}}
	}
	for name, first := range map[string]ledger.Record{
		"another version":  staging("v1", "Succeeded", "", 1),
		"still going":      staging("v2", "Running", "", 1),
		"with failures":    staging("v2", "SucceededWithFailures", "", 1),
		"taken back since": staging("v2", "RolledBack", "S0", 1),
	} {
		t.Run(name, func(t *testing.T) {
			p := linear(0)
			p.WaitFor = []policy.WaitFor{{Name: "staging", Kind: policy.WaitForEnvironment}}
			w := newWorld(t, p, "a", "b")
			if err := w.ledger.PutRecord(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			var before RolloutStatus
			w.env.RegisterDelayedCallback(func() {
				before = w.status()
				if err := w.ledger.PutRecord(context.Background(), staging("v2", "Succeeded", "", 2)); err != nil {
					t.Error(err)
				}
			}, time.Hour)
			s := w.run()
			if s.State != Succeeded || w.fleet.at[0].Sub(s.StartedAt) < time.Hour {
				t.Errorf("state = %s (%s), first start after %s", s.State, s.Reason, w.fleet.at[0].Sub(s.StartedAt))
			}
			if before.State != Running || !strings.Contains(before.Reason, `2 targets wait for environment "staging" to succeed on this version`) {
				t.Errorf("before: %s (%s)", before.State, before.Reason)
			}
		})
	}
}

func TestAnotherDeploymentIsWaitedForOnEachTarget(t *testing.T) {
	p := policy.Policy{Name: "db first", WaitFor: []policy.WaitFor{{Name: "db", Kind: policy.WaitForDeployment}}}
	w := newWorld(t, p, "a", "b")
	put := func(sequence int, targets ...ledger.TargetRecord) {
		err := w.ledger.PutRecord(context.Background(), ledger.Record{Rollout: "D", Environment: "prod", Deployment: "db", Version: "v2", State: "Running", Sequence: sequence,
			StartedAt: time.Date(2026, 11, 1, 1, 0, 0, 0, time.UTC), Targets: targets})
		if err != nil {
			t.Error(err)
		}
	}
	done := func(name string) ledger.TargetRecord { return ledger.TargetRecord{Name: name, State: "Succeeded"} }
	put(1, done("b"), ledger.TargetRecord{Name: "a", State: "Failed"})
	w.env.RegisterDelayedCallback(func() { put(2, done("b"), done("a")) }, time.Hour)
	s := w.run()
	if got := w.starts(); s.State != Succeeded || len(got) != 2 || got[0] != "apply b v2 +0s" || w.fleet.at[1].Sub(w.fleet.at[0]) < 50*time.Minute {
		t.Errorf("%s (%s): asked %v", s.State, s.Reason, got)
	}
}

// A wait for something outside keeps no stop from its end.
func TestStopWhileWaitingForAnotherEnvironment(t *testing.T) {
	p := linear(0)
	p.WaitFor = []policy.WaitFor{{Name: "staging", Kind: policy.WaitForEnvironment}}
	w := newWorld(t, p, "a", "b")
	w.send(time.Hour, Reject, map[string]any{"by": "ann"})
	s := w.run()
	if s.State != Rejected || len(w.fleet.log()) != 0 {
		t.Errorf("state = %s (%s), asked %v", s.State, s.Reason, w.fleet.log())
	}
}

func TestUnreachableInAPaceIsTriedAtTheEnd(t *testing.T) {
	p := linear(10 * time.Minute)
	p.FailureThreshold = &policy.FailureThreshold{MaxUnreachable: amount(1)}
	w := newWorld(t, p, "a", "b", "c")
	w.fleet.unreachable["a"] = 4
	if s := w.run(); s.State != Succeeded {
		t.Fatalf("state = %s (%s)", s.State, s.Reason)
	}
	wantStarts(t, w, "apply b v2 +0s", "apply c v2 +10m", "apply a v2 +20m")
}

func TestRetryInAPaceWaitsForItsTurn(t *testing.T) {
	p := linear(10 * time.Minute)
	p.FailureThreshold = &policy.FailureThreshold{MaxFailures: amount(1)}
	w := newWorld(t, p, "a", "b", "c")
	tries := 0
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		if tries++; tries == 1 {
			return executors.Result{}, errors.Join(executors.ErrRejected, errors.New("no"))
		}
		return executors.Result{Outcome: executors.Succeeded}, nil
	}
	w.send(12*time.Minute, Retry, map[string]any{"by": "ann", "target": "a"})
	if s := w.run(); s.State != Succeeded {
		t.Fatalf("state = %s (%s)", s.State, s.Reason)
	}
	wantStarts(t, w, "apply a v2 +0s", "apply b v2 +10m", "apply a v2 +20m", "apply c v2 +30m")
}

// One that went back by hand holds the others; the resume goes on without it, and releases no backlog.
func TestTakenBackByHandInAPace(t *testing.T) {
	w := newWorld(t, linear(10*time.Minute), "a", "b", "c", "d")
	w.send(17*time.Minute, RollBack, map[string]any{"by": "ann", "target": "a"})
	w.send(time.Hour, Resume, map[string]any{"by": "ann"})
	s := w.run()
	wantStarts(t, w, "apply a v2 +0s", "apply b v2 +10m", "restore a v1 +17m", "apply c v2 +1h", "apply d v2 +1h10m")
	if s.State != Succeeded || s.Counts[policy.RolledBack] != 1 {
		t.Errorf("state = %s (%s), counts %v", s.State, s.Reason, s.Counts)
	}
}

// Who waits for a target that a person took back does not start because of a resume.
func TestTheRestDoesNotFollowACanaryThatWasTakenBack(t *testing.T) {
	w := newWorldOf(t, canaries(), "x", "c", "y")
	w.send(90*time.Second+time.Hour, RollBack, map[string]any{"by": "ann", "target": "c"})
	w.send(2*time.Hour, Resume, map[string]any{"by": "ann", "id": "resume"})
	var held, before RolloutStatus
	w.at(110*time.Minute, &before)
	w.env.RegisterDelayedCallback(func() { held = w.status() }, 10*time.Hour)
	w.send(20*time.Hour, RollBack, map[string]any{"by": "ann"})
	s := w.run()
	wantStarts(t, w, "apply c v2 +0s", "apply x v2 +1h", "restore c v1 +1h1m30s", "restore x v1 +20h")
	if before.State != Holding || !strings.Contains(before.Reason, "resume goes on without it, but what waits for it still waits") {
		t.Errorf("before the resume: %s (%s)", before.State, before.Reason)
	}
	wantReceipt(t, s, "resume", true, "resumed without c; what waits for it still waits")
	if held.State != Holding || !strings.Contains(held.Reason, "1 target waits for c, which is RolledBack") {
		t.Errorf("after the resume: %s (%s)", held.State, held.Reason)
	}
	if !slices.ContainsFunc(held.Waits, func(w policy.Wait) bool { return w.Rule == "deploymentDependency" && w.Target == "c" }) {
		t.Errorf("after the resume: waits %+v; want one that names c", held.Waits)
	}
	if s.State != RolledBack {
		t.Errorf("state = %s (%s)", s.State, s.Reason)
	}
}

// What another environment had may be taken back while targets wait for their turn.
func TestAnotherEnvironmentIsLookedAfter(t *testing.T) {
	p := linear(time.Hour)
	p.WaitFor = []policy.WaitFor{{Name: "staging", Kind: policy.WaitForEnvironment}}
	w := newWorld(t, p, "a", "b", "c")
	record := ledger.Record{Rollout: "S1", Environment: "staging", Deployment: "web", Version: "v2", State: "Succeeded", Sequence: 1, StartedAt: time.Date(2026, 11, 1, 1, 0, 0, 0, time.UTC),
		Targets: []ledger.TargetRecord{{Name: "s", State: "Succeeded"}}}
	if err := w.ledger.PutRecord(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	var held RolloutStatus
	w.env.RegisterDelayedCallback(func() {
		record.Rollout, record.Of, record.State, record.StartedAt = "S2", "S1", "RolledBack", record.StartedAt.Add(time.Hour)
		if err := w.ledger.PutRecord(context.Background(), record); err != nil {
			t.Error(err)
		}
	}, 90*time.Minute)
	w.env.RegisterDelayedCallback(func() { held = w.status() }, 10*time.Hour)
	w.send(20*time.Hour, Reject, map[string]any{"by": "ann"})
	s := w.run()
	wantStarts(t, w, "apply a v2 +0s", "apply b v2 +1h", "restore a v1 +20h", "restore b v1 +20h")
	if held.State != Running || !strings.Contains(held.Reason, `1 target waits for environment "staging"`) {
		t.Errorf("after it was taken back: %s (%s)", held.State, held.Reason)
	}
	if s.State != RolledBack {
		t.Errorf("state = %s (%s)", s.State, s.Reason)
	}
}

// The interval counts from the change, which a pause may keep a started target from.
func TestPauseWhileATargetIsRead(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		p := linear(10 * time.Minute)
		p.Gradual.Overlap = overlap
		w := newWorld(t, p, "a", "b", "c", "d")
		w.env.RegisterDelayedCallback(func() { w.fleet.unreachable["b"] = 1 }, time.Minute)
		w.send(10*time.Minute+500*time.Millisecond, Pause, map[string]any{"by": "ann"})
		w.send(time.Hour, Resume, map[string]any{"by": "ann"})
		if s := w.run(); s.State != Succeeded {
			t.Fatalf("state = %s (%s)", s.State, s.Reason)
		}
		wantStarts(t, w, "apply a v2 +0s", "apply b v2 +1h", "apply c v2 +1h10m", "apply d v2 +1h20m")
	}
}

// A wave that has closed lifts no dependency from a retry.
func TestLateRetryObeysItsDependency(t *testing.T) {
	policies := canaries()
	policies[1].Gradual, policies[1].Verification = nil, nil
	order := waves("c,x", "y,z")
	order.Name, order.FailureThreshold = "order", &policy.FailureThreshold{MaxFailures: amount(1)}
	order.Waves.Waves[0].MaxFailures = amount(1)
	order.Waves.Waves[1].Approval = &policy.Approval{Min: 1}
	policies[1].Selectors[0].Resource = "x"
	w := newWorldOf(t, append(policies, order), "x", "c", "y", "z")
	tries := 0
	w.fleet.on["apply x"] = func() (executors.Result, error) {
		if tries++; tries == 1 {
			return executors.Result{Outcome: executors.Failed, Reason: "disk full"}, nil
		}
		return executors.Result{Outcome: executors.Succeeded}, nil
	}
	w.send(2*time.Hour, RollBack, map[string]any{"by": "ann", "target": "c"})
	w.send(3*time.Hour, Resume, map[string]any{"by": "ann"})
	w.send(4*time.Hour, Retry, map[string]any{"by": "ann", "target": "x", "id": "early"})
	w.send(5*time.Hour, Retry, map[string]any{"by": "ann", "target": "c"})
	w.send(8*time.Hour, Retry, map[string]any{"by": "ann", "target": "x", "id": "again"})
	w.send(9*time.Hour, Approve, map[string]any{"by": "bob"})
	s := w.run()
	for _, r := range s.Commands {
		if r.ID == "early" && (r.Accepted || !strings.Contains(r.Answer, "x may not be tried again yet: it waits for c, which is RolledBack")) || r.ID == "again" && !r.Accepted {
			t.Errorf("%+v", r)
		}
	}
	if s.State != Succeeded || w.fleet.version("x") != "v2" || w.fleet.version("c") != "v2" {
		t.Errorf("state = %s (%s), commands %+v", s.State, s.Reason, s.Commands)
	}
}

// What the checks could not say may be asked again: an outage of what measures need not be accepted blindly.
func TestRetryMeasuresAgain(t *testing.T) {
	w := newWorld(t, linear(10*time.Minute), "a", "b")
	w.gauge.value = func(string, time.Time) metrics.Sample { return metrics.Sample{NoData: true, Problem: "no data"} }
	var held RolloutStatus
	w.env.RegisterDelayedCallback(func() {
		held = w.status()
		w.gauge.value = failing("nobody")
	}, time.Hour)
	w.send(2*time.Hour, Retry, map[string]any{"by": "ann", "target": "a"})
	s := w.run()
	if held.State != Holding || len(held.Waits) != 1 || !strings.Contains(held.Waits[0].Lifts, "retry measures it again") {
		t.Errorf("without data: %s (%s), %+v", held.State, held.Reason, held.Waits)
	}
	if s.State != Succeeded || s.Counts[policy.Succeeded] != 2 {
		t.Errorf("state = %s (%s), counts %v", s.State, s.Reason, s.Counts)
	}
	wantStarts(t, w, "apply a v2 +0s", "apply b v2 +2h10m")
	if n := len(w.gauge.times); n != 1+5+5 {
		t.Errorf("measured %d times, want the one without data, and five of each", n)
	}
}

func busy() (executors.Result, error) {
	return executors.Result{}, errors.Join(executors.ErrBlocked, errors.New("busy"))
}

// A target that has begun and not asked for its change yet waits again when what it waits for goes back.
func TestDependencyGoesBackBeforeTheChange(t *testing.T) {
	policies := []policy.Policy{{Name: "rest", Selectors: []policy.Selector{{Resource: "x"}}, WaitFor: []policy.WaitFor{{Name: "c", Kind: policy.WaitForTarget}}},
		{Name: "all", FailureThreshold: &policy.FailureThreshold{MaxFailures: amount(1)}}}
	w := newWorldOf(t, policies, "c", "x")
	w.fleet.on["apply x"] = func() (executors.Result, error) {
		if w.env.Now().Before(w.fleet.at[0].Add(90 * time.Minute)) {
			return busy()
		}
		return executors.Result{Outcome: executors.Succeeded}, nil
	}
	w.send(20*time.Second, RollBack, map[string]any{"by": "ann", "target": "c"})
	w.send(time.Hour, Resume, map[string]any{"by": "ann"})
	var held RolloutStatus
	w.env.RegisterDelayedCallback(func() { held = w.status() }, 5*time.Hour)
	w.send(10*time.Hour, Retry, map[string]any{"by": "ann", "target": "c"})
	s := w.run()
	if held.State != Holding || !strings.Contains(held.Reason, "1 target waits for c, which is RolledBack") || w.fleet.version("x") != "v2" || s.State != Succeeded {
		t.Errorf("held: %s (%s); end: %s (%s), x runs %s", held.State, held.Reason, s.State, s.Reason, w.fleet.version("x"))
	}
	got := w.starts()
	if last := got[len(got)-2:]; last[0] != "apply c v2 +10h" || last[1] != "apply x v2 +10h" {
		t.Errorf("asked %v, want x not before c again", got)
	}
}

// The interval counts from the asking that was not refused.
func TestBlockedTargetKeepsThePace(t *testing.T) {
	w := newWorld(t, linear(10*time.Minute), "a", "b")
	w.fleet.on["apply a"] = func() (executors.Result, error) {
		if w.env.Now().Before(w.fleet.at[0].Add(45 * time.Minute)) {
			return busy()
		}
		return executors.Result{Outcome: executors.Succeeded}, nil
	}
	if s := w.run(); s.State != Succeeded {
		t.Fatalf("state = %s (%s)", s.State, s.Reason)
	}
	at := w.fleet.at
	if apart := at[len(at)-1].Sub(at[len(at)-2]); apart < 10*time.Minute {
		t.Errorf("b was asked %s after a was, want 10m", apart)
	}
}

// A rollout of which everything was left out has brought nothing anywhere, whoever let it pass.
func TestNothingIsNoSuccess(t *testing.T) {
	w := newWorld(t, linear(10*time.Minute), "a", "b")
	w.fleet.on["apply a"] = busy
	w.send(time.Second, Skip, map[string]any{"by": "ann", "target": "b"})
	w.send(time.Minute, Pause, map[string]any{"by": "ann"})
	w.send(2*time.Minute, RollBack, map[string]any{"by": "ann", "wave": 1})
	w.send(time.Hour, Resume, map[string]any{"by": "ann"})
	s := w.run()
	if s.State == Succeeded || s.State == SucceededWithFailures {
		t.Errorf("state = %s (%s), with nothing changed", s.State, s.Reason)
	}
}

// pastEvaluator compares with the value before the change, and has no other condition.
type pastEvaluator struct{ plainEvaluator }

func (pastEvaluator) Condition(_ context.Context, _ policy.Expression, vars map[string]any) (bool, error) {
	if _, there := vars["baseline"]; !there {
		return false, errors.New("no such key: baseline")
	}
	return true, nil
}

// A target that is measured again compares with what it was before its change.
func TestRetryKeepsTheBaseline(t *testing.T) {
	p := linear(0)
	p.Verification[0].UsesBaseline = true
	w := newWorld(t, p, "a")
	w.acts.Evaluator = pastEvaluator{}
	outage := false
	w.gauge.value = func(string, time.Time) metrics.Sample {
		if outage {
			return metrics.Sample{NoData: true, Problem: "no data"}
		}
		return metrics.Sample{Result: map[string]any{"value": 1.0}}
	}
	w.env.RegisterDelayedCallback(func() { outage = true }, 30*time.Second)
	w.env.RegisterDelayedCallback(func() { outage = false }, time.Hour)
	w.send(2*time.Hour, Retry, map[string]any{"by": "ann", "target": "a"})
	w.send(20*time.Hour, Abort, nil)
	if s := w.run(); s.State != Succeeded {
		t.Errorf("state = %s (%s)", s.State, s.Reason)
	}
}
