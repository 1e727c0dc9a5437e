package policy

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// regions is a fleet whose document order, name order and region order all differ.
func regions() []string {
	return []string{"m-east region=east", "z-west region=west", "b-eu region=eu", "y-west region=west", "a-east region=east"}
}

func gradual(name string, g GradualRollout) Policy { return Policy{Name: name, Gradual: &g} }

func TestGradualRolloutOrders(t *testing.T) {
	for _, tt := range []struct {
		name   string
		sortBy []SortKey
		want   string
	}{
		{"as documented where nothing else is written", nil, "m-east z-west b-eu y-west a-east"},
		{"by the first seen region, then as documented", []SortKey{{By: "region"}}, "m-east a-east z-west y-west b-eu"},
		{"by an explicit order", []SortKey{{By: "region", Order: []string{"eu", "west"}}}, "b-eu z-west y-west m-east a-east"},
		{"backwards", []SortKey{{By: "region", Desc: true}}, "b-eu z-west y-west m-east a-east"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := mustPlan(t, bundleOf(fleetOf(regions()...), gradual("p", GradualRollout{Type: Linear, Interval: Duration(10 * time.Minute), SortBy: tt.sortBy})))
			if got := order(p); got != tt.want {
				t.Errorf("order:\n got %s\nwant %s", got, tt.want)
			}
			if w := p.Waves[0]; w.MaxConcurrency != 1 || w.MaxUnpaced != 0 || w.BlastRadius != 1 {
				t.Errorf("one at a time: got %d at once (%d unpaced), blast radius %d", w.MaxConcurrency, w.MaxUnpaced, w.BlastRadius)
			}
			if pace := p.Paces[0]; pace.Policy != "p" || pace.Targets != 5 || pace.Interval != Duration(10*time.Minute) {
				t.Errorf("pace: got %+v", pace)
			}
		})
	}
}

func TestNormalizedIntervalIsSharedBySubsecond(t *testing.T) {
	p := mustPlan(t, bundleOf(numbered(7), gradual("p", GradualRollout{Type: LinearNormalized, Interval: Duration(10 * time.Second)})))
	if want := Duration(10 * time.Second / 7); p.Paces[0].Interval != want {
		t.Errorf("interval: got %s, want %s", p.Paces[0].Interval, want)
	}
}

func TestOverlapIsBoundByItsPaceOnly(t *testing.T) {
	p := mustPlan(t, bundleOf(numbered(7), gradual("p", GradualRollout{Type: Linear, Interval: Duration(time.Minute), Overlap: true})))
	if w := p.Waves[0]; w.MaxConcurrency != 7 || w.BlastRadius != 7 {
		t.Errorf("got %d at once and a blast radius of %d, want 7 and 7", w.MaxConcurrency, w.BlastRadius)
	}
}

// canary is the guide's variation: one policy for the canary, one that makes the rest wait for it.
func canary() []Policy {
	return []Policy{
		{Name: "Canary", Selectors: []Selector{{Resource: "role==canary"}}, Verification: []Metric{{Name: "m", Provider: "x", Count: 1}}},
		{Name: "Rest", Selectors: []Selector{{Resource: "role==rest"}}, Gradual: &GradualRollout{Type: Linear}, WaitFor: []WaitFor{{Name: "c", Kind: WaitForTarget}}},
	}
}

