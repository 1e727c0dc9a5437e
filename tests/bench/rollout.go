package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// rollout measures a rollout of instant changes once.
func (b *bench) rollout(ctx context.Context, c Cell) (run Run, err error) {
	setting := fleetSetting{targets: c.Targets, window: c.Window, check: c.Kind == KindChecked}
	if err := b.refusal(ctx, setting); err != nil {
		return run, err
	}
	s, err := b.stage(ctx)
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	if err := b.sluice(ctx, s, setting); err != nil {
		return run, err
	}
	m, err := s.begin()
	if err != nil {
		return run, err
	}
	st, err := b.start(ctx, s)
	if err != nil {
		return run, err
	}
	var result workflows.RolloutResult
	if err := s.client.GetWorkflow(ctx, st.Workflow, st.Run).Get(ctx, &result); err != nil {
		return run, fmt.Errorf("wait for rollout %s: %w", st.Rollout, err)
	}
	if run, err = m.finish(c); err != nil {
		return run, err
	}
	if result.State != workflows.Succeeded {
		return run, fmt.Errorf("the rollout ended as %s: %s", result.State, result.Reason)
	}
	all, err := s.records(ctx, fmt.Sprintf("%s = %q", workflows.SluiceRollout, st.Rollout), c.Targets+2) // the rollout and its wave
	if err != nil {
		return run, err
	}
	targets := slices.DeleteFunc(slices.Clone(all), func(r record) bool { return r.kind != workflows.TargetType })
	control := slices.DeleteFunc(all, func(r record) bool { return r.kind == workflows.TargetType })
	if err := run.count(targets, control, c.Targets); err != nil {
		return run, err
	}
	// A figure for changes that were not made, or made twice, would be none.
	log, err := fleet.ReadLog(s.path("effects.ndjson"))
	if err != nil {
		return run, err
	}
	if n := len(starts(log, after)); n != c.Targets {
		return run, fmt.Errorf("%d changes began on %d targets", n, c.Targets)
	}
	return run, nil
}

// measurement is what everything had used when it began.
type measurement struct {
	stage                 *stage
	began                 load
	server, worker, fleet usage
}

// begin takes what everything has used so far.
func (s *stage) begin() (m measurement, err error) {
	m.stage = s
	m.server, m.worker, m.fleet, err = s.usages()
	if err == nil {
		m.began, err = readLoad()
	}
	return m, err
}

// usages are those of the three processes; of the fleet nothing, where there is none.
func (s *stage) usages() (server, worker, fleet usage, err error) {
	if server, err = s.server.usage(); err != nil {
		return
	}
	if worker, err = s.worker.usage(); err != nil || s.fleet == nil {
		return
	}
	fleet, err = s.fleet.usage()
	return
}

// finish is what was used since the beginning. It is called when the last workflow has ended, before anything is asked.
func (m measurement) finish(c Cell) (run Run, err error) {
	ended, err := readLoad()
	if err != nil {
		return run, err
	}
	server, worker, fleet, err := m.stage.usages()
	if err != nil {
		return run, err
	}
	run.Busy = ended.since(m.began)
	run.Server, run.Worker = used(m.server, server, c.Targets), used(m.worker, worker, c.Targets)
	if m.stage.fleet != nil {
		f := used(m.fleet, fleet, c.Targets)
		run.Fleet = &f
	}
	return run, nil
}

// used is what a process has used between two looks.
func used(before, after usage, targets int) Usage {
	cpu := after.cpu - before.cpu
	return Usage{CPUSeconds: cpu.Seconds(), CPUMillisPerTarget: 1000 * cpu.Seconds() / float64(targets), PeakBytes: after.peak}
}

// count takes time and events from the histories: from the first target's start to the last target's end.
func (r *Run) count(targets, control []record, want int) error {
	if len(targets) != want {
		return fmt.Errorf("%d target workflows for %d targets", len(targets), want)
	}
	var first, last time.Time
	total := int64(0)
	for _, t := range targets {
		if first.IsZero() || t.start.Before(first) {
			first = t.start
		}
		if t.close.After(last) {
			last = t.close
		}
		total += t.events
		r.EventsMax = max(r.EventsMax, t.events)
	}
	r.WallSeconds = last.Sub(first).Seconds()
	r.TargetsPerSecond = float64(want) / r.WallSeconds
	r.EventsMean = float64(total) / float64(want)
	for _, c := range control {
		if c.events > r.ControlEvents {
			r.ControlEvents, r.Control = c.events, c.kind
		}
	}
	return nil
}
