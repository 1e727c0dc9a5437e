package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-a0a4f4e3/sluice/inventory"
)

// maxWave is the most targets that one wave may hold: twenty batches, whose outcomes its rollout still bears.
const maxWave = 20 * BatchTargets

// Needs returns the expressions whose values MakePlan wants, each once, in the order of the documents. It fails with
// Faults if the request names a deployment or an environment that the documents lack.
func Needs(b Bundle, r Request) ([]Expression, error) {
	_, env, faults := subject(b, r)
	if len(faults) > 0 {
		return nil, faults
	}
	seen := map[Expression]bool{}
	var out []Expression
	add := func(e Expression) {
		if e != "" && !seen[e] {
			seen[e] = true
			out = append(out, e)
		}
	}
	add(env.Selector)
	for _, p := range b.Policies {
		for _, s := range p.Selectors {
			add(s.Environment)
			add(s.Deployment)
			add(s.Resource)
		}
		if p.Gradual != nil {
			for _, k := range p.Gradual.SortBy {
				add(k.By)
			}
		}
		for _, wait := range p.WaitFor {
			if other, found := find(b.Environments, func(e Environment) bool { return e.Name == wait.Name }); found && wait.Kind == WaitForEnvironment {
				add(other.Selector)
			}
		}
		if p.Waves == nil {
			continue
		}
		for _, w := range p.Waves.Waves {
			add(w.Select)
			for _, k := range w.SortBy {
				add(k.By)
			}
		}
		for _, k := range p.Waves.SortBy {
			add(k.By)
		}
	}
	return out, nil
}

// subject finds what the request is about.
func subject(b Bundle, r Request) (Deployment, Environment, Faults) {
	var faults Faults
	dep, found := find(b.Deployments, func(d Deployment) bool { return d.Name == r.Deployment })
	if !found {
		faults = append(faults, Fault{Message: fmt.Sprintf("no deployment %q in the documents; there are: %s", r.Deployment,
			names(b.Deployments, func(d Deployment) string { return d.Name }))})
	}
	env, foundEnv := find(b.Environments, func(e Environment) bool { return e.Name == r.Environment })
	if !foundEnv {
		faults = append(faults, Fault{Message: fmt.Sprintf("no environment %q in the documents; there are: %s", r.Environment,
			names(b.Environments, func(e Environment) string { return e.Name }))})
	}
	if found && foundEnv && len(dep.Environments) > 0 && !slices.Contains(dep.Environments, r.Environment) {
		faults = append(faults, Fault{Place: dep.Place, Path: fmt.Sprintf("Deployment %q environments", dep.Name),
			Message: fmt.Sprintf("is not bound to environment %q; it is bound to: %s", r.Environment, strings.Join(dep.Environments, ", "))})
	}
	if r.Version.Name == "" {
		faults = append(faults, Fault{Message: "no version was named; write it as DEPLOYMENT@VERSION"})
	}
	return dep, env, faults
}

func find[T any](all []T, want func(T) bool) (T, bool) {
	for _, one := range all {
		if want(one) {
			return one, true
		}
	}
	var none T
	return none, false
}

