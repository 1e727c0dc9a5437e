package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"golang.org/x/sync/errgroup"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// CheckInput asks for the verdict on some targets of a plan. A Target asks about itself after its change; a Wave asks
// about all of its targets while it soaks.
type CheckInput struct {
	Plan string `json:"plan"`
	// Version is the version that is judged.
	Version string        `json:"version"`
	During  policy.During `json:"during"`
	// Since is when the time under judgement began: data older than this is never judged.
	Since time.Time `json:"since"`
	// Until is when a soak ends; zero: the metrics' counts end the check.
	Until time.Time `json:"until,omitzero"`
	// Targets are the ones to judge, with what earlier calls have counted for them.
	Targets []CheckedTarget `json:"targets"`
}

// CheckedTarget is one target under judgement.
type CheckedTarget struct {
	Name string `json:"name"`
	// Baselines are values from before the change, by metric index.
	Baselines map[int]map[string]any `json:"baselines,omitempty"`
	// Counted is what earlier calls have counted, by position in the target's metrics of that time; nil at first.
	Counted []Counted `json:"counted,omitempty"`
}

// CheckOutput is what the check has come to: it returns as soon as one target has failed or come to no conclusion, and
// at the end.
type CheckOutput struct {
	// Ended reports that the time is over and every target that is not in Changed has passed.
	Ended bool `json:"ended"`
	// Changed are the targets with a verdict other than passed.
	Changed []CheckVerdict `json:"changed,omitempty"`
	// Targets are the others with what has been counted, to go on with; empty when Ended.
	Targets []CheckedTarget `json:"targets,omitempty"`
	// Observed are the last measurements of a check of one target, for its history.
	Observed []policy.Measurement `json:"observed,omitempty"`
}

// CheckVerdict is the verdict on one target.
type CheckVerdict struct {
	Target  string         `json:"target"`
	Verdict policy.Verdict `json:"verdict"`
	Reason  string         `json:"reason,omitempty"`
}

// Counted is a policy.Tally without words, as short as JSON can be: a wave of 500 targets carries its counts along.
// In order: successful, failed, inconclusive, errors, errors in a row, successes in a row, time of the last measurement
// (Unix milliseconds, 0: none).
type Counted [7]int64

func shorten(t policy.Tally) Counted {
	out := Counted{int64(t.Successful), int64(t.Failed), int64(t.Inconclusive), int64(t.Errors), int64(t.ErrorsInRow), int64(t.SuccessesInRow)}
	if t.Last != nil {
		out[6] = t.Last.At.UnixMilli()
	}
	return out
}

func (c Counted) tally() policy.Tally {
	t := policy.Tally{Successful: int(c[0]), Failed: int(c[1]), Inconclusive: int(c[2]), Errors: int(c[3]), ErrorsInRow: int(c[4]), SuccessesInRow: int(c[5])}
	if c[6] != 0 {
		t.Last = &policy.Measurement{At: time.UnixMilli(c[6])}
	}
	return t
}

// patience is the longest that a check waits between measurements inside one call; a longer wait gives the slot back
// and is timed by the server, which costs no event.
const patience = 3 * time.Second

// maxBaseline bounds one baseline, which travels with its target's history.
const maxBaseline = 4 << 10

// portableBaselines bounds what of its baselines a target passes on to its wave's soak, so that 500 targets' fit one
// payload: a few numbers, not a page.
const portableBaselines = 220

// portable reports whether baselines are small enough to travel to a soak. Others stay with their target: a soak's
// condition that names one is then an error, and asks a person.
func portable(baselines map[int]map[string]any) bool {
	data, err := json.Marshal(baselines)
	return err == nil && len(data) <= portableBaselines
}

// leftAlone is the least time for which a provider that asks for it is left alone, so that one that names a moment of the
// past is not asked without a pause.
const leftAlone = time.Second

// farthest is how far off a provider may put a measurement: twice an hour's buckets, and an hour until data is there. A
// moment beyond it would keep a rollout waiting without a word.
const farthest = 3 * time.Hour

// measuredAtOnce is how many measurements of one check run together.
const measuredAtOnce = 16

// check is one call of Check.
type check struct {
	a       *Activities
	p       *planned
	in      CheckInput
	targets []*checked
	// mu guards the tallies, which measurements that run together write and heartbeats read.
	mu sync.Mutex
}

type checked struct {
	CheckedTarget
	at      plannedTarget
	indices []int
	metrics []policy.Metric
	tallies []policy.Tally
	// notBefore is, by metric, until when its provider asked to be left alone; zero: not at all. It is not kept: a check
	// that goes on elsewhere asks again and is told again.
	notBefore []time.Time
}

