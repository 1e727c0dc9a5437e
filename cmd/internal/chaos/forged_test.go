package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// second is a moment of a forged log.
func second(s float64) time.Time {
	return time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second)))
}

// forge is evidence that is being made up.
type forge struct{ evidence }

// plain is a fleet of three and three in two waves. The first soaks, the second needs an approval by somebody other than
// the author; c06 runs the version already.
func plain() *forge {
	s := scenario{budget: 1, onBreach: policy.BreachHolds, onTargetFailed: policy.TargetGoesBack, onReject: policy.RejectRolloutBack, backAtOnce: 1,
		waves: []wave{{concurrency: 2, budget: 1, soak: 2 * time.Second}, {concurrency: 2, budget: -1, approvals: 1, strangers: true}}}
	f := &forge{evidence{scenario: s, runs: map[string]string{}}}
	for i := range 6 {
		t := target{name: fmt.Sprintf("c%02d", i+1), wave: i / 3, there: i == 5}
		f.scenario.targets = append(f.scenario.targets, t)
		f.runs[t.name] = before
	}
	f.runs["c06"] = after
	f.first.status.EndedAt = second(100)
	return f
}

// line adds one line to the log, where its time belongs.
func (f *forge) line(at float64, what, target, version string, attempt int, failed bool, runs string) {
	e := effect{what: what, operation: fmt.Sprintf("%s/%s/%d", target, version, attempt), target: target, version: version, at: second(at), failed: failed, runs: runs}
	i := len(f.effects)
	for i > 0 && f.effects[i-1].at.After(e.at) {
		i--
	}
	f.effects = slices.Insert(f.effects, i, e)
}

// change adds a whole change that succeeds.
func (f *forge) change(target, version string, attempt int, from, to float64) {
	f.line(from, asked, target, version, attempt, false, "")
	f.line(from, started, target, version, attempt, false, "")
	f.line(to, finished, target, version, attempt, false, version)
	f.runs[target] = version
}

// fail adds one that fails and changes nothing.
func (f *forge) fail(target, version string, attempt int, from, to float64) {
	f.line(from, asked, target, version, attempt, false, "")
	f.line(from, started, target, version, attempt, false, "")
	f.line(to, finished, target, version, attempt, true, f.runs[target])
}

// without drops the lines of one target towards one version.
func (f *forge) without(target, version string) {
	f.effects = slices.DeleteFunc(f.effects, func(e effect) bool { return e.target == target && e.version == version })
	f.runs[target] = before
}

// command adds an accepted command.
func (f *forge) command(at float64, name string, c workflows.Command) {
	c.ID = fmt.Sprintf("%s-%d", name, len(f.first.sent)+1)
	f.first.sent = append(f.first.sent, sent{name: name, command: c, tried: second(at), taken: second(at), seen: second(at + 0.1)})
	f.first.status.Commands = append(f.first.status.Commands, workflows.Receipt{ID: c.ID, Name: name, At: second(at), Accepted: true})
}

// state sets what is recorded of a target.
func (f *forge) state(target string, s policy.TargetState, reached bool) {
	f.first.record.Targets = slices.DeleteFunc(f.first.record.Targets, func(t ledger.TargetRecord) bool { return t.Name == target })
	if s != "" {
		f.first.record.Targets = append(f.first.record.Targets, ledger.TargetRecord{Name: target, State: string(s), Reached: reached})
	}
}

// ends sets how it ended, in the status and in the ledger, which counts the recorded states.
func (f *forge) ends(s workflows.Phase) {
	f.first.status.State, f.first.record.State = s, string(s)
	f.first.status.Counts = map[policy.TargetState]int{}
	for _, t := range f.first.record.Targets {
		f.first.status.Counts[policy.TargetState(t.State)]++
	}
	if n := len(f.scenario.targets) - len(f.first.record.Targets); n > 0 {
		f.first.status.Counts[policy.Pending] += n
	}
}

// again ends it as it did, with the states counted anew.
func (f *forge) again() { f.ends(f.first.status.State) }

// succeeded is a rollout as it should be.
func succeeded() *forge {
	f := plain()
	f.change("c01", after, 1, 1, 2)
	f.change("c02", after, 1, 1.5, 3)
	f.change("c03", after, 1, 2.5, 4)
	f.command(4.5, workflows.Approve, workflows.Command{By: "bob", Wave: 2})
	f.change("c04", after, 1, 7, 8)
	f.change("c05", after, 1, 7, 9)
	for _, t := range f.scenario.targets[:5] {
		f.state(t.name, policy.Succeeded, true)
	}
	f.state("c06", policy.NoChange, false)
	f.ends(workflows.Succeeded)
	return f
}

