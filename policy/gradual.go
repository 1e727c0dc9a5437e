package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ordering finds the one policy that orders each member. It returns the policy whose waves hold, or nil, and fills
// p.paced.
func (p *planner) ordering() *Policy {
	p.paced = map[int]*Policy{}
	var waves, gradual *Policy
	used := map[string]bool{}
	for _, i := range p.members {
		var owner *Policy
		for n := range p.applying {
			pol := &p.applying[n]
			if pol.Waves == nil && pol.Gradual == nil || !p.on(pol, i) {
				continue
			}
			if owner == nil {
				owner = pol
				continue
			}
			if pol.Priority == owner.Priority {
				p.fault(pol.orderPlace(), fmt.Sprintf("Policy %q %s", pol.Name, pol.orderRule()), "policy %q orders the same targets with the same priority %d; give one of them a higher priority (first such target: %s)",
					owner.Name, owner.Priority, p.targets[i].Name)
				return nil
			}
			break // they are sorted by priority
		}
		if owner == nil {
			continue
		}
		used[owner.Name] = true
		if owner.Waves != nil {
			waves = owner
		} else {
			gradual = owner
		}
		if owner.Gradual != nil {
			p.paced[i] = owner
		}
	}
	if waves != nil && gradual != nil {
		p.fault(gradual.orderPlace(), fmt.Sprintf("Policy %q gradualRollout", gradual.Name), "orders a part of the targets of a rollout whose waves come from policy %q, which is not supported yet; "+
			"write gradualRollout into that policy, or give it the higher priority", waves.Name)
		return nil
	}
	for _, pol := range p.applying {
		if pol.Waves != nil && !used[pol.Name] {
			p.onlyOrder(pol)
		}
		if (pol.Waves != nil || pol.Gradual != nil) && !used[pol.Name] {
			p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("policy %q orders nothing: each of its targets is ordered by a policy of a higher priority", pol.Name))
		}
	}
	return waves
}

// onlyOrder refuses waves that do not hold because another policy orders, and say more than an order: approvals, soaks and
// budgets of every policy hold, and these would be lost.
func (p *planner) onlyOrder(pol Policy) {
	for n, w := range pol.Waves.Waves {
		var more []string
		for _, part := range []struct {
			name string
			has  bool
		}{{"approval", w.Approval != nil}, {"soak", w.Soak > 0}, {"maxFailures", w.MaxFailures != nil}, {"maxUnreachable", w.MaxUnreachable != nil}} {
			if part.has {
				more = append(more, part.name)
			}
		}
		if len(more) > 0 {
			p.fault(w.Place, fmt.Sprintf("Policy %q waves[%d] %q", pol.Name, n, w.Name), "demands %s, and would not hold: a policy of a higher priority orders the targets; "+
				"write what must hold as a rule of its own (approval, soak, failureThreshold), or give this policy the higher priority", strings.Join(more, ", "))
			return
		}
	}
}

// on reports whether a policy matches a member.
func (p *planner) on(pol *Policy, target int) bool {
	return holdsAll(p.matched[pol.Name], []int{target})
}

// orderRule names the rule by which a policy orders.
func (p Policy) orderRule() string {
	if p.Waves != nil {
		return "waves"
	}
	return "gradualRollout"
}

func (p Policy) orderPlace() Place {
	if p.Waves == nil && p.Gradual != nil {
		return p.Gradual.Place
	}
	return p.Place
}

// paces adds the gradual rollouts in force to the plan, in the order in which their policies apply.
func (p *planner) paces() {
	for _, pol := range p.applying {
		n := 0
		for _, i := range p.members {
			if p.paced[i] != nil && p.paced[i].Name == pol.Name {
				n++
			}
		}
		if n == 0 {
			continue
		}
		g := pol.Gradual
		pace := Pace{Policy: pol.Name, Type: g.Type, Interval: g.Interval, Overlap: g.Overlap, SortBy: g.SortBy, Targets: n}
		if g.Type == LinearNormalized {
			pace.Interval = Duration(time.Duration(g.Interval) / time.Duration(n))
		}
		p.plan.Paces = append(p.plan.Paces, pace)
	}
}

// paceOf returns the number of the pace that a target keeps, from 1; 0: none.
func (p *planner) paceOf(target int) int {
	pol := p.paced[target]
	if pol == nil {
		return 0
	}
	return slices.IndexFunc(p.plan.Paces, func(pace Pace) bool { return pace.Policy == pol.Name }) + 1
}

// inGroups is the order of a rollout without waves: the targets of each gradual rollout in its own order, those that
// nothing orders in document order, and the groups in the order in which the documents first name one of theirs.
func (p *planner) inGroups() []int {
	groups := map[int][]int{}
	var order []int
	for _, i := range p.members {
		pace := p.paceOf(i)
		if groups[pace] == nil {
			order = append(order, pace)
		}
		groups[pace] = append(groups[pace], i)
	}
	var all []int
	for _, pace := range order {
		if pace > 0 {
			pol := p.paced[groups[pace][0]]
			if !p.sort(groups[pace], pol.Gradual.SortBy, pol.Gradual.Place, fmt.Sprintf("Policy %q gradualRollout", pol.Name)) {
				return nil
			}
		}
		all = append(all, groups[pace]...)
	}
	return all
}

