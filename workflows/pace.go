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

// readingBound is how long a target may be read before its change is asked for: four attempts of a minute, and the pauses
// between them.
const readingBound = 5 * time.Minute

// resumePaces takes a target that may have waited through a pause to be asked for one that starts now. Where the next one
// waits for its end, that tells exactly.
func (w *walk) resumePaces(ctx workflow.Context) {
	for i, t := range w.state.Targets {
		if t.InFlight && t.State != policy.Restoring && t.Pace > 0 && w.state.Paces[t.Pace-1].Overlap && w.pausedAt.Sub(w.details[i].begun) < readingBound {
			w.keepPace(i, workflow.Now(ctx))
		}
	}
}

// recall tells targets whose attempt is under way, and for which what they wait for has gone back, to start nothing: one
// that has not asked for its change waits again, another finishes.
func (w *walk) recall(ctx workflow.Context) {
	for i, t := range w.state.Targets {
		if d := &w.details[i]; t.InFlight && t.State == policy.Applying && len(t.After) > 0 && !d.recalled && w.state.WaitsFor(i) != "" {
			d.recalled = true
			d.line.tell(ctx, policy.ControlFinish)
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
// that may not have been changed: what has succeeded may be taken back before the last of them is.
func (w *walk) ask(ctx workflow.Context, n int, d activities.WaveDependency) {
	over := func() bool {
		return w.state.Control == policy.ControlStop || w.state.Control == policy.ControlFinish || w.state.Breached != ""
	}
	in := activities.DependencyInput{Kind: d.Kind, Name: d.Name, Environment: w.subject.Environment, Deployment: w.subject.Deployment, Version: w.subject.Version}
	at := map[string]int{}
	// wanted reports whether a target waits for it that has not started, or may not have asked for its change yet.
	wanted := func() bool {
		return slices.ContainsFunc(w.state.Targets, func(t policy.TargetProgress) bool {
			return slices.Contains(t.After, n) && (t.InFlight && t.State == policy.Applying || !t.InFlight && (t.State == policy.Pending || t.State == policy.Unreachable && !t.Tried))
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
