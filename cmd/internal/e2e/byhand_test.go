package e2e

import (
	"testing"

	"github.com/oklog/ulid/v2"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// TestWhatIsTerminatedByHandIsNamed fails when a rollback forgets a target whose workflow somebody terminated in the
// middle of its change, or whose wave or rollout they did, or when anything is asked of it twice.
func TestWhatIsTerminatedByHandIsNamed(t *testing.T) {
	t.Parallel()
	const n = 4
	rules := `  - waves:
      - {name: first, select: 'target.name != "c04"', maxConcurrency: 3, maxFailures: 1}
      - {name: rest, select: 'true', approval: {min: 1}}
  - failureThreshold: {maxFailures: 1}
`
	lost := map[policy.TargetState]int{policy.NeedsRecovery: 3, policy.Pending: 1}
	for name, test := range map[string]struct {
		id     func(workflows.RolloutInput) string
		counts map[policy.TargetState]int
		// runs is what the targets run in the end.
		runs map[string]string
	}{
		"target": {func(in workflows.RolloutInput) string {
			return workflows.TargetID(workflows.WaveID(in.Environment, in.Deployment, in.Rollout, 1), "c02", 1)
		}, map[policy.TargetState]int{policy.NeedsRecovery: 1, policy.RolledBack: 2, policy.Pending: 1}, map[string]string{"c01": "v1", "c02": "v2", "c03": "v1", "c04": "v1"}},
		"wave": {func(in workflows.RolloutInput) string {
			return workflows.WaveID(in.Environment, in.Deployment, in.Rollout, 1)
		},
			lost, map[string]string{"c01": "v2", "c02": "v2", "c03": "v2", "c04": "v1"}},
		"rollout": {func(in workflows.RolloutInput) string { return workflows.RolloutID(in.Environment, in.Deployment) },
			lost, map[string]string{"c01": "v2", "c02": "v2", "c03": "v2", "c04": "v1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLane(t)
			s := newCommandSite(t, l.data, n)
			l.useRunner()
			l.startWorker()
			s.hold("hang", executors.Apply, "c02")
			in := l.start(s.documents(n, rules), "v2")
			s.held("hang", executors.Apply, "c02")
			eventually(t, "the others have changed", func() bool { r := s.runs(); return r["c01"] == "v2" && r["c03"] == "v2" }, func() string { return "" })
			if err := l.client.TerminateWorkflow(t.Context(), test.id(in), "", "by hand"); err != nil {
				t.Fatal(err)
			}
			if name == "target" {
				l.until("it asks for approval", func(s workflows.RolloutStatus) bool { return s.State == workflows.AwaitingApproval })
				l.signal(workflows.RollBack, workflows.Command{By: "bob"})
			} else {
				// Terminated, it ends with an error; with its wave terminated, as Failed.
				_ = l.client.GetWorkflow(t.Context(), workflows.RolloutID(in.Environment, in.Deployment), "").Get(t.Context(), nil)
				back := in
				back.Rollout, back.Mode, back.Of, back.PlanDigest = ulid.Make().String(), workflows.ModeRollback, in.Rollout, ""
				l.launch(back)
				in = back
			}
			l.wantEnd(in, workflows.RollbackIncomplete, test.counts)
			s.release("hang", executors.Apply, "c02")
			eventually(t, "c02 ends", func() bool { return s.runs()["c02"] == "v2" }, func() string { return "" })
			for what, times := range s.asked() {
				if times != 1 {
					t.Errorf("%s was asked %d times", what, times)
				}
			}
			for target, want := range test.runs {
				if got := s.runs()[target]; got != want {
					t.Errorf("%s runs %s, want %s", target, got, want)
				}
			}
		})
	}
}
