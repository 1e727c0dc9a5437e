package datadog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	fake "github.com/seed-a0a4f4e3/sluice/tests/fakes/datadog"
)

const (
	apiKey = "the-api-key"
	appKey = "the-app-key"
)

// noon is when the change under judgement ended, in most tests.
var noon = time.Date(2026, 11, 2, 12, 0, 0, 0, time.UTC)

// bench is a provider before a fake Datadog, and one clock for both.
type bench struct {
	server   *fake.Server
	provider *Provider

	mu  sync.Mutex
	now time.Time
}

func (b *bench) Now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *bench) at(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = now
}

func newBench(t *testing.T, o fake.Options, change func(*metrics.Connection)) *bench {
	t.Helper()
	b := &bench{now: noon.Add(2 * time.Minute)}
	o.APIKey, o.AppKey, o.Now = apiKey, appKey, b.Now
	b.server = fake.New(t, o)
	c := metrics.Connection{Name: "main", URL: b.server.URL, APIKey: apiKey, AppKey: appKey}
	if change != nil {
		change(&c)
	}
	var err error
	if b.provider, err = New(c); err != nil {
		t.Fatal(err)
	}
	return b
}

// measure measures now, of a change at noon.
func (b *bench) measure(t *testing.T, config string) (metrics.Sample, error) {
	t.Helper()
	return b.provider.Measure(t.Context(), metrics.Query{Config: json.RawMessage(config), Since: noon, Now: b.Now()})
}

func (b *bench) host() string { return strings.TrimPrefix(b.server.URL, "http://") }

// constant is a series of one value.
func constant(metric string, v float64, tags map[string]string) fake.Series {
	return fake.Series{Metric: metric, Tags: tags, Points: func(time.Time) (float64, bool) { return v, true }}
}

// step is a series with one value before a moment and another from then on.
func step(metric string, at time.Time, before, after float64) fake.Series {
	return fake.Series{Metric: metric, Points: func(now time.Time) (float64, bool) {
		if now.Before(at) {
			return before, true
		}
		return after, true
	}}
}

// seconds is a series of the seconds since noon.
func seconds(metric string) fake.Series {
	return fake.Series{Metric: metric, Points: func(at time.Time) (float64, bool) { return at.Sub(noon).Seconds(), true }}
}

// both are the two modes.
var both = []Mode{Timeseries, Scalar}

// with puts more fields in front of a configuration.
func with(mode Mode, config string) string {
	return fmt.Sprintf(`{"mode": %q, %s`, mode, strings.TrimPrefix(config, "{"))
}

