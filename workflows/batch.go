package workflows

import (
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// BatchInput opens a batch of a wave.
type BatchInput struct {
	Subject Subject `json:"subject"`
	Wave    int     `json:"wave"`
	Batch   int     `json:"batch"`
	// Control, Before, Skips and Tells are as in WaveInput.
	Control policy.Control    `json:"control"`
	Before  policy.WaveCounts `json:"before"`
	Skips   []Order           `json:"skips,omitempty"`
	Tells   int               `json:"tells,omitempty"`
	// Lease is the wave's first word to it.
	Lease Lease `json:"lease"`
}

// BatchResult is how a batch ended. What came of its targets its Rollout hears from it alone.
type BatchResult struct {
	Report BatchReport `json:"report"`
	// Unsent reports that the Rollout could not be told what came of the targets.
	Unsent bool `json:"unsent,omitempty"`
}

// BatchOutcome is what came of a batch's targets.
type BatchOutcome struct {
	Wave    int             `json:"wave"`
	Batch   int             `json:"batch"`
	Targets []TargetOutcome `json:"targets,omitempty"`
}

// Lease is what a wave tells one of its batches: cumulative, so that a later one replaces an earlier one.
type Lease struct {
	Sequence int `json:"sequence"`
	// Granted is how many slots the batch was ever given.
	Granted int           `json:"granted"`
	Beside  policy.Beside `json:"beside"`
	// Paced is when the newest target of each of the plan's paces started, in any batch.
	Paced []time.Time `json:"paced,omitempty"`
	// Ask wants a report that takes this lease into account.
	Ask bool `json:"ask,omitempty"`
	// Soak counts the wave's soaks: each has its targets measured from SoakSince to SoakUntil. 0: none has begun.
	Soak      int       `json:"soak,omitempty"`
	SoakSince time.Time `json:"soakSince,omitzero"`
	SoakUntil time.Time `json:"soakUntil,omitzero"`
	// Close ends the batch.
	Close bool `json:"close,omitempty"`
}

// BatchReport is what a batch tells its wave: cumulative.
type BatchReport struct {
	Batch    int `json:"batch"`
	Sequence int `json:"sequence"`
	// Seen is the newest lease that is taken into account, Asked the newest of those that wanted a report.
	Seen  int `json:"seen,omitempty"`
	Asked int `json:"asked,omitempty"`
	// Returned is how many slots it has given back, Room how many it could use.
	Returned int    `json:"returned,omitempty"`
	Room     int    `json:"room,omitempty"`
	Untried  int    `json:"untried,omitempty"`
	Held     int    `json:"held,omitempty"`
	Stuck    string `json:"stuck,omitempty"`
	// Uses, Flying and Turns are as in policy.BatchProgress.
	Uses   []bool `json:"uses,omitempty"`
	Flying []bool `json:"flying,omitempty"`
	Turns  []bool `json:"turns,omitempty"`
	// Paced is when the newest target of each pace started here.
	Paced []time.Time `json:"paced,omitempty"`
	// Waiters counts the targets that wait for each dependency, Standings say how those stand that are waited for.
	Waiters   []int             `json:"waiters,omitempty"`
	Standings []policy.Standing `json:"standings,omitempty"`
	// Soaked is the newest of the wave's soaks in which each target has been measured.
	Soaked int `json:"soaked,omitempty"`
	// Done is how many targets are terminal, Started how many were ever started.
	Done    int `json:"done,omitempty"`
	Started int `json:"started,omitempty"`
	// Report is what a wave would tell its Rollout of these targets.
	Report Report `json:"report"`
}

// share is what a walk is given as a batch of a wave.
type share struct {
	batch int
	lease Lease
	// asked is the newest lease that wanted a report.
	asked        int
	slots        policy.Share
	soak, soaked int // the newest soak that was begun, and ended
	report       BatchReport
	reporting    bool
	// over is how many targets were in flight beyond the slots at the last report: those on their way back.
	over int
	// flush is on while slots that were given back wait for a few more before they are told of.
	flush, overdue bool
}

// flushAfter is how long a slot that was given back may wait for others before the wave hears of it.
const flushAfter = time.Second

// Batch changes up to 500 targets of a larger wave, in the slots that its Wave leases to it. It stays open until the Wave
// closes it, is told to stop, or finds the budget exceeded by what it knows.
func Batch(cancellable workflow.Context, in BatchInput) (BatchResult, error) {
	ctx, _ := workflow.NewDisconnectedContext(cancellable)
	w := &walk{subject: in.Subject, number: in.Wave, verify: true, id: BatchID(in.Subject.Environment, in.Subject.Deployment, in.Subject.Rollout, in.Wave, in.Batch),
		share: &share{batch: in.Batch}}
	w.state.Control, w.state.Before, w.teller.tells = in.Control, in.Before, in.Tells
	w.leased(in.Lease)
	if err := w.setup(cancellable, ctx); err != nil {
		return BatchResult{}, err
	}
	leases := workflow.GetSignalChannelWithOptions(ctx, leaseSignal, workflow.SignalChannelOptions{Description: "Not for operators: the Wave gives out slots with it."})
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var l Lease
			leases.Receive(ctx, &l)
			w.leased(l)
		}
	})
	read, err := w.load(ctx, activities.WaveRef{Plan: in.Subject.Plan, Wave: in.Wave, Batch: in.Batch}, fmt.Sprintf("Read batch %d of wave %d", in.Batch, in.Wave))
	if err != nil {
		return BatchResult{}, err
	}
	if read {
		w.begin(ctx, in.Lease.Paced, in.Skips)
		if err := w.settle(ctx); err != nil {
			return BatchResult{}, err
		}
	} else {
		w.phase, w.reason = policy.WaveStopped, stoppedEarly
	}
	w.show(ctx)
	result := BatchResult{Report: w.batchReport(policy.WaveDecision{})}
	outcome := BatchOutcome{Wave: in.Wave, Batch: in.Batch, Targets: w.outcomes()}
	// The Rollout has it before the Wave hears of the end, and so before it hears that the Wave has ended.
	if err := workflow.SignalExternalWorkflow(ctx, RolloutID(in.Subject.Environment, in.Subject.Deployment), "", outcomeSignal, outcome).Get(ctx, nil); err != nil {
		workflow.GetLogger(ctx).Error("The rollout could not be told what came of a batch", "error", err)
		result.Unsent = true
	}
	return result, nil
}