func names[T any](all []T, name func(T) string) string {
	if len(all) == 0 {
		return "none"
	}
	out := make([]string, len(all))
	for i, one := range all {
		out[i] = name(one)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// planner carries what MakePlan works out from step to step. Targets are indices into the snapshot.
type planner struct {
	bundle  Bundle
	request Request
	matches Matches
	targets []inventory.Target
	faults  Faults

	dep     Deployment
	env     Environment
	members []int
	// applying are the policies that match, by priority and then name; per policy, the members it matches.
	applying []Policy
	matched  map[string][]int
	// paced are the members that a gradual rollout orders, waits the dependencies, beside the plan's.
	paced map[int]*Policy
	waits []dependency
	plan  Plan
}

// MakePlan works out which targets change in which order under which rules. It is a pure function: equal arguments give
// an equal plan with an equal digest. Its error is Faults: the documents or the request do not make a plan.
func MakePlan(b Bundle, r Request, m Matches) (Plan, error) {
	p := &planner{bundle: b, request: r, matches: m, targets: b.Snapshot.Targets, matched: map[string][]int{}}
	p.dep, p.env, p.faults = subject(b, r)
	if len(p.faults) > 0 {
		return Plan{}, p.faults
	}
	snapshot, err := b.Snapshot.Digest()
	if err != nil {
		return Plan{}, err
	}
	p.plan = Plan{Deployment: r.Deployment, Environment: r.Environment, Version: r.Version, BundleDigest: r.BundleDigest,
		SnapshotDigest: snapshot, Step: p.dep.Apply}
	for _, step := range []func(){p.selectMembers, p.selectPolicies, p.budget, p.dependencies, p.assign, p.metrics, p.approvals, p.limits, p.rollback} {
		if step(); len(p.faults) > 0 {
			return Plan{}, p.faults
		}
	}
	if err := p.plan.seal(); err != nil {
		return Plan{}, err
	}
	return p.plan, nil
}

func (p *planner) fault(place Place, path, format string, args ...any) {
	p.faults = append(p.faults, Fault{Place: place, Path: path, Message: fmt.Sprintf(format, args...)})
}

// failsOn refuses an expression that has no answer on a target.
const failsOn = "fails on target %q: %s; it must be true or false on every target: mend that one, or ask with has() first"

// value looks an expression's value up; a missing one is an evaluation error, so that nothing is decided on it.
func (p *planner) value(e Expression, target int) Value {
	values := p.matches[e]
	if target >= len(values) {
		return Value{Err: "was not evaluated"}
	}
	return values[target]
}

// holds evaluates a bool; anything else is an error text.
func (p *planner) holds(e Expression, target int) (bool, string) {
	v := p.value(e, target)
	if v.Err != "" {
		return false, v.Err
	}
	b, ok := v.V.(bool)
	if !ok {
		return false, fmt.Sprintf("gives %v, not true or false", v.V)
	}
	return b, ""
}

// selectMembers finds the environment's targets. A target on which the selector fails is not one, and is named.
func (p *planner) selectMembers() {
	var broken []string
	for i, t := range p.targets {
		in, problem := p.holds(p.env.Selector, i)
		switch {
		case problem != "":
			broken = append(broken, t.Name)
			p.plan.Out = append(p.plan.Out, Out{Target: t.Name, Reason: fmt.Sprintf("the selector of environment %q fails on it: %s", p.env.Name, problem)})
		case !in:
			p.plan.Out = append(p.plan.Out, Out{Target: t.Name, Reason: fmt.Sprintf("not in environment %q: %s", p.env.Name, p.env.Selector)})
		default:
			p.members = append(p.members, i)
		}
	}
	if len(broken) > 0 {
		p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("the selector of environment %q fails on %s, which are left out: %s",
			p.env.Name, count(len(broken), "target"), firstTen(broken)))
	}
	if len(p.members) == 0 {
		p.fault(p.env.Place, fmt.Sprintf("Environment %q resourceSelector", p.env.Name), "selects none of the %s in the documents: %s",
			count(len(p.targets), "target"), p.env.Selector)
	}
}

// rulesForAPart may stand in a policy that matches only some of a rollout's targets.
var rulesForAPart = []string{"verification", "gradualRollout", "deploymentDependency"}

// selectPolicies finds the policies that match, and refuses what cannot be combined.
func (p *planner) selectPolicies() {
	for _, pol := range p.bundle.Policies {
		var on []int
		for _, i := range p.members {
			if p.policyMatches(pol, i) {
				on = append(on, i)
			}
		}
		if len(on) == 0 {
			if p.aboutRollout(pol) {
				p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("policy %q matches none of the %s of this rollout: its selectors' resource holds nowhere", pol.Name, count(len(p.members), "target")))
			}
			continue
		}
		if len(on) < len(p.members) {
			whole := slices.DeleteFunc(pol.rules(), func(rule string) bool { return slices.Contains(rulesForAPart, rule) })
			if len(whole) > 0 {
				p.fault(pol.Place, fmt.Sprintf("Policy %q selectors", pol.Name), "match only %d of %s, and a policy for a part of a rollout may "+
					"have nothing but %s; its other rules (%s) for a part are not supported yet", len(on), count(len(p.members), "target"),
					strings.Join(rulesForAPart, ", "), strings.Join(whole, ", "))
			}
		}
		p.applying = append(p.applying, pol)
		p.matched[pol.Name] = on
	}
	slices.SortStableFunc(p.applying, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
	})
	for _, pol := range p.applying {
		p.plan.Policies = append(p.plan.Policies, PolicyUse{Name: pol.Name, Priority: pol.Priority, Rules: pol.rules(), Targets: len(p.matched[pol.Name])})
	}
	if len(p.applying) == 0 {
		if !p.request.Unguarded {
			p.fault(Place{}, "", "no policy matches deployment %q in environment %q; write one, or say --unguarded to go without",
				p.request.Deployment, p.request.Environment)
		}
		p.plan.Unguarded = true
	}
}

