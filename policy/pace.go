package policy

import (
	"cmp"
	"fmt"
	"time"
)

// PaceState is a Pace as a wave keeps it.
type PaceState struct {
	Policy string
	// Interval is the least time between two starts; 0: none. Overlap is as in Pace.
	Interval time.Duration
	Overlap  bool
	// Last is when the newest start was, in earlier waves too; zero: there was none.
	Last time.Time
}

// DependencyState is a Dependency as a wave sees it.
type DependencyState struct {
	Policy, Name string
	Kind         DependencyKind
	// Here are the targets of the wave that must have succeeded, as indices.
	Here []int
	// Met are the targets for which the ledger says that it is met, where that is decided outside of the rollout.
	Met map[int]bool
}

// TargetWait is why a target that could start has to wait, apart from slots.
type TargetWait struct {
	Target int // index
	Reason string
	// Next is when it may start by itself; zero: when what Reason names has happened.
	Next time.Time
}

// Mark notes for which targets nothing has to be waited for any more, as of now. It is called before each decision.
func (s *WaveState) Mark(now time.Time) {
	met := s.metHere()
	for i := range s.Targets {
		t := &s.Targets[i]
		if t.State != Pending || t.InFlight {
			continue
		}
		if s.unmet(i, met) >= 0 {
			t.Free = time.Time{}
		} else if t.Free.IsZero() {
			t.Free = now
		}
	}
}

// WaitsFor says what a target has to wait for before it may start, and how that stands; nothing: it need not.
func (s WaveState) WaitsFor(target int) string {
	if n := s.unmet(target, s.metHere()); n >= 0 {
		return s.subject(n)
	}
	return ""
}

// unmet returns the first dependency of a target that is not met, as an index, or -1; here is what metHere returned.
func (s WaveState) unmet(target int, here []bool) int {
	for _, n := range s.Targets[target].After {
		if !here[n] && !s.Dependencies[n].Met[target] {
			return n
		}
	}
	return -1
}

// left reports whether a target has left the wave: it was skipped, or a person took it back.
func (t TargetProgress) left() bool {
	return t.State == Skipped || t.State == Removed || t.State == RolledBack
}

// Standing is how the targets stand that a dependency waits for.
type Standing struct {
	// Done is how many have succeeded, Missing how many others are waited for, Left how many have not left the wave.
	Done    int `json:"done,omitempty"`
	Missing int `json:"missing,omitempty"`
	Left    int `json:"left,omitempty"`
	// Open reports that one of them may still succeed by itself.
	Open bool `json:"open,omitempty"`
	// Failed is the first that has ended without a success, Gone the first that has left, each a name; State is of the
	// former, else of the latter.
	Failed string      `json:"failed,omitempty"`
	Gone   string      `json:"gone,omitempty"`
	State  TargetState `json:"state,omitempty"`
}

// Standing says how these targets' part of a dependency stands.
func (s WaveState) Standing(dependency int) Standing {
	var out Standing
	d := s.Dependencies[dependency]
	for _, i := range d.Here {
		t := s.Targets[i]
		if !t.left() {
			out.Left++
		}
		switch {
		case !t.InFlight && (t.State == Succeeded || t.State == NoChange):
			out.Done++
		case d.Kind != WaitForPolicy || !t.left():
			out.Missing++
		}
		out.Open = out.Open || t.InFlight || t.State == Pending || t.State == Unreachable && !t.Tried
		switch {
		case t.State == Failed || t.State == NeedsRecovery || t.State == Unreachable:
			if out.Failed == "" {
				out.Failed, out.State = t.Name, t.State
			}
		case t.left() && out.Gone == "":
			if out.Gone = t.Name; out.Failed == "" {
				out.State = t.State
			}
		}
	}
	return out
}

// Plus adds how other targets of the same dependency stand.
func (a Standing) Plus(b Standing) Standing {
	out := Standing{Done: a.Done + b.Done, Missing: a.Missing + b.Missing, Left: a.Left + b.Left, Open: a.Open || b.Open,
		Failed: cmp.Or(a.Failed, b.Failed), Gone: cmp.Or(a.Gone, b.Gone), State: a.State}
	if a.State == "" || a.Failed == "" && b.Failed != "" {
		out.State = b.State
	}
	return out
}

