package workflows

import (
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
)

// Register gives the workers of the two queues what they run. Activities are on both: the ledger's and the soaks' on
// the control queue, so that they never wait behind thousands of targets; a target's own on the target queue.
func Register(control, target worker.Registry, a *activities.Activities) {
	for name, f := range map[string]any{RolloutType: Rollout, WaveType: Wave, RollbackType: Rollback, BundleType: Bundle} {
		control.RegisterWorkflowWithOptions(f, workflow.RegisterOptions{Name: name})
	}
	target.RegisterWorkflowWithOptions(Target, workflow.RegisterOptions{Name: TargetType})
	control.RegisterActivity(a)
	target.RegisterActivity(a)
}