func TestValues(t *testing.T) {
	b := newBench(t, fake.Options{Series: []fake.Series{
		constant("errors", 3, map[string]string{"env": "prod", "cluster": "EU 1"}),
		constant("errors", 4, map[string]string{"env": "prod", "cluster": "us-1"}),
		constant("requests", 100, map[string]string{"env": "prod", "cluster": "us-1"}),
		constant("requests", 100, map[string]string{"env": "prod", "cluster": "eu-2"}),
		seconds("clock"),
		{Metric: "gaps", Points: func(at time.Time) (float64, bool) { return at.Sub(noon).Seconds(), at.Second()%20 == 0 }},
	}}, nil)
	// It is 12:02, so that the buckets from 12:00:30 to 12:01:20 count.
	for _, c := range []struct {
		config  string
		value   any
		queries map[string]any
		query   string
	}{
		{`{"query": "sum:errors{env:prod,cluster:us-1}"}`, 4.0, nil, "sum:errors{env:prod,cluster:us-1}"},
		{`{"query": "sum:errors{env:prod,cluster:` + Quote("EU 1") + `}"}`, 3.0, nil, "sum:errors{env:prod,cluster:eu_1}"},
		{`{"query": "sum:errors{*} / sum:requests{*}"}`, 0.035, nil, "sum:errors{*} / sum:requests{*}"},
		{`{"query": "avg:clock{*}"}`, 80.0, nil, "avg:clock{*}"},
		{`{"query": "avg:clock{*}", "aggregator": "avg"}`, 55.0, nil, "avg:clock{*}"},
		{`{"query": "avg:clock{*}", "aggregator": "mean"}`, 55.0, nil, "avg:clock{*}"},
		{`{"query": "avg:clock{*}", "aggregator": "max"}`, 80.0, nil, "avg:clock{*}"},
		{`{"query": "avg:clock{*}", "aggregator": "min"}`, 30.0, nil, "avg:clock{*}"},
		{`{"query": "avg:clock{*}", "aggregator": "sum"}`, 330.0, nil, "avg:clock{*}"},
		{`{"query": "avg:clock{*}", "aggregator": "min", "window": "30s"}`, 60.0, nil, "avg:clock{*}"},
		{`{"query": "avg:clock{*}", "aggregator": "min", "intervalSeconds": 30}`, 60.0, nil, "avg:clock{*}"},
		{`{"query": "avg:clock{*}", "evaluationDelay": "0s"}`, 110.0, nil, "avg:clock{*}"},
		{`{"query": "avg:gaps{*}", "aggregator": "min", "window": "40s"}`, 60.0, nil, "avg:gaps{*}"},
		{`{"query": "avg:gaps{*}", "aggregator": "avg"}`, 60.0, nil, "avg:gaps{*}"},
		{`{"queries": {"e": "sum:errors{*}", "r": "sum:requests{*}"}, "formula": "e / r"}`, 0.035, map[string]any{"e": 7.0, "r": 200.0},
			"e / r of e=sum:errors{*}, r=sum:requests{*}"},
		{`{"queries": {"e": "sum:none{*}", "r": "sum:requests{*}"}, "formula": "default_zero(e) / r"}`, 0.0, map[string]any{"r": 200.0},
			"default_zero(e) / r of e=sum:none{*}, r=sum:requests{*}"},
		{`{"queries": {"e": "sum:errors{*}"}}`, 7.0, map[string]any{"e": 7.0}, "e=sum:errors{*}"},
		{`{"queries": {"r": "sum:requests{*}", "e": "sum:errors{*}"}}`, nil, map[string]any{"e": 7.0, "r": 200.0}, "e=sum:errors{*}, r=sum:requests{*}"},
	} {
		for _, mode := range both {
			want := metrics.Sample{Result: map[string]any{"ok": true, "statusCode": 200.0, "query": c.query}}
			if c.value != nil {
				want.Result["value"] = c.value
			}
			if c.queries != nil {
				want.Result["queries"] = c.queries
			}
			got, err := b.measure(t, with(mode, c.config))
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%s of %s: %v %s", mode, c.config, err, diff)
			}
		}
	}
	if got, err := b.measure(t, `{"mode": "scalar", "query": "avg:clock{*}", "aggregator": "l2norm", "window": "20s"}`); err != nil || math.Abs(got.Result["value"].(float64)-math.Hypot(70, 80)) > 1e-9 {
		t.Errorf("l2norm: %+v, %v", got, err)
	}
}

func TestTheWindowIsAskedFor(t *testing.T) {
	b := newBench(t, fake.Options{}, nil)
	for _, c := range []struct {
		config         string
		now            time.Duration
		from, to, step time.Duration
	}{
		{`{"query": "avg:x{*}"}`, time.Minute, 0, 30 * time.Second, 10 * time.Second},
		{`{"query": "avg:x{*}"}`, 2 * time.Minute, 30 * time.Second, 90 * time.Second, 10 * time.Second},
		{`{"query": "avg:x{*}"}`, time.Hour, 58*time.Minute + 30*time.Second, 59*time.Minute + 30*time.Second, 10 * time.Second},
		{`{"query": "avg:x{*}"}`, time.Hour + 7*time.Second, 58*time.Minute + 30*time.Second, 59*time.Minute + 30*time.Second, 10 * time.Second},
		{`{"query": "avg:x{*}", "window": "5m"}`, time.Hour, 54*time.Minute + 30*time.Second, 59*time.Minute + 30*time.Second, 10 * time.Second},
		{`{"query": "avg:x{*}", "window": "10s", "evaluationDelay": "1m"}`, time.Hour, 58*time.Minute + 50*time.Second, 59 * time.Minute, 10 * time.Second},
		{`{"query": "avg:x{*}.rollup(avg, 60)"}`, 4 * time.Minute, 2 * time.Minute, 3 * time.Minute, time.Minute},
		{`{"query": "avg:x{*}.rollup(avg, 300)"}`, 11 * time.Minute, 5 * time.Minute, 10 * time.Minute, 5 * time.Minute},
		{`{"query": "avg:x{*}", "window": "24h"}`, 30 * time.Hour, 5*time.Hour + 58*time.Minute + 30*time.Second, 29*time.Hour + 58*time.Minute + 30*time.Second, 90 * time.Second},
	} {
		b.at(noon.Add(c.now))
		if _, err := b.measure(t, c.config); err != nil {
			t.Fatal(err)
		}
		asked := b.server.Requests()[len(b.server.Requests())-1]
		if !asked.From.Equal(noon.Add(c.from)) || !asked.To.Equal(noon.Add(c.to)) || asked.Interval != c.step {
			t.Errorf("%s at %s: asked from %s to %s in steps of %s; want %s, %s, %s", c.config, c.now, asked.From.Sub(noon), asked.To.Sub(noon), asked.Interval, c.from, c.to, c.step)
		}
	}
}