// aboutRollout reports whether a policy that matches no target means this environment and deployment all the same.
func (p *planner) aboutRollout(pol Policy) bool {
	return len(p.faults) == 0 && slices.ContainsFunc(pol.Selectors, func(s Selector) bool {
		for _, e := range []Expression{s.Environment, s.Deployment} {
			if e == "" {
				continue
			}
			if in, problem := p.holds(e, p.members[0]); !in || problem != "" {
				return false
			}
		}
		return s.Resource != ""
	})
}

func (p *planner) policyMatches(pol Policy, target int) bool {
	if len(pol.Selectors) == 0 {
		return true
	}
	for n, s := range pol.Selectors {
		all := true
		for _, part := range []struct {
			key  string
			expr Expression
		}{{"environment", s.Environment}, {"deployment", s.Deployment}, {"resource", s.Resource}} {
			if part.expr == "" || !all {
				continue
			}
			in, problem := p.holds(part.expr, target)
			if problem != "" {
				p.fault(pol.Place, fmt.Sprintf("Policy %q selectors[%d].%s", pol.Name, n, part.key), failsOn, p.targets[target].Name, problem)
				return false
			}
			all = in
		}
		if all {
			return true
		}
	}
	return false
}

// rules lists the rules that a policy has, in the order in which they are shown.
func (p Policy) rules() []string {
	var out []string
	for _, r := range []struct {
		name string
		has  bool
	}{{"waves", p.Waves != nil}, {"gradualRollout", p.Gradual != nil}, {"deploymentDependency", len(p.WaitFor) > 0}, {"failureThreshold", p.FailureThreshold != nil}, {"rollback", p.Rollback != nil},
		{"verification", len(p.Verification) > 0}, {"approval", p.Approval != nil}, {"soak", p.Soak > 0}} {
		if r.has {
			out = append(out, r.name)
		}
	}
	return out
}

// budget combines the failure thresholds over the whole rollout.
func (p *planner) budget() {
	var combined *Budget
	for _, pol := range p.applying {
		if pol.FailureThreshold == nil {
			continue
		}
		t := pol.FailureThreshold
		one := Budget{Size: len(p.members), Bounded: t.Bounded, From: pol.Name}
		if t.MaxFailures != nil {
			one.MaxFailures = *t.MaxFailures
		}
		one.MaxUnreachable = one.MaxFailures
		if t.MaxUnreachable != nil {
			one.MaxUnreachable = *t.MaxUnreachable
		}
		if combined == nil {
			combined = &one
		} else {
			both := strictest(*combined, one)
			combined = &both
		}
	}
	if combined == nil {
		combined = &Budget{Size: len(p.members)}
	}
	p.plan.Budget = *combined
}

