package fleet

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/inventory"
)

func TestAScenarioThatIsNotUnderstoodIsRefusedWithEveryFault(t *testing.T) {
	const head = "version: v1\ntargets: [{name: a}]\n"
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "is empty"},
		{"not YAML", "a: [", "[1:4] sequence end token ']' not found"},
		{"unknown field", head + "sede: 1\n", `[3:1] unknown field "sede"`},
		{"key twice", head + "seed: 1\nseed: 2\n", `[4:1] mapping key "seed" already defined at [3:1]`},
		{"wrong type", head + "seed: many\n", "[3:7] cannot unmarshal string into Go struct field Scenario.Seed of type int64"},
		{"a bare number as a duration", head + "duration: {min: 5, max: 6}\n", "[3:17] cannot unmarshal uint64 into Go struct field Scenario.Duration of type time.Duration"},
		{"two documents", head + "---\n" + head, "holds more than one document; one scenario a file"},
		{"nothing", "seed: 1\n", "version: is required: the version that everything starts on\ntargets: at least one target is required, here or from generate"},
		{"targets", "version: v1\ntargets: [{name: a}, {name: a}]\n", `targets: "a" stands twice`},
		{"target fields", "version: v1\ntargets: [{customers: -1, bare: true, version: v2, labels: {tier: x}}]\n",
			"targets[0].name: is required\ntargets[0].customers: must not be negative, is -1\ntargets[0]: is bare and has version v2; one of the two\n" +
				"targets[0].labels.tier: has a field of its own"},
		{"generate", "version: v1\ngenerate: {count: 0}\n",
			"generate.count: must be at least 1, is 0\ngenerate.regions: at least one region is required, and none may be empty\ngenerate.tiers: at least one tier is required"},
		{"tiers", "version: v1\ngenerate: {count: 1, regions: [r], tiers: [{tier: 1, share: 0, minCustomers: 2, maxCustomers: 1}]}\n",
			"generate.tiers[0].share: must be at least 1, is 0\ngenerate.tiers[0]: customers from 2 to 1 is not a range"},
		{"duration", head + "duration: {min: 2s, max: 1s}\n", "duration: from 2s to 1s is not a range"},
		{"select", head + "failures: [{select: {targets: [b]}}]\n", `failures[0].select.targets[0]: no target "b"`},
		{"failures", head + "failures: [{times: -1, reports: running, leaves: ruins}, {hang: true, leaves: version}, {reports: succeeded, leaves: version}, {reports: blocked, leaves: version}]\n",
			"failures[0].times: must not be negative, is -1\n" + `failures[0].reports: "running" is not failed, blocked, unknown or succeeded` + "\n" +
				`failures[0].leaves: "ruins" is not previous, version or unreadable` + "\n" +
				"failures[1].hang: ends well when released, so it goes with neither reports nor leaves\n" +
				"failures[2]: reports succeeded and leaves the version: that is no failure\n" +
				"failures[3]: reports blocked, which changes nothing, so it leaves previous"},
		{"unreachable", head + "unreachable: [{}, {for: 1s, requests: 1}, {for: -1s}]\n",
			"unreachable[0]: exactly one of for, requests and untilReleased says how long\n" +
				"unreachable[1]: exactly one of for, requests and untilReleased says how long\nunreachable[2]: for and requests must not be negative"},
		{"replies", head + "loseReplies: [{times: -1}]\nloseRequests: [{times: -1}]\ndelayReplies: [{times: -1}]\n",
			"loseRequests[0].times: must not be negative, is -1\nloseReplies[0].times: must not be negative, is -1\n" +
				"delayReplies[0].times: must not be negative, is -1\ndelayReplies[0].delay: must be positive, is 0s"},
		{"metrics", head + "metrics: [{name: a-b, base: .inf, spread: 1}, {name: m, base: 1}, {name: m, base: .nan}]\n",
			`metrics[0].name: "a-b" is not a metric name` + "\nmetrics[0].base: must be a finite number\n" +
				"metrics[0].spread: must be a fraction from 0 to below 1, is 1\n" + `metrics[2].name: "m" stands twice` + "\nmetrics[2].base: must be a finite number"},
		{"regressions", head + "regressions: [{metric: m, factor: 0, after: -1s}]\n",
			"regressions[0].version: is required\n" + `regressions[0].metric: no metric "m"` + "\n" +
				"regressions[0].factor: must be a positive number, is 0\nregressions[0]: after and minCustomers must not be negative"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			if err == nil {
				t.Fatalf("accepted; want %s", c.want)
			}
			if diff := cmp.Diff(c.want, err.Error()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAScenarioMayBeJSON(t *testing.T) {
	s, err := Parse([]byte(`{"version": "v1", "targets": [{"name": "a", "tier": 2}], "duration": {"min": "1s", "max": "2s"}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Scenario{Version: "v1", Members: []Target{{Name: "a", Tier: 2}}, Duration: Span{time.Second, 2 * time.Second}}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
}

func TestTheDemoScenarioIsAFileAndBack(t *testing.T) {
	s := Demo(7)
	s.Members = []Target{{Name: "more", Labels: map[string]string{"zone": "a"}}}
	s.Failures = []Failure{{Match: Match{Targets: []string{"more"}}, Hang: true}}
	data, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, again); diff != "" {
		t.Error(diff)
	}
	if _, err := Load(path + "x"); err == nil || !strings.HasPrefix(err.Error(), "fleet: read the scenario: ") {
		t.Errorf("no such file: %v", err)
	}
}

func TestTheDemoFleetHasEveryTierInEveryRegion(t *testing.T) {
	targets := Demo(7).Targets()
	if len(targets) != 400 {
		t.Errorf("%d targets, want 400", len(targets))
	}
	count := map[string]map[float64]int{}
	tiers := map[float64]int{}
	names := map[string]bool{}
	for _, target := range targets {
		region, tier := target.Metadata["region"].(string), target.Metadata["tier"].(float64)
		customers := target.Metadata["customers"].(float64)
		limits := map[float64][2]float64{3: {1, 40}, 2: {100, 600}, 1: {1000, 6000}}[tier]
		if customers < limits[0] || customers > limits[1] {
			t.Errorf("%s of tier %v has %v customers", target.Name, tier, customers)
		}
		if count[region] == nil {
			count[region] = map[float64]int{}
		}
		count[region][tier]++
		tiers[tier]++
		names[target.Name] = true
	}
	if len(names) != 400 || len(count) != 6 {
		t.Errorf("%d names, %d regions; want 400, 6", len(names), len(count))
	}
	for region, n := range count {
		if n[3] < 33 || n[2] < 19 || n[1] < 13 {
			t.Errorf("%s has the tiers %v", region, n)
		}
	}
	if diff := cmp.Diff(map[float64]int{3: 202, 2: 120, 1: 78}, tiers); diff != "" {
		t.Error(diff)
	}
	if !slices.EqualFunc(targets, Demo(7).Targets(), func(a, b inventory.Target) bool { return cmp.Equal(a, b) }) {
		t.Error("the same seed gives another fleet")
	}
	if slices.EqualFunc(targets, Demo(8).Targets(), func(a, b inventory.Target) bool { return cmp.Equal(a, b) }) {
		t.Error("another seed gives the same fleet")
	}
}

func TestDurationsStayInRangeAndDependOnTheOperation(t *testing.T) {
	s := Scenario{Seed: 1, Duration: Span{time.Second, 3 * time.Second}}
	seen := map[time.Duration]bool{}
	for _, operation := range []string{"a", "b", "c", "d"} {
		d := s.duration("target", operation)
		if d < time.Second || d > 3*time.Second || d != s.duration("target", operation) {
			t.Errorf("operation %s takes %v", operation, d)
		}
		seen[d] = true
	}
	if len(seen) != 4 {
		t.Errorf("four operations take %d durations", len(seen))
	}
}
