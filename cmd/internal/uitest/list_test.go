//go:build full

package uitest

import (
	"fmt"
	"net/url"
	"slices"
	"testing"

	"go.temporal.io/api/workflowservice/v1"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// hang is a change of c01 that lasts until the fleet is told to let it go.
var hang = fleet.Failure{Match: fleet.Match{Targets: []string{"c01"}}, Version: "v2", Hang: true}

// oneWave goes off at once.
const oneWave = "  - waves: [{name: all, select: 'true', maxConcurrency: 1}]\n"

// inFlight waits until the change of c01 is under way.
func (s *site) inFlight() {
	s.t.Helper()
	s.until("c01 is in flight", func(status workflows.RolloutStatus) bool { return status.Waves[0].InFlight == 1 && s.asked("c01") })
}

// TestRequestCancellationAborts fails when the button of the UI ends a rollout without a safe point: what is in flight
// finishes, nothing new starts, and only then the rollout is Aborted.
func TestRequestCancellationAborts(t *testing.T) {
	s := newSite(t, scenario(2, hang), oneWave)
	s.inFlight()
	s.open(s.rollout())
	s.click("button", "Request Cancellation")
	s.click(cancelDialog+" ~ * button, button[type=submit]", "Confirm")
	s.gone(cancelDialog)
	s.until("the abort is heard", func(status workflows.RolloutStatus) bool {
		return slices.ContainsFunc(status.Commands, func(r workflows.Receipt) bool { return r.Name == workflows.Abort && r.Accepted })
	})
	if status, err := s.status(); err != nil || status.State.Ended() {
		t.Fatalf("state = %s (%v), want it to wait for the target in flight", status.State, err)
	}
	s.release("c01")
	status := s.untilState(workflows.Aborted)
	if status.Counts[policy.Succeeded] != 1 || status.Counts[policy.Pending] != 1 {
		t.Errorf("counts = %v, want one target that finished and one that never began", status.Counts)
	}
	s.open(s.rollout())
	s.details("web v2 to Production: Aborted")
}

// TestTheUIOffersNothingThatSkipsSafePoints fails when the page offers to terminate, reset or copy a workflow, which
// would leave targets in the middle of a change, or change them beside every rule.
func TestTheUIOffersNothingThatSkipsSafePoints(t *testing.T) {
	s := newSite(t, scenario(4), twoWaves)
	s.untilState(workflows.AwaitingApproval)
	s.open(s.rollout())
	s.click("button", "More Actions")
	offered := await[[]string](s.page, "the menu is open", `(() => {
		const items = seen('[role=menuitem]');
		return items.length ? items.filter(e => e.getAttribute('aria-disabled') !== 'true').map(e => e.innerText.trim()) : null;
	})()`)
	if !slices.Equal(offered, []string{"Send a Signal"}) {
		t.Errorf("the menu offers %q, want signals only", offered)
	}
	s.untilListed("WorkflowType = 'Rollout'")
	s.open(s.list("WorkflowType = 'Rollout'"))
	s.rows()
	if offered := await[[]string](s.page, "the list is shown", `seen('[data-testid^="bulk-"], [data-testid="batch-actions-checkbox"], [data-testid="start-workflow-button"]')
		.filter(e => !e.disabled && e.getAttribute('aria-disabled') !== 'true').map(e => e.outerHTML)`); len(offered) > 0 {
		t.Errorf("the list offers %q", offered)
	}
}

// list is the address of the list of workflows under a query.
func (s *site) list(query string) string {
	return server.UIURL() + "/namespaces/" + s.namespace + "/workflows?query=" + url.QueryEscape(query)
}

// untilListed waits until the list knows of one workflow under a query. It is written beside the workflow, a moment later,
// and the page does not look again by itself.
func (s *site) untilListed(query string) {
	s.t.Helper()
	s.until("the list finds one workflow with "+query, func(workflows.RolloutStatus) bool {
		found, err := s.client.ListWorkflow(s.t.Context(), &workflowservice.ListWorkflowExecutionsRequest{Namespace: s.namespace, Query: query})
		return err == nil && len(found.GetExecutions()) == 1
	})
}

// rows are the texts of the list's rows, once it is there.
func (s *site) rows() []string {
	s.t.Helper()
	return await[[]string](s.page, "the list is there", `(() => {
		const rows = seen('[data-testid="workflows-summary-configurable-table-row"]').map(e => e.innerText);
		return rows.length || document.body.innerText.includes('No Workflows') ? rows : null;
	})()`)
}

// TestRolloutsAreFoundByTheirState fails when an operator can't ask the list for the rollouts that run or wait.
func TestRolloutsAreFoundByTheirState(t *testing.T) {
	s := newSite(t, scenario(2, hang), oneWave)
	s.inFlight()
	running, waiting := fmt.Sprintf("SluiceState=%q", workflows.Running), fmt.Sprintf("SluiceState=%q", workflows.AwaitingApproval)
	s.untilListed(running)
	s.open(s.list(running))
	if found := s.rows(); len(found) != 1 {
		t.Errorf("%s finds %q, want the rollout alone", running, found)
	}
	s.click("a", workflows.RolloutID("Production", "web"))
	s.details("web v2 to Production: Running")
	s.open(s.list(waiting))
	if found := s.rows(); len(found) != 0 {
		t.Errorf("%s finds %q, want none", waiting, found)
	}
	s.release("c01")
	s.untilState(workflows.Succeeded)
}
