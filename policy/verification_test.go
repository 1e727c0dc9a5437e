package policy

import (
	"strings"
	"testing"
	"time"
)

// tallyOf reads "P F I E" as successful, failed, inconclusive and error.
func tallyOf(text string) Tally {
	var t Tally
	kinds := map[string]MeasurementKind{"P": MeasuredSuccess, "F": MeasuredFailure, "I": MeasuredInconclusive, "E": MeasuredError}
	for _, k := range strings.Fields(text) {
		t = t.Add(Measurement{Kind: kinds[k]})
	}
	return t
}

// The cases are Ctrlplane's and Argo Rollouts' own; where we differ the name says so.
func TestVerdict(t *testing.T) {
	tests := []struct {
		name     string
		metric   Metric
		measured string
		want     Verdict
	}{
		{"no failure is borne by default", Metric{Count: 5}, "P F", VerdictFailed},
		{"up to the limit failures are borne", Metric{Count: 5, FailureLimit: 2}, "F F", VerdictRunning},
		{"above the limit it fails", Metric{Count: 5, FailureLimit: 2}, "F F F", VerdictFailed},
		{"failures within the limit use up the count", Metric{Count: 3, FailureLimit: 2}, "F F P", VerdictPassed},
		{"failures count in total, not in a row", Metric{Count: 9, FailureLimit: 2, InconclusiveLimit: 5}, "F I F I F", VerdictFailed},
		{"successes in a row pass it early", Metric{Count: 5, ConsecutiveSuccessLimit: 2}, "P P", VerdictPassed},
		{"an inconclusive one ends the row", Metric{Count: 5, ConsecutiveSuccessLimit: 2, InconclusiveLimit: 3}, "P I P", VerdictRunning},
		{"ours: the count passes it as well when limits are kept", Metric{Count: 5, ConsecutiveSuccessLimit: 2, InconclusiveLimit: 3}, "P I P I P", VerdictPassed},
		{"ours: all inconclusive is never passed", Metric{Count: 3, InconclusiveLimit: 3}, "I I I", VerdictInconclusive},
		{"an inconclusive one above the limit asks a person", Metric{Count: 3}, "P I", VerdictInconclusive},
		{"errors in a row up to the limit are borne", Metric{Count: 5, ConsecutiveErrorLimit: 4}, "E E E E", VerdictRunning},
		{"one more is an error", Metric{Count: 5, ConsecutiveErrorLimit: 4}, "E E E E E", VerdictError},
		{"a success ends the row of errors", Metric{Count: 5, ConsecutiveErrorLimit: 1}, "E P E P", VerdictRunning},
		{"errors do not use up the count", Metric{Count: 2, ConsecutiveErrorLimit: 4}, "E E P E", VerdictRunning},
		{"nothing measured is not passed", Metric{Count: 1}, "", VerdictRunning},
		{"the count passes it", Metric{Count: 5}, "P P P P P", VerdictPassed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, why := tallyOf(tt.measured).Verdict(tt.metric, false, false); got != tt.want {
				t.Errorf("%s gives %s (%s), want %s", tt.measured, got, why, tt.want)
			}
		})
	}
}

func TestSoakChecksRepeatUntilTheSoakEnds(t *testing.T) {
	m := Metric{Count: 2}
	if got, _ := tallyOf("P P P").Verdict(m, true, false); got != VerdictRunning {
		t.Errorf("before the end: %s, want running", got)
	}
	if got, _ := tallyOf("P P P").Verdict(m, true, true); got != VerdictPassed {
		t.Errorf("at the end: %s, want passed", got)
	}
	if got, _ := tallyOf("P").Verdict(m, true, true); got != VerdictRunning {
		t.Errorf("at the end with fewer than count: %s, want running", got)
	}
	if got, _ := tallyOf("P F").Verdict(m, true, false); got != VerdictFailed {
		t.Errorf("a failure before the end: %s, want failed", got)
	}
}

func TestJudge(t *testing.T) {
	yes, no := true, false
	both := Metric{Success: "s", Failure: "f"}
	tests := []struct {
		name   string
		metric Metric
		seen   Observation
		want   MeasurementKind
	}{
		{"failureCondition wins over successCondition", both, Observation{Success: &yes, Failure: &yes}, MeasuredFailure},
		{"neither of two is inconclusive", both, Observation{Success: &no, Failure: &no}, MeasuredInconclusive},
		{"successCondition alone and false is a failure", Metric{Success: "s"}, Observation{Success: &no}, MeasuredFailure},
		{"successCondition alone and true is a success", Metric{Success: "s"}, Observation{Success: &yes}, MeasuredSuccess},
		{"failureCondition alone and false is a success", Metric{Failure: "f"}, Observation{Failure: &no}, MeasuredSuccess},
		{"a problem is inconclusive whatever the condition says", both, Observation{Problem: "NaN", Success: &yes}, MeasuredInconclusive},
		{"no data is inconclusive", both, Observation{NoData: true, Problem: "no data"}, MeasuredInconclusive},
		{"no data fails where that is written", Metric{Success: "s", OnNoData: NoDataFails}, Observation{NoData: true}, MeasuredFailure},
		{"an error is an error", both, Observation{Err: "refused", Success: &yes}, MeasuredError},
		{"no condition at all is no success", Metric{}, Observation{}, MeasuredFailure},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, _ := Judge(tt.metric, tt.seen); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestCombineTakesTheWorstAndLeavesDryRunsOut(t *testing.T) {
	tests := []struct {
		name     string
		metrics  []Metric
		measured []string
		want     Verdict
	}{
		{"failed beats passed", []Metric{{Count: 1}, {Count: 1}}, []string{"P", "F"}, VerdictFailed},
		{"failed beats error and inconclusive", []Metric{{Count: 1}, {Count: 1}, {Count: 1}}, []string{"I", "E", "F"}, VerdictFailed},
		{"inconclusive beats running", []Metric{{Count: 5}, {Count: 5}}, []string{"P", "I"}, VerdictInconclusive},
		{"two failed dry runs decide nothing", []Metric{{Count: 1, DryRun: true}, {Count: 1, DryRun: true}}, []string{"F", "F"}, VerdictPassed},
		{"a failed dry run beside an inconclusive one", []Metric{{Count: 1, DryRun: true}, {Count: 1}}, []string{"F", "I"}, VerdictInconclusive},
		{"passed beside running is running", []Metric{{Count: 1}, {Count: 2}}, []string{"P", "P"}, VerdictRunning},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var tallies []Tally
			for _, m := range tt.measured {
				tallies = append(tallies, tallyOf(m))
			}
			if got, _ := Combine(tt.metrics, tallies, false, false); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestFirstMeasurementComesAfterTheInitialDelay(t *testing.T) {
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m := Metric{InitialDelay: Duration(20 * time.Second), Interval: Duration(time.Minute)}
	if got := NextMeasurement(m, Tally{}, since); got != since.Add(20*time.Second) {
		t.Errorf("first at %s, want 20 s after %s", got, since)
	}
	later := since.Add(25 * time.Second)
	if got := NextMeasurement(m, Tally{}.Add(Measurement{At: later, Kind: MeasuredError}), since); got != later.Add(time.Minute) {
		t.Errorf("second at %s, want one interval after the first, %s", got, later)
	}
}
