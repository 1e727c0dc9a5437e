package load

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/expr"
)

// rule is one entry of the visible list of rules.
type rule struct {
	name string
	read func(s *session, n *node, path string, p *policy.Policy) // nil: not supported yet
}

func rules() []rule {
	return []rule{
		{"waves", (*session).waves},
		{"verification", (*session).verification},
		{"approval", func(s *session, n *node, path string, p *policy.Policy) { p.Approval = s.approval(n, path) }},
		{"failureThreshold", (*session).failureThreshold},
		{"rollback", (*session).rollback},
		{"soak", (*session).soak},
		{"eligibility", nil},
		{"gradualRollout", (*session).gradualRollout},
		{"environmentProgression", nil},
		{"deploymentDependency", (*session).deploymentDependency},
		{"versionSelector", nil},
		{"versionCooldown", nil},
		{"retry", nil},
		{"maxBlastRadius", nil},
		{"newcomer", nil},
		{"deploymentWindow", nil},
	}
}

func supportedRules() []string {
	var names []string
	for _, r := range rules() {
		if r.read != nil {
			names = append(names, r.name)
		}
	}
	return names
}

func (s *session) policyDocument(f *fields, name string) {
	p := policy.Policy{Name: name, Description: f.text("description"), Place: f.n.place}
	const mostPriority = 1_000_000
	if priority := f.integer("priority", -mostPriority, mostPriority); priority != nil {
		p.Priority = *priority
	}
	for i, item := range f.list("selectors", "mappings of environment, deployment and resource") {
		if selector := s.selector(item, fmt.Sprintf("%s[%d]", f.at("selectors"), i)); selector != nil {
			p.Selectors = append(p.Selectors, *selector)
		}
	}
	written := map[string]policy.Place{}
	hint := "a list of rules, each a mapping with the rule's name as its one key"
	for i, item := range s.list(f.need("rules", hint), f.at("rules"), "rules") {
		s.rule(item, fmt.Sprintf("%s[%d]", f.at("rules"), i), &p, written)
	}
	s.oneOrder(p)
	s.bundle.Policies = append(s.bundle.Policies, p)
}

func (s *session) selector(n *node, path string) *policy.Selector {
	f := s.fields(n, path)
	if f == nil {
		return nil
	}
	selector := &policy.Selector{
		Environment: f.expression("environment", expr.InSelector),
		Deployment:  f.expression("deployment", expr.InSelector),
		Resource:    f.expression("resource", expr.InSelector),
	}
	if len(n.entries) == 0 {
		s.fault(n.place, path, "is empty; write environment, deployment or resource, or leave selectors out to match everything")
	}
	f.end()
	return selector
}

func (s *session) rule(n *node, path string, p *policy.Policy, written map[string]policy.Place) {
	if n.kind == brokenKind {
		return
	}
	if n.kind != mapKind || len(n.entries) != 1 {
		what := n.is()
		if n.kind == mapKind {
			what = fmt.Sprintf("a mapping with %d keys", len(n.entries))
		}
		s.fault(n.place, path, "must be a mapping with one key, the rule's name, not %s; begin each rule with a dash", what)
		return
	}
	e := n.entries[0]
	path += "." + e.key
	name := e.key
	if name == "soakSeconds" || name == "soakMinutes" {
		name = "soak"
	}
	i := slices.IndexFunc(rules(), func(r rule) bool { return r.name == name })
	switch {
	case i < 0:
		known := supportedRules()
		s.fault(e.place, path, "unknown rule%s", didYouMean(name, allRules(), "one of "+strings.Join(known, ", ")))
		return
	case rules()[i].read == nil:
		s.fault(e.place, path, "the rule is not supported yet; supported are: %s", strings.Join(supportedRules(), ", "))
		return
	}
	if first, twice := written[name]; twice {
		s.fault(e.place, path, "the policy has this rule twice; the first is at %s", first)
		return
	}
	written[name] = e.place
	if e.value.kind == nullKind {
		s.fault(e.place, path, "has no value; write one, or leave the rule out")
		return
	}
	rules()[i].read(s, e.value, path, p)
}

// soak reads the rule in any of its spellings: soak, soakSeconds, soakMinutes.
func (s *session) soak(n *node, path string, p *policy.Policy) {
	var unit time.Duration
	switch {
	case strings.HasSuffix(path, "Seconds"):
		unit = time.Second
	case strings.HasSuffix(path, "Minutes"):
		unit = time.Minute
	}
	if soak := s.duration(n, path, unit, false); soak != nil {
		p.Soak = *soak
	}
}

func allRules() []string {
	names := make([]string, len(rules()))
	for i, r := range rules() {
		names[i] = r.name
	}
	return names
}

func (s *session) waves(n *node, path string, p *policy.Policy) {
	p.Waves = &policy.Waves{}
	list, listPath := n, path
	if n.kind == mapKind {
		f := s.fields(n, path)
		list, listPath = f.need("waves", "a list of waves"), f.at("waves")
		p.Waves.Unmatched = policy.Unmatched(f.oneOf("unmatched", string(policy.UnmatchedIgnore), string(policy.UnmatchedLastWave)))
		p.Waves.SortBy = s.sortKeys(f.take("sortBy"), f.at("sortBy"))
		f.end()
	}
	names := map[string]policy.Place{}
	for i, item := range s.list(list, listPath, "waves") {
		itemPath := fmt.Sprintf("%s[%d]", listPath, i)
		wave := s.wave(item, itemPath)
		if wave == nil {
			continue
		}
		if first, twice := names[wave.Name]; twice && wave.Name != "" {
			s.fault(item.place, itemPath+".name", "there are two waves %q in the rule; the first is at %s", wave.Name, first)
		}
		names[wave.Name] = item.place
		p.Waves.Waves = append(p.Waves.Waves, *wave)
	}
}