// TestNothingIsNeverZero fails when a missing value would pass a condition such as result.value < 1.
func TestNothingIsNeverZero(t *testing.T) {
	b := newBench(t, fake.Options{Series: []fake.Series{
		constant("errors", 1, map[string]string{"cluster": "a"}),
		constant("requests", 1, nil),
		{Metric: "early", Points: func(at time.Time) (float64, bool) { return 9, at.Before(noon.Add(30 * time.Second)) }},
		{Metric: "before", Points: func(at time.Time) (float64, bool) { return 9, at.Before(noon) }},
		{Metric: "late", Late: time.Hour, Points: func(time.Time) (float64, bool) { return 9, true }},
	}}, nil)
	b.at(noon.Add(90 * time.Second))
	window := " had no value from 2026-11-02T12:00:00Z to 2026-11-02T12:01:00Z"
	for _, c := range []struct {
		config  string
		problem string
		noData  bool
	}{
		{`{"query": "sum:none{*}"}`, "no data: sum:none{*}" + window, true},
		{`{"query": "sum:errors{cluster:gone}"}`, "no data: sum:errors{cluster:gone}" + window, true},
		{`{"query": "sum:before{*}"}`, "no data: sum:before{*}" + window, true},
		{`{"query": "sum:late{*}"}`, "no data: sum:late{*}" + window, true},
		{`{"query": "sum:errors{*} / 0"}`, "no data: sum:errors{*} / 0" + window, true},
		{`{"queries": {"e": "sum:none{*}", "r": "sum:requests{*}"}, "formula": "e / r"}`, "no data: e / r of e=sum:none{*}, r=sum:requests{*}" + window, true},
		{`{"queries": {"e": "sum:none{*}", "r": "sum:requests{*}"}}`, "no data: e=sum:none{*}" + window, false},
		{`{"queries": {"e": "sum:none{*}", "r": "sum:before{*}"}}`, "no data: e=sum:none{*}" + window + "; no data: r=sum:before{*}" + window, true},
	} {
		for _, mode := range both {
			got, err := b.measure(t, with(mode, c.config))
			if err != nil || got.Problem != c.problem || got.NoData != c.noData || got.Result["value"] != nil {
				t.Errorf("%s of %s: %+v, %v; want %q and %t", mode, c.config, got, err, c.problem, c.noData)
			}
		}
	}
	// The last point there is counts, not the null after it.
	if got, err := b.measure(t, `{"query": "sum:early{*}"}`); err != nil || got.Problem != "" || got.Result["value"] != 9.0 {
		t.Errorf("null at the end: %+v, %v", got, err)
	}
	b.server.Set(fake.NoData)
	for _, mode := range both {
		if got, err := b.measure(t, with(mode, `{"query": "sum:errors{*}"}`)); err != nil || !got.NoData {
			t.Errorf("%s: nothing known: %+v, %v", mode, got, err)
		}
	}
}

// TestASeriesThatFallsSilentDoesNotPass fails when what a series said before it fell silent passes again and again.
func TestASeriesThatFallsSilentDoesNotPass(t *testing.T) {
	b := newBench(t, fake.Options{Series: []fake.Series{
		{Metric: "errors", Points: func(at time.Time) (float64, bool) { return 0, at.Before(noon.Add(3 * time.Minute)) }},
	}}, nil)
	for _, mode := range both {
		for minute, noData := range []bool{1: false, 2: false, 3: false, 4: false, 5: true, 6: true} {
			if minute == 0 {
				continue
			}
			b.at(noon.Add(time.Duration(minute) * time.Minute))
			if got, err := b.measure(t, with(mode, `{"query": "sum:errors{*}"}`)); err != nil || got.NoData != noData {
				t.Errorf("%s, %d minutes after the change: %+v, %v; want no data: %t", mode, minute, got, err, noData)
			}
		}
	}
}