// Check measures targets until their verdict is known. Idempotent and read-only; what it has counted survives a crash
// in its heartbeat details.
func (a *Activities) Check(ctx context.Context, in CheckInput) (CheckOutput, error) {
	p, err := a.planned(ctx, in.Plan)
	if err != nil {
		return CheckOutput{}, err
	}
	if activity.IsActivity(ctx) && activity.HasHeartbeatDetails(ctx) {
		var kept []CheckedTarget
		if err := activity.GetHeartbeatDetails(ctx, &kept); err == nil && len(kept) == len(in.Targets) {
			for i := range kept {
				kept[i].Baselines = in.Targets[i].Baselines
			}
			in.Targets = kept
		}
	}
	c := &check{a: a, p: p, in: in}
	for _, t := range in.Targets {
		at, ok := p.targets[t.Name]
		if !ok {
			return CheckOutput{}, invalid(fmt.Errorf("activities: plan %s has no target %q", in.Plan, t.Name))
		}
		one := &checked{CheckedTarget: t, at: at}
		for _, m := range at.metrics {
			if metric := p.plan.Metrics[m].Metric; measuredIn(metric, in.During) {
				one.indices, one.metrics = append(one.indices, m), append(one.metrics, a.TimeScale.Metric(metric))
			}
		}
		one.tallies, one.notBefore = make([]policy.Tally, len(one.metrics)), make([]time.Time, len(one.metrics))
		for i := range one.tallies {
			if i < len(t.Counted) {
				one.tallies[i] = t.Counted[i].tally()
			}
		}
		c.targets = append(c.targets, one)
	}
	stop := heartbeatWith(ctx, c.counted)
	defer stop()
	return c.run(ctx)
}

// run measures what is due, judges, and waits for the next moment.
func (c *check) run(ctx context.Context) (CheckOutput, error) {
	soak := !c.in.Until.IsZero()
	for {
		now := c.a.now()
		if err := c.measureDue(ctx, now); err != nil {
			return CheckOutput{}, err
		}
		now = c.a.now()
		var changed []CheckVerdict
		running := false
		for _, t := range c.targets {
			ended := !now.Before(c.in.Until) && t.counted()
			verdict, reason := policy.Combine(t.metrics, t.tallies, soak, ended)
			switch verdict {
			case policy.VerdictRunning:
				running = true
			case policy.VerdictPassed:
				running = running || t.rehearsing()
			case policy.VerdictFailed, policy.VerdictInconclusive, policy.VerdictError:
				changed = append(changed, CheckVerdict{Target: t.Name, Verdict: verdict, Reason: clip(reason, 300)})
			}
		}
		if soak && now.Before(c.in.Until) {
			running = true
		}
		if len(changed) > 0 || !running {
			return c.output(changed, !running), nil
		}
		next, what := c.next(now)
		wait := next.Sub(now)
		if wait > patience || c.a.Now != nil {
			activity.RecordHeartbeat(ctx, c.counted())
			// Whoever looks at the pending activity sees this, and nothing else while it waits.
			message := fmt.Sprintf("next measurement is not due yet: %s at %s", what, next.UTC().Format(time.RFC3339))
			return CheckOutput{}, temporal.NewApplicationErrorWithOptions(message, TypeRunning,
				temporal.ApplicationErrorOptions{NextRetryDelay: max(wait, time.Millisecond), Category: temporal.ApplicationErrorCategoryBenign})
		}
		limited, cancel := untilWorkerStops(ctx, max(wait, 10*time.Millisecond))
		<-limited.Done()
		cancel()
		if ctx.Err() != nil {
			return CheckOutput{}, ctx.Err()
		}
		if c.a.now().Before(now.Add(wait - time.Millisecond)) {
			// The worker is stopping: another one goes on from the counts.
			activity.RecordHeartbeat(ctx, c.counted())
			return CheckOutput{}, temporal.NewApplicationErrorWithOptions("the worker is stopping", TypeRunning,
				temporal.ApplicationErrorOptions{NextRetryDelay: time.Millisecond, Category: temporal.ApplicationErrorCategoryBenign})
		}
	}
}

// rehearsing reports whether a metric in dry run is still to be measured: it decides nothing, and is shown in full.
func (t *checked) rehearsing() bool {
	for i, m := range t.metrics {
		if verdict, _ := t.tallies[i].Verdict(m, false, false); m.DryRun && verdict == policy.VerdictRunning {
			return true
		}
	}
	return false
}

// counted reports whether each metric that decides has its count.
func (t *checked) counted() bool {
	for i, m := range t.metrics {
		if !m.DryRun && t.tallies[i].Counted() < m.Count {
			return false
		}
	}
	return true
}