func (s *session) wave(n *node, path string) *policy.WaveRule {
	f := s.fields(n, path)
	if f == nil {
		return nil
	}
	wave := &policy.WaveRule{Place: n.place}
	wave.Name = s.name(f.need("name", "what operators call the wave"), f.at("name"))
	wave.Select = s.expression(f.need("select", `CEL that is true for the wave's targets; "true" takes all that are left`), f.at("select"), expr.InSelector)
	wave.Limit = f.amount("limit", false)
	wave.MaxConcurrency = f.amount("maxConcurrency", false)
	wave.MaxFailures = f.amount("maxFailures", true)
	wave.MaxUnreachable = f.amount("maxUnreachable", true)
	if soak := f.duration("soak", false); soak != nil {
		wave.Soak = *soak
	}
	if approval := f.take("approval"); approval != nil {
		wave.Approval = s.approval(approval, f.at("approval"))
	}
	wave.SortBy = s.sortKeys(f.take("sortBy"), f.at("sortBy"))
	wave.EmptyWaveSkip = f.oneOf("emptyWave", "skip") == "skip"
	f.notYet("perPartition", "join")
	f.end()
	return wave
}

// sortKeys reads a list of keys; one key may stand without the list.
func (s *session) sortKeys(n *node, path string) []policy.SortKey {
	if n == nil || n.kind == brokenKind {
		return nil
	}
	if n.kind != listKind {
		return s.sortKey(n, path)
	}
	var keys []policy.SortKey
	for i, item := range s.list(n, path, "expressions or mappings of by, order and desc") {
		keys = append(keys, s.sortKey(item, fmt.Sprintf("%s[%d]", path, i))...)
	}
	return keys
}

func (s *session) sortKey(n *node, path string) []policy.SortKey {
	if n.kind != mapKind {
		return []policy.SortKey{{By: s.expression(n, path, expr.InSortKey)}}
	}
	f := s.fields(n, path)
	key := policy.SortKey{By: s.expression(f.need("by", "a CEL expression"), f.at("by"), expr.InSortKey)}
	for i, item := range f.list("order", "texts") {
		itemPath := fmt.Sprintf("%s[%d]", f.at("order"), i)
		text := s.text(item, itemPath)
		if slices.Contains(key.Order, text) {
			s.fault(item.place, itemPath, "names %q twice", text)
			continue
		}
		key.Order = append(key.Order, text)
	}
	if desc := f.boolean("desc"); desc != nil {
		key.Desc = *desc
	}
	f.end()
	return []policy.SortKey{key}
}

func (s *session) approval(n *node, path string) *policy.Approval {
	f := s.fields(n, path)
	if f == nil {
		return nil
	}
	const mostPeople = 100
	approval := &policy.Approval{Min: 1}
	if least := f.integer("min", 1, mostPeople); least != nil {
		approval.Min = *least
	}
	approval.NotAuthor = approval.Min >= 2
	if notAuthor := f.boolean("notAuthor"); notAuthor != nil {
		approval.NotAuthor = *notAuthor
	}
	if within := f.duration("within", true); within != nil {
		approval.Within = *within
	}
	f.notYet("teams", "attested")
	f.end()
	return approval
}

func (s *session) failureThreshold(n *node, path string, p *policy.Policy) {
	f := s.fields(n, path)
	if f == nil {
		return
	}
	threshold := &policy.FailureThreshold{
		MaxFailures:    f.amount("maxFailures", true),
		MaxUnreachable: f.amount("maxUnreachable", true),
		Place:          n.place,
	}
	if bounded := f.boolean("bounded"); bounded != nil {
		threshold.Bounded = *bounded
	}
	if len(n.entries) == 0 {
		s.fault(n.place, path, "is empty; write maxFailures, maxUnreachable or bounded")
	}
	f.end()
	p.FailureThreshold = threshold
}

func (s *session) rollback(n *node, path string, p *policy.Policy) {
	f := s.fields(n, path)
	if f == nil {
		return
	}
	p.Rollback = &policy.Rollback{
		OnTargetFailed: policy.OnTargetFailed(f.oneOf("onTargetFailed", string(policy.TargetGoesBack), string(policy.TargetStays))),
		OnBreach: policy.OnBreach(f.oneOf("onBreach", string(policy.BreachHolds), string(policy.BreachFails),
			string(policy.BreachWaveBack), string(policy.BreachRolloutAll))),
		OnReject:       policy.OnReject(f.oneOf("onReject", string(policy.RejectRolloutBack), string(policy.RejectHolds))),
		Order:          policy.RollbackOrder(f.oneOf("order", string(policy.OrderDeployed), string(policy.OrderNewest))),
		MaxConcurrency: f.amount("maxConcurrency", false),
		MaxFailures:    f.amount("maxFailures", true),
		Place:          n.place,
	}
	if verify := f.boolean("verify"); verify != nil {
		p.Rollback.SkipVerify = !*verify
	}
	if len(n.entries) == 0 {
		s.fault(n.place, path, "is empty; write a field, or leave the rule out for the defaults")
	}
	f.end()
}
