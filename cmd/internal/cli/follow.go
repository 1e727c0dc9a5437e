package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

const (
	// lookEvery is the least time between two status queries: whoever watches must not load the worker.
	lookEvery = time.Second
	// lookAnyway is when a status is asked for although nothing rang, so that what is only a matter of time is shown too.
	lookAnyway = 30 * time.Second
	// settle is how long to wait for the workflow to close once the rollout has ended, so that the lane is free when the
	// command returns.
	settle = 10 * time.Second
)

// waitFlags are --wait and --no-input.
type waitFlags struct {
	Wait, NoInput bool
}

// add adds the flags.
func (w *waitFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.Wait, "wait", false, "wait for the end; the exit code says how it ended")
	cmd.Flags().BoolVar(&w.NoInput, "no-input", false, fmt.Sprintf("with --wait: nobody is there to answer, so end with exit code %d when the rollout waits for a person", exitPerson))
}

// check refuses flags that do not go together.
func (w *waitFlags) check(format out.Format) error {
	if w.NoInput && !w.Wait {
		return usagef("--no-input goes with --wait")
	}
	if format == out.NDJSON && !w.Wait {
		return usagef("-o ndjson goes with --wait")
	}
	return nil
}

// followOptions say what is followed and how it is shown.
type followOptions struct {
	run    run
	format out.Format
	wait   waitFlags
	// final writes the last status as the result and the progress to stderr; else the progress is the result.
	final bool
	// back reports that a rollback was asked for, so that RolledBack is what was wanted.
	back bool
	// byHand is the id of the command that asked one target or wave back: its return is then the end of the wait.
	byHand string
}

// follow shows a run until it ends, and returns an error with the exit code of its end. Ending the command ends nothing
// else.
func follow(ctx context.Context, f *Factory, t *temporal, o followOptions) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	bell := t.ring(inner, o.run)
	show := newProgress(f, o)
	var (
		status workflows.RolloutStatus
		remark string
		back   bool // what was asked back by hand is
		err    error
	)
	for {
		looked := time.Now()
		status, remark, err = t.status(ctx, o.run)
		if err != nil {
			break
		}
		if err = show.status(status, remark); err != nil {
			break
		}
		if status.State.Ended() {
			bell.await(ctx, settle)
			break
		}
		if o.byHand != "" && remark == "" {
			if back, err = isBackByHand(status, o.byHand); back || err != nil {
				break
			}
		}
		if o.wait.NoInput && (status.State == workflows.AwaitingApproval || status.State == workflows.Holding) {
			break
		}
		if o.run, err = bell.next(ctx, o.run, looked); err != nil {
			break
		}
	}
	show.end()
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return failf(exitError, "stopped watching; the rollout goes on. `%s watch %s` watches it again", f.Program, o.run.lane.args())
		}
		return err
	}
	if o.final && o.format != out.NDJSON {
		if o.format == out.Table {
			err = writeStatus(f.Out, f, f.Style, status)
		} else {
			err = out.Write(f.Out, o.format, status)
		}
		if err != nil {
			return err
		}
	}
	if back {
		return outcomeByHand(f, status)
	}
	return outcome(f, status, o.back)
}

// isBackByHand reports whether the rollout has taken a rollback by hand, and nothing is on its way back by hand any more.
// Its error is the refusal of a command that had been stored until a worker came.
func isBackByHand(s workflows.RolloutStatus, id string) (bool, error) {
	for _, receipt := range s.Commands {
		switch {
		case receipt.ID != id:
		case receipt.Pending:
			return false, nil
		case !receipt.Accepted:
			return false, failf(exitRefused, "%s was refused: %s", receipt.Name, receipt.Answer)
		default:
			return s.State != workflows.RollingBack && (s.Rollback == nil || (s.Rollback.ByHand && !s.Rollback.EndedAt.IsZero())), nil
		}
	}
	return false, nil
}

// outcomeByHand is the exit code of a rollback by hand that has ended.
func outcomeByHand(f *Factory, s workflows.RolloutStatus) error {
	if s.Rollback != nil && s.Rollback.Counts[policy.NeedsRecovery] > 0 {
		return failf(exitUnsuccessful, "%s did not come back in %s: see who needs attention", counted(s.Rollback.Counts[policy.NeedsRecovery], "target"), laneOf(s))
	}
	f.note("%s is %s%s", laneOf(s), s.State, because(s.Reason))
	return nil
}

