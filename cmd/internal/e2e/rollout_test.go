package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	sdkpb "go.temporal.io/api/sdk/v1"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
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

// What an operator sees in the stock Temporal UI: the eight commands, each with its JSON, and details that say what the
// rollout waits for and how to answer.
func TestTheTemporalUIShowsHowToAnswer(t *testing.T) {
	t.Parallel()
	url, _ := fleetOf(t, scenario(2))
	l := newLane(t)
	l.startWorker()
	l.start(simDocuments(url, 2, `  - waves: [{name: all, select: 'true', approval: {min: 1}}]
`), "v2")
	l.until("it asks", func(s workflows.RolloutStatus) bool { return s.State == workflows.AwaitingApproval })
	l.signal(workflows.Resume, workflows.Command{By: "<b>bob</b>"})
	l.until("the resume is refused", func(s workflows.RolloutStatus) bool { return len(s.Commands) == 1 })
	answer, err := l.client.QueryWorkflow(t.Context(), workflows.RolloutID("Production", "web"), "", "__temporal_workflow_metadata")
	if err != nil {
		t.Fatal(err)
	}
	var metadata sdkpb.WorkflowMetadata
	if err := answer.Get(&metadata); err != nil {
		t.Fatal(err)
	}
	described := map[string]string{}
	for _, s := range metadata.GetDefinition().GetSignalDefinitions() {
		described[s.GetName()] = s.GetDescription()
	}
	for _, name := range workflows.CommandNames() {
		if !strings.Contains(described[name], `JSON: {"by":"you"`) {
			t.Errorf("%s is described as %q, without an example of its JSON", name, described[name])
		}
	}
	details := metadata.GetCurrentDetails()
	for _, want := range []string{"needs 1 approval more", "`approve` `{\"by\":\"you\",\"wave\":1}`", "| 1 all | awaiting approval | 2 |", "Refused: resume by &lt;b&gt;bob&lt;/b&gt;: `it is not paused"} {
		if !strings.Contains(details, want) {
			t.Errorf("the details do not say %q:\n%s", want, details)
		}
	}
	l.signal(workflows.Abort, workflows.Command{})
	l.ended()
}

func TestTheServerHasTheSearchAttributesThatWorkflowsSet(t *testing.T) {
	want := []string{workflows.SluiceEnvironment, workflows.SluiceDeployment, workflows.SluiceVersion, workflows.SluiceRollout, workflows.SluiceState, workflows.SluiceTarget, workflows.SluiceSite}
	if got := embed.SearchAttributes(); !slices.Equal(got, want) {
		t.Errorf("the embedded server has %v, workflows set %v", got, want)
	}
}
