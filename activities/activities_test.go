package activities

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/ledgertest"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// probe is a metric provider that answers from a script.
type probe struct {
	mu      sync.Mutex
	answers func(n int) (metrics.Sample, error)
	asked   []metrics.Query
}

func (p *probe) Measure(_ context.Context, q metrics.Query) (metrics.Sample, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, q)
	return p.answers(len(p.asked))
}

func value(v float64) (metrics.Sample, error) {
	return metrics.Sample{Result: map[string]any{"value": v}}, nil
}

// evaluator knows "result.value < N" and "result.value < baseline.value".
type evaluator struct{}

func (evaluator) RenderJSON(config json.RawMessage, vars map[string]any, quote func(string) string) (json.RawMessage, error) {
	name := fmt.Sprint(vars["target"].(map[string]any)["name"])
	if quote != nil {
		name = quote(name)
	}
	return json.RawMessage(strings.ReplaceAll(string(config), "{{name}}", name)), nil
}

func (evaluator) Condition(_ context.Context, source policy.Expression, vars map[string]any) (bool, error) {
	v := vars["result"].(map[string]any)["value"].(float64)
	if source == "result.value < baseline.value" {
		baseline, there := vars["baseline"].(map[string]any)
		if !there {
			return false, errors.New("no baseline")
		}
		return v < baseline["value"].(float64), nil
	}
	var limit float64
	if _, err := fmt.Sscanf(string(source), "result.value < %g", &limit); err != nil {
		return false, err
	}
	return v < limit, nil
}

// bench is a worker's activities over one plan of two targets and the given metrics.
type bench struct {
	env   *testsuite.TestActivityEnvironment
	a     *Activities
	probe *probe
	shelf *ledgertest.Memory
	clock time.Time
	plan  policy.Plan
}

var start = time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)

func newBench(t *testing.T, all ...policy.Metric) *bench {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	b := &bench{env: suite.NewTestActivityEnvironment(), probe: &probe{}, shelf: ledgertest.NewMemory(), clock: start}
	snapshot := inventory.Snapshot{Targets: []inventory.Target{{Name: "a"}, {Name: "b"}}}
	b.plan = policy.Plan{Digest: "sha256:p", SnapshotDigest: "sha256:s", Version: policy.Version{Name: "v2"}, Step: policy.Step{Kind: "none", Config: json.RawMessage(`{}`)}}
	wave := policy.Wave{Number: 1, Size: 2}
	for _, target := range snapshot.Targets {
		planned := policy.PlannedTarget{Name: target.Name, Reason: "wave"}
		for i := range all {
			planned.Metrics = append(planned.Metrics, i)
		}
		wave.Targets = append(wave.Targets, planned)
	}
	b.plan.Waves = []policy.Wave{wave}
	for _, m := range all {
		m.Provider, m.Config = "probe", json.RawMessage(`{"q":"{{name}}"}`)
		b.plan.Metrics = append(b.plan.Metrics, policy.PlannedMetric{Policy: "p", Metric: m})
	}
	b.a = &Activities{Evaluator: evaluator{}, Blobs: b.shelf, Log: b.shelf, Now: func() time.Time { return b.clock },
		Connections: Connections{Kinds: []metrics.Kind{{Name: "probe", Quote: strings.ToUpper}}, Open: map[string]map[string]metrics.Provider{"probe": {"": b.probe}}},
		Plan: func(context.Context, []byte, policy.Request) (Planned, error) {
			return Planned{Plan: b.plan, Snapshot: snapshot}, nil
		}}
	if err := b.a.store(t.Context(), ledger.Plan, b.plan.Digest, b.plan); err != nil {
		t.Fatal(err)
	}
	if err := b.a.store(t.Context(), ledger.Snapshot, b.plan.SnapshotDigest, snapshot); err != nil {
		t.Fatal(err)
	}
	b.env.RegisterActivity(b.a)
	return b
}

