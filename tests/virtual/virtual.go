// Package virtual is what tests of rollouts in virtual time need besides the SDK's test environment. It must not be
// imported by anything but tests.
package virtual

import (
	"math"

	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/workflow"
)

// Patient lets activities be tried as often as a server would: the test environment ends those without a limit after ten
// attempts.
func Patient() interceptor.WorkerInterceptor { return &patient{} }

type patient struct {
	interceptor.WorkerInterceptorBase
}

func (*patient) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &inbound{interceptor.WorkflowInboundInterceptorBase{Next: next}}
}

type inbound struct {
	interceptor.WorkflowInboundInterceptorBase
}

func (i *inbound) Init(next interceptor.WorkflowOutboundInterceptor) error {
	return i.Next.Init(&outbound{interceptor.WorkflowOutboundInterceptorBase{Next: next}})
}

type outbound struct {
	interceptor.WorkflowOutboundInterceptorBase
}

func (o *outbound) ExecuteActivity(ctx workflow.Context, name string, args ...any) workflow.Future {
	options := workflow.GetActivityOptions(ctx)
	if options.RetryPolicy != nil && options.RetryPolicy.MaximumAttempts == 0 {
		retry := *options.RetryPolicy
		retry.MaximumAttempts = math.MaxInt32
		options.RetryPolicy = &retry
		ctx = workflow.WithActivityOptions(ctx, options)
	}
	return o.Next.ExecuteActivity(ctx, name, args...)
}
