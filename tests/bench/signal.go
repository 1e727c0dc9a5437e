package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

const (
	// lookEvery is how often the effect log is read for new starts; nothing that is measured is timed by it.
	lookEvery = 20 * time.Millisecond
	// startsTimeout bounds the wait for a rollout's first starts.
	startsTimeout = 2 * time.Minute
	// probes are the trials by which the load is chosen, which are not counted.
	probes = 3
	// lateTrials is how many trials may find nothing left to stop, because the signal was sent too late on a machine that
	// did something else, before that is an error.
	lateTrials = 3
	// jitter is how long a trial waits at most, by chance, so that signals come at no particular moment.
	jitter = 200 * time.Millisecond
	// leastInFlight is where the load is lowered no further: below it there is hardly a start to stop.
	leastInFlight = 4
)

// signalLoad says what goes on when a rollout is told to stop.
type signalLoad struct {
	// Load names it.
	Load string
	// Trials is how often it is told.
	Trials int
	// Targets is the size of the fleet, InFlight how many of it change at once.
	Targets, InFlight int
	// OperationMin and OperationMax are how long one change takes; zero: nothing.
	OperationMin, OperationMax time.Duration
	// MaxBusy is how busy the machine may be; 0: as busy as it gets.
	MaxBusy float64
}

// stopping measures how long a rollout goes on starting after it was told to go back.
func (b *bench) stopping(ctx context.Context, l signalLoad) Signal {
	sig := Signal{Load: l.Load, Targets: l.Targets, InFlight: l.InFlight, OperationMin: l.OperationMin.Seconds(), OperationMax: l.OperationMax.Seconds()}
	for {
		trials, busy, err := b.trials(ctx, l)
		if err != nil {
			sig.Error = err.Error()
			b.note("stop, %s: %v", l.Load, err)
			return sig
		}
		if trials != nil {
			sig.InFlight = l.InFlight
			sig.summarize(trials, l.MaxBusy)
			b.note("stop, %s, %d in flight: p99 %.0f ms of %d trials, machine %.0f %% busy", l.Load, l.InFlight, sig.P99Millis, len(trials), 100*sig.Busy)
			return sig
		}
		lower := max(l.InFlight*2/3, leastInFlight)
		sig.Lowered = append(sig.Lowered, Lowered{InFlight: l.InFlight, Busy: busy})
		b.note("stop, %s: with %d in flight the machine is %.0f %% busy, so that %d are tried", l.Load, l.InFlight, 100*busy, lower)
		l.InFlight = lower
	}
}

// trials makes all trials on one server. It returns none, and how busy the machine was, when that was more than allowed
// and the load can be lowered.
func (b *bench) trials(ctx context.Context, l signalLoad) (trials []Trial, busy float64, err error) {
	s, err := b.stage(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	// What goes back is not measured, and goes at once, so that the next trial can begin.
	setting := fleetSetting{targets: l.Targets, window: l.InFlight, back: l.Targets, duration: fleet.Span{Min: l.OperationMin, Max: l.OperationMax}}
	if err := b.sluice(ctx, s, setting); err != nil {
		return nil, 0, err
	}
	log, err := openEffects(s.path("effects.ndjson"))
	if err != nil {
		return nil, 0, err
	}
	defer log.close()
	// The same moments in each run.
	chance := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // no secret
	if l.MaxBusy > 0 {
		for range probes {
			t, err := b.trial(ctx, s, log, l, chance)
			if err != nil {
				return nil, 0, err
			}
			busy += t.Busy / probes
		}
		if busy > l.MaxBusy && l.InFlight > leastInFlight {
			return nil, busy, nil
		}
	}
	for late := 0; len(trials) < l.Trials; {
		t, err := b.trial(ctx, s, log, l, chance)
		if errors.Is(err, errLate) && late < lateTrials {
			late++
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("trial %d: %w", len(trials)+1, err)
		}
		trials = append(trials, t)
	}
	return trials, 0, nil
}

// errLate: a trial in which everything had been started before the signal was sent shows nothing.
var errLate = errors.New("all targets had been started before the signal was sent: nothing was stopped")

// trial starts a rollout, tells it to go back at a moment of chance while it starts targets, and waits for its end.
func (b *bench) trial(ctx context.Context, s *stage, log *effects, l signalLoad, chance *rand.Rand) (t Trial, err error) {
	st, err := b.start(ctx, s)
	if err != nil {
		return t, err
	}
	// All slots are taken, and some have been given back: from here on a start follows each end.
	var began load
	at, err := awaitStarts(ctx, log, nil, l.InFlight)
	if err == nil {
		began, err = readLoad()
	}
	if err == nil {
		at, err = awaitStarts(ctx, log, at, l.InFlight+min(l.InFlight/2, (l.Targets-l.InFlight)/4))
	}
	if err != nil {
		return t, err
	}
	select {
	case <-time.After(time.Duration(chance.Int64N(int64(jitter)))):
	case <-ctx.Done():
		return t, ctx.Err()
	}
	ended, err := readLoad()
	if err != nil {
		return t, err
	}
	t.Busy = ended.since(began)
	sent := time.Now()
	if err := s.client.SignalWorkflow(ctx, st.Workflow, st.Run, workflows.RollBack, workflows.Command{By: "bench", Reason: "a trial"}); err != nil {
		return t, fmt.Errorf("send rollback: %w", err)
	}
	var result workflows.RolloutResult
	if err := s.client.GetWorkflow(ctx, st.Workflow, st.Run).Get(ctx, &result); err != nil {
		return t, fmt.Errorf("wait for the end of rollout %s: %w", st.Rollout, err)
	}
	// The rollout has ended, so that no start can follow.
	more, err := log.more()
	if err != nil {
		return t, err
	}
	at = append(at, starts(more, after)...)
	if len(at) == l.Targets && !at[len(at)-1].After(sent) {
		return t, errLate
	}
	if result.State != workflows.RolledBack {
		return t, fmt.Errorf("the rollout ended as %s: %s", result.State, result.Reason)
	}
	t.Millis = float64(lastAfter(at, sent)) / float64(time.Millisecond)
	return t, nil
}

// awaitStarts reads the log until so many changes have begun.
func awaitStarts(ctx context.Context, log *effects, at []time.Time, want int) ([]time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, startsTimeout)
	defer cancel()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		entries, err := log.more()
		if err != nil {
			return nil, err
		}
		if at = append(at, starts(entries, after)...); len(at) >= want {
			return at, nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d changes have begun: %w", len(at), want, ctx.Err())
		}
	}
}
