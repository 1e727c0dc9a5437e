package executortest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

// TestSuiteAcceptsARightExecutor fails when the suite demands more than the port does.
func TestSuiteAcceptsARightExecutor(t *testing.T) {
	Run(t, memoryHarness(os.Getenv(brokenVar)))
}

// brokenVar selects a way in which the memory executor is wrong, in a test process of its own.
const brokenVar = "EXECUTORTEST_BROKEN"

// TestSuiteRefusesWrongExecutors fails when the suite lets a broken adapter pass.
func TestSuiteRefusesWrongExecutors(t *testing.T) {
	for broken, want := range map[string]string{
		"submits-twice":         "a_second_Submit_of_an_operation_has_no_second_effect",
		"forgets-the-fence":     "an_operation_that_was_never_submitted_is_fenced_for_ever",
		"fences-nothing":        "a_request_that_arrives_after_the_fence_changes_nothing",
		"repeats-lost-answers":  "a_lost_answer_is_adopted,_not_repeated",
		"trusts-the-operation":  "Verify_does_not_take_the_operation's_own_word",
		"waits-in-submit":       "a_running_change_is_still_running_when_the_context_ends,_and_ends_later",
		"guesses-success":       "a_change_with_a_lost_end_is_judged_by_the_target:_it_did_not",
		"invents-an-outcome":    "a_failed_change_says_why_and_is_not_verified",
		"fails-without-reason":  "a_failed_change_says_why_and_is_not_verified",
		"failure-if-cut-off":    "an_unreachable_target_is_neither_failed_nor_changed",
		"guesses-when-blind":    "Observe_on_an_unknown_version_says_that_it_is_unknown",
		"restores-nothing":      "a_restore_brings_the_former_version_back",
		"reading-has-an-effect": "Observe_reads_the_running_version_and_changes_nothing",
		"lacks-in-silence":      "every_ability_is_there_or_its_lack_is_explained",
	} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestSuiteAcceptsARightExecutor$", "-test.timeout=1m")
			cmd.Env = append(os.Environ(), brokenVar+"="+broken)
			output, err := cmd.CombinedOutput()
			if want := "--- FAIL: TestSuiteAcceptsARightExecutor/" + want; err == nil || !strings.Contains(string(output), want) {
				t.Errorf("an executor that %s: error %v, want a failure with %q; it printed:\n%s", broken, err, want, output)
			}
		})
	}
}

// memory is the simplest outside system that keeps the port's promises, or breaks one of them by name.
type memory struct {
	broken string

	mu          sync.Mutex
	version     string
	effects     map[string]int
	ends        map[string]*executors.Result // nil while running
	fenced      map[string]bool
	fail, block bool
	hang        chan struct{}
	cutOff      bool
	blind       bool
	loseAnswer  bool
	delayed     func()
	holdUp      bool
	crashing    bool
}

func memoryHarness(broken string) Harness {
	h := Harness{Patience: 5 * time.Second}
	if broken == "waits-in-submit" {
		h.Patience = time.Second
	}
	h.Open = func(t *testing.T, from string) *System {
		m := &memory{broken: broken, version: from, effects: map[string]int{}, ends: map[string]*executors.Result{}, fenced: map[string]bool{}}
		with := func(change func()) { m.mu.Lock(); defer m.mu.Unlock(); change() }
		s := &System{
			Executor: m,
			Another:  func(*testing.T) executors.Executor { return m },
			Change: func(operation string, d executors.Direction, version, from string) executors.Change {
				return executors.Change{Operation: operation, Direction: d, Version: version, From: from}
			},
			Effects: func(_ *testing.T, operation string) (n int) { with(func() { n = m.effects[operation] }); return n },
			Put:     func(_ *testing.T, version string) { with(func() { m.version = version }) },
			Fail:    func(*testing.T) { m.fail = true },
			Block:   func(*testing.T) { m.block = true },
			Hang: func(*testing.T) func() {
				m.hang = make(chan struct{})
				return func() { close(m.hang) }
			},
			Unreachable: func(*testing.T) func() {
				m.cutOff = true
				return func() { m.cutOff = false }
			},
			Blind:      func(*testing.T) { m.blind = true },
			LoseAnswer: func(*testing.T) { m.loseAnswer = true },
			Delay: func(*testing.T) func() {
				m.holdUp = true
				return func() { m.delayed() }
			},
			Crash: func(_ *testing.T, effect bool) func() {
				m.crashing = true
				return func() {
					if effect {
						m.version = newVersion
					}
				}
			},
		}
		if broken == "lacks-in-silence" {
			s.Delay = nil
		}
		return s
	}
	return h
}

