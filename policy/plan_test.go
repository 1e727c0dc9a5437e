package policy

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed-a0a4f4e3/sluice/inventory"
)

func TestPlanOrder(t *testing.T) {
	regions := fleetOf("west-b region=us-west tier=10", "east-a region=us-east tier=2", "eu-c region=eu-west tier=2", "east-b region=us-east tier=10", "west-a region=us-west tier=2")
	tests := []struct {
		name  string
		fleet inventory.Snapshot
		rules []WaveRule
		waves Waves
		want  string
	}{
		{"without sortBy the documents' order holds", regions, []WaveRule{{Select: "true"}}, Waves{}, "west-b east-a eu-c east-b west-a"},
		{"numbers ascend as numbers, 2 before 10", regions, []WaveRule{{Select: "true", SortBy: []SortKey{{By: "tier"}}}}, Waves{}, "east-a eu-c west-a west-b east-b"},
		{"desc reverses and ties stay in document order", regions, []WaveRule{{Select: "true", SortBy: []SortKey{{By: "tier", Desc: true}}}}, Waves{}, "west-b east-b east-a eu-c west-a"},
		{"text groups in the order first seen", regions, []WaveRule{{Select: "true", SortBy: []SortKey{{By: "region"}}}}, Waves{}, "west-b west-a east-a east-b eu-c"},
		{"text in a written order, others after it", regions, []WaveRule{{Select: "true", SortBy: []SortKey{{By: "region", Order: []string{"eu-west", "us-east"}}}}}, Waves{}, "eu-c east-a east-b west-b west-a"},
		{"a second key breaks ties", regions, []WaveRule{{Select: "true", SortBy: []SortKey{{By: "region", Order: []string{"us-east", "us-west"}}, {By: "tier"}}}}, Waves{}, "east-a east-b west-a west-b eu-c"},
		{"the rule's sortBy holds for waves without their own", regions, []WaveRule{{Select: "true"}}, Waves{SortBy: []SortKey{{By: "tier"}}}, "east-a eu-c west-a west-b east-b"},
		{"the first wave that selects takes", regions, []WaveRule{{Select: "region==us-east"}, {Select: "true"}}, Waves{}, "east-a east-b | west-b eu-c west-a"},
		{"over the limit is offered to later waves, in order", regions, []WaveRule{{Select: "true", Limit: n(2), SortBy: []SortKey{{By: "tier"}}}, {Select: "true"}}, Waves{}, "east-a eu-c | west-b east-b west-a"},
		{"a limit in percent is of the whole environment, rounded down", regions, []WaveRule{{Select: "region==us-east", Limit: percent(39)}, {Select: "true"}}, Waves{}, "east-a | west-b eu-c east-b west-a"},
		{"a limit in percent is at least 1", regions, []WaveRule{{Select: "true", Limit: percent(1)}, {Select: "true"}}, Waves{}, "west-b | east-a eu-c east-b west-a"},
		{"unmatched: lastWave adds to the last", regions, []WaveRule{{Select: "region==us-east"}, {Select: "region==eu-west"}}, Waves{Unmatched: UnmatchedLastWave}, "east-a east-b | eu-c west-b west-a"},
		{"unmatched: ignore leaves out", regions, []WaveRule{{Select: "region==us-east"}}, Waves{Unmatched: UnmatchedIgnore}, "east-a east-b"},
		{"an empty later wave is passed over", regions, []WaveRule{{Select: "region==us-east"}, {Select: "false"}, {Select: "true"}}, Waves{}, "east-a east-b |  | west-b eu-c west-a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pol := wavesPolicy(tt.rules...)
			pol.Waves.Unmatched, pol.Waves.SortBy = tt.waves.Unmatched, tt.waves.SortBy
			if got := order(mustPlan(t, bundleOf(tt.fleet, pol))); got != tt.want {
				t.Errorf("order = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPlanIsRefused(t *testing.T) {
	fleet := fleetOf("a tier=1", "b tier=2", "c tier=x", "d")
	few := fleetOf("a tier=1", "b tier=2")
	tests := []struct {
		name   string
		bundle Bundle
		want   string
	}{
		{"an ordering key that is absent on a target", bundleOf(fleetOf("a tier=1", "d"), wavesPolicy(WaveRule{Select: "true", SortBy: []SortKey{{By: "tier"}}})), `cannot order target "d": no key "tier"`},
		{"an ordering key that is text here and a number there", bundleOf(fleetOf("a tier=1", "c tier=x"), wavesPolicy(WaveRule{Select: "true", SortBy: []SortKey{{By: "tier"}}})), `is text on target "c" and a number on target "a"`},
		{"a wave that cannot be evaluated on a target", bundleOf(few, wavesPolicy(WaveRule{Select: "broken"})), `fails on target "a": no key "x"`},
		{"a wave whose select is no condition", bundleOf(few, wavesPolicy(WaveRule{Select: "tier"})), "gives 1, not true or false"},
		{"a policy selector that cannot be evaluated", bundleOf(few, Policy{Name: "p", Selectors: []Selector{{Resource: "broken"}}}), `Policy "p" selectors[0].resource: fails on target "a"`},
		{"targets that no wave takes", bundleOf(fleet, wavesPolicy(WaveRule{Select: "tier==1"})), "no wave takes 3 targets: b, c, d"},
		{"an empty first wave", bundleOf(few, wavesPolicy(WaveRule{Select: "false"}, WaveRule{Select: "true"})), "an empty first wave is refused"},
		{"an empty wave with an approval", bundleOf(few, wavesPolicy(WaveRule{Select: "true"}, WaveRule{Select: "false", Approval: &Approval{Min: 1}})), "an empty wave with an approval is refused"},
		{"no policy at all", bundleOf(few), "no policy matches"},
		{"two orders of equal priority", bundleOf(few, wavesPolicy(WaveRule{Select: "true"}), Policy{Name: "q", Waves: &Waves{Waves: []WaveRule{{Name: "x", Select: "true"}}}}), "orders the same targets with the same priority 0"},
		{"a policy for a part with more than verification", bundleOf(few, Policy{Name: "p", Selectors: []Selector{{Resource: "tier==1"}}, Soak: Duration(1)}), "match only 1 of 2 targets"},
		{"an environment of nobody", Bundle{Snapshot: few, Environments: []Environment{{Name: "prod", Selector: "false"}}, Deployments: []Deployment{{Name: "web"}}}, "selects none of the 2 targets"},
		{"an unknown deployment", Bundle{Environments: []Environment{{Name: "prod"}}}, `no deployment "web" in the documents; there are: none`},
		{"an unknown environment", Bundle{Deployments: []Deployment{{Name: "web"}}, Environments: []Environment{{Name: "staging"}}}, `no environment "prod" in the documents; there are: staging`},
		{"an environment that the deployment is not bound to", Bundle{Deployments: []Deployment{{Name: "web", Environments: []string{"staging"}}}, Environments: []Environment{{Name: "prod"}}}, `is not bound to environment "prod"`},
		{"more targets in a wave than are supported", bundleOf(numbered(10_001), wavesPolicy(WaveRule{Select: "true"})), "holds 10001 targets, and one wave holds 10000 at most"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := planOf(tt.bundle)
			if err == nil {
				t.Fatalf("planned %q, want a refusal", order(p))
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("refused with %q, want it to say %q", err, tt.want)
			}
		})
	}
}

func TestEnvironmentSelectorThatFailsOnATargetLeavesItOutAndSaysSo(t *testing.T) {
	b := bundleOf(fleetOf("a tier=1", "b"), wavesPolicy(WaveRule{Select: "true"}))
	b.Environments[0].Selector = "has"
	r := Request{Deployment: "web", Environment: "prod", Version: Version{Name: "v2"}}
	m := Matches{"has": {{V: true}, {Err: `no key "has"`}}, "true": {{V: true}, {V: true}}}
	p, err := MakePlan(b, r, m)
	if err != nil {
		t.Fatal(err)
	}
	if order(p) != "a" || len(p.Out) != 1 || len(p.Notes) != 1 || !strings.Contains(p.Notes[0], "fails on 1 target, which are left out: b") {
		t.Errorf("order %q, out %v, notes %v", order(p), p.Out, p.Notes)
	}
}

func TestBudgetsAndBlastRadius(t *testing.T) {
	soaked := wavesPolicy(WaveRule{Select: "true", MaxConcurrency: n(2)})
	soaked.Verification = []Metric{{Name: "m", During: DuringSoak}}
	tests := []struct {
		name                       string
		policies                   []Policy
		failures, unreachable, all int
		concurrency, blast         int
		wave                       int
	}{
		{"unwritten: the first wave's budget is 0", []Policy{wavesPolicy(WaveRule{Select: "true"}), {Name: "t", FailureThreshold: &FailureThreshold{MaxFailures: n(3)}}}, 0, 0, 3, 1, 1, 0},
		{"unwritten: the others' is the rollout's", []Policy{wavesPolicy(WaveRule{Select: "name==t01"}, WaveRule{Select: "true", MaxConcurrency: n(4)}), {Name: "t", FailureThreshold: &FailureThreshold{MaxFailures: n(3), MaxUnreachable: n(5)}}}, 3, 5, 3, 4, 7, 1},
		{"a percentage is of the wave, rounded down", []Policy{wavesPolicy(WaveRule{Select: "true", MaxFailures: percent(19), MaxConcurrency: percent(25)}), {Name: "t", FailureThreshold: &FailureThreshold{MaxFailures: n(9)}}}, 1, 1, 9, 2, 3, 0},
		{"bounded: the blast radius is one above the budget", []Policy{wavesPolicy(WaveRule{Select: "true", MaxFailures: n(2), MaxConcurrency: n(8)}), {Name: "t", FailureThreshold: &FailureThreshold{MaxFailures: n(9), Bounded: true}}}, 2, 2, 9, 8, 3, 0},
		{"of two thresholds the stricter holds", []Policy{wavesPolicy(WaveRule{Select: "true", MaxFailures: n(9)}), {Name: "t", FailureThreshold: &FailureThreshold{MaxFailures: n(4)}}, {Name: "u", FailureThreshold: &FailureThreshold{MaxFailures: percent(20)}}}, 9, 9, 2, 1, 3, 0},
		{"checks in the soak reach the whole wave", []Policy{soaked}, 0, 0, 0, 2, 10, 0},
		{"no waves: one, of the rollout's budget, one at a time", []Policy{{Name: "t", FailureThreshold: &FailureThreshold{MaxFailures: percent(20)}}}, 2, 2, 2, 1, 3, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := mustPlan(t, bundleOf(numbered(10), tt.policies...))
			w := p.Waves[tt.wave]
			got := []int{w.Budget.Failures(0), w.Budget.Unreachable(0), p.Budget.Failures(0), w.MaxConcurrency, w.BlastRadius}
			want := []int{tt.failures, tt.unreachable, tt.all, tt.concurrency, tt.blast}
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("failures, unreachable, rollout failures, concurrency, blast radius = %v, want %v", got, want)
				}
			}
		})
	}
}

