package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// pace takes the plan's paces; last is when the newest target of each started, in earlier waves.
func (w *walk) pace(last []time.Time) {
	for n, p := range w.slice.Paces {
		state := policy.PaceState{Policy: p.Policy, Interval: time.Duration(p.Interval), Overlap: p.Overlap}
		if n < len(last) {
			state.Last = last[n]
		}
		w.state.Paces = append(w.state.Paces, state)
	}
}

// depend takes what targets wait for, and begins to ask for what is decided outside of the rollout.
func (w *walk) depend(ctx workflow.Context) {
	for n, d := range w.slice.Dependencies {
		w.state.Dependencies = append(w.state.Dependencies, policy.DependencyState{Policy: d.Policy, Name: d.Name, Kind: d.Kind, Here: d.Here})
		if d.Kind.Outside() {
			w.state.Dependencies[n].Met = map[int]bool{}
			w.ask(ctx, n, d)
		}
	}
}

// ask follows, beside everything else, a dependency that is met outside of the rollout, until each target that waits for
// it has been let go or nothing starts any more.
func (w *walk) ask(ctx workflow.Context, n int, d activities.WaveDependency) {
	in := activities.DependencyInput{Kind: d.Kind, Name: d.Name, Environment: w.subject.Environment, Deployment: w.subject.Deployment, Version: w.subject.Version}
	waiting := map[string]int{}
	for i, t := range w.state.Targets {
		for _, after := range t.After {
			if after == n {
				in.Targets = append(in.Targets, t.Name)
				waiting[t.Name] = i
			}
		}
	}
	if len(in.Targets) == 0 {
		return
	}
	over := func() bool {
		return w.state.Control == policy.ControlStop || w.state.Control == policy.ControlFinish || w.state.Breached != ""
	}
	stoppable, cancel := workflow.WithCancel(ctx)
	workflow.Go(ctx, func(ctx workflow.Context) {
		// The condition needs no time limit: it is only a bell for the coroutine below.
		if err := workflow.Await(ctx, func() bool { return over() || len(in.Targets) == 0 }); err == nil {
			cancel()
		}
	})
	workflow.Go(stoppable, func(ctx workflow.Context) {
		for len(in.Targets) > 0 && !over() {
			var out activities.DependencyOutput
			if err := workflow.ExecuteActivity(looking(ctx, "Look whether "+string(d.Kind)+" "+clip(d.Name, 100)+" has succeeded"), acts.AwaitDependency, in).Get(ctx, &out); err != nil {
				if ctx.Err() == nil {
					workflow.GetLogger(ctx).Error("A dependency could not be looked up", "error", err)
				}
				return
			}
			for _, name := range out.Met {
				w.state.Dependencies[n].Met[waiting[name]] = true
			}
			in.Targets = out.Missing
			w.changed = true
		}
	})
}
