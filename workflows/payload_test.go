package workflows

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// No payload may be above 256 KiB, with 500 targets and every name, version and reason as long as it may be.
func TestPayloadsStayBelowTheirLimit(t *testing.T) {
	name, version := strings.Repeat("n", 120), strings.Repeat("v", 128)
	w := &walk{subject: Subject{Rollout: strings.Repeat("r", 26), Deployment: strings.Repeat("d", 63), Environment: strings.Repeat("e", 63), Version: version, Plan: strings.Repeat("p", 71)},
		id: strings.Repeat("i", 180)}
	w.state.Control = policy.ControlStop
	for range MaxBatchTargets {
		w.state.Targets = append(w.state.Targets, policy.TargetProgress{Name: name, State: policy.NeedsRecovery, Reason: strings.Repeat("x", maxReason), Attempt: 99, Started: 500,
			Reached: true, From: version, FromKnown: true, Counted: true, ByHand: true})
		w.details = append(w.details, targetDetail{wave: 99})
	}
	for range 50 {
		w.answers = append(w.answers, OrderAnswer{Number: 99, Answer: strings.Repeat("a", clipCommand)})
	}
	var records []activities.TargetRecord
	for range recordTargets {
		records = append(records, activities.TargetRecord{Name: name, Wave: 99, State: "NeedsRecovery", Reached: true, From: version, FromKnown: true, Reason: strings.Repeat("x", maxReason)})
	}
	r := &rollout{progress: policy.Progress{Waves: []policy.WaveProgress{{}}}, outcomes: [][]TargetOutcome{w.outcomes()}}
	soak := activities.CheckInput{Plan: strings.Repeat("p", 71), Version: version}
	for range MaxBatchTargets {
		soak.Targets = append(soak.Targets, activities.CheckedTarget{Name: name, Baselines: map[int]map[string]any{1: {"value": strings.Repeat("9", 205)}}, // 220 bytes of JSON, the most that a target passes on
			Counted: []activities.Counted{{1000, 1000, 1000, 1000, 1000, 1000, 1700000000000}, {1000, 1000, 1000, 1000, 1000, 1000, 1700000000000}}})
	}
	batch := *w
	batch.share = &share{batch: 20}
	wait := policy.Wait{Reason: strings.Repeat("w", maxReason), Rule: "gradualRollout", Policy: strings.Repeat("p", 63), Lifts: strings.Repeat("l", 200), Next: time.Unix(1<<31, 999)}
	standing := policy.Standing{Done: 500, Missing: 500, Left: 500, Open: true, Failed: name, Gone: name, State: policy.NeedsRecovery}
	lease := Lease{Sequence: 9999, Granted: 99999, Ask: true, Soak: 99, SoakSince: time.Unix(1<<31, 999), SoakUntil: time.Unix(1<<31, 999), Close: true,
		Beside: policy.Beside{Counts: policy.WaveCounts{Failures: 9999, Unreachable: 9999, Skipped: 9999}, Held: true, Again: true}}
	for range 50 { // paces and dependencies, each of a policy
		batch.waits = append(batch.waits, wait)
		batch.state.Paces = append(batch.state.Paces, policy.PaceState{Last: time.Unix(1<<31, 999)})
		lease.Paced, lease.Beside.Turns = append(lease.Paced, time.Unix(1<<31, 999)), append(lease.Beside.Turns, false)
		lease.Beside.Dependencies = append(lease.Beside.Dependencies, standing)
	}
	for i := range batch.details {
		batch.details[i].first = time.Unix(1<<31, 0)
	}
	report := batch.batchReport(policy.WaveDecision{Stuck: strings.Repeat("s", maxReason)})
	report.Waiters, report.Standings = make([]int, 50), lease.Beside.Dependencies
	opens := BatchInput{Subject: w.subject, Wave: 99, Batch: 20, Lease: lease}
	for range 100 { // people leave out that many before the wave opens
		opens.Skips = append(opens.Skips, Order{Number: 9999, Do: Skip, Target: name, By: strings.Repeat("b", 100), Reason: strings.Repeat("r", clipCommand)})
	}
	for what, value := range map[string]any{
		"BatchInput":    opens,
		"Lease":         lease,
		"BatchReport":   report,
		"BatchResult":   BatchResult{Report: report},
		"BatchOutcome":  BatchOutcome{Wave: 99, Batch: 20, Targets: batch.outcomes()},
		"Report of it":  batch.current(),
		"its way back":  RollbackInput{Subject: w.subject, Targets: batch.outcomes()},
		"WaveResult":    WaveResult{Targets: w.outcomes(), Answers: w.answers},
		"Report":        w.current(),
		"RollbackInput": RollbackInput{Subject: w.subject, Targets: r.reached(&wayBack{}, nil)},
		"Record":        activities.RolloutRecord{Targets: records},
		"CheckInput":    soak,
	} {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 256<<10 {
			t.Errorf("%s takes %d bytes, above 256 KiB", what, len(data))
		}
		t.Logf("%s: %d bytes", what, len(data))
	}
	if len(w.current().Reached) != MaxBatchTargets || len(r.reached(&wayBack{}, nil)) != MaxBatchTargets {
		t.Error("the payloads hold fewer targets than they should: the test measures nothing")
	}
}
