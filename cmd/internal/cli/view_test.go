package cli

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// digest is a digest for tables.
func digest(of string) string { return ledger.Digest([]byte(of)) }

// fixedPlan is a plan with something in every field.
func fixedPlan() policy.Plan {
	p := policy.Plan{
		Digest: digest("plan"), BundleDigest: digest("bundle"), SnapshotDigest: digest("snapshot"),
		Deployment: "web", Environment: "Production",
		Version:  policy.Version{Name: "v1.2.3", Artifacts: map[string]string{"image": "registry.example/web@sha256:0123"}, Params: map[string]string{"flags": "a b", "drain": "30s"}},
		Policies: []policy.PolicyUse{{Name: "production", Priority: 10, Rules: []string{"waves", "failureThreshold", "verification"}, Targets: 14}, {Name: "latency", Rules: []string{"verification"}, Targets: 1}},
		Budget:   policy.Budget{MaxFailures: policy.Amount{Value: 10, Percent: true}, MaxUnreachable: policy.Amount{Value: 2}, Size: 14, Bounded: true, From: "production"},
		Rollback: policy.RollbackPlan{OnTargetFailed: policy.TargetGoesBack, OnBreach: policy.BreachHolds, OnReject: policy.RejectRolloutBack, Order: policy.OrderNewest,
			MaxConcurrency: policy.Amount{Value: 5}, MaxFailures: &policy.Amount{Value: 5, Percent: true}, Policy: "production"},
		Metrics: []policy.PlannedMetric{
			{Policy: "production", Metric: policy.Metric{Name: "error-rate", Provider: "prometheus", Success: "result.value < 0.01", Interval: policy.Duration(time.Minute), Count: 5, During: policy.DuringBoth}},
			{Policy: "latency", Metric: policy.Metric{Name: "p99", Provider: "prometheus", Failure: "result.value > baseline.value * 1.2", Count: 1, DryRun: true}},
		},
		Step:     policy.Step{Name: "sync", Kind: "command", Config: json.RawMessage(`{"apply":["deploy"]}`), Deadline: policy.Duration(time.Hour)},
		NoReturn: "the step has no rollback and no check",
		Notes:    []string{"the selector of environment \"Production\" fails on 1 target, which is left out: odd"},
		Out:      []policy.Out{{Target: "dev-1", Reason: "not in environment \"Production\""}, {Target: "odd", Reason: "the selector fails on it"}, {Target: "dev-2", Reason: "not in environment \"Production\""}},
		Targets:  14,
		Waves: []policy.Wave{
			{Number: 1, Name: "canary", Policy: "production", Size: 2, MaxConcurrency: 1, Budget: policy.Budget{Size: 2, Bounded: true, From: "first wave"},
				Soak: policy.Duration(30 * time.Minute), SoakFrom: []string{"production"}, BlastRadius: 2,
				Approvals: []policy.Consent{{Policy: "production", Min: 1, Rollout: true}}},
			{Number: 2, Name: "europe", Policy: "production", Passed: "it selects no target; it is passed over with its soak"},
			{Number: 3, Name: "rest", Policy: "production", Size: 12, MaxConcurrency: 5, BlastRadius: 2,
				Budget:    policy.Budget{MaxFailures: policy.Amount{Value: 1}, MaxUnreachable: policy.Amount{Value: 25, Percent: true}, Size: 12, Bounded: true, From: "production"},
				Approvals: []policy.Consent{{Policy: "production", Min: 2, NotAuthor: true, Within: policy.Duration(24 * time.Hour)}}},
		},
	}
	for _, name := range []string{"eu-1", "eu-2"} {
		p.Waves[0].Targets = append(p.Waves[0].Targets, policy.PlannedTarget{Name: name, Reason: `wave "canary": target.metadata.tier == "canary"`, Metrics: []int{0, 1}})
	}
	for _, letter := range strings.Split("abcdefghijkl", "") {
		p.Waves[2].Targets = append(p.Waves[2].Targets, policy.PlannedTarget{Name: "us-" + letter, Reason: `wave "rest": true`, Metrics: []int{0}})
	}
	return p
}