// atOnce is how many targets without a wave rule may be in flight: one that nothing orders, and of each gradual rollout
// one, or all of them where they may overlap; less where some wait for all of the others. unpaced is the first of these,
// set only where there are both.
func (p *planner) atOnce(targets []int) (most, unpaced int) {
	groups := make([][]int, len(p.plan.Paces)+1)
	for _, i := range targets {
		groups[p.paceOf(i)] = append(groups[p.paceOf(i)], i)
	}
	limits := make([]int, len(groups))
	for k, group := range groups {
		if limits[k] = min(1, len(group)); k > 0 && p.plan.Paces[k-1].Overlap {
			limits[k] = len(group)
		}
	}
	if len(p.plan.Paces) > 0 {
		unpaced = limits[0]
	}
	return p.together(groups, limits, nil), unpaced
}

// together is the most targets of these groups that may be in flight at one time, beside those of the chosen groups. A
// group that waits for all of another one never is together with it.
func (p *planner) together(groups [][]int, limits []int, chosen [][]int) int {
	const most = 10 // groups that are looked at pair by pair; more just add up
	if len(groups) == 0 {
		return 0
	}
	without := 0
	if len(groups) <= most {
		without = p.together(groups[1:], limits[1:], chosen)
		for _, other := range chosen {
			if p.waitsForAll(groups[0], other) || p.waitsForAll(other, groups[0]) {
				return without
			}
		}
	}
	return max(without, limits[0]+p.together(groups[1:], limits[1:], append(slices.Clone(chosen), groups[0])))
}

// waitsForAll reports whether each target of a group waits for all targets of another one.
func (p *planner) waitsForAll(group, other []int) bool {
	return slices.ContainsFunc(p.waits, func(d dependency) bool {
		return len(other) > 0 && holdsAll(d.on, group) && holdsAll(d.members, other)
	})
}

// holdsAll reports whether a sorted list has all of some targets.
func holdsAll(list, some []int) bool {
	for _, i := range some {
		if _, found := slices.BinarySearch(list, i); !found {
			return false
		}
	}
	return true
}

// dependency is one waitFor in force.
type dependency struct {
	policy string
	wait   WaitFor
	// on are the members that wait; for the members that must have succeeded, unless that is decided outside.
	on, members []int
}

// dependencies finds what targets wait for, and refuses what could never be met.
func (p *planner) dependencies() {
	for _, pol := range p.applying {
		for _, wait := range pol.WaitFor {
			path := fmt.Sprintf("Policy %q deploymentDependency.waitFor", pol.Name)
			d := dependency{policy: pol.Name, wait: wait, on: p.matched[pol.Name]}
			switch wait.Kind {
			case WaitForTarget:
				for _, i := range p.members {
					if p.targets[i].Name == wait.Name {
						d.members = []int{i}
					}
				}
				if d.members == nil {
					p.fault(wait.Place, path, "target %q is not in environment %q, so this rollout never changes it; wait for a target of the environment, or for another environment", wait.Name, p.env.Name)
					continue
				}
			case WaitForPolicy:
				if d.members = p.matched[wait.Name]; len(d.members) == 0 {
					p.fault(wait.Place, path, "policy %q matches no target of this rollout, so nothing would ever be waited for", wait.Name)
					continue
				}
			case WaitForEnvironment:
				if wait.Name == p.env.Name {
					p.fault(wait.Place, path, "environment %q is the one that is rolled out to: it would wait for itself", wait.Name)
					continue
				}
				if len(p.dep.Environments) > 0 && !slices.Contains(p.dep.Environments, wait.Name) {
					p.fault(wait.Place, path, "deployment %q is not bound to environment %q, so it never succeeds there; it is bound to: %s", p.dep.Name, wait.Name, strings.Join(p.dep.Environments, ", "))
					continue
				}
				if env, found := find(p.bundle.Environments, func(e Environment) bool { return e.Name == wait.Name }); found && !p.hasTargets(env) {
					p.fault(wait.Place, path, "environment %q selects no target, so nothing ever succeeds there: %s", wait.Name, env.Selector)
					continue
				}
			case WaitForDeployment:
				if wait.Name == p.dep.Name {
					p.fault(wait.Place, path, "deployment %q is the one that is rolled out: it would wait for itself", wait.Name)
					continue
				}
				if dep, found := find(p.bundle.Deployments, func(d Deployment) bool { return d.Name == wait.Name }); found && len(dep.Environments) > 0 && !slices.Contains(dep.Environments, p.env.Name) {
					p.fault(wait.Place, path, "deployment %q is not bound to environment %q, so it never succeeds on these targets; it is bound to: %s", dep.Name, p.env.Name, strings.Join(dep.Environments, ", "))
					continue
				}
			}
			if i := slices.IndexFunc(d.members, func(i int) bool { return holdsAll(d.on, []int{i}) }); i >= 0 {
				p.fault(wait.Place, path, "the policy matches %s too, which would wait for itself; leave it out with the policy's selectors, e.g. resource: resource.name != %q",
					p.targets[d.members[i]].Name, p.targets[d.members[i]].Name)
				continue
			}
			planned := Dependency{Policy: pol.Name, Name: wait.Name, Kind: wait.Kind}
			for _, i := range d.members {
				planned.Targets = append(planned.Targets, p.targets[i].Name)
			}
			p.plan.Dependencies = append(p.plan.Dependencies, planned)
			p.waits = append(p.waits, d)
		}
	}
}

