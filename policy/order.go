package policy

import (
	"cmp"
	"fmt"
	"slices"
)

// sortKeys returns the keys that order a wave: its own, else those of all waves, else
// those of the gradual rollout within the waves.
func sortKeys(owner Policy, rule WaveRule) []SortKey {
	switch {
	case rule.SortBy != nil:
		return rule.SortBy
	case owner.Waves.SortBy == nil && owner.Gradual != nil:
		return owner.Gradual.SortBy
	}
	return owner.Waves.SortBy
}

// sort orders targets (indices into the snapshot) by the keys; ties stay in document order. It reports false, with a
// fault, if a key has no value on a target, or not one kind of value on all of them: an order that is not understood
// is no order.
func (p *planner) sort(targets []int, keys []SortKey, place Place, path string) bool {
	slices.Sort(targets)
	type rank struct {
		number float64
		text   int
	}
	ranks := make([][]rank, len(keys))
	for k, key := range keys {
		ranks[k] = make([]rank, len(p.targets))
		texts, numbers := -1, -1
		firstSeen := map[string]int{}
		for i, v := range key.Order {
			firstSeen[v] = i
		}
		// First seen counts over the whole fleet, so that what a wave selects does not change its order.
		for i := range p.targets {
			if text, ok := p.value(key.By, i).V.(string); ok {
				if _, seen := firstSeen[text]; !seen {
					firstSeen[text] = len(firstSeen)
				}
			}
		}
		for _, i := range targets {
			v := p.value(key.By, i)
			switch x := v.V.(type) {
			case string:
				ranks[k][i].text, texts = firstSeen[x], i
			case float64:
				ranks[k][i].number, numbers = x, i
			case bool:
				if numbers = i; x {
					ranks[k][i].number = 1
				}
			default:
				problem := v.Err
				if problem == "" {
					problem = "it has no value there"
				}
				p.fault(place, path+" sortBy", "%s cannot order target %q: %s; an order needs a text, a number or a bool on every target", key.By, p.targets[i].Name, problem)
				return false
			}
		}
		if texts >= 0 && numbers >= 0 {
			p.fault(place, path+" sortBy", "%s is text on target %q and a number on target %q; one order needs one kind", key.By,
				p.targets[texts].Name, p.targets[numbers].Name)
			return false
		}
	}
	for _, key := range keys {
		p.unusedOrder(key, path)
	}
	slices.SortStableFunc(targets, func(a, b int) int {
		for k, key := range keys {
			c := cmp.Or(cmp.Compare(ranks[k][a].text, ranks[k][b].text), cmp.Compare(ranks[k][a].number, ranks[k][b].number))
			if key.Desc {
				c = -c
			}
			if c != 0 {
				return c
			}
		}
		return 0
	})
	return true
}

// unusedOrder notes the values of an explicit order that no target has: they may be misspelt, or of a target that is gone.
func (p *planner) unusedOrder(key SortKey, path string) {
	var values, unused []string
	for i := range p.targets {
		if text, ok := p.value(key.By, i).V.(string); ok && !slices.Contains(values, text) {
			values = append(values, text)
		}
	}
	for _, v := range key.Order {
		if !slices.Contains(values, v) {
			unused = append(unused, v)
		}
	}
	if len(unused) == 0 {
		return
	}
	note := fmt.Sprintf("%s sortBy: the order of %s names %s, which no target has; there are: %s", path, key.By, firstTen(unused), firstTen(values))
	if !slices.Contains(p.plan.Notes, note) {
		p.plan.Notes = append(p.plan.Notes, note)
	}
}