// fixedStatus is a status with something in every field.
func fixedStatus() workflows.RolloutStatus {
	return workflows.RolloutStatus{
		Rollout: "01JQ0000000000000000000000", Mode: workflows.ModeRollout, Deployment: "web", Environment: "Production", Version: policy.Version{Name: "v1.2.3"},
		State: workflows.Holding, Reason: "wave 2 (rest): 2 of 12 targets failed, 1 is allowed", Glance: workflows.WaitingIt, By: "alice",
		StartedAt: noon.Add(-50 * time.Hour), PlanDigest: digest("plan"), BundleDigest: digest("bundle"), SnapshotDigest: digest("snapshot"), Targets: 14,
		Counts: map[policy.TargetState]int{policy.Succeeded: 6, policy.Failed: 1, policy.NeedsRecovery: 1, policy.Pending: 4, policy.NoChange: 1, policy.RolledBack: 1},
		Waves: []workflows.WaveStatus{
			{Number: 1, Name: "canary", State: "done", Size: 2, Counts: map[policy.TargetState]int{policy.Succeeded: 1, policy.NoChange: 1}, MaxConcurrency: 1,
				StartedAt: noon.Add(-50 * time.Hour), EndedAt: noon.Add(-49 * time.Hour), SoakUntil: noon.Add(-49 * time.Hour), Workflow: "rollout/Production/web/01JQ0000000000000000000000/w01"},
			{Number: 2, Name: "rest", State: "breached", Reason: "2 failed, 1 is allowed", Size: 12,
				Counts:   map[policy.TargetState]int{policy.Succeeded: 5, policy.Failed: 1, policy.NeedsRecovery: 1, policy.Pending: 4, policy.RolledBack: 1},
				InFlight: 1, Failures: 2, MaxFailures: 1, MaxConcurrency: 5, StartedAt: noon.Add(-time.Hour), SoakUntil: noon.Add(30 * time.Minute)},
		},
		Waits: []policy.Wait{
			{Reason: "the budget of wave 2 (rest) is breached", Rule: "failureThreshold", Policy: "production", Lifts: "rollback takes everything back; abort leaves it; retry or skip the failed targets", Wave: 2},
			{Reason: "wave 3 (last) needs 1 approval more", Rule: "approval", Policy: "production", Lifts: "approve, by 1 person other than alice", Wave: 3, Next: noon.Add(3*time.Hour + 20*time.Minute)},
		},
		Approvals: []policy.Approved{{By: "bob", Wave: 1, At: noon.Add(-51 * time.Hour), Plan: digest("plan"), Reason: "looks good", Claimed: true}},
		Rollback: &workflows.RollbackStatus{Cause: "target us-c failed", Targets: 1, Counts: map[policy.TargetState]int{policy.RolledBack: 1}, StartedAt: noon.Add(-2 * time.Minute),
			EndedAt: noon.Add(-time.Minute), WaitingFor: []string{"us-d"}, Workflows: []string{"rollout/Production/web/01JQ0000000000000000000000/back"}},
		Attention: []workflows.TargetStatus{
			{Name: "us-a", Wave: 2, State: policy.Failed, Reason: "exit code 3: \x1b[31mdisk full", Reached: true, From: "v1.2.2", Attempt: 2, Workflow: "w"},
			{Name: "us-b", Wave: 2, State: policy.NeedsRecovery, Reason: "its real version cannot be read", Reached: true},
		},
		AttentionTotal: 2,
		Commands: []workflows.Receipt{
			{ID: "1", Name: "approve", By: "alice", At: noon.Add(-50 * time.Hour), Wave: 7, Answer: "wave 7 is not waiting for approval"},
			{ID: "2", Name: "retry", By: "bob", At: noon.Add(-time.Minute), Target: "us-a", Accepted: true, Answer: "us-a is tried again"},
		},
		Timeline: []workflows.Event{{At: noon.Add(-50 * time.Hour), Who: "alice", What: "rollout of v1.2.3 to Production asked for", Why: "fixes the leak"}},
	}
}

func TestPlanReads(t *testing.T) {
	for name, every := range map[string]bool{"plan.txt": false, "plan-targets.txt": true} {
		var text bytes.Buffer
		if err := writePlan(&text, out.Style{}, fixedPlan(), every); err != nil {
			t.Fatal(err)
		}
		golden(t, name, text.String())
	}
}

