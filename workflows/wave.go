package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// WaveInput opens a wave.
type WaveInput struct {
	Subject Subject `json:"subject"`
	Wave    int     `json:"wave"`
	// Control is what holds when it opens.
	Control policy.Control `json:"control"`
	// Before is what earlier waves have used of the rollout's budget.
	Before policy.WaveCounts `json:"before"`
	// Skips are the targets that a person left out before the wave opened.
	Skips []Order `json:"skips,omitempty"`
	// Paced is when the newest target of each of the plan's paces started, in earlier waves.
	Paced []time.Time `json:"paced,omitempty"`
	// Tells is how many reports the wave may send about nothing but what targets wait for.
	Tells int `json:"tells,omitempty"`
	// Batches is how many workflows share the wave's targets; 0: it has them itself.
	Batches int `json:"batches,omitempty"`
}

// WaveResult is how a wave ended.
type WaveResult struct {
	Phase   policy.WavePhase  `json:"phase"`
	Reason  string            `json:"reason,omitempty"`
	Counts  policy.WaveCounts `json:"counts"`
	Targets []TargetOutcome   `json:"targets"`
	// Answers are what became of the last orders: one may end the wave before a report could tell.
	Answers []OrderAnswer `json:"answers,omitempty"`
	// Paced is when the newest target of each of the plan's paces started.
	Paced []time.Time `json:"paced,omitempty"`
	// Opened is how many batches it had; Lost are those of which the Rollout was not told what came of their targets.
	Opened int   `json:"opened,omitempty"`
	Lost   []int `json:"lost,omitempty"`
}

// Wave changes the targets of one wave, as many at a time as its concurrency and budgets allow, and soaks. It ends when
// it is done, over its budget, without a success, or stopped with nothing in flight.
func Wave(cancellable workflow.Context, in WaveInput) (WaveResult, error) {
	ctx, _ := workflow.NewDisconnectedContext(cancellable)
	if in.Batches > 0 {
		return waveOfBatches(cancellable, ctx, in)
	}
	w := &walk{subject: in.Subject, number: in.Wave, verify: true, id: WaveID(in.Subject.Environment, in.Subject.Deployment, in.Subject.Rollout, in.Wave)}
	w.state.Control, w.state.Before, w.teller.tells = in.Control, in.Before, in.Tells
	if err := w.setup(cancellable, ctx); err != nil {
		return WaveResult{}, err
	}
	read, err := w.load(ctx, activities.WaveRef{Plan: in.Subject.Plan, Wave: in.Wave}, fmt.Sprintf("Read wave %d of the plan", in.Wave))
	if err != nil {
		return WaveResult{}, err
	}
	if !read {
		return WaveResult{Phase: policy.WaveStopped, Reason: stoppedEarly}, nil
	}
	w.begin(ctx, in.Paced, in.Skips)
	if err := w.settle(ctx); err != nil {
		return WaveResult{}, err
	}
	return w.result(ctx), nil
}

// stoppedEarly is why a wave has started nothing that was stopped before it knew its targets.
const stoppedEarly = "stopped before it had begun"

// load reads the walk's part of the plan, and reports false when a stop came first.
func (w *walk) load(ctx workflow.Context, ref activities.WaveRef, summary string) (bool, error) {
	return readWave(ctx, ref, summary, &w.slice, func() bool { return w.state.Control == policy.ControlStop || w.state.Breached != "" })
}

// readWave reads a part of the plan. A stop does not wait for the ledger, since nothing has been started yet: read is then
// false.
func readWave(ctx workflow.Context, ref activities.WaveRef, summary string, into *activities.WaveSlice, stopped func() bool) (read bool, err error) {
	workflow.Go(ctx, func(ctx workflow.Context) {
		err = workflow.ExecuteActivity(bookkeeping(ctx, summary), acts.LoadWave, ref).Get(ctx, into)
		read = true
	})
	if waitErr := workflow.Await(ctx, func() bool { return read || stopped() }); waitErr != nil {
		return false, waitErr
	}
	return read, err
}

// begin takes the targets of the walk's part of the plan. last is when the newest target of each pace started so far.
func (w *walk) begin(ctx workflow.Context, last []time.Time, skips []Order) {
	wave := w.slice.Wave
	w.state.MaxConcurrency, w.state.MaxUnpaced, w.state.Budget, w.state.Rollout = wave.MaxConcurrency, wave.MaxUnpaced, &wave.Budget, &w.slice.Budget
	for _, t := range wave.Targets {
		w.state.Targets = append(w.state.Targets, policy.TargetProgress{Name: t.Name, State: policy.Pending, Metrics: t.Metrics, Pace: t.Pace, After: t.After})
		w.details = append(w.details, targetDetail{wave: w.number})
	}
	w.pace(last)
	w.depend(ctx)
	for _, o := range skips {
		w.obey(ctx, o)
	}
}

