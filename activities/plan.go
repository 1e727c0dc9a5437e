package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// PlanInput asks for a plan.
type PlanInput struct {
	Request policy.Request `json:"request"`
	// Want is the digest that the starter saw; empty: none was seen.
	Want string `json:"want,omitempty"`
}

// PlanOutput is the plan's summary, or why there is none.
type PlanOutput struct {
	Plan policy.Plan `json:"plan"`
	// Refused says why nothing may start; empty if the plan stands.
	Refused string `json:"refused,omitempty"`
	// TimeScale is the worker's; the plan has its times as written.
	TimeScale policy.TimeScale `json:"timeScale,omitempty"`
}

// MakePlan plans a request from stored documents and stores plan and snapshot by digest. Idempotent.
func (a *Activities) MakePlan(ctx context.Context, in PlanInput) (PlanOutput, error) {
	defer heartbeat(ctx)()
	documents, err := a.Blobs.Blob(ctx, ledger.Bundle, in.Request.BundleDigest)
	if err != nil {
		if errors.Is(err, ledger.ErrNotFound) {
			return PlanOutput{Refused: fmt.Sprintf("the documents %s are not in this worker's ledger; start with -f again", in.Request.BundleDigest)}, nil
		}
		return PlanOutput{}, fmt.Errorf("activities: read the documents: %w", err)
	}
	p, err := a.Plan(ctx, documents, in.Request)
	var faults policy.Faults
	if errors.As(err, &faults) {
		return PlanOutput{Refused: clip(faults.Error(), 4000)}, nil
	}
	if err != nil {
		return PlanOutput{}, fmt.Errorf("activities: plan: %w", err)
	}
	for _, m := range p.Plan.Metrics {
		if missing := a.Connections.Missing(m.Metric); missing != "" {
			return PlanOutput{Refused: fmt.Sprintf("policy %q metric %q: %s", m.Policy, m.Metric.Name, missing)}, nil
		}
	}
	if in.Want != "" && in.Want != p.Plan.Digest {
		return PlanOutput{Refused: fmt.Sprintf("this worker plans %s where the starter saw %s; bring both to one version of sluice and start again", p.Plan.Digest, in.Want)}, nil
	}
	if err := a.store(ctx, ledger.Snapshot, p.Plan.SnapshotDigest, p.Snapshot); err != nil {
		return PlanOutput{}, err
	}
	if err := a.store(ctx, ledger.Plan, p.Plan.Digest, p.Plan); err != nil {
		return PlanOutput{}, err
	}
	a.plans.keep(p.Plan.Digest, index(p))
	return PlanOutput{Plan: p.Plan.Summary(), TimeScale: a.TimeScale}, nil
}

func (a *Activities) store(ctx context.Context, kind, key string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("activities: store %s %s: %w", kind, key, err)
	}
	if err := a.Blobs.PutBlob(ctx, kind, key, data); err != nil {
		return fmt.Errorf("activities: store %s %s: %w", kind, key, err)
	}
	return nil
}

// clip shortens text to at most n bytes, marking that it did.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return text[:n-1] + "…"
}

// LoadPlan returns the summary of a stored plan. Idempotent and read-only.
func (a *Activities) LoadPlan(ctx context.Context, digest string) (policy.Plan, error) {
	defer heartbeat(ctx)()
	p, err := a.planned(ctx, digest)
	if err != nil {
		return policy.Plan{}, err
	}
	return p.plan.Summary(), nil
}

// WaveRef names a wave of a plan, or one of its batches.
type WaveRef struct {
	Plan string `json:"plan"`
	Wave int    `json:"wave"`
	// Batch is the batch, from 1; 0: the wave, without its targets where batches share them.
	Batch int `json:"batch,omitempty"`
}

// WaveSlice is what a Wave needs of the plan, with times as they are waited for.
type WaveSlice struct {
	// Wave has its targets, or those of the batch, with their metrics, without reasons.
	Wave policy.Wave `json:"wave"`
	// Budget is over the whole rollout.
	Budget   policy.Budget       `json:"budget"`
	Rollback policy.RollbackPlan `json:"rollback"`
	// CanReturn reports whether targets can go back at all.
	CanReturn bool `json:"canReturn"`
	// NoReturn says why they cannot.
	NoReturn string `json:"noReturn,omitempty"`
	// Uninstalls reports that a first install can be taken back.
	Uninstalls bool            `json:"uninstalls,omitempty"`
	Deadline   policy.Duration `json:"deadline"`
	// SoakChecks reports whether checks run while the wave soaks; ApplyChecks names targets' checks during apply.
	SoakChecks bool `json:"soakChecks,omitempty"`
	// Applied holds, for each metric of the plan, whether it is measured during apply.
	Applied []bool `json:"applied,omitempty"`
	// Paces and Dependencies are the plan's.
	Paces        []policy.Pace    `json:"paces,omitempty"`
	Dependencies []WaveDependency `json:"dependencies,omitempty"`
}

