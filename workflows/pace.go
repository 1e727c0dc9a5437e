package workflows

import (
	"slices"
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

// keepPace counts a target's interval from when its change was asked for: until then it may have been read for long, or
// waited for a resume.
func (w *walk) keepPace(i int, asked time.Time) {
	if k := w.state.Targets[i].Pace; k > 0 && asked.After(w.state.Paces[k-1].Last) {
		w.state.Paces[k-1].Last = asked
	}
}

// resumePaces takes a target that began before a pause for one that starts now: it may have waited to be asked. Where the
// next one waits for its end, that tells exactly.
func (w *walk) resumePaces(ctx workflow.Context) {
	for i, t := range w.state.Targets {
		if t.InFlight && t.State != policy.Restoring && t.Pace > 0 && w.state.Paces[t.Pace-1].Overlap {
			w.keepPace(i, workflow.Now(ctx))
		}
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

// ask follows, beside everything else, a dependency that is met outside of the rollout, as long as a target waits for it
// that has not started: what has succeeded may be taken back before the last of them starts.
func (w *walk) ask(ctx workflow.Context, n int, d activities.WaveDependency) {
	over := func() bool {
		return w.state.Control == policy.ControlStop || w.state.Control == policy.ControlFinish || w.state.Breached != ""
	}
	in := activities.DependencyInput{Kind: d.Kind, Name: d.Name, Environment: w.subject.Environment, Deployment: w.subject.Deployment, Version: w.subject.Version}
	at := map[string]int{}
	// wanted reports whether a target that has not started waits for it.
	wanted := func() bool {
		return slices.ContainsFunc(w.state.Targets, func(t policy.TargetProgress) bool {
			return slices.Contains(t.After, n) && !t.InFlight && (t.State == policy.Pending || t.State == policy.Unreachable && !t.Tried)
		})
	}
	for i, t := range w.state.Targets {
		if slices.Contains(t.After, n) {
			in.Targets, at[t.Name] = append(in.Targets, t.Name), i
		}
	}
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			// A target that is tried again later must find it met anew.
			in.Met, w.state.Dependencies[n].Met = nil, map[int]bool{}
			if err := workflow.Await(ctx, func() bool { return wanted() || over() }); err != nil || over() {
				return
			}
			for wanted() && !over() {
				met, err := w.look(ctx, d, in, func() bool { return !wanted() || over() })
				if err != nil {
					workflow.GetLogger(ctx).Error("A dependency could not be looked up", "error", err)
					return
				}
				if met == nil {
					break
				}
				in.Met = met.Met
				now := map[int]bool{}
				for _, name := range in.Met {
					now[at[name]] = true
				}
				w.state.Dependencies[n].Met = now
				w.changed = true
			}
		}
	})
}

// look runs one look-up to its end, and gives it up, returning nil, when nobody wants to know any more.
func (w *walk) look(ctx workflow.Context, d activities.WaveDependency, in activities.DependencyInput, enough func() bool) (*activities.DependencyOutput, error) {
	stoppable, cancel := workflow.WithCancel(ctx)
	defer cancel()
	var out activities.DependencyOutput
	var err error
	done := false
	future := workflow.ExecuteActivity(looking(stoppable, "Look whether "+string(d.Kind)+" "+clip(d.Name, 100)+" has succeeded"), acts.AwaitDependency, in)
	workflow.Go(stoppable, func(ctx workflow.Context) {
		err = future.Get(ctx, &out)
		done = true
	})
	if waitErr := workflow.Await(ctx, func() bool { return done || enough() }); waitErr != nil {
		return nil, waitErr
	}
	if !done {
		return nil, nil
	}
	return &out, err
}