// check runs the check as the server would: again and again, after each delay that it asks for, with its counts.
func (b *bench) check(t *testing.T, in CheckInput) CheckOutput {
	t.Helper()
	for range 1000 {
		var counts any
		b.env.SetOnActivityHeartbeatListener(nil)
		b.env.SetOnActivityHeartbeatListener(func(_ *activity.Info, details converter.EncodedValues) {
			var kept []CheckedTarget
			if err := details.Get(&kept); err == nil {
				counts = kept
			}
		})
		answer, err := b.env.ExecuteActivity(b.a.Check, in)
		if err == nil {
			var out CheckOutput
			if err := answer.Get(&out); err != nil {
				t.Fatal(err)
			}
			return out
		}
		var app *temporal.ApplicationError
		if !errors.As(err, &app) || app.Type() != TypeRunning {
			t.Fatal(err)
		}
		b.clock = b.clock.Add(app.NextRetryDelay())
		if counts != nil {
			b.env.SetHeartbeatDetails(counts)
		}
	}
	t.Fatal("the check does not end")
	return CheckOutput{}
}

func minutely(count int) policy.Metric {
	return policy.Metric{Name: "latency", Success: "result.value < 10", Interval: policy.Duration(time.Minute), InitialDelay: policy.Duration(time.Minute), Count: count, ConsecutiveErrorLimit: 4}
}

func TestACheckGoesOnFromItsCountsAfterACrash(t *testing.T) {
	b := newBench(t, minutely(5))
	b.probe.answers = func(int) (metrics.Sample, error) { return value(1) }
	// What an earlier attempt had counted before its worker died.
	b.env.SetHeartbeatDetails([]CheckedTarget{{Name: "a", Counted: []Counted{{4, 0, 0, 0, 0, 4, start.UnixMilli()}}}})
	out := b.check(t, CheckInput{Plan: "sha256:p", Version: "v2", During: policy.DuringApply, Since: start, Targets: []CheckedTarget{{Name: "a"}}})
	if !out.Ended || len(out.Changed) != 0 || len(b.probe.asked) != 1 {
		t.Errorf("ended %t, changed %v, measured %d times; want the fifth measurement alone", out.Ended, out.Changed, len(b.probe.asked))
	}
}

func TestCheck(t *testing.T) {
	inconclusive := func(int) (metrics.Sample, error) { return metrics.Sample{Problem: "NaN"}, nil }
	broken := func(int) (metrics.Sample, error) { return metrics.Sample{}, errors.New("connection refused") }
	baseline := minutely(2)
	baseline.Success, baseline.UsesBaseline = "result.value < baseline.value", true
	dry := minutely(2)
	dry.DryRun = true
	tests := []struct {
		name     string
		metric   policy.Metric
		answers  func(int) (metrics.Sample, error)
		target   CheckedTarget
		want     policy.Verdict
		measured int
		says     string
	}{
		{"five good ones pass", minutely(5), func(int) (metrics.Sample, error) { return value(1) }, CheckedTarget{}, policy.VerdictPassed, 5, ""},
		{"the first bad one ends it", minutely(5), func(n int) (metrics.Sample, error) { return value(float64(n * 4)) }, CheckedTarget{}, policy.VerdictFailed, 3, "last saw 12"},
		{"an inconclusive one ends it", minutely(5), inconclusive, CheckedTarget{}, policy.VerdictInconclusive, 1, "NaN"},
		{"five errors in a row end it", minutely(5), broken, CheckedTarget{}, policy.VerdictError, 5, "connection refused"},
		{"against its baseline", baseline, func(int) (metrics.Sample, error) { return value(7) }, CheckedTarget{Baselines: map[int]map[string]any{0: {"value": 8.0}}}, policy.VerdictPassed, 2, ""},
		{"a missing baseline is an error, never a success", baseline, func(int) (metrics.Sample, error) { return value(7) }, CheckedTarget{}, policy.VerdictError, 5, "no baseline"},
		{"a dry run decides nothing", dry, func(int) (metrics.Sample, error) { return value(99) }, CheckedTarget{}, policy.VerdictPassed, 1, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, tt.metric)
			b.probe.answers = tt.answers
			tt.target.Name = "a"
			out := b.check(t, CheckInput{Plan: "sha256:p", Version: "v2", During: policy.DuringApply, Since: start, Targets: []CheckedTarget{tt.target}})
			got, why := policy.VerdictPassed, ""
			if len(out.Changed) > 0 {
				got, why = out.Changed[0].Verdict, out.Changed[0].Reason
			}
			if got != tt.want || !strings.Contains(why, tt.says) {
				t.Errorf("%s (%s), want %s saying %q", got, why, tt.want, tt.says)
			}
			if len(b.probe.asked) != tt.measured {
				t.Errorf("measured %d times, want %d", len(b.probe.asked), tt.measured)
			}
			for i, q := range b.probe.asked {
				if want := start.Add(time.Duration(i+1) * time.Minute); !q.Now.Equal(want) || !q.Since.Equal(start) {
					t.Errorf("measurement %d at %s since %s, want at %s since the change", i+1, q.Now, q.Since, want)
				}
				if string(q.Config) != `{"q":"A"}` {
					t.Errorf("asked %s: the target's name was not quoted for the provider", q.Config)
				}
			}
		})
	}
}

