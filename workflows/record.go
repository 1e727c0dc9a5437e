package workflows

import (
	"slices"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// remember queues targets for the ledger.
func (r *rollout) remember(targets []TargetOutcome) {
	for _, t := range targets {
		if t.Started == 0 && !t.Reached && t.State == policy.Pending {
			continue
		}
		r.toRecord = append(r.toRecord, activities.TargetRecord{Name: t.Name, Wave: t.Wave, State: string(t.State), Reached: t.Reached, From: t.From, FromKnown: t.FromKnown, Reason: t.Reason})
	}
}

// recordTargets is how many targets one record carries: with everything as long as it may be, about 150 KiB.
const recordTargets = 250

// record writes what has changed to the ledger, some targets at a time, and waits until it is written.
// Records are written one after the other, so that none overtakes an earlier one.
func (r *rollout) record(ctx workflow.Context) error {
	if err := workflow.Await(ctx, func() bool { return !r.recording }); err != nil {
		return err
	}
	r.recording = true
	defer func() { r.recording = false }()
	for {
		n := min(len(r.toRecord), recordTargets)
		targets := slices.Clone(r.toRecord[:n])
		r.toRecord = r.toRecord[n:]
		r.sequence++
		p := r.progress.Plan
		rec := activities.RolloutRecord{Rollout: r.in.Rollout, Of: r.in.Of, Environment: r.in.Environment, Deployment: r.in.Deployment, Version: r.in.Version.Name, State: string(r.phase),
			Cause: clip(r.reason, 500), By: r.in.By, Sequence: r.sequence, BundleDigest: p.BundleDigest, SnapshotDigest: p.SnapshotDigest, PlanDigest: p.Digest,
			StartedAt: r.started, EndedAt: r.ended, Targets: targets}
		if err := workflow.ExecuteActivity(bookkeeping(ctx, "Record "+string(r.phase)), acts.Record, rec).Get(ctx, nil); err != nil {
			return err
		}
		if len(r.toRecord) == 0 {
			return nil
		}
	}
}
