package workflows

import (
	"encoding/json"
	"strings"
	"testing"

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
	for what, value := range map[string]any{
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