// assign gives each member to the first wave that selects it and has room.
func (p *planner) assign() {
	owner := p.ordering()
	if len(p.faults) > 0 {
		return
	}
	p.paces()
	if owner == nil {
		p.assignOne()
		return
	}
	left := slices.Clone(p.members)
	var last []int                 // the targets of the last wave
	passedOver := map[int]string{} // target → the wave that had no room for it
	first := true
	for n, rule := range owner.Waves.Waves {
		path := fmt.Sprintf("Policy %q waves[%d] %q", owner.Name, n, rule.Name)
		var chosen, rest []int
		for _, i := range left {
			in, problem := p.holds(rule.Select, i)
			if problem != "" {
				p.fault(rule.Place, path+" select", failsOn, p.targets[i].Name, problem)
				return
			}
			if in {
				chosen = append(chosen, i)
			} else {
				rest = append(rest, i)
			}
		}
		if !p.sort(chosen, sortKeys(*owner, rule), rule.Place, path) {
			return
		}
		if rule.Limit != nil {
			if room := rule.Limit.Of(len(p.members)); room < len(chosen) {
				for _, i := range chosen[room:] {
					passedOver[i] = rule.Name
				}
				rest = append(rest, chosen[room:]...)
				chosen = chosen[:room]
				slices.Sort(rest)
			}
		}
		left = rest
		wave := Wave{Number: n + 1, Name: rule.Name, Policy: owner.Name}
		last = chosen
		if n < len(owner.Waves.Waves)-1 || owner.Waves.Unmatched != UnmatchedLastWave || len(left) == 0 {
			if chosen = p.inSequence(chosen, path); len(p.faults) > 0 {
				return
			}
		}
		for _, i := range chosen {
			reason := fmt.Sprintf("wave %q: %s", rule.Name, rule.Select)
			if earlier, over := passedOver[i]; over {
				reason += fmt.Sprintf("; over the limit of wave %q", earlier)
			}
			wave.Targets = append(wave.Targets, p.planned(i, reason))
		}
		p.fill(&wave, rule, owner.Name, first)
		if wave.Size > 0 {
			first = false
		}
		if n < len(owner.Waves.Waves)-1 || owner.Waves.Unmatched != UnmatchedLastWave || len(left) == 0 {
			p.emptyWave(&wave, rule, path)
		}
		p.tooLarge(wave, rule.Place, path)
		p.plan.Waves = append(p.plan.Waves, wave)
	}
	p.unmatched(*owner, last, left)
	for _, w := range p.plan.Waves {
		p.plan.Targets += w.Size
	}
	if p.plan.Targets == 0 && len(p.faults) == 0 {
		p.fault(owner.Place, fmt.Sprintf("Policy %q waves", owner.Name), "select none of the %s of environment %q", count(len(p.members), "target"), p.env.Name)
	}
}

// assignOne puts everything into one wave, where no policy has waves.
func (p *planner) assignOne() {
	list := p.inSequence(p.inGroups(), "")
	if len(p.faults) > 0 {
		return
	}
	wave := Wave{Number: 1, Name: "all", Budget: p.plan.Budget}
	for _, i := range list {
		reason := "no policy orders waves: everything is one wave"
		if pol := p.paced[i]; pol != nil {
			reason = fmt.Sprintf("policy %q orders it, %s", pol.Name, pol.Gradual.orders())
		}
		reason += p.waitedFor(i)
		wave.Targets = append(wave.Targets, p.planned(i, reason))
	}
	wave.Size = len(wave.Targets)
	wave.MaxConcurrency, wave.MaxUnpaced = p.atOnce(list)
	wave.Soak, wave.SoakFrom = p.soak(0, "")
	p.plan.Waves, p.plan.Targets = []Wave{wave}, wave.Size
	p.tooLarge(wave, Place{}, "")
}

// planned is one member as a target of a wave.
func (p *planner) planned(target int, reason string) PlannedTarget {
	return PlannedTarget{Name: p.targets[target].Name, Reason: reason, Pace: p.paceOf(target), After: p.after(target)}
}

// fill works out the wave's numbers once its targets are known.
func (p *planner) fill(wave *Wave, rule WaveRule, policy string, first bool) {
	wave.Size = len(wave.Targets)
	if wave.MaxConcurrency = min(1, wave.Size); rule.MaxConcurrency != nil {
		wave.MaxConcurrency = rule.MaxConcurrency.Of(wave.Size)
	}
	budget := Budget{Size: wave.Size, Bounded: p.plan.Budget.Bounded, From: policy}
	switch {
	case rule.MaxFailures != nil:
		budget.MaxFailures = *rule.MaxFailures
	case first:
		budget.From = "first wave"
	default:
		budget.MaxFailures = Amount{Value: p.plan.Budget.Failures(0)}
		budget.From = p.plan.Budget.From
	}
	switch {
	case rule.MaxUnreachable != nil:
		budget.MaxUnreachable = *rule.MaxUnreachable
	case rule.MaxFailures != nil || first:
		budget.MaxUnreachable = budget.MaxFailures
	default:
		budget.MaxUnreachable = Amount{Value: p.plan.Budget.Unreachable(0)}
	}
	wave.Budget = budget
	wave.Soak, wave.SoakFrom = p.soak(rule.Soak, policy)
	if rule.Approval != nil {
		wave.Approvals = append(wave.Approvals, consent(policy, *rule.Approval, false))
	}
}