func (m *memory) Observe(_ context.Context, c executors.Change) (executors.Reading, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken == "reading-has-an-effect" {
		m.effects[c.Operation]++
	}
	if m.cutOff && m.broken != "failure-if-cut-off" {
		return executors.Reading{}, executors.ErrUnreachable
	}
	if m.blind && m.broken != "guesses-when-blind" {
		return executors.Reading{}, nil
	}
	return executors.Reading{Known: true, Version: m.version}, nil
}

func (m *memory) Submit(ctx context.Context, c executors.Change) (executors.Ticket, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.cutOff:
		return executors.Ticket{}, executors.ErrUnreachable
	case m.block:
		return executors.Ticket{}, executors.ErrBlocked
	case m.holdUp:
		m.holdUp = false
		m.delayed = func() { m.begin(c) }
		return executors.Ticket{}, errors.New("no answer")
	}
	if err := m.begin(c); err != nil {
		return executors.Ticket{}, err
	}
	if m.loseAnswer {
		m.loseAnswer = false
		if m.broken == "repeats-lost-answers" {
			_ = m.begin(c)
		}
		return executors.Ticket{}, errors.New("no answer")
	}
	if m.broken == "waits-in-submit" && m.hang != nil {
		<-ctx.Done()
		return executors.Ticket{}, ctx.Err()
	}
	return executors.Ticket{Handle: c.Operation}, nil
}

// begin is the outside system's side of Submit.
func (m *memory) begin(c executors.Change) error {
	if m.fenced[c.Operation] {
		return fmt.Errorf("operation %q is fenced: %w", c.Operation, executors.ErrRejected)
	}
	if _, known := m.ends[c.Operation]; known && m.broken != "submits-twice" && m.broken != "repeats-lost-answers" {
		return errors.New("known")
	}
	m.effects[c.Operation]++
	m.ends[c.Operation] = nil
	end := func() {
		m.ends[c.Operation] = &executors.Result{Outcome: executors.Succeeded}
		if c.Direction == executors.Apply || m.broken != "restores-nothing" {
			m.version = c.Version
		}
	}
	switch {
	case m.crashing:
	case m.hang != nil:
		hang := m.hang
		go func() { <-hang; m.mu.Lock(); defer m.mu.Unlock(); end() }()
	case m.fail:
		r := executors.Result{Outcome: executors.Failed, Reason: "told to"}
		switch m.broken {
		case "invents-an-outcome":
			r.Outcome = "sort of"
		case "fails-without-reason":
			r.Reason = ""
		}
		m.ends[c.Operation] = &r
	default:
		end()
	}
	return nil
}

func (m *memory) Await(ctx context.Context, c executors.Change, _ executors.Ticket) (executors.Result, error) {
	for {
		m.mu.Lock()
		end, known := m.ends[c.Operation]
		crashed, version := m.crashing, m.version
		if !known && m.broken != "fences-nothing" && m.broken != "forgets-the-fence" {
			m.fenced[c.Operation] = true
		}
		m.mu.Unlock()
		switch {
		case !known:
			return executors.Result{}, executors.ErrNotSubmitted
		case end != nil:
			return *end, nil
		case crashed && (version == c.Version || m.broken == "guesses-success"):
			return executors.Result{Outcome: executors.Succeeded}, nil
		case crashed:
			return executors.Result{Outcome: executors.Failed, Reason: "cut short"}, nil
		}
		select {
		case <-ctx.Done():
			return executors.Result{}, executors.ErrRunning
		case <-time.After(time.Millisecond):
		}
	}
}

func (m *memory) Verify(ctx context.Context, c executors.Change) (executors.Result, error) {
	reading, err := m.Observe(ctx, c)
	switch {
	case err != nil:
		return executors.Result{}, err
	case !reading.Known:
		return executors.Result{Outcome: executors.Succeeded, Reason: "not verified"}, nil
	case reading.Version == c.Version, m.broken == "trusts-the-operation" && m.ends[c.Operation] != nil:
		return executors.Result{Outcome: executors.Succeeded, Reading: reading}, nil
	}
	return executors.Result{Outcome: executors.Failed, Reason: "another version runs", Reading: reading}, nil
}
