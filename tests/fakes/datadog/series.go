package datadog

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Series is one scripted series of points.
type Series struct {
	// Metric is its name, e.g. "errors".
	Metric string
	// Tags are stored as Datadog stores them: in lower case, and with _ for what may not be in a tag.
	Tags map[string]string
	// Points is the value at a time; not ok: there is no point.
	Points func(at time.Time) (value float64, ok bool)
	// Every is the time between points, which lie at its multiples; zero means 10 s, as agents send.
	Every time.Duration
	// Late is how long after its time a point can be seen.
	Late time.Duration
}

// grid is a number of buckets of one length, aligned to the epoch.
type grid struct {
	from, to time.Time // from inclusive, to exclusive: what is outside is in no bucket
	step     time.Duration
	now      time.Time
}

// starts lists where the buckets begin; the first one may begin before from.
func (g grid) starts() []time.Time {
	var starts []time.Time
	for at := floor(g.from, g.step); at.Before(g.to); at = at.Add(g.step) {
		starts = append(starts, at)
	}
	return starts
}

// floor is the last multiple of step since the epoch that is not after at.
func floor(at time.Time, step time.Duration) time.Time {
	return time.Unix(0, at.UnixNano()-at.UnixNano()%int64(step)).UTC()
}

// table is values by group: the key is the group's tags joined by commas, each value is one bucket's, nil: none.
type table map[string][]*float64

// evaluate computes an expression. tables are what names stand for. What is computed with a missing value is missing,
// and so is what is divided by zero.
func (e *expression) evaluate(series []Series, g grid, tables map[string]table) table {
	switch e.operator {
	case 'n':
		values := make([]*float64, len(g.starts()))
		for i := range values {
			values[i] = &e.number
		}
		return table{"": values}
	case 'v':
		return tables[e.name]
	case 'q':
		return e.query.evaluate(series, g)
	case 'z':
		inner := e.left.evaluate(series, g, tables)
		if len(inner) == 0 {
			inner = table{"": make([]*float64, len(g.starts()))}
		}
		out := table{}
		for key, values := range inner {
			for _, v := range values {
				if v == nil {
					v = new(float64)
				}
				out[key] = append(out[key], v)
			}
		}
		return out
	}
	left, right := e.left.evaluate(series, g, tables), e.right.evaluate(series, g, tables)
	out := table{}
	for _, one := range []table{left, right} {
		for key := range one {
			a, b := left.of(key), right.of(key)
			if a == nil || b == nil || key == "" && (left.grouped() || right.grouped()) {
				continue
			}
			values := make([]*float64, len(a))
			for i := range a {
				values[i] = combine(e.operator, a[i], b[i])
			}
			out[key] = values
		}
	}
	return out
}

// of is a group's values; what has no groups is the same for each.
func (t table) of(key string) []*float64 {
	if values, ok := t[key]; ok {
		return values
	}
	return t[""]
}

func (t table) grouped() bool {
	_, plain := t[""]
	return len(t) > 0 && !plain
}

func combine(operator byte, a, b *float64) *float64 {
	if a == nil || b == nil || operator == '/' && *b == 0 {
		return nil
	}
	var v float64
	switch operator {
	case '+':
		v = *a + *b
	case '-':
		v = *a - *b
	case '*':
		v = *a * *b
	case '/':
		v = *a / *b
	}
	return &v
}

// evaluate gathers each matching series in buckets, and the series of each group in one.
func (q *metricQuery) evaluate(all []Series, g grid) table {
	groups := map[string][][]*float64{}
	for _, s := range all {
		tags := map[string]string{}
		for tag, value := range s.Tags {
			tags[normalise(tag)] = normalise(value)
		}
		if s.Metric != q.metric || slices.ContainsFunc(q.scope, func(c condition) bool { return !c.holds(tags) }) {
			continue
		}
		buckets, any := s.buckets(q.time, g)
		if !any {
			continue // a series without a point in the window is not there
		}
		var group []string
		for _, tag := range q.by {
			value, ok := tags[tag]
			if !ok {
				value = "N/A"
			}
			group = append(group, tag+":"+value)
		}
		key := strings.Join(group, ",")
		groups[key] = append(groups[key], buckets)
	}
	out := table{}
	for key, members := range groups {
		out[key] = make([]*float64, len(members[0]))
		for i := range out[key] {
			var values []float64
			for _, member := range members {
				if member[i] != nil {
					values = append(values, *member[i])
				}
			}
			out[key][i] = aggregate(q.space, values, g.step)
		}
	}
	return out
}

// buckets gathers the points that can be seen at g.now.
func (s Series) buckets(method string, g grid) (buckets []*float64, any bool) {
	every := s.Every
	if every == 0 {
		every = 10 * time.Second
	}
	for _, start := range g.starts() {
		end := start.Add(g.step)
		var values []float64
		for at := floor(start, every); at.Before(end) && at.Before(g.to); at = at.Add(every) {
			if at.Before(start) || at.Before(g.from) || at.Add(s.Late).After(g.now) {
				continue
			}
			if v, ok := s.Points(at); ok {
				values = append(values, v)
			}
		}
		value := aggregate(method, values, g.step)
		any = any || value != nil
		buckets = append(buckets, value)
	}
	return buckets, any
}

// aggregate makes one of several values; nil of none.
func aggregate(method string, values []float64, step time.Duration) *float64 {
	if len(values) == 0 {
		return nil
	}
	var sum, squares float64
	for _, v := range values {
		sum += v
		squares += v * v
	}
	var out float64
	switch method {
	case "avg", "mean":
		out = sum / float64(len(values))
	case "sum":
		out = sum
	case "rate":
		out = sum / step.Seconds()
	case "min":
		out = slices.Min(values)
	case "max":
		out = slices.Max(values)
	case "last":
		out = values[len(values)-1]
	case "l2norm":
		out = math.Sqrt(squares)
	case "area":
		out = sum * step.Seconds()
	}
	return &out
}

// keys are the groups in an order that does not depend on anything.
func (t table) keys() []string { return slices.Sorted(maps.Keys(t)) }
