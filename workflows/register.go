package workflows

import (
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
)

// Register gives the workers of the two queues what they run. Activities are on both: the ledger's and the soaks' on
// the control queue, so that they never wait behind thousands of targets; a target's own on the target queue.
func Register(control, target worker.Registry, a *activities.Activities) {
	registerControl(control)
	registerTarget(target)
	control.RegisterActivity(a)
	target.RegisterActivity(a)
}

// RegisterAll gives one registry every workflow, for replaying histories.
func RegisterAll(r worker.WorkflowRegistry) {
	registerControl(r)
	registerTarget(r)
}

func registerControl(r worker.WorkflowRegistry) {
	r.RegisterWorkflowWithOptions(Rollout, workflow.RegisterOptions{Name: RolloutType})
	r.RegisterWorkflowWithOptions(Wave, workflow.RegisterOptions{Name: WaveType})
	r.RegisterWorkflowWithOptions(Batch, workflow.RegisterOptions{Name: BatchType})
	r.RegisterWorkflowWithOptions(Rollback, workflow.RegisterOptions{Name: RollbackType})
	r.RegisterWorkflowWithOptions(Bundle, workflow.RegisterOptions{Name: BundleType})
}

func registerTarget(r worker.WorkflowRegistry) {
	r.RegisterWorkflowWithOptions(Target, workflow.RegisterOptions{Name: TargetType})
}
