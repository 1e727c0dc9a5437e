package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/converter"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// Names of the signals between workflows, as they stand in histories.
const (
	controlSignal = "control"
	reportSignal  = "report"
)

// history returns the events of a workflow so far.
func (l *lane) history(id string) []*historypb.HistoryEvent {
	l.t.Helper()
	var events []*historypb.HistoryEvent
	i := l.client.GetWorkflowHistory(l.t.Context(), id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for i.HasNext() {
		e, err := i.Next()
		if err != nil {
			l.t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

// decode reads the first of some payloads.
func decode[T any](l *lane, payloads *commonpb.Payloads) T {
	l.t.Helper()
	var v T
	if err := converter.GetDefaultDataConverter().FromPayloads(payloads, &v); err != nil {
		l.t.Fatal(err)
	}
	return v
}

// barred follows a history and says what bars new starts at each moment.
type barred struct {
	why   string
	final bool
}

// hear takes a control: pause bars until run, finish and stop for good.
func (b *barred) hear(c policy.Control, event int64) {
	switch {
	case b.final:
	case c == policy.ControlRun:
		b.why = ""
	default:
		b.why, b.final = fmt.Sprintf("%s in event %d", c, event), c != policy.ControlPause
	}
}

// bar bars for good.
func (b *barred) bar(format string, args ...any) {
	if !b.final {
		b.why, b.final = fmt.Sprintf(format, args...), true
	}
}

// wantNoSubmitAfterStop reads the history of an apply's Target and returns whether it heard of a stop or a pause.
func (l *lane) wantNoSubmitAfterStop(id string) (heard bool) {
	l.t.Helper()
	var b barred
	for _, e := range l.history(id) {
		switch {
		case e.GetWorkflowExecutionStartedEventAttributes() != nil:
			if in := decode[workflows.TargetInput](l, e.GetWorkflowExecutionStartedEventAttributes().GetInput()); in.Direction != executors.Apply {
				return false
			} else if in.Control != "" {
				b.hear(in.Control, e.GetEventId())
			}
		case e.GetWorkflowExecutionCancelRequestedEventAttributes() != nil:
			b.bar("cancel in event %d", e.GetEventId())
		case e.GetWorkflowExecutionSignaledEventAttributes().GetSignalName() == controlSignal:
			b.hear(decode[policy.Control](l, e.GetWorkflowExecutionSignaledEventAttributes().GetInput()), e.GetEventId())
		case e.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName() == "Submit":
			if b.why != "" {
				l.t.Errorf("%s asks for a change in event %d, after %s", id, e.GetEventId(), b.why)
			}
		}
		heard = heard || b.why != ""
	}
	return heard
}

// wantNoStartAfterStop reads the history of a Wave and returns whether it heard of a stop or a pause. A failure beyond
// the budget bars, too; the budget must be none.
func (l *lane) wantNoStartAfterStop(id string) (heard bool) {
	l.t.Helper()
	var b barred
	for _, e := range l.history(id) {
		switch {
		case e.GetWorkflowExecutionStartedEventAttributes() != nil:
			b.hear(decode[workflows.WaveInput](l, e.GetWorkflowExecutionStartedEventAttributes().GetInput()).Control, e.GetEventId())
		case e.GetWorkflowExecutionCancelRequestedEventAttributes() != nil:
			b.bar("cancel in event %d", e.GetEventId())
		case e.GetWorkflowExecutionSignaledEventAttributes().GetSignalName() == controlSignal:
			b.hear(decode[policy.Control](l, e.GetWorkflowExecutionSignaledEventAttributes().GetInput()), e.GetEventId())
		case e.GetChildWorkflowExecutionCompletedEventAttributes() != nil:
			r := decode[workflows.TargetResult](l, e.GetChildWorkflowExecutionCompletedEventAttributes().GetResult())
			if r.State == policy.Failed || r.State == policy.NeedsRecovery {
				b.bar("a failure in event %d", e.GetEventId())
			}
		case e.GetStartChildWorkflowExecutionInitiatedEventAttributes() != nil:
			child := e.GetStartChildWorkflowExecutionInitiatedEventAttributes()
			if in := decode[workflows.TargetInput](l, child.GetInput()); in.Direction == executors.Apply && b.why != "" {
				l.t.Errorf("%s starts %s in event %d, after %s", id, in.Target, e.GetEventId(), b.why)
			}
		}
		heard = heard || b.why != ""
	}
	return heard
}

// wantNoWaveAfterStop reads the history of a Rollout and returns whether it heard of a stop or a pause.
func (l *lane) wantNoWaveAfterStop() (heard bool) {
	l.t.Helper()
	var b barred
	for _, e := range l.history(workflows.RolloutID("Production", "web")) {
		switch {
		case e.GetWorkflowExecutionSignaledEventAttributes() != nil:
			signal := e.GetWorkflowExecutionSignaledEventAttributes()
			switch name := signal.GetSignalName(); name {
			case workflows.Pause:
				b.hear(policy.ControlPause, e.GetEventId())
			case workflows.Resume:
				b.hear(policy.ControlRun, e.GetEventId())
			case workflows.RollBack, workflows.Reject, workflows.Abort:
				b.bar("%s in event %d", name, e.GetEventId())
			case reportSignal:
				if decode[workflows.Report](l, signal.GetInput()).Breached != "" {
					b.bar("a breach in event %d", e.GetEventId())
				}
			}
		case e.GetStartChildWorkflowExecutionInitiatedEventAttributes().GetWorkflowType().GetName() == workflows.WaveType:
			if b.why != "" {
				l.t.Errorf("wave %s starts in event %d, after %s", e.GetStartChildWorkflowExecutionInitiatedEventAttributes().GetWorkflowId(), e.GetEventId(), b.why)
			}
		}
		heard = heard || b.why != ""
	}
	return heard
}

// gate holds targets at one point of their activities.
type gate struct {
	point string
	held  []string

	mu      sync.Mutex
	arrived map[string]bool
	open    chan struct{}
}

func newGate(point string, held ...string) *gate {
	return &gate{point: point, held: held, arrived: map[string]bool{}, open: make(chan struct{})}
}

// at is the activities' hook.
func (g *gate) at(point, target string) {
	if point != g.point || !slices.Contains(g.held, target) {
		return
	}
	g.mu.Lock()
	g.arrived[target] = true
	g.mu.Unlock()
	<-g.open
}

// full reports whether all are there.
func (g *gate) full() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.arrived) == len(g.held)
}

// stops are the five ways in which new starts end. A breach sends nothing: the fleet fails the first target.
var stops = []string{"breach", workflows.Reject, workflows.RollBack, workflows.Pause, workflows.Abort}

// TestNothingIsAskedForAfterAStop fails when a change is asked for, or a target or a wave started, after the workflow
// that does so has heard of a stop. The targets in flight are being read when the stop comes; their readings end while it
// is on its way ("in passing"), or only once each of them has heard of it.
func TestNothingIsAskedForAfterAStop(t *testing.T) {
	t.Parallel()
	for _, stop := range stops {
		for _, passing := range []bool{true, false} {
			name := stop + map[bool]string{true: " in passing", false: ""}[passing]
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				testStop(t, stop, passing)
			})
		}
	}
}