// The figures are KubeFleet's, OCM's and Azure's own test cases; where we differ the name says so.
func TestConcurrencyRounding(t *testing.T) {
	tests := []struct {
		size   int
		amount Amount
		want   int
	}{
		{10, Amount{Value: 3}, 3}, {10, Amount{Value: 10}, 10}, {10, Amount{Value: 15}, 10}, {10, Amount{Value: 50, Percent: true}, 5},
		{1, Amount{Value: 10, Percent: true}, 1}, {10, Amount{Value: 33, Percent: true}, 3}, {10, Amount{Value: 100, Percent: true}, 10},
		{7, Amount{Value: 25, Percent: true}, 1}, {3, Amount{Value: 70, Percent: true}, 2}, {20, Amount{Value: 25, Percent: true}, 5},
		{12, Amount{Value: 25, Percent: true}, 3}, {0, Amount{Value: 3}, 0}, // ours: an empty wave has no concurrency
	}
	for _, tt := range tests {
		if got := tt.amount.Of(tt.size); got != tt.want {
			t.Errorf("%s of %d = %d, want %d", tt.amount, tt.size, got, tt.want)
		}
	}
}

func TestSeveralPoliciesAllHold(t *testing.T) {
	base := wavesPolicy(WaveRule{Select: "true", Soak: Duration(10), Approval: &Approval{Min: 1}})
	other := Policy{Name: "q", Priority: 5, Soak: Duration(20), Approval: &Approval{Min: 2, NotAuthor: true}, Rollback: &Rollback{OnBreach: BreachFails}}
	p := mustPlan(t, bundleOf(numbered(2), base, other, Policy{Name: "r", Rollback: &Rollback{OnBreach: BreachRolloutAll}}))
	w := p.Waves[0]
	if w.Soak != 20 || len(w.SoakFrom) != 1 || w.SoakFrom[0] != "q" {
		t.Errorf("soak = %d from %v, want the longer one, 20 from q", w.Soak, w.SoakFrom)
	}
	if len(w.Approvals) != 2 || w.Approvals[0] != (Consent{Policy: "q", Min: 2, NotAuthor: true, Rollout: true}) || w.Approvals[1] != (Consent{Policy: "p", Min: 1}) {
		t.Errorf("approvals = %+v, want q's for the rollout and p's for the wave", w.Approvals)
	}
	if p.Rollback.OnBreach != BreachFails || p.Rollback.Policy != "q" {
		t.Errorf("rollback = %+v, want that of the higher priority", p.Rollback)
	}
}

