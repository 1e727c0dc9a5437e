package workflows

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// Whatever is taken back by hand, and whenever: the rollout ends, each command is answered, no operation is asked for
// twice, nothing goes back that does not carry the change, and nothing is changed anew that went back, except by a retry.
func TestRollbacksByHandAtAnyMoment(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { takeBackAtAnyMoment(t, seed, 0) })
		t.Run(fmt.Sprint(seed, " in batches"), func(t *testing.T) { takeBackAtAnyMoment(t, seed, 2+int(seed%2)) }) //nolint:gosec // small
	}
}

// takeBackAtAnyMoment has so many batches share each wave; 0: none do.
func takeBackAtAnyMoment(t *testing.T, seed uint64, batches int) {
	random := rand.New(rand.NewPCG(seed, 1))
	p := tolerant(random.IntN(4), "a,b,c,d", "e,f,g", "h,i")
	for i := range p.Waves.Waves {
		p.Waves.Waves[i].MaxConcurrency = amount(1 + random.IntN(3))
		if random.IntN(2) == 0 {
			p.Waves.Waves[i].Soak = policy.Duration(time.Duration(random.IntN(60)) * time.Minute)
		}
	}
	if random.IntN(3) == 0 {
		p.Rollback = &policy.Rollback{MaxConcurrency: amount(1 + random.IntN(2)), OnBreach: policy.OnBreach([]policy.OnBreach{policy.BreachHolds, policy.BreachWaveBack, policy.BreachRolloutAll}[random.IntN(3)])}
	}
	names := strings.Split("a,b,c,d,e,f,g,h,i", ",")
	w := newWorld(t, p, names...)
	w.replan(func(p *policy.Plan) {
		for i := range p.Waves {
			p.Waves[i].Batches = min(batches, p.Waves[i].Size)
		}
	})
	hangs := map[string]time.Duration{}
	retried := map[string]bool{}
	for _, name := range names {
		for _, change := range []string{"apply ", "restore "} {
			if random.IntN(3) > 0 {
				hangs[change+name] = time.Duration(random.IntN(40)) * time.Minute
			}
			if random.IntN(12) == 0 {
				w.fleet.on[change+name] = fails("stuck")
			}
		}
	}
	w.hangChanges(hangs)
	for n := range 14 {
		at := time.Duration(random.IntN(4*3600)) * time.Second
		id := fmt.Sprintf("%d", n)
		name := names[random.IntN(len(names))]
		switch random.IntN(10) {
		case 0, 1, 2:
			w.send(at, RollBack, takesBack(name, id))
		case 3, 4:
			w.send(at, RollBack, takesBack(1+random.IntN(3), id))
		case 5, 6:
			w.send(at, Resume, map[string]any{"id": id})
		case 7:
			w.send(at, Pause, map[string]any{"id": id})
		case 8:
			retried[name] = true
			w.send(at, Retry, map[string]any{"target": name, "id": id})
		case 9:
			w.send(at, Skip, map[string]any{"target": name, "id": id})
		}
	}
	for n := range 6 {
		w.send(time.Duration(10+10*n)*time.Hour, Resume, nil)
		w.send(time.Duration(15+10*n)*time.Hour, Approve, map[string]any{"by": "bob"})
	}
	// Sampled every few minutes: while it holds nothing new is asked for.
	var holds bool
	var applied, taken int
	for minute := range 90 {
		w.env.RegisterDelayedCallback(func() {
			now := w.status()
			changes := 0
			for _, one := range w.fleet.log() {
				if strings.HasPrefix(one, string(executors.Apply)) {
					changes++
				}
			}
			accepted := 0
			for _, c := range now.Commands {
				if c.Accepted && c.Name == Resume {
					accepted++
				}
			}
			holding := slices.ContainsFunc(now.Waits, func(w policy.Wait) bool { return w.Rule == "rollback" })
			if holding && holds && accepted == taken && changes > applied {
				t.Errorf("asked for %d changes while it held: %v", changes-applied, w.fleet.log())
			}
			holds, applied, taken = holding, changes, accepted
		}, time.Duration(minute)*3*time.Minute+time.Second)
	}
	last := []string{Abort, RollBack, Reject}[random.IntN(3)]
	w.send(100*time.Hour, last, nil)
	s := w.run()
	for _, c := range s.Commands {
		if c.Pending {
			t.Errorf("never answered: %+v", c)
		}
	}
	asked := w.fleet.log()
	if len(w.fleet.operations) != len(asked) {
		t.Errorf("%d operations for %d askings: %v", len(w.fleet.operations), len(asked), asked)
	}
	carries := map[string]bool{}
	for _, one := range asked {
		words := strings.Fields(one)
		direction, name := words[0], words[1]
		if direction == string(executors.Restore) && !carries[name] {
			t.Errorf("%s was asked to go back and did not carry the change: %v", name, asked)
		}
		if direction == string(executors.Apply) && slices.Contains(asked[:slices.Index(asked, one)], one) && !retried[name] {
			t.Errorf("%s was changed anew: %v", name, asked)
		}
		carries[name] = direction == string(executors.Apply) && w.fleet.on[one[:len(one)-3]] == nil || carries[name] && w.fleet.on[one[:len(one)-3]] != nil
	}
	if s.Rollback != nil && s.Rollback.InFlight != 0 {
		t.Errorf("%s with %d on their way back", s.State, s.Rollback.InFlight)
	}
	if t.Failed() {
		t.Logf("%s (%s), commands %+v, timeline %+v", s.State, s.Reason, s.Commands, s.Timeline)
	}
}
