package workflows

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// outcomeOfRun is what two runs of one scenario must have in common.
type outcomeOfRun struct {
	state    Phase
	counts   map[policy.TargetState]int
	versions map[string]string
	asked    []string // sorted where the order is not promised
	paced    []string // in the order in which they were asked, where one waits for the other
	breached bool
	backs    bool              // one wave goes back after a breach
	states   map[string]string // of the ledger's record
}

// flying counts the changes that are under way at once.
type flying struct {
	*fleet
	now, most int
}

func (f *flying) Submit(ctx context.Context, c executors.Change) (executors.Ticket, error) {
	ticket, err := f.fleet.Submit(ctx, c)
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Direction == executors.Apply {
		f.now++
		f.most = max(f.most, f.now)
	}
	return ticket, err
}

func (f *flying) Await(ctx context.Context, c executors.Change, ticket executors.Ticket) (executors.Result, error) {
	r, err := f.fleet.Await(ctx, c, ticket)
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Direction == executors.Apply {
		f.now--
	}
	return r, err
}

// runRandom runs the scenario of a seed with each wave cut into so many batches; 0: none is. With commands, people interfere
// at moments whose effect depends on how far the rollout is, so that two runs need not be alike.
func runRandom(t *testing.T, seed uint64, batches int, commands bool) outcomeOfRun {
	random := rand.New(rand.NewPCG(seed, 7))
	n := 6 + random.IntN(20)
	if random.IntN(4) == 0 {
		n = 50 + random.IntN(60) // a report no longer comes with each target
	}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("t%03d", i)
	}
	list := func(some []string) policy.Expression { return policy.Expression(strings.Join(some, ",")) }
	p := policy.Policy{Name: "p", Waves: &policy.Waves{}}
	cut := n
	if random.IntN(3) == 0 {
		cut = 3 + random.IntN(n-5)
	}
	for k, part := range [][]string{names[:cut], names[cut:]} {
		if len(part) == 0 {
			continue
		}
		rule := policy.WaveRule{Name: fmt.Sprintf("w%d", k+1), Select: list(part), MaxConcurrency: amount(1 + random.IntN(8))}
		if random.IntN(2) == 0 {
			rule.MaxConcurrency = amount(1 + random.IntN(2))
		}
		rule.MaxFailures, rule.MaxUnreachable = amount(random.IntN(n)), amount(random.IntN(n))
		if random.IntN(3) == 0 {
			rule.MaxFailures = &policy.Amount{Value: random.IntN(60), Percent: true}
		}
		if random.IntN(2) == 0 {
			rule.Soak = policy.Duration(time.Duration(1+random.IntN(60)) * time.Minute)
		}
		p.Waves.Waves = append(p.Waves.Waves, rule)
	}
	p.FailureThreshold = &policy.FailureThreshold{MaxFailures: amount(random.IntN(n)), MaxUnreachable: amount(random.IntN(n)), Bounded: random.IntN(2) == 0}
	p.Rollback = &policy.Rollback{MaxConcurrency: amount(1 + random.IntN(4)),
		OnBreach:       []policy.OnBreach{policy.BreachHolds, policy.BreachWaveBack, policy.BreachRolloutAll, policy.BreachFails}[random.IntN(4)],
		OnTargetFailed: []policy.OnTargetFailed{policy.TargetGoesBack, policy.TargetGoesBack, policy.TargetStays}[random.IntN(3)],
		Order:          []policy.RollbackOrder{policy.OrderDeployed, policy.OrderNewest}[random.IntN(2)]}
	policies := []policy.Policy{p}
	some := func(of int) []string {
		if of <= 1 {
			return names
		}
		var out []string
		for _, name := range names {
			if random.IntN(of) == 0 {
				out = append(out, name)
			}
		}
		if len(out) == 0 {
			out = names[:1]
		}
		return out
	}
	var paced, inTurn []string
	paces := random.IntN(6) - 2
	if paces > 0 {
		// Waves and paces are two orders, and a target has one.
		policies[0].Soak, policies[0].Waves, cut = policies[0].Waves.Waves[0].Soak, nil, n
	}
	for k := range max(0, paces) {
		if k == 1 && len(paced) == n {
			break
		}
		of := some(1 + random.IntN(3))
		of = slices.DeleteFunc(slices.Clone(of), func(name string) bool { return slices.Contains(paced, name) })
		if len(of) == 0 {
			continue
		}
		paced = append(paced, of...)
		gradual := policy.GradualRollout{Type: policy.Linear, Interval: policy.Duration(time.Duration(random.IntN(4)) * time.Minute), Overlap: random.IntN(3) == 0}
		if !gradual.Overlap && paces == 1 {
			inTurn = of
		}
		policies = append(policies, policy.Policy{Name: fmt.Sprintf("pace%d", k), Selectors: []policy.Selector{{Resource: list(of)}}, Gradual: &gradual})
	}
	for range random.IntN(3) {
		from := random.IntN(n)
		if random.IntN(2) == 0 {
			from = random.IntN(3)
		}
		after := slices.DeleteFunc(slices.Clone(some(1+random.IntN(4))), func(name string) bool { return name <= names[from] || (name < names[min(cut, n-1)]) != (from < cut) })
		if len(after) == 0 {
			continue
		}
		policies = append(policies, policy.Policy{Name: fmt.Sprintf("after%d", len(policies)), Selectors: []policy.Selector{{Resource: list(after)}},
			WaitFor: []policy.WaitFor{{Name: names[from], Kind: policy.WaitForTarget}}})
	}
	during := []policy.During{policy.DuringApply, policy.DuringSoak, policy.DuringBoth}[random.IntN(3)]
	if random.IntN(2) == 0 {
		policies = append(policies, policy.Policy{Name: "checks", Selectors: []policy.Selector{{Resource: list(some(1 + random.IntN(4)))}}, Verification: []policy.Metric{metric(during)}})
	}
	bad, silent := map[string]bool{}, map[string]bool{}
	type behaviour struct {
		name, does string
		hang, back time.Duration
	}
	var all []behaviour
	trouble := 2 + random.IntN(30)
	for _, name := range names {
		b := behaviour{name: name}
		if random.IntN(3) > 0 {
			b.hang = time.Duration(random.IntN(1200)) * time.Second
			b.back = time.Duration(random.IntN(1200)) * time.Second
		}
		switch random.IntN(trouble) {
		case 0:
			b.does = []string{"refuses", "half", "once", "away", "gone", "done", "bad", "silent"}[random.IntN(8)]
		}
		all = append(all, b)
	}
	w, err := tryWorld(t, policies, names...)
	if err != nil {
		return outcomeOfRun{state: "refused"}
	}
	w.env.SetTestTimeout(20 * time.Second)
	f := &flying{fleet: w.fleet}
	w.acts.Executors["fake"] = f
	w.replan(func(p *policy.Plan) {
		for i := range p.Waves {
			p.Waves[i].Batches = min(batches, p.Waves[i].Size)
		}
	})
	for _, b := range all {
		switch b.does {
		case "refuses":
			w.fleet.on["apply "+b.name] = refuses
		case "half":
			w.fleet.on["apply "+b.name] = func() (executors.Result, error) {
				w.fleet.versions[b.name] = "half"
				return executors.Result{Outcome: executors.Failed, Reason: "half way"}, nil
			}
		case "once":
			tried := false
			w.fleet.on["apply "+b.name] = func() (executors.Result, error) {
				if tried {
					return executors.Result{Outcome: executors.Succeeded}, nil
				}
				tried = true
				return refuses()
			}
		case "away":
			w.fleet.unreachable[b.name] = readAttempts
		case "gone":
			w.fleet.unreachable[b.name] = 1000
		case "done":
			w.fleet.versions[b.name] = "v2"
		case "bad":
			bad[b.name] = true
		case "silent":
			silent[b.name] = true
		}
		for _, change := range []struct {
			what string
			d    time.Duration
		}{{"apply " + b.name, b.hang}, {"restore " + b.name, b.back}} {
			if change.d > 0 {
				w.env.OnActivity("Await", mock.Anything, mock.MatchedBy(func(in activities.AwaitInput) bool {
					return string(in.Change.Direction)+" "+in.Change.Target == change.what
				})).Return(w.acts.Await).After(change.d)
			}
		}
	}
	w.env.OnActivity("Await", mock.Anything, mock.Anything).Return(w.acts.Await)
	w.gauge.value = func(target string, _ time.Time) metrics.Sample {
		switch {
		case bad[target]:
			return metrics.Sample{Result: map[string]any{"value": 99.0}}
		case silent[target]:
			return metrics.Sample{NoData: true, Problem: "no data"}
		}
		return metrics.Sample{Result: map[string]any{"value": 1.0}}
	}
	if commands {
		for k := range 4 + random.IntN(12) {
			at := time.Duration(random.IntN(5*3600)) * time.Second
			c := map[string]any{"id": strconv.Itoa(k), "by": "bob"}
			name := names[random.IntN(n)]
			switch random.IntN(12) {
			case 0:
				c["target"] = name
				w.send(at, RollBack, c)
			case 1:
				c["wave"] = 1 + random.IntN(2)
				w.send(at, RollBack, c)
			case 2, 3, 4:
				w.send(at, Resume, c)
			case 5, 6:
				w.send(at, Pause, c)
			case 7, 8:
				c["target"] = name
				w.send(at, Retry, c)
			case 9, 10:
				c["target"] = name
				w.send(at, Skip, c)
			case 11:
				w.send(at, Approve, c)
			}
		}
	}
	sample := func() {
		s := w.status()
		sum := 0
		for _, c := range s.Counts {
			sum += c
		}
		if s.Targets > 0 && sum != n {
			t.Errorf("the counts %v are of %d targets, not of %d", s.Counts, sum, n)
		}
		for _, wave := range s.Waves {
			sum := 0
			for _, c := range wave.Counts {
				sum += c
			}
			if sum != wave.Size {
				t.Errorf("the counts of wave %d, %v, are of %d targets, not of %d", wave.Number, wave.Counts, sum, wave.Size)
			}
		}
	}
	for k := range 100 {
		w.env.RegisterDelayedCallback(sample, time.Duration(k)*3*time.Minute+time.Duration(1+random.IntN(200))*time.Second)
	}
	for k := range 40 {
		w.send(time.Duration(100+10*k)*time.Hour, Resume, nil)
		w.send(time.Duration(105+10*k)*time.Hour, Approve, map[string]any{"by": "bob"})
	}
	var late RolloutStatus
	w.env.RegisterDelayedCallback(func() { late = w.status() }, 599*time.Hour)
	last := []string{Abort, RollBack, Reject}[random.IntN(3)]
	w.send(600*time.Hour, last, nil)
	s := w.run()
	if late.State == Running || late.State == RollingBack || late.State == Paused {
		t.Errorf("after weeks it is still %s (%s), %v, waits %v", late.State, late.Reason, late.Counts, late.Waits)
	}
	sample()
	for _, c := range s.Commands {
		if c.Pending {
			t.Errorf("never answered: %+v", c)
		}
	}
	if len(w.fleet.operations) != len(w.fleet.log()) {
		t.Errorf("%d operations for %d askings: %v", len(w.fleet.operations), len(w.fleet.log()), w.fleet.log())
	}
	most := 0
	for _, wave := range w.plan.Waves {
		most = max(most, wave.MaxConcurrency)
	}
	if f.most > most && !commands {
		t.Errorf("%d were in flight at once, and %d may be", f.most, most)
	}
	out := outcomeOfRun{state: s.State, counts: s.Counts, versions: w.fleet.versions, asked: w.fleet.log(), backs: p.Rollback.OnBreach == policy.BreachWaveBack, states: map[string]string{}}
	for _, e := range s.Timeline {
		out.breached = out.breached || strings.Contains(e.What, "nothing new starts")
	}
	failed := 0
	for _, line := range out.asked {
		words := strings.Fields(line)
		if words[0] != "apply" {
			continue
		}
		if slices.Contains(inTurn, words[1]) {
			out.paced = append(out.paced, words[1])
		}
	}
	for _, b := range all {
		if slices.Contains(out.asked, "apply "+b.name+" v2") && (b.does == "refuses" || b.does == "half") {
			failed++
		}
	}
	if limit := p.FailureThreshold.MaxFailures.Value; p.FailureThreshold.Bounded && !commands && failed > limit+1 {
		t.Errorf("%d failed with a bounded budget of %d", failed, limit)
	}
	for _, target := range w.record().Targets {
		if out.states[target.Name] != "" {
			t.Errorf("the ledger has %s twice", target.Name)
		}
		out.states[target.Name] = target.State
	}
	if t.Failed() {
		t.Logf("%s (%s), commands %+v, timeline %+v", s.State, s.Reason, s.Commands, s.Timeline)
	}
	return out
}