// result is how the walk ended.
func (w *walk) result(ctx workflow.Context) WaveResult {
	w.show(ctx)
	r := WaveResult{Phase: w.phase, Reason: clip(w.reason, maxReason), Counts: w.state.Count(), Targets: w.outcomes(), Answers: w.answers}
	for _, p := range w.state.Paces {
		r.Paced = append(r.Paced, p.Last)
	}
	return r
}

// soak is the time in which a wave must run cleanly.
type soak struct {
	over         bool
	since, until time.Time
}

// soakOver reports whether the wave has soaked, and begins the soak when it has not begun. It runs from the moment the
// last target is terminal, on through a pause; failures within budget do not restart it, a target tried again does.
func (w *walk) soakOver(ctx workflow.Context) bool {
	if w.restores || w.slice.Wave.Soak == 0 && !w.slice.SoakChecks {
		return true
	}
	if w.soak == nil {
		since := workflow.Now(ctx)
		s := &soak{until: since.Add(time.Duration(w.slice.Wave.Soak))}
		w.soak = s
		workflow.Go(ctx, func(ctx workflow.Context) {
			if w.slice.SoakChecks {
				w.soakChecked(ctx, s, since)
			} else if err := workflow.NewTimerWithOptions(ctx, time.Duration(w.slice.Wave.Soak), workflow.TimerOptions{Summary: "Soak of wave " + w.slice.Wave.Name}).Get(ctx, nil); err != nil {
				workflow.GetLogger(ctx).Warn("The soak's timer ended early", "error", err)
				return
			}
			s.over = true
			w.changed = true
		})
	}
	return w.soak.over
}

// soakChecked measures the wave's targets until its soak ends. A target that fails is failed; one that comes to no
// conclusion makes the wave hold.
func (w *walk) soakChecked(ctx workflow.Context, s *soak, since time.Time) {
	ended := func() bool { return w.state.Control == policy.ControlStop || w.state.Breached != "" || w.soak != s }
	in := activities.CheckInput{Plan: w.subject.Plan, Version: w.subject.Version, During: policy.DuringSoak, Since: since, Until: s.until}
	for i, t := range w.state.Targets {
		if t.State == policy.Succeeded || t.State == policy.NoChange {
			in.Targets = append(in.Targets, activities.CheckedTarget{Name: t.Name, Baselines: w.details[i].baselines})
		}
	}
	for len(in.Targets) > 0 && !ended() {
		var out activities.CheckOutput
		var err error
		stoppable, cancel := workflow.WithCancel(ctx)
		done := false
		workflow.Go(stoppable, func(ctx workflow.Context) {
			err = workflow.ExecuteActivity(checking(ctx, ControlQueue, "Check the wave while it soaks"), acts.Check, in).Get(ctx, &out)
			done = true
		})
		if waitErr := workflow.Await(ctx, func() bool { return done || ended() }); waitErr != nil {
			err = waitErr
		}
		cancel()
		if !done {
			return
		}
		if err != nil {
			for _, t := range in.Targets {
				w.judged(ctx, activities.CheckVerdict{Target: t.Name, Verdict: policy.VerdictError, Reason: "its checks could not be carried out: " + cause(err)})
			}
			w.changed = true
			break
		}
		for _, v := range out.Changed {
			w.judged(ctx, v)
		}
		w.changed = true
		if out.Ended {
			return
		}
		in.Targets = out.Targets
	}
	if left := s.until.Sub(workflow.Now(ctx)); left > 0 && !ended() {
		// Each target is decided; the rest of the soak is time.
		if err := workflow.Sleep(ctx, left); err != nil {
			workflow.GetLogger(ctx).Warn("The soak's timer ended early", "error", err)
		}
	}
}

// judged takes a soak's verdict on one target.
func (w *walk) judged(ctx workflow.Context, v activities.CheckVerdict) {
	for i := range w.state.Targets {
		t := &w.state.Targets[i]
		if t.Name != v.Target || t.InFlight || (t.State != policy.Succeeded && t.State != policy.NoChange) {
			continue
		}
		t.Reason = clip("while the wave soaked: "+v.Reason, maxReason)
		if v.Verdict != policy.VerdictFailed {
			t.State, t.Held = policy.Waiting, true
			continue
		}
		t.State, t.Counted = policy.Failed, true
		w.goBack(ctx, i)
	}
}
