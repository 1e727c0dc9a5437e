package e2e

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/processtest"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/sqlite"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// fleetSize is how many targets the rollouts of the kill tests have; two are changed at a time, so that something goes
// on beside the one whose worker dies, and something comes after it.
const fleetSize = 3

// patience only ends what hangs: two busy cores and the race detector make seconds into minutes.
const patience = 5 * time.Minute

// victim is the target whose change is cut off.
const victim = "c02"

// oneWave is the policy of an apply that ends by itself, and soaking that of a rollout that stays open with everything
// reached, to be taken back.
const (
	oneWave = "  - waves: [{name: all, select: 'true', maxConcurrency: 2}]\n"
	soaking = "  - waves: [{name: all, select: 'true', maxConcurrency: 2, soak: 1h}]\n"
)

// steps are the named points of the activities of one change.
var steps = []string{
	"observe.begin", "observe.end", "submit.begin", "submit.asked", "await.begin", "await.end", "verify.begin", "verify.end",
	"record.begin", "record.end",
}

// killCase is one way to die.
type killCase struct {
	executor  string // sim, command
	direction executors.Direction
	point     string
	// last arms the kill once something has been changed, so that it is not the first record that is cut off.
	last bool
	// whole has the server die with its worker.
	whole bool
	// plain has the case run without -tags full, too.
	plain bool
}

func (c killCase) name() string {
	name := fmt.Sprintf("%s/%s/%s", c.executor, c.direction, c.point)
	if c.last {
		name += "/last"
	}
	return name
}

// killMatrix is each step of both executors in both directions. Without -tags full it is each step of a simulated
// apply, and of the others those where the change has been asked for and not yet been recorded.
func killMatrix() []killCase {
	var cases []killCase
	for _, executor := range []string{"sim", "command"} {
		for _, direction := range []executors.Direction{executors.Apply, executors.Restore} {
			for _, point := range steps {
				c := killCase{executor: executor, direction: direction, point: point}
				first := executor == "sim" && direction == executors.Apply
				c.plain = first || (executor == "command" && point == "submit.asked") || (direction == executors.Restore && point == "await.end")
				cases = append(cases, c)
				if first && strings.HasPrefix(point, "record.") {
					c.last, c.plain = true, false
					cases = append(cases, c)
				}
			}
		}
	}
	return cases
}

// wholeMatrix is a choice of moments at which the server dies with its worker.
func wholeMatrix() []killCase {
	return []killCase{
		{executor: "sim", direction: executors.Apply, point: "submit.asked", whole: true, plain: true},
		{executor: "sim", direction: executors.Restore, point: "await.begin", whole: true},
		{executor: "command", direction: executors.Apply, point: "await.end", whole: true},
		{executor: "command", direction: executors.Restore, point: "submit.begin", whole: true, plain: true},
	}
}

// TestKilledWorkerChangesNothingTwice fails when there is a step at which the death of a worker changes how a rollout
// ends, or makes it ask for a change twice.
func TestKilledWorkerChangesNothingTwice(t *testing.T) { runKillCases(t, killMatrix()) }

// TestKilledServerChangesNothingTwice fails when the same holds for the death of the server and its worker together.
func TestKilledServerChangesNothingTwice(t *testing.T) { runKillCases(t, wholeMatrix()) }

