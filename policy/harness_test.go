package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-a0a4f4e3/sluice/inventory"
)

// fleetOf makes targets with metadata, one "name key=value …" each; numbers become numbers.
func fleetOf(lines ...string) inventory.Snapshot {
	var s inventory.Snapshot
	for _, line := range lines {
		fields := strings.Fields(line)
		t := inventory.Target{Name: fields[0], Metadata: map[string]any{}}
		for _, f := range fields[1:] {
			key, value, _ := strings.Cut(f, "=")
			var number float64
			if _, err := fmt.Sscanf(value, "%g", &number); err == nil {
				t.Metadata[key] = number
			} else {
				t.Metadata[key] = value
			}
		}
		s.Targets = append(s.Targets, t)
	}
	return s
}

// numbered makes n targets t01, t02, ….
func numbered(n int) inventory.Snapshot {
	var s inventory.Snapshot
	for i := 1; i <= n; i++ {
		s.Targets = append(s.Targets, inventory.Target{Name: fmt.Sprintf("t%02d", i)})
	}
	return s
}

// evaluate knows enough of an expression language for these tests: "true", "false", "key" (its value, an error when
// absent), "key==value" and "broken".
func evaluate(e Expression, t inventory.Target) Value {
	switch e {
	case "true":
		return Value{V: true}
	case "false":
		return Value{V: false}
	case "broken":
		return Value{Err: `no key "x" in target.metadata`}
	}
	if key, want, equal := strings.Cut(string(e), "=="); equal {
		if key == "name" {
			return Value{V: t.Name == want}
		}
		return Value{V: fmt.Sprint(t.Metadata[key]) == want}
	}
	if v, ok := t.Metadata[string(e)]; ok {
		return Value{V: v}
	}
	return Value{Err: fmt.Sprintf("no key %q in target.metadata", e)}
}

// bundleOf puts policies around a fleet; everything is in environment prod.
func bundleOf(s inventory.Snapshot, policies ...Policy) Bundle {
	return Bundle{
		Snapshot:     s,
		Environments: []Environment{{Name: "prod", Selector: "true"}},
		Deployments:  []Deployment{{Name: "web", Rollback: RollbackPrevious, Apply: Step{Name: "put", Kind: "fake", Config: json.RawMessage(`{}`), Observes: true, Restores: true}}},
		Policies:     policies,
	}
}

func planOf(b Bundle) (Plan, error) {
	r := Request{Deployment: "web", Environment: "prod", Version: Version{Name: "v2"}}
	needs, err := Needs(b, r)
	if err != nil {
		return Plan{}, err
	}
	m := Matches{}
	for _, e := range needs {
		for _, t := range b.Snapshot.Targets {
			m[e] = append(m[e], evaluate(e, t))
		}
	}
	return MakePlan(b, r, m)
}

func mustPlan(t *testing.T, b Bundle) Plan {
	t.Helper()
	p, err := planOf(b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// order lists the targets of each wave, "a b | c".
func order(p Plan) string {
	var waves []string
	for _, w := range p.Waves {
		var names []string
		for _, t := range w.Targets {
			names = append(names, t.Name)
		}
		waves = append(waves, strings.Join(names, " "))
	}
	return strings.Join(waves, " | ")
}

func n(value int) *Amount       { return &Amount{Value: value} }
func percent(value int) *Amount { return &Amount{Value: value, Percent: true} }

func wavesPolicy(rules ...WaveRule) Policy {
	for i := range rules {
		if rules[i].Name == "" {
			rules[i].Name = fmt.Sprintf("w%d", i+1)
		}
	}
	return Policy{Name: "p", Waves: &Waves{Waves: rules}}
}