// TestWhatMustWaitIsNotCounted fails when a provider that asks to be left alone is asked meanwhile, or when that counts.
func TestWhatMustWaitIsNotCounted(t *testing.T) {
	fast := minutely(3)
	fast.Name, fast.Interval, fast.InitialDelay = "fast", policy.Duration(10*time.Second), policy.Duration(10*time.Second)
	b := newBench(t, minutely(2), fast)
	b.probe.answers = func(n int) (metrics.Sample, error) {
		now := b.probe.asked[n-1].Now
		switch {
		case now.Before(start.Add(25 * time.Second)):
			return metrics.Sample{NotBefore: start.Add(25 * time.Second)}, nil
		case now.Equal(start.Add(time.Minute)):
			return metrics.Sample{NotBefore: now.Add(-time.Hour)}, nil
		}
		return value(1)
	}
	out := b.check(t, CheckInput{Plan: "sha256:p", Version: "v2", During: policy.DuringApply, Since: start, Targets: []CheckedTarget{{Name: "a"}}})
	if !out.Ended || len(out.Changed) != 0 {
		t.Errorf("ended %t, changed %v; want a pass", out.Ended, out.Changed)
	}
	var got []float64
	for _, q := range b.probe.asked {
		got = append(got, q.Now.Sub(start).Seconds())
	}
	// The fast one at 10 s, then when it may; the slow one a second later than it is told, for that is in the past.
	if want := []float64{10, 25, 35, 45, 60, 61, 121}; !slices.Equal(got, want) {
		t.Errorf("measured at %v, want %v", got, want)
	}
}

