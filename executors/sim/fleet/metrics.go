package fleet

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// series is one metric of one target, now.
type series struct {
	name   string
	help   string
	labels [][2]string
	value  float64
}

// series lists what the selector selects, or everything, of every target that runs a version and can be reached.
func (f *Fleet) series(now time.Time, want *selector) []series {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []series
	for i, m := range f.scenario.Metrics {
		if want != nil && want.name != m.Name {
			continue
		}
		for _, t := range f.order {
			if t.Version == "" || f.outage(t, now) >= 0 {
				continue
			}
			labels := [][2]string{{"target", t.Name}, {"region", t.Region}, {"tier", t.tier}, {"version", t.Version}}
			if want == nil || want.matches(labels) {
				list = append(list, series{name: m.Name, help: m.Help, labels: labels, value: f.value(i, t, now)})
			}
		}
	}
	return list
}

// Gauge is what a metric of a target was at a moment, and false where there was none: the target is not known, can't be
// reached or runs nothing. Of a moment before its last change it knows what the target's own value is without regressions.
func (f *Fleet) Gauge(metric, name string, at time.Time) (float64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.targets[name]
	i := slices.IndexFunc(f.scenario.Metrics, func(m Metric) bool { return m.Name == metric })
	if t == nil || i < 0 || t.Version == "" || f.outage(t, at) >= 0 {
		return 0, false
	}
	if at.Before(t.since) {
		return t.base[i], true
	}
	return f.value(i, t, at), true
}

// Metrics lists the names of the metrics that every target has.
func (f *Fleet) Metrics() []string {
	names := make([]string, len(f.scenario.Metrics))
	for i, m := range f.scenario.Metrics {
		names[i] = m.Name
	}
	return names
}

// Names lists the targets, in order.
func (f *Fleet) Names() []string {
	names := make([]string, len(f.order))
	for i, t := range f.order {
		names[i] = t.Name
	}
	return names
}

// value is constant for a target but for regressions, so that whoever reads it a little later reads the same.
func (f *Fleet) value(metric int, t *target, now time.Time) float64 {
	v := t.base[metric]
	for _, r := range f.scenario.Regressions {
		if r.Metric == f.scenario.Metrics[metric].Name && r.Version == t.Version && r.Match.matches(t.Target) &&
			t.Customers >= r.MinCustomers && now.Sub(t.since) >= r.After {
			v = rounded(v * r.Factor)
		}
	}
	return v
}

// base returns the value of each metric on that target before any regression.
func (s Scenario) base(t Target) []float64 {
	values := make([]float64, len(s.Metrics))
	for i, m := range s.Metrics {
		values[i] = rounded(m.Base * (1 + m.Spread*(2*s.draw("metric", t.Name, m.Name)-1)))
	}
	return values
}

// rounded keeps six digits: VictoriaMetrics stores no more than 13, and people read fewer.
func rounded(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	if err != nil {
		return v // too large to be rounded up
	}
	return r
}

var helpEscape = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
var labelEscape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// serveMetrics follows the text format 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/.
func (f *Fleet) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	list := f.series(time.Now(), nil)
	if err := f.log.flush(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var out strings.Builder
	last := ""
	for _, s := range list {
		if s.name != last {
			if s.help != "" {
				fmt.Fprintf(&out, "# HELP %s %s\n", s.name, helpEscape.Replace(s.help))
			}
			fmt.Fprintf(&out, "# TYPE %s gauge\n", s.name)
			last = s.name
		}
		out.WriteString(s.name)
		for i, l := range s.labels {
			out.WriteByte("{,"[min(i, 1)])
			fmt.Fprintf(&out, `%s="%s"`, l[0], labelEscape.Replace(l[1]))
		}
		fmt.Fprintf(&out, "} %s\n", strconv.FormatFloat(s.value, 'g', -1, 64))
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(out.String()))
}

// selector is an exact instant selector.
type selector struct {
	name      string
	labels    [][2]string
	timestamp bool // whether timestamp() stands around it
}