// leased takes a lease.
func (w *walk) leased(l Lease) {
	s := w.share
	if l.Sequence <= s.lease.Sequence {
		return
	}
	s.lease = l
	if l.Ask {
		s.asked = l.Sequence
	}
	w.takePaces(l.Paced)
	w.changed = true
}

// takePaces takes when targets of the paces were started elsewhere.
func (w *walk) takePaces(last []time.Time) {
	for k := range min(len(last), len(w.state.Paces)) {
		if last[k].After(w.state.Paces[k].Last) {
			w.state.Paces[k].Last = last[k]
		}
	}
}

// takeShare brings what the walk decides from in line with its lease.
func (w *walk) takeShare() {
	if s := w.share; s != nil {
		w.state.Beside, s.slots.Granted = &s.lease.Beside, s.lease.Granted
		s.slots.Settle(&w.state)
	}
}

// soakShare measures the targets while the wave soaks.
func (w *walk) soakShare(ctx workflow.Context) {
	s := w.share
	if s == nil || s.lease.Soak <= s.soak {
		return
	}
	if s.soak = s.lease.Soak; !w.slice.SoakChecks {
		s.soaked = s.soak // nothing of it is measured
		return
	}
	number, one := s.soak, &soak{until: s.lease.SoakUntil}
	w.soak = one
	workflow.Go(ctx, func(ctx workflow.Context) {
		w.soakChecked(ctx, one, s.lease.SoakSince)
		s.soaked = max(s.soaked, number)
		w.changed = true
	})
}

// tellShare tells the wave how the batch stands, and, once it was stopped, the Rollout what it may bring back.
func (w *walk) tellShare(ctx workflow.Context, d policy.WaveDecision) {
	if w.state.Control == policy.ControlStop {
		w.tell(ctx)
	}
	s := w.share
	now := w.batchReport(d)
	if s.reporting {
		return
	}
	if !w.worthTelling(now) {
		w.flushLater(ctx, now)
		return
	}
	s.report, s.reporting, s.overdue, s.over = now, true, false, w.over()
	arrival := workflow.SignalExternalWorkflow(ctx, WaveID(w.subject.Environment, w.subject.Deployment, w.subject.Rollout, w.number), "", batchSignal, now)
	workflow.Go(ctx, func(ctx workflow.Context) {
		// An error means that the Wave is gone; a cancellation of this workflow is on its way.
		if err := arrival.Get(ctx, nil); err != nil {
			workflow.GetLogger(ctx).Warn("The wave could not be told how this batch stands", "error", err)
		}
		s.reporting = false
		w.changed = true
	})
}

