package policy

import "time"

// TimeScale is how many times as fast as written the times of a rollout pass, to watch an hour's rollout in a minute on a
// development machine. It divides intervals, delays, soaks and periods where they are waited for, and touches no plan, no
// count, no order and no deadline. 0 and 1 are the real time.
type TimeScale float64

// leastScaled is what no scaled time falls below: shorter ones would be noise beside what the engine itself takes.
const leastScaled = time.Second

// Of returns the time that is waited where the documents say d.
func (s TimeScale) Of(d time.Duration) time.Duration {
	if s <= 1 || d <= leastScaled {
		return d
	}
	return max(leastScaled, time.Duration(float64(d)/float64(s)))
}

// Duration is Of for a Duration.
func (s TimeScale) Duration(d Duration) Duration { return Duration(s.Of(time.Duration(d))) }

// Metric returns the metric with its times scaled.
func (s TimeScale) Metric(m Metric) Metric {
	m.Interval, m.InitialDelay = s.Duration(m.Interval), s.Duration(m.InitialDelay)
	return m
}