// Telling is the part of it that changes what waits for it: the rest are figures.
func (a Standing) Telling() Standing {
	return Standing{Done: min(1, a.Done), Missing: min(1, a.Missing), Open: a.Open, Failed: a.Failed, Gone: a.Gone, State: a.State}
}

// met reports whether it is: targets that have left the wave are not waited for where a policy's are, but at least one
// must have succeeded.
func (a Standing) met() bool { return a.Done > 0 && a.Missing == 0 }

// standing is how a dependency stands over the whole wave.
func (s WaveState) standing(dependency int) Standing {
	own := s.Standing(dependency)
	if s.Beside != nil && dependency < len(s.Beside.Dependencies) {
		own = own.Plus(s.Beside.Dependencies[dependency])
	}
	return own
}

// metHere reports which dependencies on targets of the wave are met.
func (s WaveState) metHere() []bool {
	met := make([]bool, len(s.Dependencies))
	for n, d := range s.Dependencies {
		met[n] = !d.Kind.Outside() && s.standing(n).met()
	}
	return met
}

// subject names what is waited for, and how that stands.
func (s WaveState) subject(n int) string {
	d := s.Dependencies[n]
	switch d.Kind {
	case WaitForTarget:
		if now := s.standing(n); now.State != "" {
			return fmt.Sprintf("%s, which is %s", d.Name, now.State)
		}
		return d.Name
	case WaitForPolicy:
		now := s.standing(n)
		return fmt.Sprintf("the targets of policy %q (%d of %d done)", d.Name, now.Done, now.Left)
	case WaitForEnvironment, WaitForDeployment:
	}
	return fmt.Sprintf("%s %q to succeed on this version", d.Kind, d.Name)
}

// choice is what choose found.
type choice struct {
	start   []int
	waiting []TargetWait
	next    time.Time
	waits   []Wait
	// waiters counts those that wait for each dependency.
	waiters []int
	// outside reports that something waits for what is decided outside of the rollout.
	outside bool
}

// keeping is where a pace stands.
type keeping struct {
	position int       // of the next target in the list
	before   int       // the first target that is not done, or -1
	flying   int       // a target in flight, or -1
	last     int       // the newest target that was started, or -1
	at       time.Time // when
	begun    time.Time // when the first could start
	shown    bool      // whether it has been said what is next
}

func (s WaveState) keeping() []keeping {
	paces := make([]keeping, len(s.Paces))
	for k := range paces {
		paces[k] = keeping{before: -1, flying: -1, last: -1, at: s.Paces[k].Last}
	}
	for i, t := range s.Targets {
		if t.Pace == 0 {
			continue
		}
		k := &paces[t.Pace-1]
		if t.InFlight {
			k.flying = i
		}
		if t.Started > 0 && (k.last < 0 || t.Started > s.Targets[k.last].Started) {
			k.last = i
		}
		if !t.Free.IsZero() && (k.begun.IsZero() || t.Free.Before(k.begun)) {
			k.begun = t.Free
		}
	}
	return paces
}

// earliest is when a target at a position may start by its pace. One that is tried again has had its time.
func (k keeping) earliest(now time.Time, position int, interval time.Duration, again bool) time.Time {
	earliest := k.begun.Add(time.Duration(position) * interval)
	if again {
		earliest = now
	}
	if after := k.at.Add(interval); !k.at.IsZero() && after.After(earliest) {
		earliest = after
	}
	return earliest
}

