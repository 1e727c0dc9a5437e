package policy

import (
	"fmt"
	"time"
)

// MeasurementKind is how one measurement counts. The set is closed.
type MeasurementKind string

// The kinds.
const (
	MeasuredSuccess      MeasurementKind = "successful"
	MeasuredFailure      MeasurementKind = "failed"
	MeasuredInconclusive MeasurementKind = "inconclusive"
	MeasuredError        MeasurementKind = "error"
)

// Measurement is one look at one metric of one target.
type Measurement struct {
	At     time.Time       `json:"at"`
	Metric string          `json:"metric"`
	Kind   MeasurementKind `json:"kind"`
	// Reason says why it is not a success; Observed is the value as text.
	Reason   string `json:"reason,omitempty"`
	Observed string `json:"observed,omitempty"`
}

// Observation is what a measurement saw, before it is judged.
type Observation struct {
	// Err is why the measurement or the evaluation of a condition failed.
	Err string
	// Problem is why nothing may be concluded: no data, NaN, a partial answer, data older than the change and so on.
	Problem string
	NoData  bool
	// Success and Failure are the conditions' values; nil where the condition is not written.
	Success, Failure *bool
}

// Judge says how an observation counts for a metric. A problem is inconclusive whatever a condition says, so that an
// answer that says nothing is never a success.
func Judge(m Metric, o Observation) (MeasurementKind, string) {
	switch {
	case o.Err != "":
		return MeasuredError, o.Err
	case o.NoData && m.OnNoData == NoDataFails:
		return MeasuredFailure, "no data, and onNoData: fail was written"
	case o.NoData || o.Problem != "":
		return MeasuredInconclusive, o.Problem
	case o.Failure != nil && *o.Failure:
		return MeasuredFailure, "failureCondition holds: " + string(m.Failure)
	case o.Success != nil && *o.Success:
		return MeasuredSuccess, ""
	case o.Success == nil && o.Failure != nil:
		// Only a failureCondition is written and it does not hold.
		return MeasuredSuccess, ""
	case o.Success != nil && o.Failure != nil:
		return MeasuredInconclusive, "neither successCondition nor failureCondition holds"
	}
	return MeasuredFailure, "successCondition does not hold: " + string(m.Success)
}

// Tally counts the measurements of one metric on one target.
type Tally struct {
	Successful   int `json:"successful,omitempty"`
	Failed       int `json:"failed,omitempty"`
	Inconclusive int `json:"inconclusive,omitempty"`
	Errors       int `json:"errors,omitempty"`
	// ErrorsInRow and SuccessesInRow are ended by any other measurement.
	ErrorsInRow    int `json:"errorsInRow,omitempty"`
	SuccessesInRow int `json:"successesInRow,omitempty"`
	// Last is the newest measurement, LastBad the newest that was not a success.
	Last    *Measurement `json:"last,omitempty"`
	LastBad *Measurement `json:"lastBad,omitempty"`
}

// Counted is how many measurements count towards Count; errors do not use it up.
func (t Tally) Counted() int { return t.Successful + t.Failed + t.Inconclusive }

// Taken is how many measurements were taken, errors included.
func (t Tally) Taken() int { return t.Counted() + t.Errors }

// Add returns the tally with one more measurement.
func (t Tally) Add(m Measurement) Tally {
	t.Last = &m
	if m.Kind != MeasuredSuccess {
		t.LastBad = &m
		t.SuccessesInRow = 0
	}
	if m.Kind != MeasuredError {
		t.ErrorsInRow = 0
	}
	switch m.Kind {
	case MeasuredSuccess:
		t.Successful++
		t.SuccessesInRow++
	case MeasuredFailure:
		t.Failed++
	case MeasuredInconclusive:
		t.Inconclusive++
	case MeasuredError:
		t.Errors++
		t.ErrorsInRow++
	}
	return t
}

// Verdict is what a metric, or all metrics of a target, have come to. The set is closed.
type Verdict string

// The verdicts. VerdictRunning means: not yet.
const (
	VerdictRunning      Verdict = "running"
	VerdictPassed       Verdict = "passed"
	VerdictFailed       Verdict = "failed"
	VerdictInconclusive Verdict = "inconclusive"
	VerdictError        Verdict = "error"
)

// Verdict judges a tally. With untilEnd the metric repeats until its time is over (a soak), and only ended lets it pass.
func (t Tally) Verdict(m Metric, untilEnd, ended bool) (Verdict, string) {
	switch {
	case t.Failed > m.FailureLimit:
		return VerdictFailed, t.why(m, fmt.Sprintf("%d failed, %d allowed", t.Failed, m.FailureLimit))
	case t.Inconclusive > m.InconclusiveLimit:
		return VerdictInconclusive, t.why(m, fmt.Sprintf("%d inconclusive, %d allowed", t.Inconclusive, m.InconclusiveLimit))
	case t.ErrorsInRow > m.ConsecutiveErrorLimit:
		return VerdictError, t.why(m, fmt.Sprintf("%d errors in a row, %d allowed", t.ErrorsInRow, m.ConsecutiveErrorLimit))
	}
	if untilEnd && !ended {
		return VerdictRunning, ""
	}
	if !untilEnd && m.ConsecutiveSuccessLimit > 0 && t.SuccessesInRow >= m.ConsecutiveSuccessLimit {
		return VerdictPassed, ""
	}
	if t.Counted() < m.Count {
		return VerdictRunning, ""
	}
	if t.Successful == 0 {
		return VerdictInconclusive, t.why(m, "no measurement was a success")
	}
	return VerdictPassed, ""
}

// why names the metric, the limit and the newest bad measurement.
func (t Tally) why(m Metric, limit string) string {
	text := fmt.Sprintf("check %s: %s", m.Name, limit)
	if t.LastBad != nil {
		if t.LastBad.Observed != "" {
			text += "; last saw " + t.LastBad.Observed
		}
		if t.LastBad.Reason != "" {
			text += "; " + t.LastBad.Reason
		}
	}
	return text
}

// Combine returns the verdict of several metrics on one target: one that is not passed ends its siblings, and the
// worst one is taken. Metrics in dry run do not take part; with none left the target has passed.
func Combine(metrics []Metric, tallies []Tally, untilEnd, ended bool) (Verdict, string) {
	worst, why := VerdictPassed, ""
	rank := map[Verdict]int{VerdictPassed: 0, VerdictRunning: 1, VerdictInconclusive: 2, VerdictError: 3, VerdictFailed: 4}
	for i, m := range metrics {
		if m.DryRun {
			continue
		}
		if v, reason := tallies[i].Verdict(m, untilEnd, ended); rank[v] > rank[worst] {
			worst, why = v, reason
		}
	}
	return worst, why
}

// NextMeasurement returns when a metric is due: the first one an initial delay after since, each further one an
// interval after the last. An error is tried again after the interval as well.
func NextMeasurement(m Metric, t Tally, since time.Time) time.Time {
	if t.Last == nil {
		return since.Add(time.Duration(m.InitialDelay))
	}
	return t.Last.At.Add(time.Duration(m.Interval))
}
