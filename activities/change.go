package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// ChangeRef names one change of one target; the activity builds the change itself from the stored plan.
type ChangeRef struct {
	Plan    string `json:"plan"`
	Rollout string `json:"rollout"`
	Target  string `json:"target"`
	// Direction, Version and From are as in executors.Change.
	Direction executors.Direction `json:"direction"`
	Version   string              `json:"version"`
	From      string              `json:"from,omitempty"`
	// Operation is the idempotency key; reads may leave it out.
	Operation string `json:"operation,omitempty"`
}

// Observed is what a target says before its change.
type Observed struct {
	Reading executors.Reading `json:"reading"`
	// Baselines are the values of metrics that compare with the time before the change, by metric index.
	Baselines map[int]map[string]any `json:"baselines,omitempty"`
	// Portable reports that the baselines are small enough to be passed on to the wave's soak.
	Portable bool `json:"portable,omitempty"`
}

// AwaitInput asks what became of a change.
type AwaitInput struct {
	Change ChangeRef        `json:"change"`
	Ticket executors.Ticket `json:"ticket,omitzero"`
}

// change builds the change and finds its executor.
func (a *Activities) change(ctx context.Context, ref ChangeRef) (executors.Executor, executors.Change, *planned, error) {
	p, err := a.planned(ctx, ref.Plan)
	if err != nil {
		return nil, executors.Change{}, nil, err
	}
	t, ok := p.targets[ref.Target]
	if !ok {
		return nil, executors.Change{}, nil, invalid(fmt.Errorf("activities: plan %s has no target %q", ref.Plan, ref.Target))
	}
	if ref.Direction == executors.Restore && ref.Version == "" && !p.plan.Step.Uninstalls {
		return nil, executors.Change{}, nil, invalid(fmt.Errorf("activities: nothing was installed on target %q before, and step %q cannot uninstall", ref.Target, p.plan.Step.Name))
	}
	e, err := a.Executors.Find(p.plan.Step.Kind)
	if err != nil {
		return nil, executors.Change{}, nil, invalid(err)
	}
	c := executors.Change{Operation: ref.Operation, Direction: ref.Direction, Target: t.target, Deployment: p.plan.Deployment,
		Environment: p.plan.Environment, Version: ref.Version, From: ref.From}
	// Artifacts and parameters belong to the rollout's version, not to the one that a target returns to.
	version := policy.Version{Name: ref.Version}
	if ref.Direction == executors.Apply {
		version = p.plan.Version
		c.Artifacts, c.Params = version.Artifacts, version.Params
	}
	c.Config, err = a.Evaluator.RenderJSON(p.plan.Step.Config, vars(p.plan, t.target, version), nil)
	if err != nil {
		return nil, executors.Change{}, nil, invalid(fmt.Errorf("activities: step %q on target %q: %w", p.plan.Step.Name, ref.Target, err))
	}
	return e, c, p, nil
}

// vars are what templates and conditions may name.
func vars(p policy.Plan, t inventory.Target, v policy.Version) map[string]any {
	target := map[string]any{"name": t.Name, "kind": t.Kind, "identifier": t.Identifier, "version": t.Version,
		"metadata": mapOr(t.Metadata), "labels": mapOr(t.Metadata), "config": mapOr(t.Config)}
	return map[string]any{
		"target": target, "resource": target,
		"environment": map[string]any{"name": p.Environment},
		"deployment":  map[string]any{"name": p.Deployment},
		"version":     map[string]any{"name": v.Name, "tag": v.Name, "artifacts": anyMap(v.Artifacts), "params": anyMap(v.Params)},
	}
}