// soak returns the longest of the wave's own soak and those of all policies, and where it comes from.
func (p *planner) soak(own Duration, policy string) (Duration, []string) {
	longest, from := own, []string(nil)
	if own > 0 {
		from = []string{policy}
	}
	for _, pol := range p.applying {
		switch {
		case pol.Soak == 0 || pol.Soak < longest:
		case pol.Soak == longest:
			if !slices.Contains(from, pol.Name) {
				from = append(from, pol.Name)
			}
		default:
			longest, from = pol.Soak, []string{pol.Name}
		}
	}
	return longest, from
}

func consent(policy string, a Approval, rollout bool) Consent {
	return Consent{Policy: policy, Min: a.Min, NotAuthor: a.NotAuthor, Within: a.Within, Rollout: rollout}
}

// emptyWave refuses a wave without targets, or says that it is passed over.
func (p *planner) emptyWave(wave *Wave, rule WaveRule, path string) {
	if wave.Size > 0 {
		return
	}
	switch {
	case rule.EmptyWaveSkip:
		wave.Passed = "it selects no target, and emptyWave: skip was written"
	case wave.Number == 1:
		p.fault(rule.Place, path+" select", "selects no target, and an empty first wave is refused unless emptyWave: skip is written: %s", rule.Select)
	case rule.Approval != nil:
		p.fault(rule.Place, path+" select", "selects no target, and an empty wave with an approval is refused unless emptyWave: skip is written: %s", rule.Select)
	default:
		wave.Passed = "it selects no target; it is passed over with its soak"
	}
}

func (p *planner) tooLarge(wave Wave, place Place, path string) {
	if wave.Size > maxWave {
		p.fault(place, path, "holds %d targets, and one wave holds %d at most; limit it and add a wave", wave.Size, maxWave)
	}
}

// unmatched says what becomes of targets that no wave took; chosen are those of the last wave.
func (p *planner) unmatched(owner Policy, chosen, left []int) {
	if len(left) == 0 {
		return
	}
	path := fmt.Sprintf("Policy %q waves", owner.Name)
	switch owner.Waves.Unmatched {
	case UnmatchedIgnore:
		for _, i := range left {
			p.plan.Out = append(p.plan.Out, Out{Target: p.targets[i].Name, Reason: fmt.Sprintf("no wave of policy %q takes it, and unmatched: ignore was written", owner.Name)})
		}
	case UnmatchedLastWave:
		last := &p.plan.Waves[len(p.plan.Waves)-1]
		rule := owner.Waves.Waves[len(owner.Waves.Waves)-1]
		if !p.sort(left, sortKeys(owner, rule), rule.Place, path) {
			return
		}
		reasons := map[string]string{}
		for _, t := range last.Targets {
			reasons[t.Name] = t.Reason
		}
		all := p.inSequence(append(chosen, left...), path)
		last.Targets = nil
		for _, i := range all {
			last.Targets = append(last.Targets, p.planned(i, cmp.Or(reasons[p.targets[i].Name], "no wave selects it, and unmatched: lastWave was written")))
		}
		last.Passed, last.Approvals = "", nil
		first := !slices.ContainsFunc(p.plan.Waves[:len(p.plan.Waves)-1], func(w Wave) bool { return w.Size > 0 })
		p.fill(last, rule, owner.Name, first)
		p.tooLarge(*last, rule.Place, path)
	case UnmatchedRefuse:
		all := make([]string, len(left))
		for n, i := range left {
			all[n] = p.targets[i].Name
		}
		p.fault(owner.Place, path, "no wave takes %s: %s; add a wave that selects them, or write unmatched: ignore or lastWave", count(len(left), "target"), firstTen(all))
	}
}

