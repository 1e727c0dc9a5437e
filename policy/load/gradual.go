package load

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/policy"
)

// waiting is one deploymentDependency, as written.
type waiting struct {
	policy int // index in the bundle
	name   string
	names  []reference
}

func (s *session) gradualRollout(n *node, path string, p *policy.Policy) {
	f := s.fields(n, path)
	if f == nil {
		return
	}
	g := &policy.GradualRollout{Place: n.place}
	if f.need("rolloutType", "linear or linear-normalized") != nil {
		g.Type = policy.RolloutType(f.oneOf("rolloutType", string(policy.Linear), string(policy.LinearNormalized)))
	}
	before := s.found
	g.Interval = f.pace("timeScaleInterval")
	paced := g.Interval > 0 || s.found > before // what is at fault was meant as an interval
	g.SortBy = s.sortKeys(f.take("sortBy"), f.at("sortBy"))
	if wait := f.boolean("waitForVerification"); wait != nil {
		g.Overlap = !*wait
	}
	switch {
	case paced:
	case g.Type == policy.LinearNormalized:
		s.fault(f.n.find("rolloutType").place, f.at("rolloutType"), "linear-normalized needs an interval: timeScaleInterval is the time to divide among the targets")
	case g.Overlap:
		s.fault(f.n.find("waitForVerification").place, f.at("waitForVerification"), "without an interval all would start at once; write timeScaleInterval")
	}
	f.end()
	p.Gradual = g
}

// pace reads an interval: a duration, or a number of seconds, which the guide writes; everywhere else a duration says its
// own unit.
func (f *fields) pace(name string) policy.Duration {
	n := f.n.find(name)
	var d *policy.Duration
	switch {
	case n != nil && n.kind == numberKind:
		d = f.s.duration(f.take(name), f.at(name), time.Second, false)
	case n != nil && n.kind == textKind && aNumber(n.text):
		f.s.fault(f.take(name).place, f.at(name), "%.60q is a text; write a number of seconds without quotes, or a duration with its units, such as 10m", n.text)
	default:
		d = f.duration(name, false)
	}
	if d == nil {
		return 0
	}
	return *d
}

// aNumber reports whether a text that is no duration would be a number if it had no quotes.
func aNumber(text string) bool {
	_, duration := time.ParseDuration(text)
	_, number := strconv.ParseFloat(text, 64)
	return duration != nil && number == nil
}

func (s *session) deploymentDependency(n *node, path string, p *policy.Policy) {
	f := s.fields(n, path)
	if f == nil {
		return
	}
	w := waiting{policy: len(s.bundle.Policies), name: p.Name}
	items := f.need("waitFor", "the name of a target, a policy, an environment or a deployment that must have succeeded on the version before")
	listed := []*node{items}
	if items != nil && items.kind == listKind {
		listed = s.list(items, f.at("waitFor"), "names")
	}
	for i, item := range listed {
		at := f.at("waitFor")
		if items != nil && items.kind == listKind {
			at = fmt.Sprintf("%s[%d]", at, i)
		}
		if item == nil {
			continue
		}
		name := s.text(item, at)
		switch {
		case name == "":
		case slices.ContainsFunc(w.names, func(r reference) bool { return r.name == name }):
			s.fault(item.place, at, "names %q twice", name)
		default:
			w.names = append(w.names, reference{place: item.place, path: at, name: name})
		}
	}
	f.notYet("dependsOn", "dependsOnDeploymentSelector", "versionSelector", "deployments", "environment")
	f.end()
	s.waits = append(s.waits, w)
}

// resolveWaits finds what each waitFor means: exactly one thing of the name.
func (s *session) resolveWaits() {
	kinds := []struct {
		typeName string
		kind     policy.DependencyKind
	}{{"Resource", policy.WaitForTarget}, {"Policy", policy.WaitForPolicy}, {"Environment", policy.WaitForEnvironment}, {"Deployment", policy.WaitForDeployment}}
	for _, w := range s.waits {
		for _, ref := range w.names {
			var found []policy.DependencyKind
			var places []string
			for _, k := range kinds {
				if place, is := s.seen[k.typeName+" "+ref.name]; is {
					found = append(found, k.kind)
					places = append(places, fmt.Sprintf("%s at %s", k.kind, place))
				}
			}
			switch {
			case len(found) > 1:
				s.fault(ref.place, ref.path, "%q is the name of several things: %s; give them different names, so that it is clear what is waited for", ref.name, strings.Join(places, ", "))
			case len(found) == 0:
				var names []string
				for _, key := range slices.Sorted(maps.Keys(s.seen)) {
					typeName, name, _ := strings.Cut(key, " ")
					if typeName != "Check" && name != w.name {
						names = append(names, name)
					}
				}
				slices.Sort(names)
				names = slices.Compact(names)
				s.fault(ref.place, ref.path, "no target, policy, environment or deployment of the name %q%s", ref.name, knownOr(suggest(ref.name, names), names))
			case found[0] == policy.WaitForPolicy && ref.name == w.name:
				s.fault(ref.place, ref.path, "policy %q would wait for itself", ref.name)
			default:
				p := &s.bundle.Policies[w.policy]
				p.WaitFor = append(p.WaitFor, policy.WaitFor{Name: ref.name, Kind: found[0], Place: ref.place})
			}
		}
	}
}

// oneOrder refuses an order that is written twice in one policy.
func (s *session) oneOrder(p policy.Policy) {
	if p.Gradual == nil || p.Gradual.SortBy == nil || p.Waves == nil {
		return
	}
	if p.Waves.SortBy != nil || slices.ContainsFunc(p.Waves.Waves, func(w policy.WaveRule) bool { return w.SortBy != nil }) {
		s.fault(p.Gradual.Place, fmt.Sprintf("Policy %q gradualRollout.sortBy", p.Name), "waves have a sortBy of their own; write the order in one of the two rules")
	}
}
