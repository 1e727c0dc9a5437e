// Package fleet is a simulated fleet: targets that run versions, take their time to change, fail as a scenario says and
// have metrics that answer for it. The demo, the kill tests and the benchmarks run it as a process of its own.
//
// What it did stands in its effect log, which is on disk before any caller is told, so that a test can count effects
// whatever was killed. It must not know Sluice: whoever wants a change speaks its HTTP protocol.
package fleet

import (
	"fmt"
	"strconv"
	"sync"
	"time"
)

// State is where an operation stands. The set is closed.
type State string

// The states of an operation.
const (
	Running   State = "running"
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Blocked   State = "blocked" // it ended and changed nothing, for a reason that passes
	Unknown   State = "unknown" // it ended and nobody can tell how any more
)

// Code says why a request was refused. The set is closed.
type Code string

// The codes of refusals, with their HTTP status. Nothing was started after any of them but internal.
const (
	CodeInvalid     Code = "invalid"     // 400: the request can't be understood
	CodeNotFound    Code = "not_found"   // 404: no such target; or no such operation, which is fenced from here on
	CodeFenced      Code = "fenced"      // 409: the operation was looked up before it arrived, and will never start
	CodeConflict    Code = "conflict"    // 409: the operation is known with another target or version
	CodeBusy        Code = "busy"        // 409: another operation is in flight on the target
	CodeBlocked     Code = "blocked"     // 409: the scenario refuses for a while
	CodeUnreachable Code = "unreachable" // 503: the target can't be reached
	CodeInternal    Code = "internal"    // 500: the effect log can't be written; what was asked may have happened
)

// Fleet is a running simulated fleet.
type Fleet struct {
	scenario Scenario
	log      *effectLog

	mu         sync.Mutex // guards all below
	started    time.Time  // of the first process on this log
	order      []*target
	targets    map[string]*target
	operations map[string]*operation
	fenced     map[string]bool
	used       map[use]int
	closed     bool
}

// target is one member and what runs on it.
type target struct {
	Target
	readable  bool // whether the running version, in Target.Version, can be told; empty and readable: nothing installed
	since     time.Time
	operation string // in flight; empty if none
	released  time.Time
	tier      string    // the label
	base      []float64 // of each metric of the scenario
	// towards holds when an operation towards each version first started.
	towards map[string]time.Time
}

// operation is one apply.
type operation struct {
	id, target, version, from, previous string

	state    State
	message  string
	started  time.Time
	finished time.Time
	failure  *Failure // what goes wrong; nil if nothing
	released bool     // from a hang
	timer    *time.Timer
}

// use counts how often a rule of the scenario was used on a target.
type use struct {
	list   string
	rule   int
	target string
}

// rule is what the rules that are used up have in common.
type rule struct {
	match   Match
	version string
	times   int
}