// outcome is the exit code of a rollout's end, or of one that waits for a person.
func outcome(f *Factory, s workflows.RolloutStatus, back bool) error {
	l := laneOf(s)
	switch s.State {
	case workflows.Succeeded:
		return nil
	case workflows.SucceededWithFailures:
		f.note("%s %s succeeded with failures: %s", f.Notes.Warn("note:"), l, countsOf(s.Counts))
		return nil
	case workflows.RolledBack:
		if back || s.Mode == workflows.ModeRollback {
			return nil
		}
		return failf(exitUnsuccessful, "%s ended as %s%s", l, s.State, because(s.Reason))
	case workflows.Failed, workflows.RollbackIncomplete, workflows.Rejected, workflows.Aborted, workflows.Superseded:
		return failf(exitUnsuccessful, "%s ended as %s%s", l, s.State, because(s.Reason))
	case workflows.AwaitingApproval, workflows.Holding:
		return failf(exitPerson, "%s waits for a person: %s%s; `%s explain %s` says what lifts it", l, s.State, because(s.Reason), f.Program, l.args())
	case workflows.Planned, workflows.Running, workflows.Paused, workflows.RollingBack:
	}
	return failf(exitError, "%s is %s and its end was not seen", l, s.State)
}

// doorbell rings when a run's history grows. It carries no news: the status is asked for.
type doorbell struct {
	rings chan run
	// closed is closed when the run has ended; last is the run as it was then.
	closed chan struct{}
	last   run
}

// ring watches a run's history, and the histories of its continuations.
func (t *temporal) ring(ctx context.Context, r run) *doorbell {
	d := &doorbell{rings: make(chan run, 1), closed: make(chan struct{}), last: r}
	go func() {
		defer close(d.closed)
		for {
			next, more := t.listen(ctx, r, d.rings)
			if d.last = next; !more {
				return
			}
			r = next
		}
	}()
	return d
}

// listen rings for each growth of one run's history, and returns the run as it ended; more reports that another run
// continues it.
func (t *temporal) listen(ctx context.Context, r run, rings chan<- run) (_ run, more bool) {
	var page []byte
	for ctx.Err() == nil {
		answer, err := t.WorkflowService().GetWorkflowExecutionHistory(ctx, &workflowservice.GetWorkflowExecutionHistoryRequest{
			Namespace: t.namespace, Execution: r.execution(), WaitNewEvent: true, NextPageToken: page, SkipArchival: true,
			HistoryEventFilterType: enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT,
		})
		var missing *serviceerror.NotFound
		switch {
		case errors.As(err, &missing):
			return r, false // past its retention
		case err != nil:
			page = nil
			sleep(ctx, lookEvery)
			continue
		}
		page = answer.GetNextPageToken()
		events := answer.GetHistory().GetEvents()
		if len(events) > 0 {
			select {
			case rings <- r:
			default: // it rings already
			}
		}
		if len(page) == 0 {
			if len(events) > 0 {
				last := events[len(events)-1]
				if id := last.GetWorkflowExecutionContinuedAsNewEventAttributes().GetNewExecutionRunId(); id != "" {
					r.id = id
					return r, true
				}
			}
			return t.closed(ctx, r), false
		}
	}
	return r, false
}

// closed looks a run up that has just ended.
func (t *temporal) closed(ctx context.Context, r run) run {
	// Without an answer the run is shown as it was last seen.
	_ = t.call(ctx, "look up the end", func(ctx context.Context) error {
		answer, err := t.DescribeWorkflowExecution(ctx, r.lane.id(), r.id)
		if err == nil {
			r.status, r.ended = answer.GetWorkflowExecutionInfo().GetStatus(), endOf(answer.GetWorkflowExecutionInfo().GetCloseTime())
		}
		return err
	})
	return r
}

// next waits until it rings, at least lookEvery after the last look and at most lookAnyway, and returns the run to look
// at now.
func (d *doorbell) next(ctx context.Context, r run, looked time.Time) (run, error) {
	timer := time.NewTimer(lookAnyway)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return r, ctx.Err()
	case r = <-d.rings:
	case <-d.closed:
		r = d.last
	case <-timer.C:
	}
	if !sleep(ctx, max(0, lookEvery-time.Since(looked))) {
		return r, ctx.Err()
	}
	return r, nil
}

// await waits until the run has closed, or for at most d.
func (d *doorbell) await(ctx context.Context, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-d.closed:
	case <-timer.C:
	}
}

// progress shows one status after the other.
type progress interface {
	status(s workflows.RolloutStatus, remark string) error
	end()
}

// newProgress chooses how to show: a stream of statuses for programs, a picture that redraws itself on a terminal, lines
// anywhere else.
func newProgress(f *Factory, o followOptions) progress {
	if o.format == out.NDJSON {
		return &stream{f: f}
	}
	w, style, size := f.Out, f.Style, f.OutSize
	if o.final {
		w, style, size = f.Err, f.Notes, f.ErrSize
	}
	if size != nil {
		return &picture{f: f, style: style, live: out.NewLive(w, size), vanish: o.final}
	}
	return &lines{f: f, w: w, style: style}
}

// stream writes each changed status as one line of JSON.
type stream struct {
	f      *Factory
	last   workflows.RolloutStatus
	remark string
}