// rolledBack is a rollout of which a person had the first wave, and with it everything, taken back.
func rolledBack() *forge {
	f := plain()
	f.change("c01", after, 1, 1, 2)
	f.change("c02", after, 1, 1.5, 3)
	f.change("c03", after, 1, 2.5, 4)
	f.command(4.5, workflows.RollBack, workflows.Command{By: "bob"})
	for i, name := range []string{"c01", "c02", "c03"} {
		f.change(name, before, 1, float64(5+i), float64(5+i)+0.5)
		f.state(name, policy.RolledBack, false)
	}
	f.ends(workflows.RolledBack)
	return f
}

// takenBackLater is the rollback of a rollout that had succeeded.
func takenBackLater() *forge {
	f := succeeded()
	f.later = &ending{began: second(20)}
	f.later.status.State, f.later.status.Mode, f.later.record.State = workflows.RolledBack, workflows.ModeRollback, string(workflows.RolledBack)
	for i, t := range f.scenario.targets[:5] {
		f.change(t.name, before, 1, float64(21+i), float64(21+i)+0.5)
	}
	return f
}

// paused is a rollout with a pause between its waves.
func paused() *forge {
	f := succeeded()
	f.without("c04", after)
	f.without("c05", after)
	f.command(5, workflows.Pause, workflows.Command{})
	f.command(40, workflows.Resume, workflows.Command{})
	f.change("c04", after, 1, 41, 42)
	f.change("c05", after, 1, 41, 42)
	return f
}

// withFailure is a rollout with one failure, within its budget, that went back by itself.
func withFailure() *forge {
	f := succeeded()
	f.without("c03", after)
	f.fail("c03", after, 1, 2.5, 4)
	f.state("c03", policy.Failed, false)
	f.ends(workflows.SucceededWithFailures)
	return f
}

// TestJudgeAcquits fails when the judge finds fault with what is as it must be: nobody would believe it.
func TestJudgeAcquits(t *testing.T) {
	for name, f := range map[string]*forge{
		"success": succeeded(), "rollback": rolledBack(), "later rollback": takenBackLater(), "pause": paused(), "failure": withFailure(),
		"a start within the second of a stop": with(rolledBack(), func(f *forge) {
			f.change("c04", after, 1, 8, 9)
			f.command(4.4, workflows.Approve, workflows.Command{By: "bob", Wave: 2})
			f.change("c04", before, 1, 10, 11)
			f.state("c04", policy.RolledBack, false)
			f.again()
		}),
		"a start within the second after a dead worker's return": with(paused(), func(f *forge) {
			f.downs = []down{{what: killWorker, from: second(6), to: second(20)}}
			f.without("c04", after)
			f.change("c04", after, 1, 21, 22)
		}),
		"a retry": with(withFailure(), func(f *forge) {
			f.command(4.2, workflows.Retry, workflows.Command{Target: "c03"})
			f.change("c03", after, 2, 4.3, 4.4)
			f.state("c03", policy.Succeeded, true)
			f.ends(workflows.Succeeded)
		}),
		"a request that was lost": with(succeeded(), func(f *forge) {
			f.scenario.targets[0].dropped = true
			f.line(0.5, refused, "c01", after, 9, false, "")
			f.effects[0].why = dropped
		}),
		"one target by hand": with(succeeded(), func(f *forge) {
			f.command(10, workflows.RollBack, workflows.Command{Target: "c01"})
			f.change("c01", before, 1, 11, 12)
			f.state("c01", policy.RolledBack, false)
			f.again()
		}),
		"a failed change that left the new version, taken back": with(withFailure(), func(f *forge) {
			f.effects[slices.IndexFunc(f.effects, func(e effect) bool { return e.target == "c03" && e.what == finished })].runs = after
			f.change("c03", before, 1, 4.1, 4.2)
		}),
		"everything by hand, but for one that nobody has looked at": with(rolledBack(), func(f *forge) {
			f.first.sent[0].command.Wave = 1
		}),
		"a command that came after the end": with(succeeded(), func(f *forge) {
			f.first.sent = append(f.first.sent, sent{name: workflows.Abort, command: workflows.Command{ID: "late"}, tried: second(101), taken: second(101)})
		}),
	} {
		t.Run(name, func(t *testing.T) {
			if faults := judge(f.evidence); len(faults) > 0 {
				t.Errorf("found fault with what is as it must be: %s", strings.Join(faults, "; "))
			}
		})
	}
}