func TestWhatIsWaitedForComesFirst(t *testing.T) {
	p := mustPlan(t, bundleOf(fleetOf("x role=rest", "c role=canary", "y role=rest", "a role=rest"), canary()...))
	if got, want := order(p), "c x y a"; got != want {
		t.Errorf("order: got %s, want %s", got, want)
	}
	w := p.Waves[0]
	if w.MaxConcurrency != 1 || w.MaxUnpaced != 1 || w.BlastRadius != 1 {
		t.Errorf("at once: got %d, %d unpaced, blast radius %d; want 1, as none of the rest goes with the canary", w.MaxConcurrency, w.MaxUnpaced, w.BlastRadius)
	}
	if c, x := w.Targets[0], w.Targets[1]; len(c.After) != 0 || c.Pace != 0 || !slices.Equal(x.After, []int{0}) || x.Pace != 1 {
		t.Errorf("got %+v and %+v", c, x)
	}
	if d := p.Dependencies[0]; d.Policy != "Rest" || d.Kind != WaitForTarget || !slices.Equal(d.Targets, []string{"c"}) {
		t.Errorf("dependency: got %+v", d)
	}
	summary := p.Summary()
	if len(summary.Dependencies) != 1 || summary.Dependencies[0].Targets != nil || p.Dependencies[0].Targets == nil || len(summary.Paces) != 1 {
		t.Errorf("the summary grows with the fleet: %+v, %+v", summary.Dependencies, summary.Paces)
	}
}

func TestHigherPriorityOrders(t *testing.T) {
	low := gradual("low", GradualRollout{Type: Linear, Interval: Duration(time.Hour)})
	high := gradual("high", GradualRollout{Type: Linear, SortBy: []SortKey{{By: "region"}}})
	high.Priority = 1
	p := mustPlan(t, bundleOf(fleetOf(regions()...), low, high))
	if got, want := order(p), "m-east a-east z-west y-west b-eu"; got != want {
		t.Errorf("order: got %s, want %s", got, want)
	}
	if len(p.Paces) != 1 || p.Paces[0].Policy != "high" {
		t.Errorf("paces: got %+v, want that of high alone", p.Paces)
	}
	if len(p.Notes) != 1 || !strings.Contains(p.Notes[0], `policy "low" orders nothing`) {
		t.Errorf("notes: got %q", p.Notes)
	}
}

// A part of the targets may keep a pace of its own.
func TestEachTargetIsOrderedByOnePolicy(t *testing.T) {
	all := gradual("all", GradualRollout{Type: Linear, Interval: Duration(time.Minute)})
	west := gradual("west", GradualRollout{Type: LinearNormalized, Interval: Duration(time.Hour)})
	west.Priority, west.Selectors = 1, []Selector{{Resource: "region==west"}}
	p := mustPlan(t, bundleOf(fleetOf(regions()...), all, west))
	if got, want := order(p), "m-east b-eu a-east z-west y-west"; got != want {
		t.Errorf("order: got %s, want %s", got, want)
	}
	if len(p.Paces) != 2 || p.Paces[0].Policy != "west" || p.Paces[0].Interval != Duration(30*time.Minute) || p.Paces[0].Targets != 2 || p.Paces[1].Targets != 3 {
		t.Errorf("paces: got %+v", p.Paces)
	}
	if w := p.Waves[0]; w.MaxConcurrency != 2 {
		t.Errorf("at once: got %d, want one of each pace", w.MaxConcurrency)
	}
}

func TestGradualRolloutWithinWaves(t *testing.T) {
	pol := wavesPolicy(WaveRule{Select: "region==west", MaxConcurrency: n(5)}, WaveRule{Select: "true"})
	pol.Gradual = &GradualRollout{Type: LinearNormalized, Interval: Duration(50 * time.Minute), SortBy: []SortKey{{By: "region", Desc: true}}}
	p := mustPlan(t, bundleOf(fleetOf(regions()...), pol))
	if got, want := order(p), "z-west y-west | b-eu m-east a-east"; got != want {
		t.Errorf("order: got %s, want %s", got, want)
	}
	if pace := p.Paces[0]; pace.Interval != Duration(10*time.Minute) || pace.Targets != 5 {
		t.Errorf("pace: got %+v, want a fifth of the time for each target of the rollout", pace)
	}
	if p.Waves[0].Targets[1].Pace != 1 || p.Waves[0].MaxConcurrency != 2 {
		t.Errorf("wave: got %+v", p.Waves[0])
	}
}

