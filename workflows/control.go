package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/policy"
)

// line carries controls to one child: one at a time and the newest only. Two signals that are under way at once may
// overtake each other, and a child that heard of a resume before the pause would wait for ever.
type line struct {
	child   workflow.ChildWorkflowFuture
	want    policy.Control
	sending bool
}

// tell makes sure that the child hears of c, unless something newer is to be told before that. What is final stays, as it
// does for the child. It returns when the child has started; one that has ended cannot be told any more, and need not be.
func (l *line) tell(ctx workflow.Context, c policy.Control) {
	if final(l.want, c) {
		return
	}
	l.want = c
	if l.sending {
		return
	}
	l.sending = true
	if err := l.child.GetChildWorkflowExecution().Get(ctx, nil); err != nil {
		l.sending = false
		return
	}
	sent := l.want
	arrival := l.child.SignalChildWorkflow(ctx, controlSignal, sent)
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			if err := arrival.Get(ctx, nil); err != nil || l.want == sent {
				break
			}
			sent = l.want
			arrival = l.child.SignalChildWorkflow(ctx, controlSignal, sent)
		}
		l.sending = false
	})
}

// final reports whether c changes nothing after last: nothing undoes a stop, and only a stop follows a finish.
func final(last, c policy.Control) bool {
	return last == policy.ControlStop || (last == policy.ControlFinish && c != policy.ControlStop)
}
