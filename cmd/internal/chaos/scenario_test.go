package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// before and after are the versions of every rollout here.
const (
	before = "v1"
	after  = "v2"
)

// scenario is one rollout, what people do to it and what is killed when: all that is drawn from a seed. The same seed
// gives the same scenario; how what was drawn falls together is up to the machine.
type scenario struct {
	seed     uint64
	executor string // sim, command
	// whole has the server and the worker in one process.
	whole   bool
	waves   []wave
	targets []target
	// budget is of the rollout; a wave may have one of its own.
	budget         int
	bounded        bool
	onBreach       policy.OnBreach
	onTargetFailed policy.OnTargetFailed
	onReject       policy.OnReject
	order          policy.RollbackOrder
	// backAtOnce is how many targets may be on their way back at once.
	backAtOnce int
	// shortest and longest bound how long one change takes.
	shortest, longest time.Duration
	// answer ends the rollout if it holds for a person after a breach or a reject.
	answer string
	// pauseFor is how long people let the rollout stay paused or held before they resume it.
	pauseFor time.Duration
	commands []command
	kills    []kill
	// later takes the rollout back once it has ended with something reached.
	later bool
}

// wave is one wave; its targets name it.
type wave struct {
	concurrency int
	// budget is -1 if the wave has none of its own.
	budget int
	soak   time.Duration
	// approvals is how many people must approve it; strangers that none of them has started the rollout.
	approvals int
	strangers bool
}

// target is one target and what is wrong with it.
type target struct {
	name string
	wave int // index
	// there has it run the new version before the rollout.
	there bool
	// fails is how many of its first changes fail, -1 for all; leaves has those leave the new version behind.
	fails  int
	leaves bool
	// stuck has every way back fail.
	stuck bool
	// slow is how long the site holds back its answer to the first asking in each direction, so that something dies in
	// between; lost has it not come at all, and dropped has the first asking itself not arrive. A simulated site only.
	slow          time.Duration
	lost, dropped bool
}

// moment is when something is done: once the effect log has so many lines, of a kill so many more than at the one before
// it, or when nothing has been written to it for a while; and then a little later.
type moment struct {
	lines int
	quiet time.Duration
	delay time.Duration
}

// command is something that a person sends.
type command struct {
	name   string
	target string
	wave   int
	when   moment
	// dead has it sent while what the kill of that number has killed is dead, instead; from 1.
	dead int
}

// victims are what a kill ends.
type victims string

const (
	killWorker victims = "worker"
	killServer victims = "server"
	killBoth   victims = "both" // or the process that is both
)

// kill ends processes and starts them again on the same data.
type kill struct {
	what victims
	when moment
	// away is how long they stay dead.
	away time.Duration
}

// millis draws a duration.
func millis(r *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+r.IntN(to-from+1)) * time.Millisecond
}