// hasTargets reports whether an environment selects a target.
func (p *planner) hasTargets(env Environment) bool {
	for i := range p.targets {
		if in, problem := p.holds(env.Selector, i); in && problem == "" {
			return true
		}
	}
	return false
}

// after lists the dependencies of a target, as indices.
func (p *planner) after(target int) []int {
	var out []int
	for n, d := range p.waits {
		if _, waits := slices.BinarySearch(d.on, target); waits {
			out = append(out, n)
		}
	}
	return out
}

// inSequence returns a wave's targets so that none stands before one that it waits for, and otherwise in the order
// given. It faults if they wait for each other, or for a target of another wave.
func (p *planner) inSequence(list []int, path string) []int {
	if len(p.waits) == 0 {
		return list
	}
	here := make(map[int]int, len(list)) // target → position
	for at, i := range list {
		here[i] = at
	}
	// missing counts, for each target and for each dependency, what must come before it.
	missing := make([]int, len(list))
	met := make([]int, len(p.waits))
	waiters := make([][]int, len(p.waits)) // dependency → positions
	needed := make([][]int, len(list))     // position → dependencies that it is part of
	next := make([]int, len(list))         // position → the next one of its pace, or -1
	for n, d := range p.waits {
		for _, i := range d.members {
			at, found := here[i]
			if !found {
				for _, waiting := range d.on {
					if _, waits := here[waiting]; waits {
						p.fault(d.wait.Place, fmt.Sprintf("Policy %q deploymentDependency.waitFor", d.policy), "%s waits for %s, which is not in its wave; that is not supported yet, and the waves make later ones wait already (%s)",
							p.targets[waiting].Name, p.targets[i].Name, path)
						return nil
					}
				}
				continue
			}
			met[n]++
			needed[at] = append(needed[at], n)
		}
		for _, i := range d.on {
			if at, found := here[i]; found && met[n] > 0 {
				waiters[n] = append(waiters[n], at)
				missing[at]++
			}
		}
	}
	last := map[int]int{}
	for at, i := range list {
		next[at] = -1
		pace := p.paceOf(i)
		if pace == 0 || p.plan.Paces[pace-1].Overlap {
			continue
		}
		if before, found := last[pace]; found {
			next[before] = at
			missing[at]++
		}
		last[pace] = at
	}
	var out, ready []int
	for at := range list {
		if missing[at] == 0 {
			ready = append(ready, at)
		}
	}
	release := func(at int) {
		if missing[at]--; missing[at] == 0 {
			where, _ := slices.BinarySearch(ready, at)
			ready = slices.Insert(ready, where, at)
		}
	}
	for len(ready) > 0 {
		at := ready[0]
		ready = ready[1:]
		out = append(out, list[at])
		for _, n := range needed[at] {
			if met[n]--; met[n] == 0 {
				for _, waiting := range waiters[n] {
					release(waiting)
				}
			}
		}
		if next[at] >= 0 {
			release(next[at])
		}
	}
	if len(out) < len(list) {
		p.circle(list, missing, path)
		return nil
	}
	return out
}

// circle says which targets wait for each other.
func (p *planner) circle(list, missing []int, path string) {
	var stuck []string
	var first dependency
	for at, i := range list {
		if missing[at] == 0 {
			continue
		}
		stuck = append(stuck, p.targets[i].Name)
		if first.policy == "" {
			for _, n := range p.after(i) {
				if len(p.waits[n].members) > 0 {
					first = p.waits[n]
					break
				}
			}
		}
	}
	what := "wait"
	if len(stuck) == 1 {
		what = "waits"
	}
	p.fault(first.wait.Place, cmp.Or(fmt.Sprintf("Policy %q deploymentDependency.waitFor", first.policy), path), "%s %s for %q, directly or through the order of the rollout, and so for what waits for them: none would ever start",
		firstTen(stuck), what, first.wait.Name)
}

// orders says how a gradual rollout orders, for people.
func (g GradualRollout) orders() string {
	if len(g.SortBy) == 0 {
		return "in the order of the documents"
	}
	keys := make([]string, len(g.SortBy))
	for i, k := range g.SortBy {
		keys[i] = string(k.By)
	}
	return "by " + strings.Join(keys, ", then ")
}

// waitedFor names the policies that make others wait for a target.
func (p *planner) waitedFor(target int) string {
	var names []string
	for _, d := range p.waits {
		if _, is := slices.BinarySearch(d.members, target); is && !slices.Contains(names, d.policy) {
			names = append(names, d.policy)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("; others wait for it (%s)", strings.Join(names, ", "))
}