func runKillCases(t *testing.T, cases []killCase) {
	t.Parallel()
	var left []string
	for _, c := range cases {
		if !full && !c.plain {
			left = append(left, c.name())
			continue
		}
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
	if len(left) > 0 {
		t.Logf("%d of %d cases run with -tags full only: %s", len(left), len(cases), strings.Join(left, ", "))
	}
}

func (c killCase) run(t *testing.T) {
	k := newKillable(t, c.whole)
	s := c.site(t, k)
	target := victim
	if strings.HasPrefix(c.point, "record.") {
		target = "" // a record is the rollout's
	}
	k.killAt(c.point, target)
	k.work()
	if c.direction == executors.Apply {
		k.applyAndDie(c, s)
	} else {
		k.restoreAndDie(s)
	}
}

func (c killCase) site(t *testing.T, k *killable) site {
	t.Helper()
	if c.executor == "command" {
		return newCommandSite(t, k.data, fleetSize)
	}
	return newSimSite(t, scenario(fleetSize))
}

// applyAndDie runs a rollout to its end across the death of its worker.
func (k *killable) applyAndDie(c killCase, s site) {
	k.t.Helper()
	if !c.last {
		k.arm()
	}
	in := k.start(s.documents(fleetSize, oneWave), "v2")
	if c.last {
		eventually(k.t, "something is changed", func() bool { return len(s.asked()) > 0 }, func() string { return "" })
		k.arm()
	}
	k.diesAndComesBack()
	k.wantSucceeded(in, s)
}

// wantSucceeded wants a rollout to end with each target changed once.
func (k *killable) wantSucceeded(in workflows.RolloutInput, s site) {
	k.t.Helper()
	k.wantEnd(in, workflows.Succeeded, map[policy.TargetState]int{policy.Succeeded: fleetSize})
	wantSite(k.t, s, changes(all(fleetSize, ""), executors.Apply), all(fleetSize, "v2"))
}

// restoreAndDie takes a rollout back across the death of its worker.
func (k *killable) restoreAndDie(s site) {
	k.t.Helper()
	in := k.reachAll(s)
	k.arm()
	k.signal(workflows.RollBack, workflows.Command{By: "bob"})
	k.diesAndComesBack()
	k.wantRolledBack(in, s)
}

// reachAll starts a rollout and waits until it soaks with each target changed.
func (k *killable) reachAll(s site) workflows.RolloutInput {
	k.t.Helper()
	in := k.start(s.documents(fleetSize, soaking), "v2")
	k.until("the wave soaks", func(s workflows.RolloutStatus) bool {
		return len(s.Waves) == 1 && !s.Waves[0].SoakUntil.IsZero()
	})
	return in
}

// wantRolledBack wants a rollout to end with each target changed once and taken back once.
func (k *killable) wantRolledBack(in workflows.RolloutInput, s site) {
	k.t.Helper()
	k.wantEnd(in, workflows.RolledBack, map[policy.TargetState]int{policy.RolledBack: fleetSize})
	wantSite(k.t, s, changes(all(fleetSize, ""), executors.Apply, executors.Restore), all(fleetSize, "v1"))
}

// wantEnd waits for the rollout's end, and wants its status and its record in the ledger to say the same.
func (l *lane) wantEnd(in workflows.RolloutInput, state workflows.Phase, counts map[policy.TargetState]int) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	var result workflows.RolloutResult
	if err := l.client.GetWorkflow(ctx, workflows.RolloutID("Production", "web"), "").Get(ctx, &result); err != nil {
		s, statusErr := l.status()
		l.t.Fatalf("the rollout did not end: %v; state %s (%s), counts %v, timeline %s (%v)", err, s.State, s.Reason, s.Counts, timeline(s), statusErr)
	}
	s := l.ended()
	if s.State != state {
		l.t.Errorf("state = %s (%s), want %s%s", s.State, s.Reason, state, timeline(s))
	}
	if diff := cmp.Diff(counts, s.Counts); diff != "" {
		l.t.Errorf("states of targets (-want +got):\n%s%s", diff, timeline(s))
	}
	store, err := sqlite.Open(ctx, filepath.Join(l.data, "ledger.db"))
	if err != nil {
		l.t.Fatal(err)
	}
	defer store.Close()
	record, err := store.Record(ctx, in.Rollout)
	if err != nil {
		l.t.Fatal(err)
	}
	if record.State != string(state) {
		l.t.Errorf("the ledger says %s, want %s", record.State, state)
	}
	recorded := map[policy.TargetState]int{}
	for _, target := range record.Targets {
		recorded[policy.TargetState(target.State)]++
	}
	counts = maps.Clone(counts)
	delete(counts, policy.Pending) // what was never started is not recorded
	if diff := cmp.Diff(counts, recorded); diff != "" {
		l.t.Errorf("targets in the ledger (-want +got):\n%s", diff)
	}
}

// version is what a change in a direction brings.
func version(d executors.Direction) string {
	if d == executors.Restore {
		return "v1"
	}
	return "v2"
}

// bothWays runs a test in both directions.
func bothWays(t *testing.T, test func(t *testing.T, d executors.Direction)) {
	t.Parallel()
	for _, d := range []executors.Direction{executors.Apply, executors.Restore} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			test(t, d)
		})
	}
}

// begin begins a change of each target in that direction. meanwhile is called before the changes begin.
func (k *killable) begin(s site, d executors.Direction, meanwhile func()) workflows.RolloutInput {
	k.t.Helper()
	if d == executors.Apply {
		meanwhile()
		return k.start(s.documents(fleetSize, oneWave), "v2")
	}
	in := k.reachAll(s)
	meanwhile()
	k.signal(workflows.RollBack, workflows.Command{By: "bob"})
	return in
}

// finish wants the changes in that direction to end as if nothing had happened.
func (k *killable) finish(in workflows.RolloutInput, s site, d executors.Direction) {
	k.t.Helper()
	if d == executors.Apply {
		k.wantSucceeded(in, s)
		return
	}
	k.wantRolledBack(in, s)
}

// TestWorkerKilledBetweenEffectAndReply fails when a change that the fleet has begun, and whose answer never came, is
// asked for again.
func TestWorkerKilledBetweenEffectAndReply(t *testing.T) {
	bothWays(t, func(t *testing.T, d executors.Direction) {
		world := scenario(fleetSize)
		// Less than the adapter's own limit for one request, and far more than it takes to be killed.
		world.DelayReplies = []fleet.Delay{{Match: fleet.Match{Targets: []string{victim}}, Version: version(d), Times: 1, Delay: 9 * time.Second}}
		k, s := newKillable(t, false), newSimSite(t, world)
		k.work()
		in := k.begin(s, d, func() {})
		eventually(t, "the fleet has begun", func() bool {
			return slices.ContainsFunc(s.entries(), func(e fleet.Entry) bool { return e.Kind == fleet.KindStarted && e.Reply == "delayed" })
		}, func() string { return fmt.Sprint(s.asked()) })
		k.killAndWork()
		k.finish(in, s, d)
	})
}