// metrics gives each target the checks that judge it.
func (p *planner) metrics() {
	on := map[string][]int{} // target → indices of metrics
	for _, pol := range p.applying {
		for _, m := range pol.Verification {
			p.plan.Metrics = append(p.plan.Metrics, PlannedMetric{Policy: pol.Name, Metric: m})
			for _, i := range p.matched[pol.Name] {
				on[p.targets[i].Name] = append(on[p.targets[i].Name], len(p.plan.Metrics)-1)
			}
		}
	}
	for w := range p.plan.Waves {
		for t := range p.plan.Waves[w].Targets {
			target := &p.plan.Waves[w].Targets[t]
			target.Metrics = on[target.Name]
		}
	}
}

// approvals puts the demands for the whole rollout before its first wave.
func (p *planner) approvals() {
	at := slices.IndexFunc(p.plan.Waves, func(w Wave) bool { return w.Size > 0 })
	var whole []Consent
	for _, pol := range p.applying {
		if pol.Approval != nil {
			whole = append(whole, consent(pol.Name, *pol.Approval, true))
		}
	}
	p.plan.Waves[at].Approvals = append(whole, p.plan.Waves[at].Approvals...)
}

// limits works out each wave's blast radius and how many batches it has.
func (p *planner) limits() {
	for i := range p.plan.Waves {
		w := &p.plan.Waves[i]
		w.Batches = batches(w.Size)
		failures := min(w.Budget.Failures(0), p.plan.Budget.Failures(0))
		w.BlastRadius = min(w.Size, failures+w.MaxConcurrency)
		if w.Budget.Bounded {
			w.BlastRadius = min(w.Size, failures+1)
		}
		if p.soakChecks(*w) {
			w.BlastRadius = w.Size
		}
	}
}

// soakChecks reports whether checks run while the wave soaks.
func (p *planner) soakChecks(w Wave) bool {
	for _, t := range w.Targets {
		for _, m := range t.Metrics {
			if d := p.plan.Metrics[m].Metric.During; d == DuringSoak || d == DuringBoth {
				return true
			}
		}
	}
	return false
}

// rollback takes the rollback rule of the highest priority, and says whether targets can go back at all.
func (p *planner) rollback() {
	out := RollbackPlan{OnTargetFailed: TargetGoesBack, OnBreach: BreachHolds, OnReject: RejectRolloutBack, Order: OrderDeployed, Verify: true}
	largest := 1
	for _, w := range p.plan.Waves {
		largest = max(largest, w.MaxConcurrency)
	}
	out.MaxConcurrency = Amount{Value: largest}
	var owner *Policy
	for i := range p.applying {
		pol := &p.applying[i]
		if pol.Rollback == nil {
			continue
		}
		if owner != nil {
			if pol.Priority == owner.Priority {
				p.fault(pol.Place, fmt.Sprintf("Policy %q rollback", pol.Name), "policy %q says how to roll back with the same priority %d; give one of them a higher priority",
					owner.Name, owner.Priority)
			}
			continue
		}
		owner = pol
		r := *pol.Rollback
		out.Policy = pol.Name
		out.OnTargetFailed = cmp.Or(r.OnTargetFailed, out.OnTargetFailed)
		out.OnBreach = cmp.Or(r.OnBreach, out.OnBreach)
		out.OnReject = cmp.Or(r.OnReject, out.OnReject)
		out.Order = cmp.Or(r.Order, out.Order)
		out.Verify = !r.SkipVerify
		out.MaxFailures = r.MaxFailures
		if r.MaxConcurrency != nil {
			out.MaxConcurrency = *r.MaxConcurrency
		}
	}
	p.plan.Rollback = out
	switch {
	case p.dep.Rollback == RollbackNone:
		p.plan.NoReturn = fmt.Sprintf("deployment %q says rollback: none", p.dep.Name)
	case !p.dep.Apply.Restores:
		p.plan.NoReturn = p.dep.Apply.Reason
	}
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func firstTen(all []string) string {
	if len(all) <= 10 {
		return strings.Join(all, ", ")
	}
	return strings.Join(all[:10], ", ") + fmt.Sprintf(" and %d more", len(all)-10)
}