func mapOr(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

func anyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

func (a *Activities) at(point, target string) {
	if a.At != nil {
		a.At(point, target)
	}
}

func (a *Activities) now() time.Time {
	if a.Now != nil {
		return a.Now()
	}
	return time.Now()
}

// maxVersion is the longest version that is believed: longer than any tag or digest, and short enough that those of 500
// targets fit one payload.
const maxVersion = 128

// Observe reads the version that runs on a target, and the baselines of its metrics. Idempotent and read-only.
func (a *Activities) Observe(ctx context.Context, ref ChangeRef) (Observed, error) {
	a.at("observe.begin", ref.Target)
	defer heartbeat(ctx)()
	e, c, p, err := a.change(ctx, ref)
	if err != nil {
		return Observed{}, err
	}
	reading, err := e.Observe(ctx, c)
	if err != nil {
		return Observed{}, classify(err)
	}
	if len(reading.Version) > maxVersion {
		return Observed{}, invalid(fmt.Errorf("activities: target %q says that it runs a version of %d bytes; more than %d are no version", ref.Target, len(reading.Version), maxVersion))
	}
	reading.Detail = clip(reading.Detail, 500)
	out := Observed{Reading: reading}
	if ref.Direction == executors.Apply && (!reading.Known || reading.Version != ref.Version) {
		out.Baselines = a.baselines(ctx, p, p.targets[ref.Target])
		out.Portable = portable(out.Baselines)
	}
	a.at("observe.end", ref.Target)
	return out, nil
}

// Submit asks for a change, once. It is NOT idempotent: its scheduled event is the intent, it is never retried, and
// when its answer is lost Await finds out what became of it.
func (a *Activities) Submit(ctx context.Context, ref ChangeRef) (executors.Ticket, error) {
	a.at("submit.begin", ref.Target)
	defer heartbeat(ctx)()
	e, c, _, err := a.change(ctx, ref)
	if err != nil {
		return executors.Ticket{}, err
	}
	if err := a.mayAsk(ctx, ref); err != nil {
		return executors.Ticket{}, err
	}
	ticket, err := e.Submit(ctx, c)
	a.at("submit.asked", ref.Target)
	if err != nil {
		return executors.Ticket{}, classify(err)
	}
	return ticket, nil
}

// awaitFor is how long one call of Await follows an operation before it gives its slot back: most operations of a
// script or a sync end within it, and a longer one is looked at every awaitPause.
const awaitFor = time.Minute

// Await follows a change to its end, adopting it if the ticket was lost. Idempotent: another worker may go on with it.
func (a *Activities) Await(ctx context.Context, in AwaitInput) (executors.Result, error) {
	a.at("await.begin", in.Change.Target)
	defer heartbeat(ctx)()
	e, c, _, err := a.change(ctx, in.Change)
	if err != nil {
		return executors.Result{}, err
	}
	limited, cancel := untilWorkerStops(ctx, awaitFor)
	defer cancel()
	r, err := e.Await(limited, c, in.Ticket)
	if err != nil && limited.Err() != nil && ctx.Err() == nil && !errors.Is(err, executors.ErrRunning) {
		err = fmt.Errorf("%w: %w", executors.ErrRunning, err)
	}
	a.at("await.end", in.Change.Target)
	return r, classify(err)
}

// Verify reads the target back and says whether the wanted version runs on it. Idempotent and read-only.
func (a *Activities) Verify(ctx context.Context, ref ChangeRef) (executors.Result, error) {
	a.at("verify.begin", ref.Target)
	defer heartbeat(ctx)()
	e, c, _, err := a.change(ctx, ref)
	if err != nil {
		return executors.Result{}, err
	}
	r, err := e.Verify(ctx, c)
	a.at("verify.end", ref.Target)
	return r, classify(err)
}

// untilWorkerStops bounds ctx by a time and by the worker's own end, so that a stopping worker hands its work over at
// once instead of letting it time out.
func untilWorkerStops(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(ctx, d)
	if !activity.IsActivity(ctx) {
		return limited, cancel
	}
	stopping := activity.GetWorkerStopChannel(ctx)
	go func() {
		select {
		case <-stopping:
			cancel()
		case <-limited.Done():
		}
	}()
	return limited, cancel
}

// heartbeat tells the server every two seconds that the activity lives, until stop is called. Every activity that has a
// heartbeat timeout needs it: a check script or a busy ledger may take longer than that.
func heartbeat(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	if !activity.IsActivity(ctx) {
		return cancel
	}
	go func() {
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				activity.RecordHeartbeat(ctx)
			}
		}
	}()
	return cancel
}