// The same rollout must come to the same end whether batches share its waves or not.
func TestBatchesEndAsWholeWavesDo(t *testing.T) {
	for seed := range uint64(36) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			want := runRandom(t, seed, 0, false)
			for _, batches := range []int{2, 3} {
				got := runRandom(t, seed, batches, false)
				if want.breached && want.backs {
					continue // what a wave that goes back ends as depends on whether something of it was in flight
				}
				if got.state != want.state || got.breached != want.breached {
					t.Errorf("%d batches: %s, whole: %s; stopped %v and %v", batches, got.state, want.state, got.breached, want.breached)
					continue
				}
				if want.breached {
					continue // how far it came depends on the moment
				}
				if !maps.Equal(got.counts, want.counts) || !maps.Equal(got.versions, want.versions) || !maps.Equal(got.states, want.states) {
					t.Errorf("%d batches: %v, whole: %v\n%v\n%v", batches, got.counts, want.counts, got.states, want.states)
				}
				if !slices.Equal(got.paced, want.paced) {
					t.Errorf("%d batches asked in the order %v, whole: %v", batches, got.paced, want.paced)
				}
				slices.Sort(got.asked)
				asked := slices.Sorted(slices.Values(want.asked))
				if !slices.Equal(got.asked, asked) {
					t.Errorf("%d batches asked %v, whole: %v", batches, got.asked, asked)
				}
			}
		})
	}
}

// Whatever people do meanwhile, a wave of batches ends, answers, and counts each of its targets once.
func TestBatchesBearAnyCommand(t *testing.T) {
	for seed := range uint64(12) {
		for _, batches := range []int{0, 2, 3} {
			t.Run(fmt.Sprint(seed, " in ", batches), func(t *testing.T) { runRandom(t, seed, batches, true) })
		}
	}
}