// TestOnlyDataAfterTheChangeCounts fails when a bad version passes on its predecessor's data, or a good one falls for it.
func TestOnlyDataAfterTheChangeCounts(t *testing.T) {
	since := noon.Add(3 * time.Second) // in the middle of a bucket
	b := newBench(t, fake.Options{Series: []fake.Series{step("worse", since, 0, 50), step("better", since, 50, 0)}}, nil)
	for _, aggregator := range overPoints {
		for _, mode := range both {
			for metric, want := range map[string]float64{"worse": 50, "better": 0} {
				config := with(mode, fmt.Sprintf(`{"query": "avg:%s{*}", "aggregator": %q, "window": "10m"}`, metric, aggregator))
				got, err := b.provider.Measure(t.Context(), metrics.Query{Config: json.RawMessage(config), Since: since, Now: b.Now()})
				if aggregator == "sum" {
					want *= 8
				}
				if err != nil || got.Problem != "" || got.Result["value"] != want {
					t.Errorf("%s: %+v, %v; want %v", config, got, err, want)
				}
			}
		}
	}
	// Before a change there is no such limit: this is what a baseline is.
	b.at(noon)
	got, err := b.provider.Measure(t.Context(), metrics.Query{Config: json.RawMessage(`{"query": "avg:worse{*}"}`), Now: noon})
	if err != nil || got.Result["value"] != 0.0 {
		t.Errorf("a baseline: %+v, %v", got, err)
	}
}

// TestTheLastBucketMustBeWhole fails when half a bucket's count passes for a low one.
func TestTheLastBucketMustBeWhole(t *testing.T) {
	fine := fake.Series{Metric: "hits", Every: time.Second, Points: func(time.Time) (float64, bool) { return 1, true }}
	for _, c := range []struct {
		config  string
		coarse  time.Duration
		now     time.Duration
		want    any
		problem string
	}{
		{`{"query": "sum:hits{*}.as_count()"}`, 0, 97 * time.Second, 10.0, ""},
		{`{"query": "sum:hits{*}.as_count()", "aggregator": "min"}`, 0, 97 * time.Second, 10.0, ""},
		{`{"query": "sum:hits{*}.as_count()", "aggregator": "sum"}`, 0, 97 * time.Second, 60.0, ""},
		// Longer buckets than were asked for: only those from 12:01 to 12:02 and to 12:03 are whole.
		{`{"query": "sum:hits{*}.as_count()", "aggregator": "min", "window": "5m"}`, time.Minute, 3*time.Minute + 50*time.Second, 60.0, ""},
		{`{"query": "sum:hits{*}.as_count()", "aggregator": "sum", "window": "2m30s"}`, time.Minute, 3*time.Minute + 40*time.Second, 120.0, ""},
		{`{"query": "sum:hits{*}.rollup(sum, 60)", "aggregator": "min"}`, 0, 3*time.Minute + 20*time.Second, 60.0, ""},
	} {
		b := newBench(t, fake.Options{MinInterval: c.coarse, Series: []fake.Series{fine}}, nil)
		b.at(noon.Add(c.now))
		if got, err := b.measure(t, c.config); err != nil || got.Problem != c.problem || got.Result["value"] != c.want {
			t.Errorf("%s in buckets of %s: %+v, %v; want %v %s", c.config, c.coarse, got, err, c.want, c.problem)
		}
	}
}

func TestALatePointDoesNotCountUntilItIsThere(t *testing.T) {
	s := seconds("clock")
	s.Late = 75 * time.Second
	b := newBench(t, fake.Options{Series: []fake.Series{s}}, nil)
	if got, err := b.measure(t, `{"query": "avg:clock{*}"}`); err != nil || got.Result["value"] != 40.0 {
		t.Errorf("the newest point is from 40 s after the change: %+v, %v", got, err)
	}
	b.at(noon.Add(70 * time.Second))
	if got, err := b.measure(t, `{"query": "avg:clock{*}"}`); err != nil || !got.NoData {
		t.Errorf("none is there: %+v, %v", got, err)
	}
}

