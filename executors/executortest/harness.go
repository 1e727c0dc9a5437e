// Package executortest is the conformance suite of the executors port: what every adapter must do before a rollout may
// trust it with a target.
//
// An adapter's test calls Run with a Harness that builds the outside system, real or simulated. The suite speaks to the
// adapter only through the port; it must not know how any adapter works, and it never passes over a missing ability
// in silence: a Harness names each one with its reason, and the suite logs it.
package executortest

import (
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

// Harness opens systems for one adapter.
type Harness struct {
	// Open builds a fresh outside system with one target on version from; empty: nothing is installed. It is called once
	// or more for each test, and cleans up through t.Cleanup.
	Open func(t *testing.T, from string) *System
	// Unsupported says, for each ability that Open's systems lack, why. An ability that is neither there nor listed here
	// fails the suite, and so does one that is both.
	Unsupported map[Ability]string
	// Patience bounds the wait for one healthy change; zero means 30 s, which only a hanging adapter ever uses up.
	Patience time.Duration
}

// System is one outside system with one target, and the adapter that drives it.
type System struct {
	// Executor is the adapter under test.
	Executor executors.Executor
	// Another returns a further instance on the same outside system that shares no memory with Executor: the worker
	// that takes over after a crash.
	Another func(t *testing.T) executors.Executor
	// Change describes a change of the target, its configuration included.
	Change func(operation string, d executors.Direction, version, from string) executors.Change
	// Effects counts how often the outside system was really made to begin that operation's change.
	Effects func(t *testing.T, operation string) int

	// What follows are abilities: each may be nil if Harness.Unsupported says why. Each is called before the Submit that
	// it concerns, and holds for the rest of the test unless it returns a function that ends it.

	// Put moves the target to a version behind the adapter's back.
	Put func(t *testing.T, version string)
	// Fail makes changes end without success, the target still on its old version.
	Fail func(t *testing.T)
	// Block makes the outside system refuse changes for a reason that passes.
	Block func(t *testing.T)
	// Hang makes changes run until release is called, and only then take effect. The change counts as an effect from
	// its begin on.
	Hang func(t *testing.T) (release func())
	// Unreachable cuts the target off until reachable is called.
	Unreachable func(t *testing.T) (reachable func())
	// Blind makes the running version impossible to tell; it is called before Change.
	Blind func(t *testing.T)
	// LoseAnswer lets the request of the next Submit take effect, but loses the answer to it.
	LoseAnswer func(t *testing.T)
	// Delay holds the request of the next Submit up on its way, so that Submit gives up, until deliver lets it arrive.
	// deliver returns once the outside system has dealt with it.
	Delay func(t *testing.T) (deliver func())
	// Crash prepares the outside system to break down in the middle of a change: crash, called after Submit, makes it
	// forget how the change ended and makes sure that nothing of it goes on. effect says whether the target has
	// reached the new version by then.
	Crash func(t *testing.T, effect bool) (crash func())
}

// Ability names something that a system may be unable to stage.
type Ability string

// The abilities; all but Uninstall and Resubmit are the System's function of that name.
const (
	Put         Ability = "Put"
	Fail        Ability = "Fail"
	Block       Ability = "Block"
	Hang        Ability = "Hang"
	Unreachable Ability = "Unreachable"
	Blind       Ability = "Blind"
	LoseAnswer  Ability = "LoseAnswer"
	Delay       Ability = "Delay"
	Crash       Ability = "Crash"
	// Uninstall: a restore to the empty version removes a first install.
	Uninstall Ability = "Uninstall"
	// Resubmit: a second Submit of an operation, which no caller may make, has no second effect. The port does not
	// demand it, so an adapter may list it as unsupported.
	Resubmit Ability = "Resubmit"
)

// staged reports, for each ability that is a function, whether the system has it.
func (s *System) staged() map[Ability]bool {
	return map[Ability]bool{
		Put: s.Put != nil, Fail: s.Fail != nil, Block: s.Block != nil, Hang: s.Hang != nil,
		Unreachable: s.Unreachable != nil, Blind: s.Blind != nil, LoseAnswer: s.LoseAnswer != nil,
		Delay: s.Delay != nil, Crash: s.Crash != nil,
	}
}