var (
	timestampCall = regexp.MustCompile(`(?s)^timestamp\s*\((.*)\)$`)
	selectorName  = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)\s*`)
	matcherHead   = regexp.MustCompile(`^([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*`)
)

// parseSelector understands name{label="value",…}, alone or inside timestamp(), and nothing else.
func parseSelector(query string) (selector, error) {
	only := func(at string) (selector, error) {
		return selector{}, fmt.Errorf(`parse error at %q: this fleet answers only name{label="value",…} and timestamp(name{…})`, at)
	}
	var s selector
	rest := strings.TrimSpace(query)
	if call := timestampCall.FindStringSubmatch(rest); call != nil {
		s.timestamp, rest = true, strings.TrimSpace(call[1])
	}
	name := selectorName.FindStringSubmatch(rest)
	if name == nil {
		return only(rest)
	}
	s.name, rest = name[1], rest[len(name[0]):]
	if rest == "" {
		return s, nil
	}
	if rest[0] != '{' {
		return only(rest)
	}
	rest = strings.TrimSpace(rest[1:])
	for !strings.HasPrefix(rest, "}") {
		head := matcherHead.FindStringSubmatch(rest)
		if head == nil || head[1] == "__name__" {
			return only(rest)
		}
		rest = rest[len(head[0]):]
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil || quoted[0] != '"' {
			return only(rest)
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return only(rest)
		}
		s.labels = append(s.labels, [2]string{head[1], value})
		rest = strings.TrimSpace(rest[len(quoted):])
		if after, ok := strings.CutPrefix(rest, ","); ok {
			rest = strings.TrimSpace(after)
		} else if !strings.HasPrefix(rest, "}") {
			return only(rest)
		}
	}
	if rest != "}" {
		return only(rest[1:])
	}
	return s, nil
}

// matches reports whether the labels are selected; one that is not there is empty, as in PromQL.
func (s selector) matches(labels [][2]string) bool {
	for _, want := range s.labels {
		got := ""
		for _, l := range labels {
			if l[0] == want[0] {
				got = l[1]
			}
		}
		if got != want[1] {
			return false
		}
	}
	return true
}

// history is how far from now a query's time may be: the fleet knows the present only. It allows for clocks that differ
// a little, and for requests under way.
const history = 30 * time.Second

// serveQuery follows https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries.
func (f *Fleet) serveQuery(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	bad := func(message string) {
		f.reply(w, http.StatusBadRequest, map[string]string{"status": "error", "errorType": "bad_data", "error": message})
	}
	if err := r.ParseForm(); err != nil {
		bad(err.Error())
		return
	}
	now := time.Now()
	at := now
	if text := r.Form.Get("time"); text != "" {
		var err error
		if at, err = parseTime(text); err != nil {
			bad(err.Error())
			return
		}
	}
	if d := now.Sub(at); d > history || d < -history {
		bad(fmt.Sprintf("invalid parameter \"time\": %s is more than %v from now, and this fleet keeps no history", at.UTC().Format(time.RFC3339), history))
		return
	}
	s, err := parseSelector(r.Form.Get("query"))
	if err != nil {
		bad(`invalid parameter "query": ` + err.Error())
		return
	}
	type sample struct {
		Metric map[string]string `json:"metric"`
		Value  [2]any            `json:"value"`
	}
	result := []sample{}
	for _, one := range f.series(now, &s) {
		labels := map[string]string{}
		for _, l := range one.labels {
			if l[1] != "" {
				labels[l[0]] = l[1]
			}
		}
		value := one.value
		if s.timestamp {
			value = float64(now.UnixMilli()) / 1000
		} else {
			labels["__name__"] = one.name
		}
		stamp := json.Number(strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64))
		result = append(result, sample{labels, [2]any{stamp, strconv.FormatFloat(value, 'f', -1, 64)}})
	}
	f.reply(w, http.StatusOK, map[string]any{
		"status": "success",
		"data":   map[string]any{"resultType": "vector", "result": result},
	})
}

// parseTime understands seconds since 1970 and RFC 3339, as the query API does.
func parseTime(text string) (time.Time, error) {
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds > 0 && seconds < 1e11 {
		return time.UnixMilli(int64(math.Round(seconds * 1000))), nil
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at, nil
	}
	return time.Time{}, fmt.Errorf(`invalid parameter "time": cannot parse %q to a valid timestamp`, text)
}
