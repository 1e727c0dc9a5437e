package workflows

import (
	"slices"
	"testing"
	"time"

	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/policy"
)

// hearer is a child that returns the controls it hears within a minute.
func hearer(ctx workflow.Context) ([]policy.Control, error) {
	var heard []policy.Control
	channel := workflow.GetSignalChannel(ctx, controlSignal)
	for {
		var c policy.Control
		if ok, _ := channel.ReceiveWithTimeout(ctx, time.Minute, &c); !ok {
			return heard, nil
		}
		heard = append(heard, c)
	}
}

// TestControlsDoNotOvertake fails when a child hears last of a control that was not the last to be told: of a pause after
// its resume, or of a finish in the place of a stop.
func TestControlsDoNotOvertake(t *testing.T) {
	for name, test := range map[string]struct {
		told []policy.Control
		want policy.Control // the last that is heard
	}{
		"a pause and its resume": {[]policy.Control{policy.ControlPause, policy.ControlRun}, policy.ControlRun},
		"a stop and a breach":    {[]policy.Control{policy.ControlPause, policy.ControlStop, policy.ControlFinish}, policy.ControlStop},
	} {
		t.Run(name, func(t *testing.T) {
			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestWorkflowEnvironment()
			env.RegisterWorkflow(hearer)
			env.ExecuteWorkflow(func(ctx workflow.Context) ([]policy.Control, error) {
				l := &line{child: workflow.ExecuteChildWorkflow(ctx, hearer)}
				// The last to tell is the first to run once the child has started, as commands have listeners of their own.
				next := 0
				for i, c := range slices.Backward(test.told) {
					workflow.Go(ctx, func(ctx workflow.Context) {
						if err := workflow.Await(ctx, func() bool { return next == i }); err != nil {
							return
						}
						next++
						l.tell(ctx, c)
					})
				}
				var heard []policy.Control
				err := l.child.Get(ctx, &heard)
				return heard, err
			})
			var heard []policy.Control
			if err := env.GetWorkflowResult(&heard); err != nil {
				t.Fatal(err)
			}
			if len(heard) == 0 || heard[len(heard)-1] != test.want {
				t.Errorf("heard %v, want %s last", heard, test.want)
			}
		})
	}
}