// WaveDependency is one of the plan's dependencies as a wave sees it.
type WaveDependency struct {
	Policy string                `json:"policy"`
	Name   string                `json:"name"`
	Kind   policy.DependencyKind `json:"kind"`
	// Here are the targets of the slice that must have succeeded, as indices.
	Here []int `json:"here,omitempty"`
}

// LoadWave returns a wave of a stored plan, or one batch of it. Idempotent and read-only.
func (a *Activities) LoadWave(ctx context.Context, ref WaveRef) (WaveSlice, error) {
	defer heartbeat(ctx)()
	p, err := a.planned(ctx, ref.Plan)
	if err != nil {
		return WaveSlice{}, err
	}
	if ref.Wave < 1 || ref.Wave > len(p.plan.Waves) {
		return WaveSlice{}, invalid(fmt.Errorf("activities: plan %s has no wave %d", ref.Plan, ref.Wave))
	}
	wave := p.plan.Waves[ref.Wave-1]
	if ref.Batch < 0 || ref.Batch > wave.Batches {
		return WaveSlice{}, invalid(fmt.Errorf("activities: wave %d of plan %s has no batch %d", ref.Wave, ref.Plan, ref.Batch))
	}
	all := wave.Targets
	if ref.Batch > 0 {
		from, to := wave.Batch(ref.Batch)
		all = all[from:to]
	}
	out := WaveSlice{Wave: wave, Budget: p.plan.Budget, Rollback: p.plan.Rollback, CanReturn: p.plan.NoReturn == "", NoReturn: p.plan.NoReturn, Uninstalls: p.plan.Step.Uninstalls, Deadline: p.plan.Step.Deadline}
	out.Wave.Soak = a.TimeScale.Duration(out.Wave.Soak)
	for _, pace := range p.plan.Paces {
		pace.Interval = a.TimeScale.Duration(pace.Interval)
		out.Paces = append(out.Paces, pace)
	}
	shared := wave.Batches > 0 && ref.Batch == 0
	at := make(map[string]int, len(all))
	for i, t := range all {
		if !shared {
			at[t.Name] = i
		}
	}
	for _, d := range p.plan.Dependencies {
		one := WaveDependency{Policy: d.Policy, Name: d.Name, Kind: d.Kind}
		for _, name := range d.Targets {
			if i, here := at[name]; here {
				one.Here = append(one.Here, i)
			}
		}
		out.Dependencies = append(out.Dependencies, one)
	}
	targets := make([]policy.PlannedTarget, len(all))
	for i, t := range all {
		targets[i] = policy.PlannedTarget{Name: t.Name, Metrics: t.Metrics, Pace: t.Pace, After: t.After}
		for _, m := range t.Metrics {
			out.SoakChecks = out.SoakChecks || measuredIn(p.plan.Metrics[m].Metric, policy.DuringSoak)
		}
	}
	if out.Wave.Targets = targets; shared {
		out.Wave.Targets = nil
	}
	for _, m := range p.plan.Metrics {
		out.Applied = append(out.Applied, measuredIn(m.Metric, policy.DuringApply))
	}
	return out, nil
}

func measuredIn(m policy.Metric, when policy.During) bool {
	return m.During == policy.DuringBoth || m.During == when || (m.During == "" && when == policy.DuringApply)
}

// TargetRef names a target of a plan.
type TargetRef struct {
	Plan   string `json:"plan"`
	Target string `json:"target"`
}

// FindTarget returns the number of the wave that holds a target, or 0. Idempotent and read-only.
func (a *Activities) FindTarget(ctx context.Context, ref TargetRef) (int, error) {
	defer heartbeat(ctx)()
	p, err := a.planned(ctx, ref.Plan)
	if err != nil {
		return 0, err
	}
	return p.targets[ref.Target].wave, nil
}
