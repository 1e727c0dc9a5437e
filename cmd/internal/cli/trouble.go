package cli

import (
	"context"
	"fmt"
	"strings"
)

// trouble says what a workflow's own activities fail on while they are tried again and again, e.g. a ledger on a full
// disk; empty if nothing does, or if Temporal cannot say.
func (t *temporal) trouble(ctx context.Context, workflow, runID string) string {
	var failures []string
	// It only explains what the caller has to say anyway, so an error of its own is none of the person's business.
	_ = t.call(ctx, "look up what fails", func(ctx context.Context) error {
		answer, err := t.DescribeWorkflowExecution(ctx, workflow, runID)
		if err != nil {
			return err
		}
		for _, a := range answer.GetPendingActivities() {
			if text := a.GetLastFailure().GetMessage(); text != "" {
				failures = append(failures, fmt.Sprintf("%s (try %d)", strings.TrimPrefix(oneLine(text), "activities: "), a.GetAttempt()))
			}
		}
		return nil
	})
	return strings.Join(failures, "; ")
}