func TestTooEarlyIsSaid(t *testing.T) {
	b := newBench(t, fake.Options{Series: []fake.Series{constant("errors", 1, nil)}}, nil)
	for _, c := range []struct {
		config                string
		since, now, notBefore time.Duration
	}{
		{`{"query": "avg:errors{*}"}`, 0, 0, 40 * time.Second},
		{`{"query": "avg:errors{*}"}`, 0, 39 * time.Second, 40 * time.Second},
		{`{"query": "avg:errors{*}"}`, 0, 40 * time.Second, 0},
		{`{"query": "avg:errors{*}"}`, time.Second, 40 * time.Second, 50 * time.Second},
		{`{"query": "avg:errors{*}", "mode": "scalar"}`, time.Second, 40 * time.Second, 50 * time.Second},
		{`{"query": "avg:errors{*}", "evaluationDelay": "2m"}`, 0, time.Minute, 2*time.Minute + 10*time.Second},
		{`{"query": "avg:errors{*}.rollup(avg, 60)"}`, time.Second, 2 * time.Minute, 2*time.Minute + 30*time.Second},
		{`{"query": "avg:errors{*}", "evaluationDelay": "0s"}`, time.Minute, 0, 70 * time.Second},
	} {
		before := len(b.server.Requests())
		got, err := b.provider.Measure(t.Context(), metrics.Query{Config: json.RawMessage(c.config), Since: noon.Add(c.since), Now: noon.Add(c.now)})
		if err != nil {
			t.Fatal(err)
		}
		asked := len(b.server.Requests()) > before
		if c.notBefore == 0 {
			if !got.NotBefore.IsZero() || !asked {
				t.Errorf("%s at %s: %+v; want a measurement", c.config, c.now, got)
			}
		} else if want := (metrics.Sample{NotBefore: noon.Add(c.notBefore)}); !cmp.Equal(want, got) || asked {
			t.Errorf("%s at %s: asked %t, %s", c.config, c.now, asked, cmp.Diff(want, got))
		}
	}
}

func TestTimeIsScaled(t *testing.T) {
	fast := fake.Series{Metric: "errors", Every: time.Second, Points: func(at time.Time) (float64, bool) { return at.Sub(noon).Seconds(), true }}
	b := newBench(t, fake.Options{Series: []fake.Series{fast}}, func(c *metrics.Connection) { c.TimeScale = 60 })
	b.at(noon.Add(10 * time.Second))
	got, err := b.measure(t, `{"query": "avg:errors{*}"}`)
	if err != nil || got.Result["value"] != 8.0 {
		t.Errorf("got %+v, %v; want the newest whole second a second ago", got, err)
	}
	asked := b.server.Requests()[0]
	if asked.Interval != time.Second || !asked.From.Equal(noon.Add(8*time.Second)) || !asked.To.Equal(noon.Add(9*time.Second)) {
		t.Errorf("asked from %s to %s in steps of %s; want the second before the last, in one step", asked.From, asked.To, asked.Interval)
	}
	if got, err := b.provider.Measure(t.Context(), metrics.Query{Config: json.RawMessage(`{"query": "avg:errors{*}"}`), Since: noon, Now: noon}); err != nil ||
		!got.NotBefore.Equal(noon.Add(2*time.Second)) {
		t.Errorf("too early: %+v, %v; want 2 s", got, err)
	}
}

func TestOneSeriesIsNeeded(t *testing.T) {
	var all []fake.Series
	for i := range 7 {
		all = append(all, constant("errors", float64(i), map[string]string{"cluster": fmt.Sprintf("c%d", i), "env": "prod"}))
	}
	b := newBench(t, fake.Options{Series: all}, nil)
	for config, want := range map[string]string{
		`{"query": "avg:errors{*} by {cluster}"}`: "7 series instead of one (cluster:c0 cluster:c1 cluster:c2 cluster:c3 cluster:c4 …): aggregate them, e.g. without by {…}",
		`{"query": "avg:errors{!cluster:c0,!cluster:c1,!cluster:c2,!cluster:c3,!cluster:c4} by {cluster,env}"}`: "2 series instead of one " +
			"(cluster:c5,env:prod cluster:c6,env:prod): aggregate them, e.g. without by {…}",
		`{"queries": {"e": "avg:errors{cluster:c*} by {cluster}"}, "window": "20s"}`: "e: 7 series instead of one (cluster:c0 cluster:c1 cluster:c2 cluster:c3 cluster:c4 …): " +
			"aggregate them, e.g. without by {…}",
	} {
		for _, mode := range both {
			got, err := b.measure(t, with(mode, config))
			if err != nil || got.Problem != want || got.NoData || got.Result["value"] != nil {
				t.Errorf("%s of %s: %+v, %v\nwant %s", mode, config, got, err, want)
			}
		}
	}
	// A group of one is one series.
	if got, err := b.measure(t, `{"query": "avg:errors{cluster:c3} by {cluster}"}`); err != nil || got.Result["value"] != 3.0 {
		t.Errorf("one group: %+v, %v", got, err)
	}
}