// flushLater sees to it that slots that were given back are told of before long.
func (w *walk) flushLater(ctx workflow.Context, now BatchReport) {
	s := w.share
	if now.Returned == s.report.Returned || s.flush {
		return
	}
	s.flush = true
	workflow.Go(ctx, func(ctx workflow.Context) {
		if err := workflow.NewTimerWithOptions(ctx, flushAfter, workflow.TimerOptions{Summary: "Give slots back"}).Get(ctx, nil); err != nil {
			workflow.GetLogger(ctx).Warn("A timer ended early", "error", err)
		}
		s.flush, s.overdue = false, true
		w.changed = true
	})
}

// over is how many targets are in flight beyond the batch's slots.
func (w *walk) over() int { return max(0, w.state.Count().InFlight-w.state.MaxConcurrency) }

// batchReport is how the batch stands.
func (w *walk) batchReport(d policy.WaveDecision) BatchReport {
	s := w.share
	r := BatchReport{Batch: s.batch, Sequence: s.report.Sequence + 1, Seen: s.lease.Sequence, Asked: s.asked, Returned: s.slots.Returned, Room: w.state.Room(), Held: w.held(),
		Stuck: clip(d.Stuck, maxReason), Turns: s.lease.Beside.Turns, Waiters: d.Waiters, Soaked: s.soaked, Done: terminal(w.state.Targets), Started: w.started,
		Report: w.current()}
	r.Report.Answers = w.answers
	r.Report.Stopped, r.Report.Reached, r.Report.InFlight = false, nil, nil // that is for the Rollout
	r.Report.Waits = slices.DeleteFunc(slices.Clone(r.Report.Waits), func(w policy.Wait) bool { return w.Rule == "deploymentDependency" })
	r.Untried = w.state.Untried()
	for _, p := range w.state.Paces {
		r.Paced = append(r.Paced, p.Last)
	}
	if len(w.state.Paces) > 0 {
		r.Uses, r.Flying = w.state.Uses()
	}
	for n := range w.state.Dependencies {
		r.Standings = append(r.Standings, w.state.Standing(n))
	}
	return r
}

// worthTelling reports whether a report says enough that is new. What only changes counts waits for a twentieth of the
// targets, and slots that were given back for a twentieth of all slots, or a second.
func (w *walk) worthTelling(now BatchReport) bool {
	was := w.share.report
	switch {
	case was.Sequence == 0, now.Asked != was.Asked, now.Report.Phase != was.Report.Phase, now.Report.Breached != was.Report.Breached,
		now.Report.Counts.Failures != was.Report.Counts.Failures, now.Report.Counts.Unreachable != was.Report.Counts.Unreachable,
		now.Report.Counts.Skipped != was.Report.Counts.Skipped, now.Held != was.Held, now.Stuck != was.Stuck, now.Soaked != was.Soaked,
		now.Report.Returning != was.Report.Returning, len(now.Report.ByHand) != len(was.Report.ByHand), !slices.Equal(now.Uses, was.Uses):
		return true
	case len(now.Report.Answers) > 0 && (len(was.Report.Answers) == 0 || now.Report.Answers[len(now.Report.Answers)-1] != was.Report.Answers[len(was.Report.Answers)-1]):
		return true
	case now.Room > was.Room && now.Room > w.state.MaxConcurrency:
		return true // it could use more
	case w.over() < w.share.over:
		return true // what one on its way back occupied is free, and nothing else may ever be told
	}
	for k := range now.Flying {
		if now.Flying[k] != was.Flying[k] && !now.Turns[k] {
			return true // another batch may wait for that
		}
	}
	for n := range now.Standings {
		if now.Standings[n].Telling() != was.Standings[n].Telling() {
			return true
		}
	}
	if !slices.Equal(now.Waiters, was.Waiters) || !slices.Equal(now.Report.Waits, was.Report.Waits) {
		if w.teller.mayTell(reach{started: w.started, size: len(w.state.Targets)}) {
			w.teller.told++
			return true
		}
	}
	size := len(w.state.Targets)
	if now.Done != was.Done && (now.Done == size || (now.Done-was.Done)*20 >= size) {
		return true
	}
	back := now.Returned - was.Returned
	return back > 0 && (w.share.overdue || back*20 >= w.slice.Wave.MaxConcurrency)
}