// New opens a fleet on an effect log. A log that is there already is taken up: every target stands where the log leaves
// it, and operations in flight go on, or end at once if their time has passed meanwhile. It is an error if the log was
// written by a fleet of other targets.
func New(s Scenario, logPath string) (*Fleet, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("fleet: scenario: %w", err)
	}
	log, entries, err := openLog(logPath)
	if err != nil {
		return nil, err
	}
	f := &Fleet{
		scenario: s, log: log,
		targets: map[string]*target{}, operations: map[string]*operation{}, fenced: map[string]bool{}, used: map[use]int{},
	}
	for _, member := range s.members() {
		t := &target{Target: member, readable: true, towards: map[string]time.Time{}, tier: strconv.Itoa(member.Tier), base: s.base(member)}
		f.order = append(f.order, t)
		f.targets[t.Name] = t
	}
	if err := f.replay(entries); err != nil {
		_ = log.file.Close()
		return nil, fmt.Errorf("fleet: take up %s: %w", logPath, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(entries) == 0 {
		f.record(Entry{Kind: KindStart, Version: s.Version, Count: len(f.order)})
	} else {
		f.record(Entry{Kind: KindRestarted})
	}
	for _, o := range f.operations {
		f.schedule(o)
	}
	if err := log.flush(); err != nil {
		_ = log.file.Close()
		return nil, err
	}
	return f, nil
}

// Close stops the fleet where it stands, as if it were killed, and closes the log.
func (f *Fleet) Close() error {
	f.mu.Lock()
	f.closed = true
	for _, o := range f.operations {
		if o.timer != nil {
			o.timer.Stop()
		}
	}
	f.mu.Unlock()
	return f.log.close()
}

// replay brings the state to the end of the log.
func (f *Fleet) replay(entries []Entry) error {
	for i, e := range entries {
		if (i == 0) != (e.Kind == KindStart) {
			return fmt.Errorf("entry %d is of kind %q; one start entry comes first", e.Seq, e.Kind)
		}
		if e.Kind == KindStart && (e.Count != len(f.order) || e.Version != f.scenario.Version) {
			return fmt.Errorf("it was written by a fleet of %d targets on %s, the scenario has %d on %s",
				e.Count, e.Version, len(f.order), f.scenario.Version)
		}
		if e.Target != "" && f.targets[e.Target] == nil && e.Kind != KindRequest && e.Kind != KindRefused {
			return fmt.Errorf("entry %d: the scenario has no target %q", e.Seq, e.Target)
		}
		if e.Kind == KindFinished && f.operations[e.Operation] == nil {
			return fmt.Errorf("entry %d: operation %q finished and never started", e.Seq, e.Operation)
		}
		f.apply(e)
	}
	return nil
}

// record takes an entry into the log and the state. The caller holds mu, and flushes the log before telling anybody.
func (f *Fleet) record(e Entry) {
	e.Time = time.Now()
	f.apply(f.log.add(e))
}

// apply is the only place where the state changes, live and on replay alike.
func (f *Fleet) apply(e Entry) {
	t := f.targets[e.Target]
	switch e.Kind {
	case KindStart:
		f.started = e.Time
		for _, t := range f.order {
			t.since = e.Time
		}
	case KindDropped:
		f.spend("loseRequests", f.lossRules(f.scenario.LoseRequests), t, e.Version)
	case KindRefused:
		switch Code(e.Result) {
		case CodeBlocked:
			f.spend("blocked", f.blockRules(), t, e.Version)
		case CodeUnreachable:
			if i := f.outage(t, e.Time); i >= 0 {
				f.used[use{"unreachable", i, t.Name}]++
			}
		case CodeInvalid, CodeNotFound, CodeFenced, CodeConflict, CodeBusy, CodeInternal:
			// No rule of the scenario was used up.
		}
	case KindStarted:
		o := &operation{
			id: e.Operation, target: e.Target, version: e.Version, from: e.From, previous: e.Previous,
			state: Running, started: e.Time,
		}
		if i := f.spend("failures", f.failureRules(), t, e.Version); i >= 0 {
			o.failure = &f.scenario.Failures[i]
		}
		f.operations[o.id] = o
		t.operation = o.id
		if _, ok := t.towards[o.version]; !ok {
			t.towards[o.version] = e.Time
		}
	case KindFinished:
		o := f.operations[e.Operation]
		o.state, o.message, o.finished = State(e.Result), e.Message, e.Time
		t.operation = ""
		if e.Runs != t.Version || e.Result == string(Succeeded) {
			t.since = e.Time
		}
		t.Version, t.readable = e.Runs, !e.Unreadable
	case KindFenced:
		f.fenced[e.Operation] = true
	case KindReleased:
		t.released = e.Time
		if o := f.operations[t.operation]; o != nil {
			o.released = true
		}
	case KindRestarted, KindRequest, KindRepeated:
	}
	switch e.Reply {
	case "lost":
		f.spend("loseReplies", f.lossRules(f.scenario.LoseReplies), t, e.Version)
	case "delayed":
		f.spend("delayReplies", f.delayRules(), t, e.Version)
	}
}

// schedule arms the end of a running operation. The caller holds mu.
func (f *Fleet) schedule(o *operation) {
	hangs := o.failure != nil && o.failure.Hang && !o.released
	if o.state != Running || hangs {
		return
	}
	left := f.scenario.duration(o.target, o.id) - time.Since(o.started)
	o.timer = time.AfterFunc(max(left, 0), func() { f.finish(o) })
}

// finish ends an operation as its failure rule, if any, says.
func (f *Fleet) finish(o *operation) {
	f.mu.Lock()
	if f.closed || o.state != Running {
		f.mu.Unlock()
		return
	}
	e := Entry{
		Kind: KindFinished, Target: o.target, Operation: o.id, Version: o.version, From: o.from, Previous: o.previous,
		Runs: o.version, Result: string(Succeeded),
	}
	if rule := o.failure; rule != nil && !rule.Hang {
		e.Result, e.Message = string(Failed), rule.Message
		if rule.Reports != "" {
			e.Result = string(rule.Reports)
		}
		switch rule.Leaves {
		case LeavesPrevious, "":
			e.Runs = o.previous
		case LeavesUnreadable:
			e.Runs, e.Unreadable = "", true
		case LeavesVersion:
		}
		if e.Message == "" && State(e.Result) != Succeeded {
			e.Message = fmt.Sprintf("%s did not take %s", o.target, o.version)
		}
	}
	f.record(e)
	f.mu.Unlock()
	_ = f.log.flush() // a failure stays in the log, which refuses every later answer
}

// outage returns the index of the rule that makes the target unreachable now, or -1.
func (f *Fleet) outage(t *target, now time.Time) int {
	if t == nil {
		return -1
	}
	for i, o := range f.scenario.Unreachable {
		if !o.Match.matches(t.Target) {
			continue
		}
		from := f.started
		if o.AfterVersion != "" {
			var began bool
			if from, began = t.towards[o.AfterVersion]; !began {
				continue
			}
		}
		over := !t.released.IsZero() && !t.released.Before(from) ||
			o.For > 0 && !now.Before(from.Add(o.For)) ||
			o.Requests > 0 && f.used[use{"unreachable", i, t.Name}] >= o.Requests
		if !over {
			return i
		}
	}
	return -1
}

// pick returns the index of the first rule that matches and has uses left on the target, or -1.
func (f *Fleet) pick(list string, rules []rule, t *target, version string) int {
	if t == nil {
		return -1
	}
	for i, r := range rules {
		if r.match.matches(t.Target) && (r.version == "" || r.version == version) &&
			(r.times == 0 || f.used[use{list, i, t.Name}] < r.times) {
			return i
		}
	}
	return -1
}

// spend picks a rule and counts its use.
func (f *Fleet) spend(list string, rules []rule, t *target, version string) int {
	i := f.pick(list, rules, t, version)
	if i >= 0 {
		f.used[use{list, i, t.Name}]++
	}
	return i
}

func (f *Fleet) failureRules() []rule {
	rules := make([]rule, len(f.scenario.Failures))
	for i, r := range f.scenario.Failures {
		rules[i] = rule{r.Match, r.Version, r.Times}
	}
	return rules
}

func (f *Fleet) blockRules() []rule {
	rules := make([]rule, len(f.scenario.Blocked))
	for i, r := range f.scenario.Blocked {
		rules[i] = rule{r.Match, r.Version, r.Times}
	}
	return rules
}

func (f *Fleet) delayRules() []rule {
	rules := make([]rule, len(f.scenario.DelayReplies))
	for i, r := range f.scenario.DelayReplies {
		rules[i] = rule{r.Match, r.Version, r.Times}
	}
	return rules
}

func (f *Fleet) lossRules(losses []Loss) []rule {
	rules := make([]rule, len(losses))
	for i, r := range losses {
		rules[i] = rule{r.Match, r.Version, r.Times}
	}
	return rules
}
