package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// simDocuments are n clusters in tier order, walked by the given policy rules.
func simDocuments(url string, n int, rules string) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "type: Resource\nname: c%02d\nkind: Cluster\nmetadata: {tier: %d}\n---\n", i, 3-(i*3-1)/n)
	}
	fmt.Fprintf(&b, `type: Environment
name: Production
resourceSelector: 'true'
---
type: Deployment
name: web
steps:
  apply: [{name: put, sim: {url: '%s'}}]
---
type: Policy
name: production
rules:
%s`, url, rules)
	return b.String()
}

func scenario(n int) fleet.Scenario {
	s := fleet.Scenario{Seed: 1, Version: "v1"}
	for i := 1; i <= n; i++ {
		s.Members = append(s.Members, fleet.Target{Name: fmt.Sprintf("c%02d", i)})
	}
	return s
}

func TestRolloutReachesEveryClusterInWaves(t *testing.T) {
	url, log := fleetOf(t, scenario(12))
	l := newLane(t)
	l.startWorker()
	l.start(simDocuments(url, 12, `  - waves:
      - {name: low, select: target.metadata.tier == 3, maxConcurrency: 2, soak: 1s}
      - {name: mid, select: target.metadata.tier == 2, maxConcurrency: 2}
      - {name: top, select: 'true', maxConcurrency: 4}
`), "v2")
	s := l.ended()
	if s.State != workflows.Succeeded {
		t.Fatalf("state = %s (%s), want Succeeded%s", s.State, s.Reason, timeline(s))
	}
	var asked []string
	for _, e := range effects(t, log) {
		asked = append(asked, e.Target+" "+e.Version)
	}
	if len(asked) != 12 {
		t.Errorf("the fleet was asked %d times, want once a cluster: %v", len(asked), asked)
	}
}

// effects are the operations that a fleet really started, in order.
func effects(t *testing.T, log string) []fleet.Entry {
	t.Helper()
	entries, err := fleet.ReadLog(log)
	if err != nil {
		t.Fatal(err)
	}
	var out []fleet.Entry
	for _, e := range entries {
		if e.Kind == fleet.KindStarted {
			out = append(out, e)
		}
	}
	return out
}
