// Package chaos kills servers and workers at random moments of whole rollouts and rollbacks, and judges afterwards from
// the effect log whether anything was done twice, too early, too late, or not at all.
//
// All that is random is drawn from a seed, which is printed; the same seed gives the same rollout, commands and kills. How
// they fall together differs from run to run, as the machine has it. It must not ask the product what would be right.
package chaos

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/oklog/ulid/v2"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/processtest"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// options are the flags of this test binary.
type options struct {
	// kills is how many are wanted, at least; 0: those of the build tag's seeds.
	kills int
	// seed is the first seed, the others follow it; 0: any.
	seed uint64
}

var given options

// rolloutsAtOnce is how many rollouts run at a time, whatever the number of processors: they mostly wait for a dead worker
// to be noticed.
const rolloutsAtOnce = "6"

func TestMain(m *testing.M) {
	if code, played := processtest.Play(map[string]processtest.Role{partRole: runPart}); played {
		os.Exit(code)
	}
	flag.IntVar(&given.kills, "kills", 0, "how many kills are wanted, at least; 0: those of the seeds that are written down")
	flag.Uint64Var(&given.seed, "seed", 0, "the first `seed` of these kills, the others follow it; 0: any")
	flag.Parse()
	together := true
	flag.Visit(func(f *flag.Flag) { together = together && f.Name != "test.parallel" })
	if together {
		if err := flag.Set("test.parallel", rolloutsAtOnce); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// chosen are the seeds to run.
func chosen() []uint64 {
	drawn := 1000 + rand.Uint64N(1_000_000_000) //nolint:gosec // any will do
	if given.kills == 0 && fresh {
		return append(slices.Clone(seeds), drawn)
	}
	if given.kills == 0 {
		return seeds
	}
	var out []uint64
	for seed, kills := cmp.Or(given.seed, drawn), 0; kills < given.kills; seed++ {
		out = append(out, seed)
		kills += len(draw(seed).kills)
	}
	return out
}

// TestRandomKills fails when there is a moment at which the death of a server, a worker or both changes what a rollout or
// a rollback does.
func TestRandomKills(t *testing.T) {
	var kills atomic.Int64
	t.Cleanup(func() { t.Logf("%d kills", kills.Load()) })
	for _, seed := range chosen() {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			kills.Add(int64(runSeed(t, seed)))
		})
	}
}

// runSeed runs the rollout of a seed, judges it, and returns how many kills there were.
func runSeed(t *testing.T, seed uint64) int {
	s := draw(seed)
	again := fmt.Sprintf("seed %d; once more: make chaos SEED=%d KILLS=1", seed, seed)
	t.Log(again)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s", again, s)
		}
	})
	in := install(t, s.whole)
	at := newSite(t, s)
	input := upload(t, in, s.documents(at.step()))
	r := begin(t, s, in, at, input)
	e := evidence{scenario: s, first: r.through(t, s.kills, s.commands)}
	kills, last := r.kills, r
	if s.later && e.first.reached() {
		again := input
		again.Rollout, again.Mode, again.Of, again.PlanDigest = ulid.Make().String(), workflows.ModeRollback, input.Rollout, ""
		last = begin(t, s, in, at, again)
		later := last.through(t, s.kills[:2], nil)
		e.later = &later
		kills += last.kills
	}
	e.effects, e.runs, e.downs = at.log(), at.runs(), in.downs
	faults := judge(e)
	for _, f := range faults {
		t.Error(f)
	}
	t.Logf("%s; %d targets, %d effects, %d kills", e.first.status.State, len(s.targets), len(e.effects), kills)
	if len(faults) > 0 {
		t.Log(timeline(e.first.status))
		for _, receipt := range e.first.status.Commands {
			t.Logf("%+v", receipt)
		}
		for _, d := range e.downs {
			t.Logf("%s dead from %s to %s", d.what, d.from.Format("15:04:05.000"), d.to.Format("15:04:05.000"))
		}
		for _, effect := range e.effects {
			t.Logf("%s %s %s %s failed=%t runs=%s %s", effect.at.Format("15:04:05.000"), effect.what, effect.operation, effect.version, effect.failed, effect.runs, effect.why)
		}
	}
	return kills
}

// reached reports whether the record has targets to take back.
func (e ending) reached() bool {
	for _, t := range e.record.Targets {
		if t.Reached && t.State != string(policy.NoChange) {
			return true
		}
	}
	return false
}
