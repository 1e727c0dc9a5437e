//go:build full

package uitest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// twoWaves are a wave with c01 and c02, of which one may fail, and one with the rest; each waits for a person.
const twoWaves = `  - waves:
      - {name: first, select: 'target.name in ["c01", "c02"]', maxFailures: 1, approval: {min: 1}}
      - {name: rest, select: 'true', approval: {min: 1}}
  - failureThreshold: {maxFailures: 1}
`

// command is one that is typed into the UI, and what it must do.
type command struct {
	name, payload string
	does          func(workflows.RolloutStatus) bool
}

// send types a command, and waits until the rollout has taken it and it has had its effect.
func (s *site) send(c command) {
	s.t.Helper()
	s.signal(s.rollout(), c.name, c.payload)
	s.until(c.name+" is taken and does what it says", func(status workflows.RolloutStatus) bool {
		return slices.ContainsFunc(status.Commands, func(r workflows.Receipt) bool {
			return r.Name == c.name && r.By == "bob" && r.Accepted && !r.Pending
		}) && c.does(status)
	})
}

// is reports whether a rollout is in a phase.
func is(phase workflows.Phase) func(workflows.RolloutStatus) bool {
	return func(s workflows.RolloutStatus) bool { return s.State == phase }
}

// TestCommandsAreTakenFromTheUI fails when one of the eight commands can't be chosen, typed and sent as an operator does,
// or when the rollout does not do what it is told.
func TestCommandsAreTakenFromTheUI(t *testing.T) {
	breaksOnce := fleet.Failure{Match: fleet.Match{Targets: []string{"c01"}}, Version: "v2", Times: 1}
	counts := func(state policy.TargetState, n int) func(workflows.RolloutStatus) bool {
		return func(s workflows.RolloutStatus) bool { return s.Counts[state] == n }
	}
	asks := func(wave int) func(workflows.RolloutStatus) bool {
		return func(s workflows.RolloutStatus) bool {
			return s.State == workflows.AwaitingApproval && s.Waves[wave-1].State == "awaiting approval"
		}
	}
	sent := map[string]bool{}
	for name, test := range map[string]struct {
		failures []fleet.Failure
		commands []command
	}{
		"forth and back": {nil, []command{
			{workflows.Pause, `{"by":"bob","reason":"lunch"}`, is(workflows.Paused)},
			{workflows.Resume, `{"by":"bob"}`, is(workflows.AwaitingApproval)},
			{workflows.Skip, `{"by":"bob","target":"c03","reason":"in repair"}`, is(workflows.AwaitingApproval)},
			{workflows.Approve, `{"by":"bob","wave":1}`, asks(2)},
			{workflows.Approve, `{"by":"bob","wave":2}`, is(workflows.Succeeded)},
		}},
		"taken back": {nil, []command{
			{workflows.Approve, `{"by":"bob","wave":1}`, asks(2)},
			{workflows.RollBack, `{"by":"bob","reason":"no prices"}`, is(workflows.RolledBack)},
		}},
		"tried again": {[]fleet.Failure{breaksOnce}, []command{
			{workflows.Approve, `{"by":"bob","wave":1}`, func(s workflows.RolloutStatus) bool { return asks(2)(s) && counts(policy.Failed, 1)(s) }},
			{workflows.Retry, `{"by":"bob","target":"c01"}`, counts(policy.Succeeded, 2)},
			{workflows.Reject, `{"by":"bob","reason":"too slow"}`, is(workflows.RolledBack)},
		}},
		"left as it is": {nil, []command{
			{workflows.Approve, `{"by":"bob","wave":1}`, asks(2)},
			{workflows.Abort, `{"by":"bob","reason":"enough"}`, func(s workflows.RolloutStatus) bool {
				return s.State == workflows.Aborted && counts(policy.Succeeded, 2)(s)
			}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, scenario(4, test.failures...), twoWaves)
			s.untilState(workflows.AwaitingApproval)
			for _, c := range test.commands {
				s.send(c)
				sent[c.name] = true
			}
			if name == "forth and back" {
				if status := s.until("c03 is left out", counts(policy.Skipped, 1)); status.Counts[policy.Succeeded] != 3 {
					t.Errorf("counts = %v, want 3 that succeeded and 1 that was left out", status.Counts)
				}
			}
		})
	}
	for _, name := range workflows.CommandNames() {
		if !sent[name] {
			t.Errorf("%s was not sent", name)
		}
	}
}

// TestTheListOfSignalsSaysWhatToSend fails when an operator does not find a command with what it does and an example of
// its JSON, or takes a signal of the program's own for a command.
func TestTheListOfSignalsSaysWhatToSend(t *testing.T) {
	s := newSite(t, scenario(4), twoWaves)
	s.untilState(workflows.AwaitingApproval)
	s.open(s.rollout())
	s.click("button", "More Actions")
	s.click(menuItem, "Send a Signal")
	s.click(signalButton, "")
	options := await[[]string](s.page, "the signals are listed", fmt.Sprintf(`(() => {
		const texts = seen(%q).map(e => e.innerText);
		return texts.length > 1 ? texts : null;
	})()`, signalOption))
	listed := map[string]string{}
	for _, option := range options {
		name, description, _ := strings.Cut(option, "\n")
		listed[strings.TrimSpace(name)] = strings.TrimSpace(description)
	}
	for _, name := range workflows.CommandNames() {
		description, found := listed[name]
		if before, example, _ := strings.Cut(description, "JSON: "); !found || len(before) < 10 || !strings.HasPrefix(example, `{"by":"you"`) {
			t.Errorf("%s is listed as %q, want what it does and an example", name, description)
		}
		delete(listed, name)
	}
	delete(listed, "Custom") // the UI's own: any name
	for name, description := range listed {
		if !strings.HasPrefix(description, "Not for operators") {
			t.Errorf("%s is listed as %q and does not say that it is not for operators", name, description)
		}
	}
	// Whatever is cut off or covered can't be read.
	if cut := await[[]string](s.page, "the list is measured", fmt.Sprintf(`seen(%q).filter(e =>
		[e, ...e.querySelectorAll('*')].some(part => part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).display !== 'inline')).map(e => e.innerText)`, signalOption)); len(cut) > 0 {
		t.Errorf("these are cut off: %q", cut)
	}
}