func TestFaultsAreErrors(t *testing.T) {
	b := newBench(t, fake.Options{Series: []fake.Series{constant("errors", 1, nil)}}, func(c *metrics.Connection) { c.Timeout = 50 * time.Millisecond })
	prefix := "datadog: query main at " + b.host() + ": "
	for _, mode := range both {
		for fault, want := range map[fake.Fault]string{
			fake.Down:       "HTTP 503: {\"errors\":[\"Service Unavailable\"]}",
			fake.Slow:       "no answer within 50ms",
			fake.ErrorIn200: "HTTP 200 with an error in it: query timed out",
			fake.Malformed:  "malformed answer: invalid character '<'",
			fake.Forbidden: "HTTP 403: Forbidden; a key is wrong, lacks timeseries_query, or belongs to another site: keys are per site, " +
				"and the connection's url must be that site's API",
		} {
			b.server.Set(fault)
			began := time.Now()
			got, err := b.measure(t, with(mode, `{"query": "sum:errors{*}"}`))
			if err == nil || !strings.HasPrefix(err.Error(), prefix+want) || got.Result != nil {
				t.Errorf("%s, %s: %+v, %v\nwant %s", mode, fault, got, err, prefix+want)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s, %s: took %s", mode, fault, took)
			}
		}
		b.server.Set(fake.None)
		_, err := b.measure(t, with(mode, `{"query": "errors{*}"}`))
		if want := prefix + `HTTP 400: Error parsing query: no metric query at "errors{*}" in "errors{*}"; correct the query`; err == nil || err.Error() != want {
			t.Errorf("%s: got %v\nwant %s", mode, err, want)
		}
	}
	if _, err := b.measure(t, `{"query": "sum:errors{cluster:{{.target.name}}}"}`); err == nil || !strings.HasSuffix(err.Error(), "still holds a template") {
		t.Errorf("a template: %v", err)
	}
	if _, err := b.provider.Measure(t.Context(), metrics.Query{Config: json.RawMessage(`{"query": "sum:errors{*}"}`)}); err == nil {
		t.Error("no moment: no error")
	}
}

// canned answers everything with one text.
func canned(t *testing.T, status int, body string) (*Provider, *[]*http.Request) {
	t.Helper()
	var asked []*http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r)
		if status == http.StatusFound {
			w.Header().Set("Location", "http://127.0.0.1:1/")
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	p, err := New(metrics.Connection{Name: "main", URL: s.URL + "/base/", APIKey: apiKey, AppKey: appKey, Headers: map[string]string{"X-Org": "us"}})
	if err != nil {
		t.Fatal(err)
	}
	return p, &asked
}