// TestACallRemembersWhatMustWait fails when one call of a check, which measures other metrics meanwhile, asks again.
func TestACallRemembersWhatMustWait(t *testing.T) {
	b := newBench(t, minutely(1))
	b.probe.answers = func(int) (metrics.Sample, error) { return metrics.Sample{NotBefore: start.Add(5 * time.Minute)}, nil }
	p, err := b.a.planned(t.Context(), "sha256:p")
	if err != nil {
		t.Fatal(err)
	}
	c := &check{a: b.a, p: p, in: CheckInput{Version: "v2", Since: start}, targets: []*checked{{CheckedTarget: CheckedTarget{Name: "a"}, at: p.targets["a"],
		indices: []int{0}, metrics: []policy.Metric{b.plan.Metrics[0].Metric}, tallies: make([]policy.Tally, 1), notBefore: make([]time.Time, 1)}}}
	for _, minute := range []time.Duration{0, 1, 2, 4, 5} {
		now := start.Add(minute * time.Minute)
		if err := c.measureDue(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if next, what := c.next(now); what != "latency" {
			t.Errorf("after minute %d the next is %q", minute, what)
		} else if minute > 0 && minute < 5 && !next.Equal(start.Add(5*time.Minute)) {
			t.Errorf("after minute %d the next measurement is at %s", minute, next)
		}
	}
	if len(b.probe.asked) != 2 || c.targets[0].tallies[0].Taken() != 0 {
		t.Errorf("asked %d times and counted %d, want 2 and none", len(b.probe.asked), c.targets[0].tallies[0].Taken())
	}
}

// TestAFarMomentIsAnError fails when a rollout waits a day without a word for a rollup of a day, or for a wrong clock.
func TestAFarMomentIsAnError(t *testing.T) {
	b := newBench(t, minutely(1))
	b.probe.answers = func(int) (metrics.Sample, error) { return metrics.Sample{NotBefore: start.Add(36 * time.Hour)}, nil }
	in := CheckInput{Plan: "sha256:p", Version: "v2", During: policy.DuringApply, Since: start, Targets: []CheckedTarget{{Name: "a"}}}
	out := b.check(t, in)
	if len(out.Changed) != 1 || out.Changed[0].Verdict != policy.VerdictError || !b.clock.Equal(start.Add(5*time.Minute)) {
		t.Fatalf("got %+v at %s; want an error after five minutes", out, b.clock)
	}
	for _, part := range []string{"2026-11-03T21:00:00Z", "rollup", "clock", "2026-11-02T09:05:00Z"} {
		if !strings.Contains(out.Changed[0].Reason, part) {
			t.Errorf("the reason does not say %q: %s", part, out.Changed[0].Reason)
		}
	}
	b = newBench(t, minutely(1))
	b.probe.answers = func(n int) (metrics.Sample, error) {
		if n == 1 {
			return metrics.Sample{NotBefore: b.clock.Add(farthest)}, nil
		}
		return value(1)
	}
	if out := b.check(t, in); !out.Ended || len(out.Changed) != 0 {
		t.Errorf("got %+v; want a pass after the longest wait there is", out)
	}
}

// TestAPendingCheckSaysWhyAndUntilWhen fails when whoever looks at a waiting check can't tell what it waits for.
func TestAPendingCheckSaysWhyAndUntilWhen(t *testing.T) {
	b := newBench(t, minutely(2))
	in := CheckInput{Plan: "sha256:p", Version: "v2", During: policy.DuringApply, Since: start, Targets: []CheckedTarget{{Name: "a"}}}
	soak := in
	soak.During, soak.Until = policy.DuringSoak, start.Add(10*time.Minute)
	for want, in := range map[string]CheckInput{
		"next measurement is not due yet: latency at 2026-11-02T09:01:00Z":             in,
		"next measurement is not due yet: the end of the soak at 2026-11-02T09:10:00Z": soak,
	} {
		if _, err := b.env.ExecuteActivity(b.a.Check, in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestAWaitThatNeverEndsDoesNotEndASoak fails when a soak passes because nothing could be measured in it.
func TestAWaitThatNeverEndsDoesNotEndASoak(t *testing.T) {
	m := minutely(1)
	m.During = policy.DuringSoak
	b := newBench(t, m)
	b.probe.answers = func(n int) (metrics.Sample, error) {
		if n < 20 {
			return metrics.Sample{NotBefore: b.probe.asked[n-1].Now.Add(time.Minute)}, nil
		}
		return value(99)
	}
	in := CheckInput{Plan: "sha256:p", Version: "v2", During: policy.DuringSoak, Since: start, Until: start.Add(10 * time.Minute), Targets: []CheckedTarget{{Name: "a"}}}
	if out := b.check(t, in); len(out.Changed) != 1 || out.Changed[0].Verdict != policy.VerdictFailed || !b.clock.Equal(start.Add(20*time.Minute)) {
		t.Errorf("got %+v at %s; want the verdict of the first measurement there was", out, b.clock)
	}
}

func TestObserved(t *testing.T) {
	for want, result := range map[string]map[string]any{
		"0.3":                          {"value": 0.3},
		"7":                            {"value": 7.0, "ok": true, "statusCode": 200.0, "query": "sum:errors{*}"},
		`status 200, json {"up":true}`: {"status": 200.0, "body": `{"up":true}`, "json": map[string]any{"up": true}},
		"":                             {},
	} {
		if got := observed(result); got != want {
			t.Errorf("%v: got %q, want %q", result, got, want)
		}
	}
}

func TestBaselinesAreValues(t *testing.T) {
	m := minutely(1)
	m.UsesBaseline = true
	b := newBench(t, m)
	p, err := b.a.planned(t.Context(), "sha256:p")
	if err != nil {
		t.Fatal(err)
	}
	b.probe.answers = func(int) (metrics.Sample, error) {
		return metrics.Sample{Result: map[string]any{"value": 8.0, "query": strings.Repeat("q", portableBaselines), "body": "page"}}, nil
	}
	got := b.a.baselines(t.Context(), p, p.targets["a"])
	if len(got[0]) != 1 || got[0]["value"] != 8.0 || !portable(got) {
		t.Errorf("got %v, want the value alone", got)
	}
	b.probe.answers = func(int) (metrics.Sample, error) { return metrics.Sample{NotBefore: start.Add(time.Hour)}, nil }
	if got := b.a.baselines(t.Context(), p, p.targets["a"]); got != nil {
		t.Errorf("got %v of a provider that saw nothing", got)
	}
}

func TestASoakMeasuresUntilItsEndAndTellsOfABadTargetAtOnce(t *testing.T) {
	m := minutely(2)
	m.During = policy.DuringSoak
	b := newBench(t, m)
	b.probe.answers = func(int) (metrics.Sample, error) {
		last := b.probe.asked[len(b.probe.asked)-1]
		if string(last.Config) == `{"q":"B"}` && last.Now.Sub(start) >= 3*time.Minute {
			return value(99)
		}
		return value(1)
	}
	in := CheckInput{Plan: "sha256:p", Version: "v2", During: policy.DuringSoak, Since: start, Until: start.Add(10 * time.Minute), Targets: []CheckedTarget{{Name: "a"}, {Name: "b"}}}
	out := b.check(t, in)
	if out.Ended || len(out.Changed) != 1 || out.Changed[0].Target != "b" || len(out.Targets) != 1 || out.Targets[0].Name != "a" || out.Targets[0].Counted[0][0] != 3 {
		t.Fatalf("got %+v; want b failed and a to go on with from its three", out)
	}
	in.Targets = out.Targets
	b.env.SetHeartbeatDetails(nil)
	if out = b.check(t, in); !out.Ended || len(out.Changed) != 0 || !b.clock.Equal(start.Add(10*time.Minute)) {
		t.Errorf("got %+v at %s; want the end of the soak with a passed", out, b.clock)
	}
}

func TestMakePlan(t *testing.T) {
	request := policy.Request{BundleDigest: "sha256:d"}
	t.Run("documents that are not there", func(t *testing.T) {
		b := newBench(t)
		out, err := b.a.MakePlan(t.Context(), PlanInput{Request: request})
		if err != nil || !strings.Contains(out.Refused, "start with -f again") {
			t.Errorf("got %+v, %v", out, err)
		}
	})
	for _, tt := range []struct {
		name   string
		change func(*bench)
		want   string
		says   string
	}{
		{"stands", func(*bench) {}, "sha256:p", ""},
		{"another plan than the starter saw", func(*bench) {}, "sha256:q", "where the starter saw sha256:q"},
		{"faults are a refusal, not an error", func(b *bench) {
			b.a.Plan = func(context.Context, []byte, policy.Request) (Planned, error) {
				return Planned{}, policy.Faults{{Message: "bad wave"}}
			}
		}, "", "bad wave"},
		{"a metric without a connection", func(b *bench) { b.a.Connections.Open = nil }, "", "a metric of type probe needs a connection, and this worker has none of that type: add one to the worker's configuration (--config)"},
		{"a metric with two to choose from", func(b *bench) {
			b.a.Connections.Open["probe"] = map[string]metrics.Provider{"x": b.probe, "y": b.probe}
		}, "", "this worker has 2 of that type: write `connection: NAME` with one of x, y"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, minutely(1))
			if err := b.shelf.PutBlob(t.Context(), ledger.Bundle, "sha256:d", []byte("{}")); err != nil {
				t.Fatal(err)
			}
			if tt.name != "stands" {
				b.a.Connections.Kinds[0].NeedsConnection = true
				b.a.Connections.Open = map[string]map[string]metrics.Provider{"probe": {"x": b.probe}}
			}
			tt.change(b)
			out, err := b.a.MakePlan(t.Context(), PlanInput{Request: request, Want: tt.want})
			if err != nil || !strings.Contains(out.Refused, tt.says) || (tt.says == "") != (out.Refused == "") {
				t.Errorf("got %q, %v; want it to say %q", out.Refused, err, tt.says)
			}
			if tt.says == "" && (out.Plan.Digest != "sha256:p" || out.Plan.Waves[0].Targets != nil || out.Plan.Waves[0].Size != 2) {
				t.Errorf("got %+v, want the plan's summary", out.Plan)
			}
		})
	}
}

func TestStoreBundle(t *testing.T) {
	documents := []byte(strings.Repeat("documents ", 1000))
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(documents); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	parts := [][]byte{packed.Bytes()[:20], packed.Bytes()[20:]}
	put := func(b *bench, digest string, parts ...[]byte) {
		for i, data := range parts {
			if err := b.a.StoreChunk(t.Context(), ChunkInput{Digest: digest, Index: i, Data: data}); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("twice is once", func(t *testing.T) {
		b := newBench(t)
		ref := BundleRef{Digest: ledger.Digest(documents), Chunks: 2}
		put(b, ref.Digest, parts...)
		for range 2 {
			if err := b.a.StoreBundle(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := b.shelf.Blob(t.Context(), ledger.Bundle, ref.Digest); err != nil || !bytes.Equal(got, documents) {
			t.Errorf("stored %d bytes, %v", len(got), err)
		}
		if _, err := b.shelf.Blob(t.Context(), ledger.Chunk, chunkKey(ref.Digest, 0)); !errors.Is(err, ledger.ErrNotFound) {
			t.Error("the parts are still there")
		}
	})
	for name, tt := range map[string]struct {
		digest string
		parts  [][]byte
		says   string
	}{
		"another digest": {"sha256:other", parts, "not as sha256:other"},
		"no gzip":        {"sha256:x", [][]byte{[]byte("plain"), nil}, "not gzip"},
		"cut short":      {"sha256:x", [][]byte{parts[0], nil}, "unpack"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			put(b, tt.digest, tt.parts...)
			err := b.a.StoreBundle(t.Context(), BundleRef{Digest: tt.digest, Chunks: 2})
			var app *temporal.ApplicationError
			if !errors.As(err, &app) || !app.NonRetryable() || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want a final error that says %q", err, tt.says)
			}
		})
	}
}

func TestRecordKeepsWhatANewerOneDoesNotName(t *testing.T) {
	b := newBench(t)
	put := func(sequence int, state string, targets ...ledger.TargetRecord) {
		if err := b.a.Record(t.Context(), ledger.Record{Rollout: "R", State: state, Sequence: sequence, Targets: targets}); err != nil {
			t.Fatal(err)
		}
	}
	put(1, "Running", ledger.TargetRecord{Name: "a", State: "Succeeded", Reached: true})
	put(2, "Running", ledger.TargetRecord{Name: "b", State: "Failed", Reached: true})
	put(3, "RolledBack", ledger.TargetRecord{Name: "a", State: "RolledBack"})
	put(3, "RolledBack", ledger.TargetRecord{Name: "a", State: "RolledBack"})
	put(2, "Running", ledger.TargetRecord{Name: "a", State: "Succeeded", Reached: true}) // late, by an attempt that was given up
	r, err := b.a.LoadRecord(t.Context(), RecordPage{Rollout: "R", Limit: 10})
	if err != nil || r.Total != 2 || r.Record.State != "RolledBack" || r.Record.Targets[0].Reached || !r.Record.Targets[1].Reached {
		t.Errorf("got %+v, %v; want a back and b as it was", r, err)
	}
	if r, err := b.a.LoadRecord(t.Context(), RecordPage{Rollout: "R", Offset: 1, Limit: 10}); err != nil || len(r.Record.Targets) != 1 || r.Record.Targets[0].Name != "b" {
		t.Errorf("the second page: %+v, %v", r, err)
	}
	if r, err := b.a.LoadRecord(t.Context(), RecordPage{Rollout: "S", Limit: 10}); err != nil || !r.Missing {
		t.Errorf("an unknown rollout: %+v, %v", r, err)
	}
}

func TestErrorsAreRetriedAsTheirSentinelsSay(t *testing.T) {
	for _, tt := range []struct {
		err   error
		typed string
		final bool
	}{
		{executors.ErrUnreachable, TypeUnreachable, false}, {executors.ErrRejected, TypeRejected, true}, {executors.ErrBlocked, TypeBlocked, true},
		{executors.ErrNotSubmitted, TypeNotSubmitted, true}, {executors.ErrRunning, TypeRunning, false},
	} {
		var app *temporal.ApplicationError
		if err := classify(fmt.Errorf("step: %w", tt.err)); !errors.As(err, &app) || app.Type() != tt.typed || app.NonRetryable() != tt.final {
			t.Errorf("%v becomes %v, want type %s, final %t", tt.err, err, tt.typed, tt.final)
		}
	}
	if other := errors.New("other"); !errors.Is(classify(other), other) || classify(nil) != nil {
		t.Error("an error without a sentinel must stay what it is")
	}
}

func TestPlansAreKeptAndForgotten(t *testing.T) {
	var c planCache
	for i := range keptPlans + 3 {
		c.keep(fmt.Sprint(i), &planned{})
	}
	if c.get("0") != nil || c.get(fmt.Sprint(keptPlans+2)) == nil || len(c.plans) != keptPlans {
		t.Errorf("keeps %d plans, want the newest %d", len(c.plans), keptPlans)
	}
	if got := slices.Clone(c.order); got[0] != "3" {
		t.Errorf("the oldest kept is %s, want 3", got[0])
	}
}