func (c *check) counted() []CheckedTarget {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]CheckedTarget, len(c.targets))
	for i, t := range c.targets {
		out[i] = CheckedTarget{Name: t.Name, Counted: make([]Counted, len(t.tallies))}
		for j, tally := range t.tallies {
			out[i].Counted[j] = shorten(tally)
		}
	}
	return out
}

func (c *check) output(changed []CheckVerdict, ended bool) CheckOutput {
	out := CheckOutput{Ended: ended, Changed: changed}
	bad := map[string]bool{}
	for _, v := range changed {
		bad[v.Target] = true
	}
	if !ended {
		for i, t := range c.counted() {
			if !bad[t.Name] {
				t.Baselines = c.targets[i].Baselines
				out.Targets = append(out.Targets, t)
			}
		}
	}
	if len(c.targets) == 1 {
		for _, t := range c.targets[0].tallies {
			if t.Last != nil {
				m := *t.Last
				m.Reason, m.Observed = clip(m.Reason, 300), clip(m.Observed, 200)
				out.Observed = append(out.Observed, m)
			}
		}
	}
	return out
}

// due reports whether metric i of a target is still to be measured at all.
func (c *check) due(t *checked, i int) bool {
	if !c.in.Until.IsZero() {
		return true
	}
	verdict, _ := t.tallies[i].Verdict(t.metrics[i], false, false)
	return verdict == policy.VerdictRunning
}

// at is when metric i of a target is to be measured next: when it is due, and not while its provider is to be left alone.
func (c *check) at(t *checked, i int, m policy.Metric) time.Time {
	at := policy.NextMeasurement(m, t.tallies[i], c.in.Since)
	if t.notBefore[i].After(at) {
		return t.notBefore[i]
	}
	return at
}

// next is the earliest moment at which something is due, or the soak's end, and what it is.
func (c *check) next(now time.Time) (next time.Time, what string) {
	next, what = now.Add(time.Hour), "another look"
	if c.in.Until.After(now) && c.in.Until.Before(next) {
		next, what = c.in.Until, "the end of the soak"
	}
	for _, t := range c.targets {
		for i, m := range t.metrics {
			if at := c.at(t, i, m); c.due(t, i) && at.Before(next) {
				next, what = at, m.Name
			}
		}
	}
	return next, what
}

func (c *check) measureDue(ctx context.Context, now time.Time) error {
	var g errgroup.Group
	g.SetLimit(measuredAtOnce)
	for _, t := range c.targets {
		for i, m := range t.metrics {
			if !c.due(t, i) || c.at(t, i, m).After(now) {
				continue
			}
			g.Go(func() error {
				measured, notBefore := c.a.measure(ctx, c.p, t.at, m, t.Baselines[t.indices[i]], c.in, now)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if !notBefore.IsZero() {
					// No other measurement of the metric runs, so this needs no lock.
					t.notBefore[i] = later(notBefore, now.Add(leftAlone))
					return nil
				}
				c.mu.Lock()
				t.tallies[i] = t.tallies[i].Add(measured)
				c.mu.Unlock()
				return nil
			})
		}
	}
	return g.Wait()
}

// later is the later of two moments.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// measure takes and judges one measurement. With a moment that is not zero there is none: it is to be tried again then.
func (a *Activities) measure(ctx context.Context, p *planned, t plannedTarget, m policy.Metric, baseline map[string]any, in CheckInput, now time.Time) (policy.Measurement, time.Time) {
	out := policy.Measurement{At: now, Metric: m.Name}
	v := vars(p.plan, t.target, policy.Version{Name: in.Version, Artifacts: p.plan.Version.Artifacts, Params: p.plan.Version.Params})
	v["args"] = mapOr(m.Args)
	o := policy.Observation{}
	sample, err := a.sample(ctx, m, v, in.Since, now)
	switch {
	case err != nil || sample.NotBefore.IsZero():
	case sample.NotBefore.After(now.Add(farthest)):
		err = fmt.Errorf("there is nothing to measure before %s, more than %s from now: either the query's rollup is longer than the wait, or this worker's clock is wrong (it says %s)",
			sample.NotBefore.UTC().Format(time.RFC3339), policy.Duration(farthest), now.UTC().Format(time.RFC3339))
	default:
		return policy.Measurement{}, sample.NotBefore
	}
	if err != nil {
		o.Err = err.Error()
	} else {
		o.Problem, o.NoData = sample.Problem, sample.NoData
		out.Observed = observed(sample.Result)
		v["result"] = mapOr(sample.Result)
		if baseline != nil {
			v["baseline"] = baseline
		}
		if o.Problem == "" && !o.NoData {
			o = a.conditions(ctx, m, v)
		}
	}
	out.Kind, out.Reason = policy.Judge(m, o)
	out.Reason = clip(out.Reason, 300)
	return out, time.Time{}
}