// Same inputs, same plan, same digest, and every member exactly once.
func TestPlanTakesEachTargetOnceAndIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 40).Draw(t, "size")
		var s inventory.Snapshot
		for i := range size {
			s.Targets = append(s.Targets, inventory.Target{Name: string(rune('A'+i%26)) + string(rune('a'+i/26)), Metadata: map[string]any{"tier": float64(rapid.IntRange(1, 4).Draw(t, "tier"))}})
		}
		var rules []WaveRule
		for range rapid.IntRange(0, 4).Draw(t, "waves") {
			rules = append(rules, WaveRule{Select: Expression(rapid.SampledFrom([]string{"tier==1", "tier==2", "tier==3", "true"}).Draw(t, "select")), EmptyWaveSkip: true,
				Limit: n(rapid.IntRange(1, size).Draw(t, "limit")), SortBy: []SortKey{{By: "tier", Desc: rapid.Bool().Draw(t, "desc")}}})
		}
		rules = append(rules, WaveRule{Select: "true", EmptyWaveSkip: true})
		b := bundleOf(s, wavesPolicy(rules...))
		p, err := planOf(b)
		if err != nil {
			t.Fatal(err)
		}
		again, err := planOf(b)
		if err != nil || again.Digest != p.Digest || order(again) != order(p) {
			t.Fatalf("planned twice: %q %s and %q %s", order(p), p.Digest, order(again), again.Digest)
		}
		seen := map[string]int{}
		for _, w := range p.Waves {
			for _, target := range w.Targets {
				seen[target.Name]++
			}
		}
		for _, target := range s.Targets {
			if seen[target.Name] != 1 {
				t.Fatalf("%s is planned %d times in %q", target.Name, seen[target.Name], order(p))
			}
		}
	})
}
