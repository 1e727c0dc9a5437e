package workflows

import (
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// A Wave without batches tells its Rollout of its targets itself. Batches tell it directly: what they have let go once they are
// stopped, and what came of each target when they end, since all of a wave would be more than one message may hold.

// batchView is one batch as the Rollout knows it.
type batchView struct {
	report  Report // the newest, once it was stopped
	outcome *BatchOutcome
	lost    bool // nothing more is expected of it
}

// heardBatch takes what a stopped batch has let go.
func (r *rollout) heardBatch(report Report) {
	if view := r.viewOf(report.Wave, report.Batch); view != nil && report.Sequence > view.report.Sequence {
		view.report = report
	}
}

// batchEnded takes what came of a batch's targets.
func (r *rollout) batchEnded(o BatchOutcome) {
	if view := r.viewOf(o.Wave, o.Batch); view != nil && view.outcome == nil && !view.lost {
		view.outcome = &o
		r.changed = true
	}
}

// viewOf returns a batch of an open wave, or nil.
func (r *rollout) viewOf(wave, batch int) *batchView {
	if wave < 1 || wave > len(r.batched) || batch < 1 || batch > len(r.batched[wave-1]) || !r.progress.Waves[wave-1].Open {
		return nil
	}
	return &r.batched[wave-1][batch-1]
}

// released reports whether an open wave has stopped starting, and which targets to bring back are not in flight in it.
func (r *rollout) released(i int) (stopped bool, reached []TargetOutcome) {
	if len(r.batched[i]) == 0 || r.reports[i].Stopped {
		return r.reports[i].Stopped, r.reports[i].Reached
	}
	stopped = true
	for n, view := range r.batched[i] {
		first := len(reached)
		switch {
		case view.outcome != nil:
			reached = append(reached, view.outcome.Targets...)
		case view.report.Stopped:
			reached = append(reached, view.report.Reached...)
		case view.lost:
		default:
			stopped = false
		}
		r.ordered(i, n, reached[first:])
	}
	return stopped, reached
}

// ordered makes the places that targets have in their batch's order of starts places in the wave's: those that began in the
// same moment stand in the order of the batches.
func (r *rollout) ordered(i, batch int, targets []TargetOutcome) {
	from, _ := r.progress.Plan.Waves[i].Batch(batch + 1)
	for n := range targets {
		if targets[n].Started > 0 {
			targets[n].Started += from
		}
	}
}

// flyingIn names the first targets that are in flight in an open wave that was stopped.
func (r *rollout) flyingIn(i int) []string {
	out := slices.Clone(r.reports[i].InFlight)
	for _, view := range r.batched[i] {
		if view.outcome == nil {
			out = append(out, view.report.InFlight...)
		}
	}
	return out
}

// gather puts together what came of the targets of a wave of batches. Those of a lost batch may have been reached, all of
// them.
func (r *rollout) gather(ctx workflow.Context, i int, opened int, lost []int) ([]TargetOutcome, error) {
	for _, n := range lost {
		r.batched[i][n-1].lost = r.batched[i][n-1].outcome == nil
	}
	// A batch's word is under way to us before its wave can end.
	if err := workflow.Await(ctx, func() bool {
		return !slices.ContainsFunc(r.batched[i][:opened], func(view batchView) bool { return view.outcome == nil && !view.lost })
	}); err != nil {
		return nil, err
	}
	return r.together(ctx, i, opened)
}

// together lists the outcomes of the first batches of a wave, those that have none as lost.
func (r *rollout) together(ctx workflow.Context, i int, batches int) ([]TargetOutcome, error) {
	var out []TargetOutcome
	var last int64
	for n := range batches {
		first := len(out)
		if o := r.batched[i][n].outcome; o != nil {
			out = append(out, o.Targets...)
			r.ordered(i, n, out[first:])
			for _, t := range o.Targets {
				last = max(last, t.Begun)
			}
			continue
		}
		slice, err := r.loadBatch(ctx, i, n+1)
		if err != nil {
			return nil, err
		}
		out = append(out, lostTargets(i, first, slice.Wave.Targets, "batch")...)
		for k := range out[first:] {
			out[first+k].Begun = last // when they began is not known: after the batches before
		}
	}
	return out, nil
}

// lostBatches takes a wave that was ended from outside. Its batches were told to stop by that: what they still say is known.
func (r *rollout) lostBatches(ctx workflow.Context, i, batches int) {
	if _, err := workflow.AwaitWithOptions(ctx, workflow.AwaitOptions{Timeout: lastWords, TimerOptions: workflow.TimerOptions{Summary: "Hear what its batches say"}}, func() bool {
		return !slices.ContainsFunc(r.batched[i], func(view batchView) bool { return view.outcome == nil })
	}); err != nil {
		workflow.GetLogger(ctx).Error("The wait for the batches of a lost wave ended early", "error", err)
	}
	for n := range r.batched[i] {
		r.batched[i][n].lost = r.batched[i][n].outcome == nil
	}
	r.changed = true // what is known goes back, whether the ledger can list the others or not
	targets, err := r.together(ctx, i, batches)
	if err != nil {
		workflow.GetLogger(ctx).Error("The targets of a lost wave could not be listed", "error", err)
		return
	}
	r.outcomes[i] = targets
}

// lastWords is how long the batches of a lost wave may take to say what came of their targets: a step or two.
const lastWords = time.Minute

// lostTargets lists targets of which nothing is known, as ones that a person must look at.
func lostTargets(wave, before int, targets []policy.PlannedTarget, of string) []TargetOutcome {
	var out []TargetOutcome
	for n, t := range targets {
		out = append(out, TargetOutcome{Name: t.Name, Wave: wave + 1, State: policy.NeedsRecovery, Started: before + n + 1, Reached: true, Counted: true,
			Reason: fmt.Sprintf("the workflow of its %s was ended from outside: whether it was changed is not known", of)})
	}
	return out
}

func (r *rollout) loadBatch(ctx workflow.Context, i, batch int) (slice activities.WaveSlice, err error) {
	summary := fmt.Sprintf("Read wave %d of the plan", i+1)
	if batch > 0 {
		summary = fmt.Sprintf("Read batch %d of wave %d", batch, i+1)
	}
	err = workflow.ExecuteActivity(bookkeeping(ctx, summary), acts.LoadWave, activities.WaveRef{Plan: r.progress.Plan.Digest, Wave: i + 1, Batch: batch}).Get(ctx, &slice)
	return slice, err
}

// loadWave reads a whole wave of the plan, batch after batch where it has any.
func (r *rollout) loadWave(ctx workflow.Context, i int) (activities.WaveSlice, error) {
	batches := r.progress.Plan.Waves[i].Batches
	if batches == 0 {
		return r.loadBatch(ctx, i, 0)
	}
	var whole activities.WaveSlice
	for n := range batches {
		part, err := r.loadBatch(ctx, i, n+1)
		if err != nil {
			return activities.WaveSlice{}, err
		}
		if n == 0 {
			whole = part
			continue
		}
		before := len(whole.Wave.Targets)
		whole.Wave.Targets = append(whole.Wave.Targets, part.Wave.Targets...)
		for k, d := range part.Dependencies {
			for _, at := range d.Here {
				whole.Dependencies[k].Here = append(whole.Dependencies[k].Here, before+at)
			}
		}
	}
	return whole, nil
}
