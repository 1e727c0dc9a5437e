package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// DependencyInput asks for what is decided outside of a rollout: whether another environment has succeeded on its version,
// or whether another deployment has on the same targets.
type DependencyInput struct {
	Kind policy.DependencyKind `json:"kind"`
	Name string                `json:"name"`
	// Environment, Deployment and Version are those of the rollout that waits.
	Environment string `json:"environment"`
	Deployment  string `json:"deployment"`
	Version     string `json:"version"`
	// Targets are those that wait, Met those of them for which it was met when last looked.
	Targets []string `json:"targets"`
	Met     []string `json:"met,omitempty"`
}

// DependencyOutput is for which targets it is met now.
type DependencyOutput struct {
	Met []string `json:"met,omitempty"`
}

// dependencyPause is the time between two looks into the ledger: a rollout that waits for another one waits for minutes.
const dependencyPause = 5 * time.Second

// AwaitDependency returns as soon as it is met for other targets than it was: for more of them, or for fewer, since what has
// succeeded may be taken back. Until then each call looks once, and is tried again. Idempotent and read-only.
func (a *Activities) AwaitDependency(ctx context.Context, in DependencyInput) (DependencyOutput, error) {
	defer heartbeat(ctx)()
	environment, deployment := in.Environment, in.Name
	switch in.Kind {
	case policy.WaitForEnvironment:
		environment, deployment = in.Name, in.Deployment
	case policy.WaitForDeployment:
	case policy.WaitForTarget, policy.WaitForPolicy:
		return DependencyOutput{}, invalid(fmt.Errorf("activities: a %s is waited for inside of the rollout", in.Kind))
	}
	r, err := a.Log.LastRecord(ctx, environment, deployment)
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return DependencyOutput{}, fmt.Errorf("activities: look whether %s %q has succeeded: %w", in.Kind, in.Name, err)
	}
	var out DependencyOutput
	why := ""
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		why = "it has had no rollout yet"
	case r.Of != "":
		why = fmt.Sprintf("its last rollout, of %s, was taken back", r.Version)
	case r.Version != in.Version:
		why = fmt.Sprintf("its last rollout is of %s, wanted is %s", r.Version, in.Version)
	case in.Kind == policy.WaitForEnvironment && r.State != string(policy.EndSucceeded), !standing(r.State):
		why = fmt.Sprintf("its rollout of %s is %s", r.Version, r.State)
	case in.Kind == policy.WaitForEnvironment:
		if back := takenBack(r.Targets); back != "" {
			why = fmt.Sprintf("in its rollout of %s, %s went back", r.Version, back)
			break
		}
		if !slices.ContainsFunc(r.Targets, succeeded) {
			why = fmt.Sprintf("its rollout of %s succeeded on no target", r.Version)
			break
		}
		out.Met = in.Targets
	default:
		done := map[string]bool{}
		for _, t := range r.Targets {
			done[t.Name] = succeeded(t)
		}
		for _, name := range in.Targets {
			if done[name] {
				out.Met = append(out.Met, name)
			}
		}
		why = fmt.Sprintf("its rollout of %s has succeeded on %d of the %d targets that wait", r.Version, len(out.Met), len(in.Targets))
	}
	if slices.Equal(out.Met, in.Met) {
		if why == "" {
			why = "it is met, and looked after as long as targets wait"
		}
		return DependencyOutput{}, temporal.NewApplicationErrorWithOptions(fmt.Sprintf("waiting for %s %q: %s", in.Kind, in.Name, why), TypeRunning,
			temporal.ApplicationErrorOptions{NextRetryDelay: dependencyPause, Category: temporal.ApplicationErrorCategoryBenign})
	}
	return out, nil
}

// standing reports whether what a rollout in this state has done is meant to stay.
func standing(state string) bool {
	return slices.Contains([]string{"Planned", "AwaitingApproval", "Running", "Paused", string(policy.EndSucceeded), string(policy.EndSucceededWithFailures)}, state)
}

func succeeded(t ledger.TargetRecord) bool {
	state := policy.TargetState(t.State)
	return state == policy.Succeeded || state == policy.NoChange
}

// takenBack names a target that went back, or nothing.
func takenBack(targets []ledger.TargetRecord) string {
	for _, t := range targets {
		if t.State == string(policy.RolledBack) {
			return t.Name
		}
	}
	return ""
}