// TestLostReplyIsNotAskedAgain fails when an answer that was lost makes Sluice ask again.
func TestLostReplyIsNotAskedAgain(t *testing.T) {
	bothWays(t, func(t *testing.T, d executors.Direction) {
		world := scenario(fleetSize)
		world.LoseReplies = []fleet.Loss{{Version: version(d), Times: 1}}
		k, s := newKillable(t, false), newSimSite(t, world)
		k.startWorker()
		in := k.begin(s, d, func() {})
		k.finish(in, s, d)
	})
}

// TestWorkerKilledWhileTheScriptRuns fails when a running script dies with its worker, or is run again by the next one.
func TestWorkerKilledWhileTheScriptRuns(t *testing.T) {
	for _, whole := range []bool{false, true} {
		t.Run(map[bool]string{false: "worker alone", true: "server too"}[whole], func(t *testing.T) {
			bothWays(t, func(t *testing.T, d executors.Direction) {
				k := newKillable(t, whole)
				s := newCommandSite(t, k.data, fleetSize)
				k.work()
				in := k.begin(s, d, func() { s.hold("hang", d, victim) })
				s.held("hang", d, victim)
				k.killAndWork()
				s.release("hang", d, victim)
				k.finish(in, s, d)
			})
		})
	}
}

// TestRunnerKilledAfterTheEffect fails when a script whose end nobody recorded is run again, although the check settles
// what it did.
func TestRunnerKilledAfterTheEffect(t *testing.T) {
	bothWays(t, func(t *testing.T, d executors.Direction) {
		k := newKillable(t, false)
		s := newCommandSite(t, k.data, fleetSize)
		k.useRunner()
		k.startWorker()
		in := k.begin(s, d, func() { s.hold("late", d, victim) })
		s.held("late", d, victim)
		s.killRunner(victim)
		s.release("late", d, victim)
		k.finish(in, s, d)
	})
}

// useRunner lets a worker in the test's process start runners.
func (l *lane) useRunner() {
	l.t.Helper()
	runner, err := processtest.Runner()
	if err != nil {
		l.t.Fatal(err)
	}
	l.options.Runner = runner
}

// TestRunnerKilledWithoutACheck fails when a change of unknown effect is taken for a success or a failure, or tried
// again: without a check only a person can tell.
func TestRunnerKilledWithoutACheck(t *testing.T) {
	t.Parallel()
	t.Run("over budget", func(t *testing.T) {
		t.Parallel()
		k, s := newBlind(t)
		// The first target waits, so that the third does not start before the second has failed.
		s.hold("late", executors.Apply, "c01")
		in := k.start(s.documents(fleetSize, oneWave), "v2")
		s.held("late", executors.Apply, "c01")
		k.loseVictim(s)
		k.until("the rollout holds", func(s workflows.RolloutStatus) bool { return s.State == workflows.Holding })
		s.release("late", executors.Apply, "c01")
		k.until("nothing is in flight", func(s workflows.RolloutStatus) bool { return s.Waves[0].State == string(policy.WaveBreached) })
		k.signal(workflows.Abort, workflows.Command{By: "bob"})
		k.wantEnd(in, workflows.Aborted, map[policy.TargetState]int{policy.Succeeded: 1, policy.NeedsRecovery: 1, policy.Pending: 1})
		wantSite(t, s, []string{"apply c01", "apply c02"}, map[string]string{"c01": "v2", "c02": "v2", "c03": "v1"})
	})
	t.Run("within budget", func(t *testing.T) {
		t.Parallel()
		k, s := newBlind(t)
		in := k.start(s.documents(fleetSize, "  - waves: [{name: all, select: 'true', maxConcurrency: 2, maxFailures: 1}]\n  - failureThreshold: {maxFailures: 1}\n"), "v2")
		k.loseVictim(s)
		k.wantEnd(in, workflows.SucceededWithFailures, map[policy.TargetState]int{policy.Succeeded: 2, policy.NeedsRecovery: 1})
		wantSite(t, s, changes(all(fleetSize, ""), executors.Apply), all(fleetSize, "v2"))
	})
}

// newBlind is a lane with a worker and a step without a check, whose script waits on the victim after its effect.
func newBlind(t *testing.T) (*lane, *commandSite) {
	t.Helper()
	l := newLane(t)
	l.useRunner()
	l.startWorker()
	s := newCommandSite(t, l.data, fleetSize)
	s.blind = true
	s.hold("late", executors.Apply, victim)
	return l, s
}

// loseVictim kills the runner on the victim and waits until the target is in a person's hands.
func (l *lane) loseVictim(s *commandSite) {
	l.t.Helper()
	s.held("late", executors.Apply, victim)
	s.killRunner(victim)
	s.release("late", executors.Apply, victim)
	l.until("the target needs a person", func(s workflows.RolloutStatus) bool {
		return slices.ContainsFunc(s.Attention, func(a workflows.TargetStatus) bool {
			return a.Name == victim && a.State == policy.NeedsRecovery && a.Reached
		})
	})
}