func (a *Activities) conditions(ctx context.Context, m policy.Metric, v map[string]any) policy.Observation {
	var o policy.Observation
	for _, c := range []struct {
		name string
		expr policy.Expression
		to   **bool
	}{{"failureCondition", m.Failure, &o.Failure}, {"successCondition", m.Success, &o.Success}} {
		if c.expr == "" {
			continue
		}
		holds, err := a.Evaluator.Condition(ctx, c.expr, v)
		if err != nil {
			return policy.Observation{Err: fmt.Sprintf("%s: %v", c.name, err)}
		}
		*c.to = &holds
	}
	return o
}

// sample asks the metric's provider.
func (a *Activities) sample(ctx context.Context, m policy.Metric, v map[string]any, since, now time.Time) (metrics.Sample, error) {
	provider, quote, err := a.Connections.find(m.Provider, m.Connection)
	if err != nil {
		return metrics.Sample{}, err
	}
	config, err := a.Evaluator.RenderJSON(m.Config, v, quote)
	if err != nil {
		return metrics.Sample{}, err
	}
	return provider.Measure(ctx, metrics.Query{Config: config, Since: since, Now: now})
}

// baselines measures, before a change, what its conditions compare with. One that cannot be measured is left out: a
// condition that names it is then an error, never a success.
func (a *Activities) baselines(ctx context.Context, p *planned, t plannedTarget) map[int]map[string]any {
	var out map[int]map[string]any
	for _, i := range t.metrics {
		m := p.plan.Metrics[i].Metric
		if !m.UsesBaseline {
			continue
		}
		v := vars(p.plan, t.target, p.plan.Version)
		v["args"] = mapOr(m.Args)
		sample, err := a.sample(ctx, m, v, time.Time{}, a.now())
		if err != nil || sample.Problem != "" || sample.NoData || !sample.NotBefore.IsZero() {
			continue
		}
		// Baselines travel with the target to its soak: what a page looked like is too much for that, and its parsed
		// form is what conditions compare. What was asked is no value.
		delete(sample.Result, "body")
		delete(sample.Result, "query")
		if data, err := json.Marshal(sample.Result); err != nil || len(data) > maxBaseline {
			continue
		}
		if out == nil {
			out = map[int]map[string]any{}
		}
		out[i] = sample.Result
	}
	return out
}

// Missing says which connection a metric would lack, so that a rollout is refused before it starts; empty: none.
func (c Connections) Missing(m policy.Metric) string {
	if _, _, err := c.find(m.Provider, m.Connection); err != nil {
		return err.Error()
	}
	return ""
}

func (c Connections) find(kind, connection string) (metrics.Provider, func(string) string, error) {
	for _, k := range c.Kinds {
		if k.Name != kind {
			continue
		}
		open := c.Open[kind]
		if connection != "" {
			if p, ok := open[connection]; ok {
				return p, k.Quote, nil
			}
			return nil, nil, fmt.Errorf("this worker has no connection %q of type %s; it has: %s", connection, kind, listed(open))
		}
		if !k.NeedsConnection {
			if p, ok := open[""]; ok {
				return p, k.Quote, nil
			}
		}
		if len(open) == 1 {
			for _, p := range open {
				return p, k.Quote, nil
			}
		}
		if len(open) == 0 {
			return nil, nil, fmt.Errorf("a metric of type %s needs a connection, and this worker has none of that type: add one to the worker's configuration (--config)", kind)
		}
		return nil, nil, fmt.Errorf("a metric of type %s names no connection, and this worker has %d of that type: write `connection: NAME` with one of %s", kind, len(open), listed(open))
	}
	return nil, nil, fmt.Errorf("this worker knows no metric provider %q", kind)
}

func listed(open map[string]metrics.Provider) string {
	if len(open) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(open)), ", ")
}

// observed is a result as text: its value alone where it has one, else everything in it.
func observed(result map[string]any) string {
	if v, ok := result["value"]; ok {
		return clip(fmt.Sprint(v), 200)
	}
	// Of an HTTP answer the parsed form says what the body says.
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(result)) {
		if _, parsed := result["json"]; key == "body" && parsed {
			continue
		}
		data, err := json.Marshal(result[key])
		if err != nil {
			return fmt.Sprint(result)
		}
		parts = append(parts, key+" "+string(data))
	}
	slices.SortStableFunc(parts, func(a, b string) int { return len(a) - len(b) }) // what is long is cut
	return clip(strings.Join(parts, ", "), 200)
}

// heartbeatWith is heartbeat with details that a next attempt goes on from.
func heartbeatWith(ctx context.Context, details func() []CheckedTarget) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	if !activity.IsActivity(ctx) {
		return cancel
	}
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				activity.RecordHeartbeat(ctx, details())
			}
		}
	})
	return func() { cancel(); done.Wait() }
}