// TestAnswersThatDatadogShouldNotGive fails when an answer of another shape than the documented one passes for a value.
func TestAnswersThatDatadogShouldNotGive(t *testing.T) {
	points := func(series, times, values string) string {
		return fmt.Sprintf(`{"data": {"type": "timeseries_response", "attributes": {"series": [%s], "times": [%s], "values": [%s]}}}`, series, times, values)
	}
	columns := func(columns string) string {
		return `{"data": {"type": "scalar_response", "attributes": {"columns": [` + columns + `]}}}`
	}
	at := func(seconds int) string {
		return fmt.Sprint(noon.Add(time.Duration(seconds) * time.Second).UnixMilli())
	}
	for _, c := range []struct {
		mode   Mode
		status int
		body   string
		want   string // in the error; "=v": the value; "?": a Problem
	}{
		{Timeseries, 200, points(`{"query_index": 0, "group_tags": []}`, at(0)+","+at(10), `[1, 2]`), "=2"},
		{Timeseries, 200, points(`{"query_index": 0, "group_tags": []}`, at(10)+","+at(0), `[1, 2]`), "=1"},
		{Timeseries, 200, points(`{"group_tags": null}`, at(0), `[1]`), "=1"},
		{Timeseries, 200, points(`{"query_index": 0}`, at(-10)+","+at(0), `[7, null]`), "?no data"},
		{Timeseries, 200, points(`{"query_index": 0}`, at(0), `[1e308]`), "=1e+308"},
		{Timeseries, 200, points(`{"query_index": 0}`, at(0), `[1e999]`), "malformed answer"},
		{Timeseries, 200, points(`{"query_index": 0}`, at(0), `["1"]`), "malformed answer"},
		{Timeseries, 200, points(`{"query_index": 0}`, at(0), `["NaN"]`), "malformed answer"},
		{Timeseries, 200, points(`{"query_index": 0}`, at(0), `[1, 2]`), "malformed answer: 1 times and 2 values"},
		{Timeseries, 200, points(`{"query_index": 0}`, at(0)+","+at(0), `[1, 2]`), "malformed answer: one time twice"},
		{Timeseries, 200, points(`{"query_index": 3}`, at(0), `[1]`), "malformed answer: a series of no query"},
		{Timeseries, 200, points(``, at(0), `[1]`), "malformed answer: 0 series and the values of 1"},
		{Timeseries, 200, points(``, ``, ``), "?no data"},
		{Timeseries, 200, `{}`, "malformed answer"},
		{Timeseries, 200, ``, "malformed answer"},
		{Timeseries, 200, `null`, "malformed answer"},
		{Timeseries, 200, `[]`, "malformed answer"},
		{Timeseries, 200, `{"data": {"attributes": 7}}`, "malformed answer"},
		{Timeseries, 200, `{"errors": ["a", "b"]}`, "HTTP 200 with an error in it: [a b]"},
		{Timeseries, 200, `{"errors": "no", "data": {"type": "timeseries_response", "attributes": {}}}`, "HTTP 200 with an error in it: no"},
		{Timeseries, 200, `{"data": "` + strings.Repeat("x", maxAnswer) + `"}`, "the answer is longer than 1024 KiB"},
		{Timeseries, 500, strings.Repeat("x", maxAnswer+1), "the answer is longer than 1024 KiB"},
		{Timeseries, 302, ``, "HTTP 302: no message; redirected: put the final address into the connection"},
		{Timeseries, 403, `<html>` + apiKey + ` is not ` + appKey, "HTTP 403: <html>(redacted) is not (redacted); a key is wrong"},
		{Timeseries, 400, `{"errors": ["` + apiKey + `", "b"]}`, "HTTP 400: (redacted); b; correct the query"},
		{Scalar, 200, columns(`{"type": "number", "name": "query", "values": [3]}`), "=3"},
		{Scalar, 200, columns(`{"type": "number", "name": "query", "values": [null]}`), "?no data"},
		{Scalar, 200, columns(``), "?no data"},
		{Scalar, 200, columns(`{"type": "number", "values": ["3"]}`), "malformed answer"},
		{Scalar, 200, columns(`{"type": "text", "values": [3]}`), "malformed answer"},
		{Scalar, 200, columns(`{"type": "number", "values": [3]}, {"type": "number", "values": [4]}`), "malformed answer: 2 columns of numbers where 1 were asked for"},
		{Scalar, 200, `{}`, "malformed answer"},
		{Scalar, 200, `{"errors": ["a", "b"]}`, "HTTP 200 with an error in it: [a b]"},
	} {
		p, asked := canned(t, c.status, c.body)
		got, err := p.Measure(t.Context(), metrics.Query{Config: json.RawMessage(with(c.mode, `{"query": "sum:x{*}"}`)), Since: noon, Now: noon.Add(time.Minute)})
		switch {
		case strings.HasPrefix(c.want, "="):
			if err != nil || got.Problem != "" || fmt.Sprint(got.Result["value"]) != c.want[1:] {
				t.Errorf("%.200s: %+v, %v; want %s", c.body, got, err, c.want)
			}
		case strings.HasPrefix(c.want, "?"):
			if err != nil || !strings.HasPrefix(got.Problem, c.want[1:]) || got.Result["value"] != nil {
				t.Errorf("%.200s: %+v, %v; want %s", c.body, got, err, c.want)
			}
		default:
			if err == nil || !strings.Contains(err.Error(), ": "+c.want) || strings.Contains(err.Error(), apiKey) || strings.Contains(err.Error(), appKey) {
				t.Errorf("%.200s: %+v, %v; want %s", c.body, got, err, c.want)
			}
		}
		if len(*asked) != 1 {
			t.Fatalf("asked %d times", len(*asked))
		}
		r := (*asked)[0]
		if path := "/base/api/v2/query/" + string(c.mode); r.URL.Path != path || r.Header.Get("DD-API-KEY") != apiKey || r.Header.Get("DD-APPLICATION-KEY") != appKey ||
			r.Header.Get("X-Org") != "us" || !strings.HasPrefix(r.Header.Get("User-Agent"), "sluice (") {
			t.Errorf("asked %s with %v, want %s", r.URL.Path, r.Header, path)
		}
	}
	ask := question{Config: Config{Query: "q"}, names: []string{""}}
	if got := ask.sample([]output{{value: math.Inf(1), groups: []string{""}}}); got.Problem != "the value is +Inf" || got.NoData || got.Result["value"] != nil {
		t.Errorf("infinite: %+v", got)
	}
}

