package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// The floor is what the engine alone needs for the same shape: parents of at most parentSize children, as many children
// open at a time as Sluice has targets in flight, and in each child the four activities that a change takes. Nothing is
// decided, stored or asked. Two queues, as Sluice has them: parents must not wait behind their children's tasks.
const (
	floorControl = "floor-control"
	floorTarget  = "floor-target"

	floorRun    = "FloorRun"    // starts the parents
	floorParent = "FloorParent" // starts children
	floorChild  = "FloorChild"  // four activities
	floorStep   = "FloorStep"   // returns at once

	floorSteps = 4
	// parentSize keeps a parent's history below 4,096 events, where the engine wants a new one.
	parentSize = 400
)

// How Sluice's worker is set, see cmd/internal/wire: the floor's must be the same, and a test holds the two together.
const (
	pollers           = 8
	workflowTasks     = 100
	controlActivities = 200
	targetActivities  = 1000
)

// floorInput is what a parent, or the parent of parents, does.
type floorInput struct {
	Parent, Targets, Window int
}

// parts splits a run among as few parents as will do. They run side by side and share the window.
func (in floorInput) parts() []floorInput {
	n := (in.Targets + parentSize - 1) / parentSize
	n = min(n, in.Window) // each needs a place of its own
	parts := make([]floorInput, n)
	for i := range parts {
		// What does not divide evenly goes to the first ones.
		parts[i] = floorInput{Parent: i + 1, Targets: (in.Targets + n - 1 - i) / n, Window: (in.Window + n - 1 - i) / n}
	}
	return parts
}

// runFloorParents starts the parents and waits for them.
func runFloorParents(ctx workflow.Context, in floorInput) error {
	var parents []workflow.ChildWorkflowFuture
	for _, part := range in.parts() {
		child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{WorkflowID: "floor/" + strconv.Itoa(part.Parent)})
		parents = append(parents, workflow.ExecuteChildWorkflow(child, floorParent, part))
	}
	var err error
	for _, p := range parents {
		err = errors.Join(err, p.Get(ctx, nil))
	}
	return err
}

// runFloorChildren starts children, at most a window of them at a time.
func runFloorChildren(ctx workflow.Context, in floorInput) (err error) {
	open := 0
	for i := range in.Targets {
		if failed := workflow.Await(ctx, func() bool { return open < in.Window }); failed != nil {
			return failed
		}
		open++
		child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
			WorkflowID: fmt.Sprintf("floor/%d/%d", in.Parent, i), TaskQueue: floorTarget,
		})
		one := workflow.ExecuteChildWorkflow(child, floorChild, i)
		workflow.Go(ctx, func(ctx workflow.Context) {
			err = errors.Join(err, one.Get(ctx, nil))
			open--
		})
	}
	if failed := workflow.Await(ctx, func() bool { return open == 0 }); failed != nil {
		return failed
	}
	return err
}

// runFloorSteps does what a target's change does: one activity after the other.
func runFloorSteps(ctx workflow.Context, n int) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	for range floorSteps {
		if err := workflow.ExecuteActivity(ctx, floorStep, n).Get(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

func doFloorStep(context.Context, int) error { return nil }

// floorReady is what the floor's worker says when it polls.
const floorReady = "floor worker started"

// runFloorWorker is the floor's worker, a process of its own, until ctx is done.
func runFloorWorker(ctx context.Context, stdout io.Writer) error {
	c, err := client.DialContext(ctx, client.Options{HostPort: os.Getenv("TEMPORAL_ADDRESS"),
		Logger: sdklog.NewStructuredLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))})
	if err != nil {
		return fmt.Errorf("connect the floor's worker: %w", err)
	}
	defer c.Close()
	control := worker.New(c, floorControl, worker.Options{
		MaxConcurrentActivityExecutionSize:     controlActivities,
		MaxConcurrentActivityTaskPollers:       pollers / 2,
		MaxConcurrentWorkflowTaskExecutionSize: workflowTasks,
		MaxConcurrentWorkflowTaskPollers:       pollers,
	})
	target := worker.New(c, floorTarget, worker.Options{
		MaxConcurrentActivityExecutionSize:     targetActivities,
		MaxConcurrentActivityTaskPollers:       pollers,
		MaxConcurrentWorkflowTaskExecutionSize: workflowTasks,
		MaxConcurrentWorkflowTaskPollers:       pollers,
	})
	control.RegisterWorkflowWithOptions(runFloorParents, workflow.RegisterOptions{Name: floorRun})
	control.RegisterWorkflowWithOptions(runFloorChildren, workflow.RegisterOptions{Name: floorParent})
	target.RegisterWorkflowWithOptions(runFloorSteps, workflow.RegisterOptions{Name: floorChild})
	target.RegisterActivityWithOptions(doFloorStep, activity.RegisterOptions{Name: floorStep})
	for _, w := range []worker.Worker{control, target} {
		if err := w.Start(); err != nil {
			return fmt.Errorf("start the floor's worker: %w", err)
		}
		defer w.Stop()
	}
	if _, err := fmt.Fprintln(stdout, floorReady); err != nil {
		return fmt.Errorf("say that the floor's worker is ready: %w", err)
	}
	<-ctx.Done()
	return nil
}

// floor measures the floor once.
func (b *bench) floor(ctx context.Context, c Cell) (run Run, err error) {
	s, err := b.stage(ctx)
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	self, err := os.Executable()
	if err != nil {
		return run, fmt.Errorf("find this program, for the floor's worker: %w", err)
	}
	s.worker, err = b.spawner.start(ctx, "floor's worker", s.environ, func(line string) bool { return line == floorReady }, self, floorWorker)
	if err != nil {
		return run, err
	}
	s.close = append(s.close, s.worker.stop)

	m, err := s.begin()
	if err != nil {
		return run, err
	}
	in := floorInput{Targets: c.Targets, Window: c.Window}
	execution, err := s.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "floor", TaskQueue: floorControl}, floorRun, in)
	if err == nil {
		err = execution.Get(ctx, nil)
	}
	if err != nil {
		return run, fmt.Errorf("run the floor: %w", err)
	}
	if run, err = m.finish(c); err != nil {
		return run, err
	}
	children, err := s.records(ctx, fmt.Sprintf("WorkflowType = %q", floorChild), c.Targets)
	if err != nil {
		return run, err
	}
	parents, err := s.records(ctx, fmt.Sprintf("WorkflowType = %q", floorParent), len(in.parts()))
	if err != nil {
		return run, err
	}
	return run, run.count(children, parents, c.Targets)
}