func testStop(t *testing.T, stop string, passing bool) {
	const n = 8
	world := scenario(n)
	if stop == "breach" {
		world.Failures = []fleet.Failure{{Match: fleet.Match{Targets: []string{"c01"}}, Version: "v2"}}
	}
	l, s := newLane(t), newSimSite(t, world)
	// Four at a time, of six in the first wave: at the stop some are in flight and some have not been started.
	held := []string{"c02", "c03", "c04"}
	if stop != "breach" {
		held = append(held, "c05") // in the place of the first, which has succeeded
	}
	g := newGate("observe.end", held...)
	first := make(chan struct{})
	l.options.At = func(point, target string) {
		if stop == "breach" && point == "submit.begin" && target == "c01" {
			<-first // it fails once the others are there
		}
		g.at(point, target)
	}
	openFirst, openGate := sync.OnceFunc(func() { close(first) }), sync.OnceFunc(func() { close(g.open) })
	t.Cleanup(openGate) // before the worker stops, which waits for its activities
	t.Cleanup(openFirst)
	l.startWorker()
	in := l.start(s.documents(n, `  - waves:
      - {name: first, select: 'target.name < "c07"', maxConcurrency: 4}
      - {name: rest, select: 'true'}
`), "v2")
	wave := workflows.WaveID("Production", "web", in.Rollout, 1)
	targets := map[string]string{}
	for _, name := range append([]string{"c01"}, held...) {
		targets[name] = workflows.TargetID(wave, name, 1)
	}
	eventually(t, "all are being read", g.full, func() string { return fmt.Sprint(s.asked()) })
	if stop == "breach" {
		openFirst()
	} else {
		l.signal(stop, workflows.Command{By: "bob"})
	}
	if passing {
		openGate()
	} else {
		for _, name := range held {
			eventually(t, name+" has heard of the stop", func() bool { return l.heardControl(targets[name]) }, func() string { return "" })
		}
		before := s.asked()
		openGate()
		if stop != workflows.Pause {
			defer func() {
				for change, times := range s.asked() {
					if strings.HasPrefix(change, "apply ") && times > before[change] {
						t.Errorf("%s was asked for after every target had heard of the stop", change)
					}
				}
			}()
		}
	}
	end := map[string]workflows.Phase{"breach": workflows.Aborted, workflows.Reject: workflows.RolledBack, workflows.RollBack: workflows.RolledBack,
		workflows.Pause: workflows.Succeeded, workflows.Abort: workflows.Aborted}[stop]
	switch stop {
	case "breach":
		l.until("the breached rollout holds with nothing in flight", func(s workflows.RolloutStatus) bool {
			return s.State == workflows.Holding && s.Waves[0].State == string(policy.WaveBreached)
		})
		l.signal(workflows.Abort, workflows.Command{By: "bob"})
	case workflows.Pause:
		l.until("it is paused and all have been read", func(s workflows.RolloutStatus) bool { return s.State == workflows.Paused })
		if !passing {
			for _, name := range held {
				eventually(t, name+" waits", func() bool { return l.read(targets[name]) }, func() string { return "" })
			}
			if asked := s.asked(); len(asked) != 1 {
				t.Errorf("asked for %v while paused, want c01 alone", asked)
			}
		}
		l.signal(workflows.Resume, workflows.Command{By: "bob"})
	}
	if s := l.ended(); s.State != end {
		t.Errorf("state = %s (%s), want %s%s", s.State, s.Reason, end, timeline(s))
	}
	for name, id := range targets {
		if heard := l.wantNoSubmitAfterStop(id); !heard && !passing && name != "c01" {
			t.Errorf("%s has not heard of the stop", name)
		}
	}
	if !l.wantNoStartAfterStop(wave) {
		t.Error("the wave has not heard of the stop")
	}
	if !l.wantNoWaveAfterStop() {
		t.Error("the rollout has not heard of the stop")
	}
	for change, times := range s.asked() {
		if times != 1 {
			t.Errorf("%s was asked for %d times", change, times)
		}
	}
	reached := maps.Clone(s.runs())
	maps.DeleteFunc(reached, func(_, version string) bool { return version == "v1" })
	if end == workflows.RolledBack && len(reached) > 0 {
		t.Errorf("%v did not go back", reached)
	}
	if stop != workflows.Pause && (reached["c07"] != "" || reached["c08"] != "") {
		t.Errorf("the second wave was reached: %v", reached)
	}
}

// heardControl reports whether a control has arrived in a workflow.
func (l *lane) heardControl(id string) bool {
	l.t.Helper()
	return slices.ContainsFunc(l.history(id), func(e *historypb.HistoryEvent) bool {
		return e.GetWorkflowExecutionSignaledEventAttributes().GetSignalName() == controlSignal
	})
}

// read reports whether a target has been read, and its workflow has looked at the reading.
func (l *lane) read(id string) bool {
	l.t.Helper()
	done := false
	for _, e := range l.history(id) {
		if done && e.GetEventType() == enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED {
			return true
		}
		done = done || e.GetEventType() == enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
	}
	return false
}