func TestConnections(t *testing.T) {
	good := metrics.Connection{Name: "main", URL: "https://api.datadoghq.eu", APIKey: apiKey, AppKey: appKey}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*metrics.Connection){
		"its url is not an http or https address such as https://api.datadoghq.com":     func(c *metrics.Connection) { c.URL = "api.datadoghq.eu" },
		"needs an API key and an application key":                                       func(c *metrics.Connection) { c.AppKey = "" },
		"a key can't be sent in a header: it holds a line break or a control character": func(c *metrics.Connection) { c.APIKey += "\n" },
		"takes keys, not a token":                                                       func(c *metrics.Connection) { c.Token = "t" },
		"its time scale is below 1":                                                     func(c *metrics.Connection) { c.TimeScale = 0.5 },
		"header Dd-Api-Key is a credential; keys have their own fields":                 func(c *metrics.Connection) { c.Headers = map[string]string{"Dd-Api-Key": "x"} },
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || err.Error() != "datadog: connection main: "+want || strings.Contains(err.Error(), apiKey) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestKeysAreNeverShown fails when an error or a log line of the client holds a key.
func TestKeysAreNeverShown(t *testing.T) {
	var lines strings.Builder
	log.SetOutput(&lines)
	defer log.SetOutput(io.Discard)
	b := newBench(t, fake.Options{Series: []fake.Series{constant("errors", 1, nil)}}, func(c *metrics.Connection) { c.Timeout = 20 * time.Millisecond })
	for _, fault := range []fake.Fault{fake.None, fake.Down, fake.Slow, fake.Limited, fake.Forbidden, fake.ErrorIn200, fake.NoData, fake.Malformed} {
		b.at(b.Now().Add(10 * time.Minute))
		b.server.Set(fault)
		got, err := b.measure(t, `{"query": "sum:errors{*}"}`)
		if text := fmt.Sprintf("%+v %v %+v", got, err, errors.Unwrap(err)); strings.Contains(text, apiKey) || strings.Contains(text, appKey) {
			t.Errorf("%s: %s", fault, text)
		}
	}
	if lines.Len() > 0 {
		t.Errorf("the client logged: %s", lines.String())
	}
}

// TestACutShowsNoPartOfAKey fails when a message is cut before the keys leave it, so that a key across the cut shows most
// of itself.
func TestACutShowsNoPartOfAKey(t *testing.T) {
	for _, key := range []string{apiKey, appKey} {
		for shape, body := range map[string]string{
			"errors of a refusal": `{"errors": ["%s"]}`, "a page": "<html>%s</html>", "an error in 200": `{"errors": "%s"}`, "errors in 200": `{"errors": ["%s"]}`,
		} {
			status := http.StatusForbidden
			if strings.HasSuffix(shape, "200") {
				status = http.StatusOK
			}
			for before := 150; before < 310; before++ {
				p, _ := canned(t, status, fmt.Sprintf(body, strings.Repeat(".", before)+key+strings.Repeat(".", 200)))
				_, err := p.Measure(t.Context(), metrics.Query{Config: json.RawMessage(`{"query": "sum:errors{*}"}`), Since: noon, Now: noon.Add(time.Hour)})
				if err == nil || strings.Contains(err.Error(), key[:5]) {
					t.Fatalf("%s, after %d bytes: %v", shape, before, err)
				}
			}
		}
	}
}