func with(f *forge, change func(*forge)) *forge {
	change(f)
	return f
}

// TestJudgeConvicts fails when a rule can be broken without the judge noticing.
func TestJudgeConvicts(t *testing.T) {
	for _, test := range []struct {
		name string
		f    *forge
		do   func(*forge)
		want string
	}{
		{"asked for twice", succeeded(), func(f *forge) { f.line(1.2, asked, "c01", after, 1, false, "") }, "was asked for twice"},
		{"begun twice", succeeded(), func(f *forge) { f.line(2.2, started, "c01", after, 1, false, "") }, "began twice"},
		{"ended twice", succeeded(), func(f *forge) { f.line(2.2, finished, "c01", after, 1, false, after) }, "had ended already"},
		{"two at once on a target", succeeded(), func(f *forge) { f.change("c01", after, 2, 1.5, 1.7) }, "while c01/v2/1 was under way"},
		{"never ended", succeeded(), func(f *forge) { f.line(9, started, "c01", before, 1, false, "") }, "has not ended"},
		{"no target", succeeded(), func(f *forge) { f.line(9, asked, "c99", after, 1, false, "") }, "is no target"},
		{"another version", succeeded(), func(f *forge) { f.line(9, asked, "c01", "v3", 1, false, "") }, `asked to go to "v3"`},
		{"refused", succeeded(), func(f *forge) { f.line(9, refused, "c01", after, 9, false, "") }, "was refused"},
		{"changed again", succeeded(), func(f *forge) { f.change("c01", after, 2, 2.1, 2.2) }, "c01 was changed 2 times"},
		{"changed to what it runs", succeeded(), func(f *forge) { f.change("c01", after, 2, 2.1, 2.2) }, "ran v2 already"},
		{"taken back twice", rolledBack(), func(f *forge) { f.change("c01", before, 2, 8, 9) }, "was taken back 2 times"},
		{"changed though there", succeeded(), func(f *forge) { f.change("c06", after, 1, 8.2, 8.4) }, "ran the version already, and was changed"},
		{"the fleet runs something else", succeeded(), func(f *forge) { f.runs["c01"] = "v3" }, "the log leaves it with"},

		{"too many at once", succeeded(), func(f *forge) {
			f.without("c03", after)
			f.change("c03", after, 1, 1.7, 4)
		}, "with 2 of wave 1 under way"},
		{"too many with one that goes back", withFailure(), func(f *forge) {
			f.without("c02", after)
			f.without("c01", after)
			f.without("c03", after)
			f.change("c01", after, 1, 0.1, 5)
			f.line(0.2, started, "c03", after, 1, false, "")
			f.line(0.3, finished, "c03", after, 1, true, after)
			f.change("c03", before, 1, 0.4, 3)
			f.change("c02", after, 1, 2, 5)
		}, "with 2 of wave 1 under way"},
		{"over the bounded budget in flight", succeeded(), func(f *forge) { f.scenario.bounded, f.scenario.waves[0].budget = true, 0 }, "its bounded budget is 0"},
		{"over the bounded budget of the rollout", succeeded(), func(f *forge) { f.scenario.bounded, f.scenario.budget = true, 0 }, "of the rollout and 1 under way, and its bounded budget is 0"},
		{"more failed than the bounded budget and one", withFailure(), func(f *forge) {
			f.scenario.bounded = true
			f.scenario.waves[0] = wave{concurrency: 3, budget: 0}
			f.without("c01", after)
			f.fail("c01", after, 1, 1, 2)
		}, "2 of wave 1 failed, and its bounded budget is 0"},
		{"began over the budget", withFailure(), func(f *forge) {
			f.scenario.waves[0].budget = 0
			f.without("c01", after)
			f.without("c02", after)
			f.fail("c01", after, 1, 1, 2)
			f.fail("c02", after, 1, 1, 2)
		}, "c03/v2/1 began with 2 failed of wave 1"},
		{"began over the rollout's budget", withFailure(), func(f *forge) {
			f.scenario.budget, f.scenario.waves[1].concurrency = 0, 1
			f.without("c05", after)
			f.change("c05", after, 1, 8.1, 9)
		}, "c04/v2/1 began with 1 failed of the rollout"},

		{"a wave before the one before it", succeeded(), func(f *forge) {
			f.without("c03", after)
			f.change("c03", after, 1, 9, 10)
		}, "began before c03 of wave 1 was done"},
		{"a wave while the one before it goes back", withFailure(), func(f *forge) {
			f.line(4.5, started, "c03", before, 1, false, "")
			f.line(8, finished, "c03", before, 1, false, before)
		}, "while c03 of wave 1 went back"},
		{"no soak", succeeded(), func(f *forge) {
			f.without("c04", after)
			f.change("c04", after, 1, 5, 6)
		}, "which soaks for 2s"},
		{"no approval", succeeded(), func(f *forge) { f.first.sent, f.first.status.Commands = nil, nil }, "began with 0 approvals of 1"},
		{"the author's approval", succeeded(), func(f *forge) { f.first.sent[0].command.By = author }, "began with 0 approvals of 1"},
		{"an approval of another wave", succeeded(), func(f *forge) { f.first.sent[0].command.Wave = 1 }, "began with 0 approvals of 1"},
		{"an approval too late", succeeded(), func(f *forge) { f.first.sent[0].tried = second(7.5) }, "began with 0 approvals of 1"},
		{"one person for two", succeeded(), func(f *forge) {
			f.scenario.waves[1].approvals = 2
			f.command(4.6, workflows.Approve, workflows.Command{By: "bob", Wave: 2})
		}, "began with 1 approvals of 2"},

		{"begun after a stop", rolledBack(), func(f *forge) { f.change("c04", after, 1, 10, 11) }, "began 5.4s after rollback was acknowledged"},
		{"begun after an abort", succeeded(), func(f *forge) {
			f.command(1.1, workflows.Abort, workflows.Command{})
			f.ends(workflows.Aborted)
		}, "after abort was acknowledged"},
		{"begun after a reject", succeeded(), func(f *forge) { f.command(1.1, workflows.Reject, workflows.Command{}) }, "after reject was acknowledged"},
		{"begun while paused", paused(), func(f *forge) {
			f.without("c04", after)
			f.change("c04", after, 1, 30, 31)
		}, "after pause was acknowledged"},
		{"begun while it holds for what went back by hand", paused(), func(f *forge) {
			f.first.sent[1].name, f.first.status.Commands[1].Name = workflows.RollBack, workflows.RollBack
			f.first.sent[1].command.Target = "c01"
			f.change("c01", before, 1, 6, 7)
			f.without("c04", after)
			f.change("c04", after, 1, 30, 31)
		}, "after rollback was acknowledged"},
		{"begun too long after a dead worker's return", paused(), func(f *forge) {
			f.downs = []down{{what: killWorker, from: second(6), to: second(20)}}
			f.without("c04", after)
			f.change("c04", after, 1, 30, 31)
		}, "after pause was acknowledged"},

		{"taken back for nothing", succeeded(), func(f *forge) { f.change("c01", before, 1, 10, 11) }, "nothing had it taken back"},
		{"taken back before the command", rolledBack(), func(f *forge) { f.first.sent[0].tried = second(5.5) }, "c01/v1/1 began, and nothing had it taken back"},
		{"another one taken back by hand", succeeded(), func(f *forge) {
			f.command(10, workflows.RollBack, workflows.Command{Target: "c01"})
			f.change("c02", before, 1, 11, 12)
		}, "c02/v1/1 began, and nothing had it taken back"},
		{"too many on their way back", rolledBack(), func(f *forge) {
			f.effects[slices.IndexFunc(f.effects, func(e effect) bool { return e.target == "c01" && e.version == before && e.what == finished })].at = second(6.5)
			slices.SortStableFunc(f.effects, func(a, b effect) int { return a.at.Compare(b.at) })
		}, "made it 2 on their way back, and 1 may be"},

		{"a command lost", succeeded(), func(f *forge) { f.first.status.Commands = nil }, "was taken and has no receipt"},
		{"a command answered twice", succeeded(), func(f *forge) {
			f.first.status.Commands = append(f.first.status.Commands, f.first.status.Commands[0])
		}, "has 2 receipts"},
		{"a command never answered", succeeded(), func(f *forge) { f.first.status.Commands[0].Pending = true }, "was never answered"},

		{"rejected though reached", rolledBack(), func(f *forge) {
			f.first.sent[0].name, f.first.status.Commands[0].Name = workflows.Reject, workflows.Reject
			f.ends(workflows.Rejected)
		}, "it is Rejected, and c01 was reached"},
		{"rolled back, and one forgotten", rolledBack(), func(f *forge) {
			f.without("c02", before)
			f.runs["c02"] = after
		}, "it is RolledBack, and c02 runs v2"},
		{"aborted by nobody", succeeded(), func(f *forge) { f.ends(workflows.Aborted) }, "it ended as Aborted"},
		{"an abort that did nothing", succeeded(), func(f *forge) { f.command(9, workflows.Abort, workflows.Command{}) }, "permitted is [Aborted]"},
		{"a rollback that did nothing", succeeded(), func(f *forge) { f.command(9, workflows.RollBack, workflows.Command{}) }, "permitted is [RolledBack]"},
		{"failed without a failure", succeeded(), func(f *forge) { f.ends(workflows.Failed) }, "it ended as Failed"},
		{"success over a failure", withFailure(), func(f *forge) { f.ends(workflows.Succeeded) }, "it ended as Succeeded"},
		{"success over the budget", withFailure(), func(f *forge) { f.scenario.budget, f.scenario.waves[0].budget = 0, 0 }, "it ended as SucceededWithFailures"},
		{"rolled back by nobody", succeeded(), func(f *forge) { f.ends(workflows.RolledBack) }, "it ended as RolledBack"},
		{"incomplete without one that did not come back", rolledBack(), func(f *forge) { f.ends(workflows.RollbackIncomplete) }, "it ended as RollbackIncomplete"},
		{"a target forgotten", succeeded(), func(f *forge) {
			f.without("c05", after)
			f.state("c05", "", false)
			f.again()
		}, "c05 was forgotten"},

		{"the ledger says another end", succeeded(), func(f *forge) { f.first.record.State = "Failed" }, "the ledger says Failed"},
		{"the ledger counts differently", succeeded(), func(f *forge) { f.state("c01", policy.Failed, true) }, "the ledger has 4 targets Succeeded, and the status 5"},
		{"the status counts too few", succeeded(), func(f *forge) {
			f.scenario.targets = append(f.scenario.targets, target{name: "c07", wave: 1, there: true})
		}, "the status counts 6 targets, and there are 7"},
		{"Succeeded on the old version", succeeded(), func(f *forge) { f.runs["c01"] = before }, "c01 is Succeeded, and runs v1"},
		{"NoChange after a change", succeeded(), func(f *forge) { f.state("c01", policy.NoChange, true) }, "c01 is NoChange"},
		{"RolledBack on the new version", succeeded(), func(f *forge) { f.state("c01", policy.RolledBack, true) }, "c01 is RolledBack, and runs v2"},
		{"Failed without a failure", succeeded(), func(f *forge) { f.state("c01", policy.Failed, true) }, "c01 is Failed, and nothing of it failed"},
		{"Skipped by nobody", succeeded(), func(f *forge) { f.state("c01", policy.Skipped, true) }, "c01 is Skipped"},
		{"NeedsRecovery for nothing", succeeded(), func(f *forge) { f.state("c01", policy.NeedsRecovery, true) }, "c01 is NeedsRecovery"},
		{"not recorded, and changed", succeeded(), func(f *forge) { f.state("c01", "", false) }, "c01 is not recorded, and was changed"},
		{"still under way", succeeded(), func(f *forge) { f.state("c01", policy.Applying, true) }, "c01 is Applying, and cannot end so"},
		{"on the version and not reached", succeeded(), func(f *forge) { f.state("c01", policy.Succeeded, false) }, "does not count as reached"},
		{"reached and never changed", rolledBack(), func(f *forge) { f.state("c04", policy.Pending, true) }, "c04 counts as reached, and was never changed"},
		{"back and reached", rolledBack(), func(f *forge) { f.state("c01", policy.RolledBack, true) }, "c01 is back, and counts as reached"},

		{"changed during the later rollback", takenBackLater(), func(f *forge) {
			f.without("c05", after)
			f.without("c05", before)
			f.change("c05", after, 1, 21, 22)
		}, "began during the later rollback"},
		{"not taken back later", takenBackLater(), func(f *forge) {
			f.without("c05", before)
			f.runs["c05"] = after
		}, "taken back later, and c05 runs v2"},
		{"the later rollback ended otherwise", takenBackLater(), func(f *forge) {
			f.later.status.State, f.later.record.State = workflows.RollbackIncomplete, string(workflows.RollbackIncomplete)
		}, "the later rollback ended as RollbackIncomplete"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.do(test.f)
			faults := judge(test.f.evidence)
			if !slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, test.want) }) {
				t.Errorf("found %q, and nothing that says %q", faults, test.want)
			}
		})
	}
}

// TestTheSameSeedDrawsTheSame fails when a seed does not give a scenario again.
func TestTheSameSeedDrawsTheSame(t *testing.T) {
	for seed := range uint64(200) {
		if a, b := draw(seed).String(), draw(seed).String(); a != b {
			t.Fatalf("seed %d draws\n%s\nand then\n%s", seed, a, b)
		}
	}
}