func TestFieldsOfPlanAndStatusArePinned(t *testing.T) {
	for name, value := range map[string]any{"plan.json": fixedPlan(), "status.json": fixedStatus(), "explain.json": explanation("sluice", fixedStatus())} {
		var text bytes.Buffer
		if err := out.Write(&text, out.JSON, value); err != nil {
			t.Fatal(err)
		}
		golden(t, name, text.String())
	}
	var back workflows.RolloutStatus
	data, err := json.Marshal(fixedStatus())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &back); err != nil || !reflect.DeepEqual(back, fixedStatus()) {
		t.Errorf("the status does not survive JSON: %v", err)
	}
	var text bytes.Buffer
	if err := out.Write(&text, out.YAML, fixedStatus()); err != nil {
		t.Fatal(err)
	}
	golden(t, "status.yaml", text.String())
}

func TestStatusReads(t *testing.T) {
	f, _, _ := testFactory(t)
	ended := fixedStatus()
	ended.State, ended.Reason, ended.Glance, ended.Waits, ended.EndedAt = workflows.RolledBack, "each target that was reached is back", "", nil, noon.Add(-time.Minute)
	ended.Mode, ended.Of, ended.Attention, ended.Rollback, ended.Commands, ended.Approvals = workflows.ModeRollback, "01JP0000000000000000000000", nil, nil, nil, nil
	for name, status := range map[string]workflows.RolloutStatus{
		"status.txt":         fixedStatus(),
		"status-ended.txt":   ended,
		"status-unknown.txt": {Rollout: "01JQ0000000000000000000000", Deployment: "web", Environment: "Production", Version: policy.Version{Name: "v1"}, State: workflows.Running, StartedAt: noon.Add(-time.Minute)},
	} {
		var text bytes.Buffer
		if err := writeStatus(&text, f, out.Style{}, status); err != nil {
			t.Fatal(err)
		}
		golden(t, name, text.String())
		if strings.ContainsRune(text.String(), 0x1b) {
			t.Errorf("%s holds a control sequence: colour where there is none, or a target's own", name)
		}
	}
}

func TestColourAddsNoMeaning(t *testing.T) {
	f, _, _ := testFactory(t)
	var plain, coloured bytes.Buffer
	if err := writeStatus(&plain, f, out.Style{}, fixedStatus()); err != nil {
		t.Fatal(err)
	}
	if err := writeStatus(&coloured, f, out.Style{Color: true}, fixedStatus()); err != nil {
		t.Fatal(err)
	}
	stripped := coloured.String()
	for _, code := range []string{"\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m"} {
		stripped = strings.ReplaceAll(stripped, code, "")
	}
	if stripped != plain.String() {
		t.Errorf("coloured, without its colour:\n%s\nplain:\n%s", stripped, plain.String())
	}
	if coloured.String() == plain.String() {
		t.Error("nothing is coloured")
	}
}

func TestExplainNamesRulePolicyAndRemedy(t *testing.T) {
	f, stdout, _ := testFactory(t)
	e := explanation("sluice", fixedStatus())
	e.Target = &fixedStatus().Attention[0]
	if err := writeExplanation(f, e, fixedStatus()); err != nil {
		t.Fatal(err)
	}
	golden(t, "explain.txt", stdout.String())
}

func TestPipedProgressIsALineForEachChange(t *testing.T) {
	f, stdout, _ := testFactory(t)
	show := newProgress(f, followOptions{format: out.Table})
	begun, done := fixedStatus(), fixedStatus()
	begun.State, begun.Reason, begun.Waits, begun.Rollback = workflows.Running, "wave 2 (rest) is running", nil, nil
	done.State, done.Reason, done.Waits = workflows.Aborted, "abort by bob", nil
	done.Timeline = append(done.Timeline, workflows.Event{At: noon, Who: "sluice", What: "Aborted", Why: "abort by bob"})
	for _, step := range []struct {
		status workflows.RolloutStatus
		remark string
	}{{begun, ""}, {begun, ""}, {begun, "no worker answered"}, {begun, "no worker answered"}, {fixedStatus(), ""}, {fixedStatus(), ""}, {done, ""}} {
		if err := show.status(step.status, step.remark); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "watch.txt", stdout.String())
}

func TestStreamIsOneStatusALine(t *testing.T) {
	f, stdout, _ := testFactory(t)
	show := newProgress(f, followOptions{format: out.NDJSON})
	changed := fixedStatus()
	changed.State = workflows.RollingBack
	for _, status := range []workflows.RolloutStatus{fixedStatus(), fixedStatus(), changed} {
		if err := show.status(status, ""); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2: one for each change", len(lines))
	}
	var last workflows.RolloutStatus
	if err := json.Unmarshal([]byte(lines[1]), &last); err != nil || last.State != workflows.RollingBack {
		t.Errorf("got %s and %v", last.State, err)
	}
}

func TestDistancesAreShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-400 * time.Millisecond:  "0s ago",
		90 * time.Second:         "in 1m30s",
		-2 * time.Hour:           "2h ago",
		47*time.Hour + 29:        "in 47h",
		-(15*24 + 3) * time.Hour: "15d3h ago",
	} {
		if got := distance(d); got != want {
			t.Errorf("%s: got %q, want %q", time.Duration(d), got, want)
		}
	}
}

// TestAnAttemptUnderWayIsNewerThanItsWave fails when explain says that a rollback leaves a target alone which has been
// changed and is being checked.
func TestAnAttemptUnderWayIsNewerThanItsWave(t *testing.T) {
	wave := workflows.TargetStatus{Name: "eu-1", Wave: 1, State: policy.Applying, Attempt: 1, Workflow: "w"}
	again := wave
	again.Reached, again.From, again.Attempt = true, "v1", 2
	for name, c := range map[string]struct{ wave, own, want workflows.TargetStatus }{
		"checked": {wave, workflows.TargetStatus{State: policy.Verifying, Reached: true, From: "v1"},
			workflows.TargetStatus{Name: "eu-1", Wave: 1, State: policy.Verifying, Reached: true, From: "v1", Attempt: 1, Workflow: "w"}},
		"read": {wave, workflows.TargetStatus{State: policy.Waiting, Reason: "the rollout is paused", From: "v1"},
			workflows.TargetStatus{Name: "eu-1", Wave: 1, State: policy.Waiting, Reason: "the rollout is paused", From: "v1", Attempt: 1, Workflow: "w"}},
		"tried again": {again, workflows.TargetStatus{State: policy.Preparing, From: "v2"},
			workflows.TargetStatus{Name: "eu-1", Wave: 1, State: policy.Preparing, Reached: true, From: "v1", Attempt: 2, Workflow: "w"}},
	} {
		if got := newer(c.wave, c.own); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// TestATargetOfAWaveThatWentBackIsLeftOut fails when explain has a target still to come that its wave never began with, or
// the other way round.
func TestATargetOfAWaveThatWentBackIsLeftOut(t *testing.T) {
	went := workflows.WaveStatus{Number: 1, EndedAt: noon, Counts: map[policy.TargetState]int{policy.RolledBack: 1, policy.Skipped: 2}}
	open, aborted := went, went
	open.EndedAt = time.Time{}
	aborted.Counts = map[policy.TargetState]int{policy.Succeeded: 1, policy.Pending: 2}
	for name, c := range map[string]struct {
		wave workflows.WaveStatus
		want policy.TargetState
	}{"went back": {went, policy.Skipped}, "goes back": {open, policy.Pending}, "aborted": {aborted, policy.Pending}} {
		target := workflows.TargetStatus{Name: "eu-2", Wave: 1, State: policy.Pending}
		leftOut(&target, workflows.RolloutStatus{Waves: []workflows.WaveStatus{c.wave}})
		if target.State != c.want || strings.Contains(target.Reason, "went back by hand") != (c.want == policy.Skipped) {
			t.Errorf("%s: %s (%s), want %s", name, target.State, target.Reason, c.want)
		}
	}
}

// TestACommandNamesNoWaveBesideItsTarget fails when "last commands" shows a wave that nobody typed.
func TestACommandNamesNoWaveBesideItsTarget(t *testing.T) {
	for want, c := range map[string]workflows.Receipt{
		"rollback eu-1":   {Name: "rollback", Wave: 1, Target: "eu-1"},
		"rollback wave 1": {Name: "rollback", Wave: 1},
		"retry eu-1":      {Name: "retry", Wave: 1, Target: "eu-1"},
		"pause":           {Name: "pause"},
	} {
		if got := commandOf(c); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestACommandToTypeNamesTheTargetOfItsWait fails when the hint names none, or another target that failed, although
// the wait says which one it is about.
func TestACommandToTypeNamesTheTargetOfItsWait(t *testing.T) {
	wait := policy.Wait{Reason: "2 targets wait for eu-9, which is RolledBack", Rule: "deploymentDependency", Target: "eu-9", Lifts: "retry what failed; what waits for it may be left out too"}
	if got := liftingCommands("sluice", fixedStatus(), wait); len(got) != 1 || got[0] != "sluice retry web -e Production --target eu-9" {
		t.Errorf("got %q", got)
	}
}
