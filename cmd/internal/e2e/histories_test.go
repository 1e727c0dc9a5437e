package e2e

import (
	"compress/gzip"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// writeHistories makes the test below store what it ran under tests/replay/histories. Histories are written from the
// code that is deployed, never from a branch under test: tests/replay then proves that the branch can go on with them.
var writeHistories = flag.Bool("write-histories", false, "store the histories of these rollouts for tests/replay")

// Rollouts of every kind of end, each replayed at once: what a workflow did must not depend on anything but its history.
func TestHistoriesReplay(t *testing.T) {
	tests := []struct {
		name     string
		rules    string
		scenario func(*fleet.Scenario)
		steer    func(*lane)
		want     workflows.Phase
		// types are the kinds of workflows that must be among the histories.
		types []string
	}{
		{"finished", `  - failureThreshold: {maxFailures: 1, maxUnreachable: 1}
  - waves:
      - {name: low, select: target.metadata.tier == 3, maxConcurrency: 2, soak: 1s}
      - {name: rest, select: 'true', maxConcurrency: 4, approval: {min: 1}}
`, func(s *fleet.Scenario) {
			s.Failures = []fleet.Failure{{Match: fleet.Match{Targets: []string{"c06"}}, Times: 1}}
		}, func(l *lane) {
			l.until("wave 2 asks", func(s workflows.RolloutStatus) bool { return s.State == workflows.AwaitingApproval })
			l.signal(workflows.Pause, workflows.Command{By: "bob"})
			l.signal(workflows.Approve, workflows.Command{By: "bob", Wave: 1})
			l.signal(workflows.Approve, workflows.Command{By: "bob", Wave: 2})
			l.until("it is paused", func(s workflows.RolloutStatus) bool { return s.State == workflows.Paused && len(s.Commands) == 3 })
			l.signal(workflows.Skip, workflows.Command{By: "bob", Target: "c05", Reason: "in repair"})
			l.until("c05 is left out", func(s workflows.RolloutStatus) bool { return len(s.Commands) == 4 && s.Commands[3].Accepted })
			l.signal(workflows.Resume, workflows.Command{By: "bob"})
		}, workflows.SucceededWithFailures, []string{workflows.RolloutType, workflows.WaveType, workflows.TargetType, workflows.BundleType}},
		{"rejected", `  - waves: [{name: all, select: 'true', approval: {min: 1}}]
`, nil, func(l *lane) {
			l.until("it asks", func(s workflows.RolloutStatus) bool { return s.State == workflows.AwaitingApproval })
			l.signal(workflows.Reject, workflows.Command{By: "bob", Reason: "bad day"})
		}, workflows.Rejected, []string{workflows.RolloutType}},
		{"rolled-back", `  - rollback: {onBreach: rollout, maxConcurrency: 2}
  - waves:
      - {name: low, select: target.metadata.tier == 3, maxConcurrency: 2}
      - {name: rest, select: 'true', maxConcurrency: 2, maxFailures: 0}
`, func(s *fleet.Scenario) {
			s.Failures = []fleet.Failure{{Match: fleet.Match{Targets: []string{"c04"}}, Version: "v2", Leaves: fleet.LeavesVersion}}
		}, nil,
			workflows.RolledBack, []string{workflows.RolloutType, workflows.WaveType, workflows.TargetType, workflows.RollbackType}},
		{"aborted", `  - waves: [{name: low, select: target.metadata.tier == 3}, {name: rest, select: 'true', approval: {min: 1}}]
`, nil, func(l *lane) {
			l.until("wave 2 asks", func(s workflows.RolloutStatus) bool { return s.State == workflows.AwaitingApproval })
			l.signal(workflows.Abort, workflows.Command{By: "bob"})
		}, workflows.Aborted, []string{workflows.RolloutType, workflows.WaveType}},
		{"by-hand", `  - waves:
      - {name: low, select: target.metadata.tier == 3, maxConcurrency: 2}
      - {name: mid, select: target.metadata.tier == 2, maxConcurrency: 2, soak: 20s, approval: {min: 1}}
      - {name: rest, select: 'true', maxConcurrency: 2}
`, nil, func(l *lane) {
			l.until("wave 2 asks", func(s workflows.RolloutStatus) bool { return s.State == workflows.AwaitingApproval })
			l.signal(workflows.RollBack, workflows.Command{By: "bob", Target: "c01", Reason: "latency"})
			holds := func(n int) func(workflows.RolloutStatus) bool {
				return func(s workflows.RolloutStatus) bool {
					return s.State == workflows.Holding && s.Counts[policy.RolledBack] == n
				}
			}
			l.until("c01 is back", holds(1))
			l.signal(workflows.Approve, workflows.Command{By: "bob", Wave: 2})
			l.signal(workflows.Resume, workflows.Command{By: "bob"})
			l.until("wave 2 soaks", func(s workflows.RolloutStatus) bool { return s.Waves[1].State == string(policy.WaveSoaking) })
			l.signal(workflows.RollBack, workflows.Command{By: "bob", Target: "c03", Reason: "latency"})
			l.until("c03 is back", holds(2))
			l.signal(workflows.RollBack, workflows.Command{By: "bob", Wave: 2})
			l.until("wave 2 is back", holds(3))
			l.signal(workflows.Resume, workflows.Command{By: "bob"})
		}, workflows.Succeeded, []string{workflows.RolloutType, workflows.WaveType, workflows.TargetType, workflows.RollbackType}},
		{"gradual", `  - failureThreshold: {maxFailures: 1}
---
type: Policy
name: rest
selectors: [{resource: resource.name != "c03"}]
rules:
  - deploymentDependency: {waitFor: c03}
  - gradualRollout: {rolloutType: linear, timeScaleInterval: 2}
`, func(s *fleet.Scenario) {
			s.Failures = []fleet.Failure{{Match: fleet.Match{Targets: []string{"c05"}}, Version: "v2"}}
		}, func(l *lane) {
			l.until("c01 has started", func(s workflows.RolloutStatus) bool { return s.Counts[policy.Succeeded] == 2 })
			l.signal(workflows.Pause, workflows.Command{By: "bob"})
			l.until("it is paused", func(s workflows.RolloutStatus) bool { return s.State == workflows.Paused })
			l.signal(workflows.Resume, workflows.Command{By: "bob"})
			l.signal(workflows.Skip, workflows.Command{By: "bob", Target: "c06", Reason: "in repair"})
		}, workflows.SucceededWithFailures, []string{workflows.RolloutType, workflows.WaveType, workflows.TargetType}},
		{"waiting", `  - deploymentDependency: {waitFor: Staging}
---
type: Environment
name: Staging
resourceSelector: 'true'
`, nil, func(l *lane) {
			l.until("it waits for Staging", func(s workflows.RolloutStatus) bool { return strings.Contains(s.Reason, `environment "Staging"`) })
			l.signal(workflows.Abort, workflows.Command{By: "bob"})
		}, workflows.Aborted, []string{workflows.RolloutType, workflows.WaveType}},
		{"stopped", `  - waves: [{name: all, select: 'true', maxConcurrency: 2}]
`, func(s *fleet.Scenario) { s.Duration = fleet.Span{Min: time.Second, Max: time.Second} }, func(l *lane) {
			l.until("some are done, and others in flight", func(s workflows.RolloutStatus) bool { return s.Counts[policy.Succeeded] > 0 })
			l.signal(workflows.RollBack, workflows.Command{By: "bob"})
		}, workflows.RolledBack, []string{workflows.RolloutType, workflows.WaveType, workflows.TargetType, workflows.RollbackType}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := scenario(6)
			if tt.scenario != nil {
				tt.scenario(&s)
			}
			url, _ := fleetOf(t, s)
			l := newLane(t)
			l.startWorker()
			l.start(simDocuments(url, 6, tt.rules), "v2")
			if tt.steer != nil {
				tt.steer(l)
			}
			if got := l.ended(); got.State != tt.want {
				t.Fatalf("state = %s (%s), want %s%s", got.State, got.Reason, tt.want, timeline(got))
			}
			histories := l.histories()
			seen := map[string]bool{}
			for id, h := range histories {
				seen[h.Events[0].GetWorkflowExecutionStartedEventAttributes().GetWorkflowType().GetName()] = true
				if err := replayer().ReplayWorkflowHistory(log.NewStructuredLogger(quiet()), h); err != nil {
					t.Errorf("%s does not replay: %v", id, err)
				}
				largest(t, id, h)
			}
			for _, want := range tt.types {
				if !seen[want] {
					t.Errorf("no history of a %s among %d", want, len(histories))
				}
			}
			if *writeHistories {
				store(t, tt.name, histories)
			}
		})
	}
}