// pick draws one of several.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// oneIn draws true once in n.
func oneIn(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

// draw makes the scenario of a seed.
func draw(seed uint64) scenario {
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // it must give the same again, and nobody is to be kept from guessing it
	s := scenario{
		seed: seed, executor: pick(r, "sim", "command"), whole: oneIn(r, 3), bounded: oneIn(r, 2), budget: pick(r, 0, 1, 2, 2, 3),
		onBreach:       pick(r, policy.BreachHolds, policy.BreachRolloutAll, policy.BreachWaveBack, policy.BreachFails),
		onTargetFailed: pick(r, policy.TargetGoesBack, policy.TargetStays),
		onReject:       pick(r, policy.RejectRolloutBack, policy.RejectRolloutBack, policy.RejectHolds),
		order:          pick(r, policy.OrderDeployed, policy.OrderNewest),
		backAtOnce:     1 + r.IntN(4), shortest: millis(r, 20, 200), answer: pick(r, workflows.RollBack, workflows.RollBack, workflows.Abort, workflows.Reject),
		pauseFor: millis(r, 1000, 5000), later: oneIn(r, 2),
	}
	s.longest = s.shortest + millis(r, 0, 800)
	for range 1 + r.IntN(3) {
		w := wave{concurrency: 1 + r.IntN(5), budget: -1}
		if oneIn(r, 2) {
			w.budget = pick(r, 0, 1, 2, 2)
		}
		if oneIn(r, 3) {
			w.soak = millis(r, 500, 3000)
		}
		if oneIn(r, 4) {
			w.approvals, w.strangers = 1+r.IntN(2), oneIn(r, 2)
		}
		s.waves = append(s.waves, w)
	}
	s.drawTargets(r)
	s.drawCommands(r)
	s.drawKills(r)
	for i := range s.targets {
		if s.executor != "sim" {
			break // no script's answer goes over a wire
		}
		t := &s.targets[i]
		switch {
		case oneIn(r, 3):
			t.slow = millis(r, 100, 2500)
		case oneIn(r, 12):
			t.lost = true
		case oneIn(r, 20):
			t.dropped = true
		}
	}
	return s
}

func (s *scenario) drawTargets(r *rand.Rand) {
	n := 6 + r.IntN(19)
	sick := pick(r, 0, 0, 20, 10, 5)
	for i := range n {
		t := target{name: fmt.Sprintf("c%02d", i+1), wave: i * len(s.waves) / n}
		switch {
		case sick > 0 && oneIn(r, sick):
			t.fails, t.leaves = pick(r, 1, 1, -1), oneIn(r, 2)
		case oneIn(r, 25):
			t.there = true
		case oneIn(r, 60):
			t.stuck = true
		}
		s.targets = append(s.targets, t)
	}
}

// drawCommands draws what people do of their own accord. What the rollout asks them, they answer besides.
func (s *scenario) drawCommands(r *rand.Rand) {
	when := func() moment {
		return moment{lines: 1 + r.IntN(2*len(s.targets)), quiet: millis(r, 4000, 12000), delay: millis(r, 0, 60)}
	}
	for range r.IntN(3) {
		c := command{name: pick(r, workflows.Pause, workflows.Pause, workflows.Skip, workflows.Retry, workflows.RollBack), when: when()}
		switch c.name {
		case workflows.Skip, workflows.Retry:
			c.target = pick(r, s.targets...).name
			for _, t := range s.targets {
				if t.fails > 0 && c.name == workflows.Retry {
					c.target = t.name
				}
			}
		case workflows.RollBack:
			if oneIn(r, 2) {
				c.target = pick(r, s.targets...).name
			} else {
				c.wave = 1 + r.IntN(len(s.waves))
			}
		}
		s.commands = append(s.commands, c)
	}
	if oneIn(r, 2) {
		s.commands = append(s.commands, command{name: pick(r, workflows.RollBack, workflows.RollBack, workflows.Reject, workflows.Abort), when: when()})
	}
}

// drawKills draws what dies when. Some of the commands are sent meanwhile.
func (s *scenario) drawKills(r *rand.Rand) {
	n := 2 + r.IntN(4)
	for range n {
		k := kill{what: pick(r, killWorker, killWorker, killServer, killBoth),
			when: moment{lines: 1 + r.IntN(max(2, 2*len(s.targets)/n)), quiet: millis(r, 2000, 10000), delay: millis(r, 0, 150)}, away: millis(r, 0, 1500)}
		if s.whole {
			k.what = killBoth
		}
		s.kills = append(s.kills, k)
	}
	for i := range s.commands {
		if oneIn(r, 3) {
			s.commands[i].dead = 1 + r.IntN(n)
		}
	}
}

// named is the target of that name.
func (s scenario) named(name string) (target, bool) {
	i := slices.IndexFunc(s.targets, func(t target) bool { return t.name == name })
	if i < 0 {
		return target{}, false
	}
	return s.targets[i], true
}

// waveBudget is the budget of wave i: the first one's is 0 if it has none of its own, the others' is then the rollout's.
func (s scenario) waveBudget(i int) int {
	switch {
	case s.waves[i].budget >= 0:
		return s.waves[i].budget
	case i == 0:
		return 0
	}
	return s.budget
}

// documents are the scenario's targets and rules, with that step.
func (s scenario) documents(step string) string {
	var b strings.Builder
	for _, t := range s.targets {
		fmt.Fprintf(&b, "type: Resource\nname: %s\nkind: Host\nmetadata: {wave: %d}\n---\n", t.name, t.wave)
	}
	fmt.Fprintf(&b, `type: Environment
name: Production
resourceSelector: 'true'
---
type: Deployment
name: web
steps:
  apply: [{name: put, %s}]
---
type: Policy
name: production
rules:
  - failureThreshold: {maxFailures: %d, bounded: %t}
  - rollback: {onTargetFailed: %s, onBreach: %s, onReject: %s, order: %s, maxConcurrency: %d}
  - waves:
`, step, s.budget, s.bounded, s.onTargetFailed, s.onBreach, s.onReject, s.order, s.backAtOnce)
	for i, w := range s.waves {
		fmt.Fprintf(&b, "      - {name: wave-%d, select: target.metadata.wave == %d, maxConcurrency: %d", i+1, i, w.concurrency)
		if w.budget >= 0 {
			fmt.Fprintf(&b, ", maxFailures: %d", w.budget)
		}
		if w.soak > 0 {
			fmt.Fprintf(&b, ", soak: %dms", w.soak.Milliseconds())
		}
		if w.approvals > 0 {
			fmt.Fprintf(&b, ", approval: {min: %d, notAuthor: %t}", w.approvals, w.strangers)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// String says what was drawn, for whoever looks into a failure.
func (s scenario) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d targets by %s, one process: %t, budget %d, bounded: %t, onBreach %s, onTargetFailed %s, onReject %s, %d back at once, %s first, changes take %s to %s, then %s, later rollback: %t",
		len(s.targets), s.executor, s.whole, s.budget, s.bounded, s.onBreach, s.onTargetFailed, s.onReject, s.backAtOnce, s.order, s.shortest, s.longest, s.answer, s.later)
	for i, w := range s.waves {
		fmt.Fprintf(&b, "\n  wave %d: %d at once, budget %d, soak %s, %d approvals (of strangers: %t):", i+1, w.concurrency, s.waveBudget(i), w.soak, w.approvals, w.strangers)
		for _, t := range s.targets {
			if t.wave != i {
				continue
			}
			b.WriteString(" " + t.name)
			switch {
			case t.there:
				b.WriteString(" (there already)")
			case t.stuck:
				b.WriteString(" (does not go back)")
			case t.fails != 0:
				fmt.Fprintf(&b, " (fails %d times, leaves the new version: %t)", t.fails, t.leaves)
			}
			switch {
			case t.slow > 0:
				fmt.Fprintf(&b, " (answers after %s)", t.slow)
			case t.lost:
				b.WriteString(" (its answer is lost)")
			case t.dropped:
				b.WriteString(" (its request is lost)")
			}
		}
	}
	for _, c := range s.commands {
		fmt.Fprintf(&b, "\n  %s %s wave %d, %s, in kill %d", c.name, c.target, c.wave, c.when, c.dead)
	}
	for i, k := range s.kills {
		fmt.Fprintf(&b, "\n  kill %d: %s, %s, away %s", i+1, k.what, k.when, k.away)
	}
	return b.String()
}

func (m moment) String() string {
	return fmt.Sprintf("after %d lines or %s of quiet, and %s", m.lines, m.quiet, m.delay)
}