// What could never start, or has two orders, starts nothing.
func TestRefusedOrders(t *testing.T) {
	waits := func(name string, selector Expression, on string, kind DependencyKind) Policy {
		p := Policy{Name: name, WaitFor: []WaitFor{{Name: on, Kind: kind, Place: Place{File: "f.yaml", Line: 7, Column: 3}}}}
		if selector != "" {
			p.Selectors = []Selector{{Resource: selector}}
		}
		return p
	}
	linear := gradual("linear", GradualRollout{Type: Linear, Place: Place{File: "f.yaml", Line: 3, Column: 5}})
	other := linear
	other.Name = "other"
	for _, tt := range []struct {
		name     string
		policies []Policy
		want     string
	}{
		{"two of one priority", []Policy{linear, other}, `f.yaml:3:5: Policy "other" gradualRollout: policy "linear" orders the same targets with the same priority 0; give one of them a higher priority (first such target: m-east)`},
		{"waves and a pace of one priority", []Policy{wavesPolicy(WaveRule{Select: "true"}), linear}, `policy "linear" orders the same targets with the same priority 0`},
		{"a part of the waves' targets", []Policy{wavesPolicy(WaveRule{Select: "true"}), func() Policy {
			p := linear
			p.Priority, p.Selectors = 1, []Selector{{Resource: "region==west"}}
			return p
		}()}, `Policy "linear" gradualRollout: orders a part of the targets of a rollout whose waves come from policy "p", which is not supported yet`},
		{"an order that is no order", []Policy{gradual("p", GradualRollout{Type: Linear, SortBy: []SortKey{{By: "nokey"}}})}, `Policy "p" gradualRollout sortBy: nokey cannot order target "m-east"`},
		{"a target that waits for itself", []Policy{waits("w", "", "b-eu", WaitForTarget)}, `f.yaml:7:3: Policy "w" deploymentDependency.waitFor: the policy matches b-eu too, which would wait for itself; leave it out with the policy's selectors, e.g. resource: resource.name != "b-eu"`},
		{"a pace that waits for its own later target", []Policy{func() Policy {
			p := waits("w", "region==east", "z-west", WaitForTarget)
			p.Gradual = nil
			return p
		}(), linear}, `wait for "z-west", directly or through the order`},
		{"two policies that wait for each other", []Policy{
			func() Policy {
				p := waits("w", "region==east", "x", WaitForPolicy)
				p.Verification = []Metric{{Name: "m"}}
				return p
			}(),
			func() Policy {
				p := waits("x", "region==west", "w", WaitForPolicy)
				p.Verification = []Metric{{Name: "m"}}
				return p
			}()}, `m-east, z-west, y-west, a-east wait for "x"`},
		{"a target of nowhere", []Policy{waits("w", "", "elsewhere", WaitForTarget)}, `target "elsewhere" is not in environment "prod"`},
		{"a policy without targets", []Policy{waits("w", "", "nobody", WaitForPolicy)}, `policy "nobody" matches no target of this rollout`},
		{"the environment itself", []Policy{waits("w", "", "prod", WaitForEnvironment)}, `environment "prod" is the one that is rolled out to`},
		{"the deployment itself", []Policy{waits("w", "", "web", WaitForDeployment)}, `deployment "web" is the one that is rolled out`},
		{"waves that would not hold", []Policy{wavesPolicy(WaveRule{Select: "true", Approval: &Approval{Min: 2}, Soak: Duration(time.Hour)}), func() Policy {
			p := linear
			p.Priority = 1
			return p
		}()}, `Policy "p" waves[0] "w1": demands approval, soak, and would not hold: a policy of a higher priority orders the targets`},
		{"another wave", []Policy{wavesPolicy(WaveRule{Select: "region==west"}, WaveRule{Select: "true"}), waits("w", "region==west", "b-eu", WaitForTarget)},
			`z-west waits for b-eu, which is not in its wave`},
		{"waves for a part", []Policy{linear, func() Policy {
			p := wavesPolicy(WaveRule{Select: "true"})
			p.Selectors = []Selector{{Resource: "region==west"}}
			return p
		}()}, `may have nothing but verification, gradualRollout, deploymentDependency; its other rules (waves) for a part are not supported yet`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := planOf(bundleOf(fleetOf(regions()...), tt.policies...))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// What is waited for elsewhere must be able to come there.
func TestRefusedWaitsElsewhere(t *testing.T) {
	b := bundleOf(numbered(2), Policy{Name: "w", WaitFor: []WaitFor{{Name: "empty", Kind: WaitForEnvironment}, {Name: "dr", Kind: WaitForEnvironment}, {Name: "db", Kind: WaitForDeployment}}})
	b.Environments = append(b.Environments, Environment{Name: "empty", Selector: "false"}, Environment{Name: "dr", Selector: "true"})
	b.Deployments = append(b.Deployments, Deployment{Name: "db", Environments: []string{"staging"}})
	b.Deployments[0].Environments = []string{"prod", "empty"}
	_, err := planOf(b)
	for _, want := range []string{
		`environment "empty" selects no target, so nothing ever succeeds there: false`,
		`deployment "web" is not bound to environment "dr", so it never succeeds there; it is bound to: prod, empty`,
		`deployment "db" is not bound to environment "prod", so it never succeeds on these targets; it is bound to: staging`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	b.Deployments[0].Environments, b.Deployments[1].Environments = nil, nil
	b.Environments[1].Selector = "true"
	if _, err := planOf(b); err != nil {
		t.Errorf("with all of them possible: %v", err)
	}
}

func TestLeftOverTargetsMayBeWaitedFor(t *testing.T) {
	p := wavesPolicy(WaveRule{Select: "region==eu"}, WaveRule{Select: "region==west"})
	p.Waves.Unmatched = UnmatchedLastWave
	wait := Policy{Name: "wait", Selectors: []Selector{{Resource: "region==west"}}, WaitFor: []WaitFor{{Name: "a-east", Kind: WaitForTarget}}}
	if got, want := order(mustPlan(t, bundleOf(fleetOf(regions()...), p, wait))), "b-eu | m-east a-east z-west y-west"; got != want {
		t.Errorf("order: got %s, want %s", got, want)
	}
}

// What has no effect must be seen: a policy of the rollout that matches nothing, an order of values that nothing has.
func TestPlanNotesWhatHasNoEffect(t *testing.T) {
	nothing := Policy{Name: "Canary", Selectors: []Selector{{Resource: "role==canary"}}, Verification: []Metric{{Name: "m", Provider: "x", Count: 1}}}
	elsewhere := Policy{Name: "Elsewhere", Selectors: []Selector{{Environment: "false", Resource: "role==canary"}}}
	p := mustPlan(t, bundleOf(fleetOf(regions()...), nothing, elsewhere, gradual("p", GradualRollout{Type: Linear, SortBy: []SortKey{{By: "region", Order: []string{"eu-west", "east"}}}})))
	want := []string{
		`policy "Canary" matches none of the 5 targets of this rollout: its selectors' resource holds nowhere`,
		`Policy "p" gradualRollout sortBy: the order of region names eu-west, which no target has; there are: east, west, eu`,
	}
	if !slices.Equal(p.Notes, want) {
		t.Errorf("notes:\n got %q\nwant %q", p.Notes, want)
	}
}

// A last wave that the left-over targets fill is not empty.
func TestLeftOverTargetsFillAnEmptyLastWave(t *testing.T) {
	p := wavesPolicy(WaveRule{Select: "region==eu"}, WaveRule{Select: "false", Approval: &Approval{Min: 1}})
	p.Waves.Unmatched = UnmatchedLastWave
	plan := mustPlan(t, bundleOf(fleetOf(regions()...), p))
	if got, want := order(plan), "b-eu | m-east z-west y-west a-east"; got != want || len(plan.Waves[1].Approvals) != 1 || plan.Waves[1].Passed != "" {
		t.Errorf("got %s, %+v; want %s with its approval", got, plan.Waves[1], want)
	}
}