func (p *stream) status(s workflows.RolloutStatus, remark string) error {
	if remark != p.remark && remark != "" {
		p.f.note("%s %s", p.f.Notes.Warn("note:"), remark)
	}
	if p.remark = remark; remark != "" || reflect.DeepEqual(s, p.last) {
		return nil
	}
	p.last = s
	return out.Write(p.f.Out, out.NDJSON, s)
}

func (p *stream) end() {}

// picture redraws the status in place.
type picture struct {
	f     *Factory
	style out.Style
	live  *out.Live
	// vanish removes the picture at the end, because the last status follows as the result.
	vanish bool
	last   *workflows.RolloutStatus
}

func (p *picture) status(s workflows.RolloutStatus, remark string) error {
	var text strings.Builder
	if remark != "" {
		// Between two workers the last status says more than what Temporal knows.
		if p.last != nil && !s.State.Ended() {
			s = *p.last
		}
		fmt.Fprintf(&text, "%s %s\n", p.style.Warn("note:"), remark)
	} else {
		p.last = &s
	}
	if err := writeStatus(&text, p.f, p.style, s); err != nil {
		return err
	}
	return p.live.Draw(text.String())
}

func (p *picture) end() {
	if p.vanish {
		_ = p.live.Clear() // a terminal that is gone has nothing to clear
	}
}

// own is how the timeline names what nobody asked for.
const own = "sluice"

// lines writes what has changed since the last status, one line each.
type lines struct {
	f      *Factory
	w      io.Writer
	style  out.Style
	last   *workflows.RolloutStatus
	seen   map[workflows.Event]bool
	waits  map[string]bool
	remark string
	text   strings.Builder
}

func (p *lines) status(s workflows.RolloutStatus, remark string) error {
	p.text.Reset()
	p.changes(s, remark)
	_, err := io.WriteString(p.w, p.text.String())
	return err
}

// changes notes what has changed.
func (p *lines) changes(s workflows.RolloutStatus, remark string) {
	if remark != p.remark && remark != "" {
		p.line(p.f.Now(), "%s %s", p.style.Warn("note:"), remark)
	}
	p.remark = remark
	if remark != "" && !s.State.Ended() {
		return
	}
	if p.seen == nil {
		p.seen, p.waits = map[workflows.Event]bool{}, map[string]bool{}
	}
	told := p.last != nil && p.last.State == s.State && p.last.Reason == s.Reason
	for _, e := range s.Timeline {
		if p.seen[e] {
			continue
		}
		p.seen[e] = true
		// The timeline ends with the state: once is enough.
		told = told || e.What == string(s.State)
		who := ""
		if e.Who != "" && e.Who != own {
			who = " by " + out.Clean(e.Who)
		}
		p.line(e.At, "%s%s%s", out.Clean(e.What), who, because(e.Why))
	}
	if !told {
		p.line(p.f.Now(), "%s%s", paintState(p.style, s.State), because(s.Reason))
	}
	for i, wave := range s.Waves {
		if len(wave.Counts) == 0 || wave.StartedAt.IsZero() || (p.last != nil && i < len(p.last.Waves) && sameCounts(p.last.Waves[i], wave)) {
			continue
		}
		p.line(p.f.Now(), "wave %d (%s) %s: %d of %d done, %d in flight (%s)", wave.Number, out.Clean(wave.Name), wave.State, doneOf(wave.Counts), wave.Size,
			wave.InFlight, countsOf(wave.Counts))
	}
	if back := s.Rollback; back != nil && back.Targets > 0 && (p.last == nil || p.last.Rollback == nil || !maps.Equal(p.last.Rollback.Counts, back.Counts)) {
		p.line(p.f.Now(), "rollback: %s, %d in flight (%s)", counted(back.Targets, "target"), back.InFlight, countsOf(back.Counts))
	}
	waits := map[string]bool{}
	for _, wait := range s.Waits {
		waits[wait.Reason] = true
		if p.waits[wait.Reason] {
			continue
		}
		p.line(p.f.Now(), "waiting: %s; lifted by: %s", out.Clean(wait.Reason), out.Clean(wait.Lifts))
		for _, command := range liftingCommands(p.f.Program, s, wait) {
			p.line(p.f.Now(), "  $ %s", command)
		}
	}
	p.waits, p.last = waits, &s
}

func (p *lines) end() {}

// line notes one line with its time.
func (p *lines) line(at time.Time, format string, args ...any) {
	fmt.Fprintf(&p.text, "%s "+format+"\n", append([]any{p.f.clock(at)}, args...)...)
}

// sameCounts reports whether nothing happened in a wave that is worth a line.
func sameCounts(a, b workflows.WaveStatus) bool {
	return a.State == b.State && a.InFlight == b.InFlight && maps.Equal(a.Counts, b.Counts)
}