func replayer() worker.WorkflowReplayer {
	r := worker.NewWorkflowReplayer()
	workflows.RegisterAll(r)
	return r
}

// histories returns the whole history of each workflow of the lane's namespace, by workflow id; all must have closed.
func (l *lane) histories() map[string]*historypb.History {
	l.t.Helper()
	out := map[string]*historypb.History{}
	eventually(l.t, "every workflow has closed and is listed", func() bool {
		clear(out)
		answer, err := l.client.ListWorkflow(l.t.Context(), &workflowservice.ListWorkflowExecutionsRequest{})
		if err != nil {
			return false
		}
		for _, e := range answer.GetExecutions() {
			if e.GetStatus() == enums.WORKFLOW_EXECUTION_STATUS_RUNNING {
				return false
			}
			h := &historypb.History{}
			events := l.client.GetWorkflowHistory(l.t.Context(), e.GetExecution().GetWorkflowId(), e.GetExecution().GetRunId(), false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
			for events.HasNext() {
				event, err := events.Next()
				if err != nil {
					return false
				}
				h.Events = append(h.Events, event)
			}
			out[e.GetExecution().GetWorkflowId()] = h
		}
		return len(out) > 0
	}, func() string { return "" })
	return out
}

// largest fails when a payload of a history is above 256 KiB.
func largest(t *testing.T, id string, h *historypb.History) {
	t.Helper()
	for _, e := range h.Events {
		// An event holds its payloads and little else.
		if data, err := protojson.Marshal(e); err != nil || len(data) > 256<<10 {
			t.Errorf("%s: event %d takes %d bytes (%v)", id, e.GetEventId(), len(data), err)
		}
	}
}

// machine are the fields that name the machine a history was made on.
var machine = regexp.MustCompile(`"(identity|binaryChecksum|buildId)": ?"[^"]*"`)

// store writes histories where tests/replay finds them.
func store(t *testing.T, scenario string, histories map[string]*historypb.History) {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "tests", "replay", "histories", scenario)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for id, h := range histories {
		data, err := protojson.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		data = machine.ReplaceAll(data, []byte(`"${1}":"test"`))
		file, err := os.Create(filepath.Join(dir, strings.NewReplacer("/", "_", ":", "_").Replace(id)+".json.gz"))
		if err != nil {
			t.Fatal(err)
		}
		z := gzip.NewWriter(file)
		if _, err := z.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