// choose picks the candidates that start now, at most slots of them, and says of the others what they wait for.
func (s WaveState) choose(now time.Time, slots int, candidate func(TargetProgress) bool, again bool) choice {
	var c choice
	free := s.MaxConcurrency
	if s.MaxUnpaced > 0 {
		free = s.MaxUnpaced
	}
	for _, t := range s.Targets {
		if t.Pace == 0 && t.InFlight {
			free--
		}
	}
	paces := s.keeping()
	waiters, met := make([]int, len(s.Dependencies)), s.metHere()
	wait := func(i int, reason string, next time.Time) {
		c.waiting = append(c.waiting, TargetWait{Target: i, Reason: reason, Next: next})
	}
	for i, t := range s.Targets {
		var k *keeping
		position := 0
		if t.Pace > 0 {
			k = &paces[t.Pace-1]
			position = k.position
			k.position++
		}
		if !candidate(t) {
			// At the end of the wave, where targets are tried again, what has not started waits for them, if for anything.
			if k != nil && k.before < 0 && (t.InFlight || !t.State.Terminal() && !again) {
				k.before = i
			}
			continue
		}
		if n := s.unmet(i, met); n >= 0 {
			wait(i, "it waits for "+s.subject(n), time.Time{})
			waiters[n]++
			if k != nil && k.before < 0 {
				k.before = i
			}
			continue
		}
		if !s.turn(t.Pace) {
			if k != nil {
				reason := "it starts after the targets before it"
				if k.before >= 0 {
					reason = "it starts after " + s.Targets[k.before].Name
				}
				wait(i, reason, time.Time{})
				if k.before < 0 {
					k.before = i
				}
			}
			continue
		}
		if k == nil {
			if free > 0 && len(c.start) < slots {
				free--
				c.start = append(c.start, i)
			}
			continue
		}
		pace := s.Paces[t.Pace-1]
		if !pace.Overlap && (k.before >= 0 || k.flying >= 0) {
			blocker := k.before
			if blocker < 0 {
				blocker = k.flying
			}
			wait(i, "it starts after "+s.Targets[blocker].Name, time.Time{})
			continue
		}
		if earliest := k.earliest(now, position, pace.Interval, again); now.Before(earliest) {
			reason := fmt.Sprintf("it starts %s after the one before", Duration(pace.Interval))
			if k.last >= 0 {
				reason = fmt.Sprintf("it starts %s after %s", Duration(pace.Interval), s.Targets[k.last].Name)
			}
			wait(i, reason, earliest)
			if k.before < 0 {
				k.before = i
			}
			if c.next.IsZero() || earliest.Before(c.next) {
				c.next = earliest
			}
			if !k.shown {
				k.shown = true
				c.waits = append(c.waits, Wait{Reason: t.Name + " is next: " + reason, Rule: "gradualRollout", Policy: pace.Policy,
					Lifts: "time: it starts at " + earliest.UTC().Format(time.RFC3339), Next: earliest})
			}
			continue
		}
		if k.before < 0 {
			k.before = i
		}
		if len(c.start) < slots {
			c.start = append(c.start, i)
			k.last, k.at, k.flying = i, now, i
		}
	}
	c.waiters = waiters
	c.waits = append(c.waits, s.DependencyWaits(waiters)...)
	for n, waiting := range waiters {
		c.outside = c.outside || waiting > 0 && s.Dependencies[n].Kind.Outside()
	}
	return c
}

// DependencyWaits says what must be lifted for those that wait for others; waiters counts them by dependency.
func (s WaveState) DependencyWaits(waiters []int) []Wait {
	var out []Wait
	for n, waiting := range waiters {
		if waiting == 0 {
			continue
		}
		d := s.Dependencies[n]
		w := Wait{Reason: fmt.Sprintf("%s for %s", waitFor(waiting), s.subject(n)), Rule: "deploymentDependency", Policy: d.Policy,
			Lifts: fmt.Sprintf("success of %s %q on this version", d.Kind, d.Name)}
		if now := s.standing(n); !d.Kind.Outside() && !now.Open {
			// It can't be met any more unless a person does something.
			w.Target = cmp.Or(now.Failed, now.Gone)
			w.Lifts = "retry what failed; what waits for it may be left out too; rollback, reject or abort ends the rollout"
		}
		out = append(out, w)
	}
	return out
}

func waitFor(n int) string {
	if n == 1 {
		return "1 target waits"
	}
	return fmt.Sprintf("%d targets wait", n)
}

// stuck reports whether nothing starts, now or later by itself, and nothing is in flight.
func (c choice) stuck(counts WaveCounts) bool {
	return len(c.start) == 0 && counts.InFlight == 0 && c.next.IsZero() && !c.outside
}

// holding makes a decision that starts nothing for ever one that holds for a person, and says why.
func (c choice) holding(d WaveDecision, counts WaveCounts) WaveDecision {
	if c.stuck(counts) {
		d.Phase, d.Reason = WaveHeld, c.why()
	}
	return d
}

// why says why nothing starts.
func (c choice) why() string {
	for _, w := range c.waits {
		if w.Rule == "deploymentDependency" {
			return w.Reason
		}
	}
	if len(c.waiting) > 0 {
		return c.waiting[0].Reason
	}
	return "nothing can start"
}
