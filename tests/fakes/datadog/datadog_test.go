package datadog

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/DataDog/datadog-api-client-go/v2/api/datadog"
	"github.com/DataDog/datadog-api-client-go/v2/api/datadogV1"
	"github.com/DataDog/datadog-api-client-go/v2/api/datadogV2"
	"github.com/google/go-cmp/cmp"
)

// noon is when the tests happen.
var noon = time.Date(2026, 11, 2, 12, 0, 0, 0, time.UTC)

// clock is a clock that is set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// vendor is Datadog's own client.
type vendor struct {
	ctx context.Context
	v1  *datadogV1.MetricsApi
	v2  *datadogV2.MetricsApi
	key *datadogV1.AuthenticationApi
}

func dial(t *testing.T, s *Server, apiKey, appKey string) vendor {
	t.Helper()
	ctx := context.WithValue(t.Context(), client.ContextAPIKeys, map[string]client.APIKey{"apiKeyAuth": {Key: apiKey}, "appKeyAuth": {Key: appKey}})
	configuration := client.NewConfiguration()
	configuration.Servers = client.ServerConfigurations{{URL: s.URL}}
	c := client.NewAPIClient(configuration)
	return vendor{ctx, datadogV1.NewMetricsApi(c), datadogV2.NewMetricsApi(c), datadogV1.NewAuthenticationApi(c)}
}

type named map[string]string

func (v vendor) timeseries(from, to time.Time, interval time.Duration, queries named, formulas ...string) (datadogV2.TimeseriesFormulaQueryResponse, *http.Response, error) {
	var all []datadogV2.TimeseriesQuery
	for name, query := range queries {
		q := datadogV2.NewMetricsTimeseriesQuery(datadogV2.METRICSDATASOURCE_METRICS, query)
		q.SetName(name)
		all = append(all, datadogV2.MetricsTimeseriesQueryAsTimeseriesQuery(q))
	}
	a := datadogV2.NewTimeseriesFormulaRequestAttributes(from.UnixMilli(), all, to.UnixMilli())
	if interval != 0 {
		a.SetInterval(interval.Milliseconds())
	}
	for _, f := range formulas {
		a.Formulas = append(a.Formulas, *datadogV2.NewQueryFormula(f))
	}
	body := datadogV2.NewTimeseriesFormulaQueryRequest(*datadogV2.NewTimeseriesFormulaRequest(*a, datadogV2.TIMESERIESFORMULAREQUESTTYPE_TIMESERIES_REQUEST))
	return v.v2.QueryTimeseriesData(v.ctx, *body)
}

func (v vendor) scalar(from, to time.Time, aggregator datadogV2.MetricsAggregator, queries named, formulas ...string) (datadogV2.ScalarFormulaQueryResponse, *http.Response, error) {
	var all []datadogV2.ScalarQuery
	for name, query := range queries {
		q := datadogV2.NewMetricsScalarQuery(aggregator, datadogV2.METRICSDATASOURCE_METRICS, query)
		q.SetName(name)
		all = append(all, datadogV2.MetricsScalarQueryAsScalarQuery(q))
	}
	a := datadogV2.NewScalarFormulaRequestAttributes(from.UnixMilli(), all, to.UnixMilli())
	for _, f := range formulas {
		a.Formulas = append(a.Formulas, *datadogV2.NewQueryFormula(f))
	}
	body := datadogV2.NewScalarFormulaQueryRequest(*datadogV2.NewScalarFormulaRequest(*a, datadogV2.SCALARFORMULAREQUESTTYPE_SCALAR_REQUEST))
	return v.v2.QueryScalarData(v.ctx, *body)
}

// constant is a series of one value.
func constant(metric string, v float64, tags map[string]string) Series {
	return Series{Metric: metric, Tags: tags, Points: func(time.Time) (float64, bool) { return v, true }}
}

func newServer(t *testing.T, o Options) (*Server, *clock) {
	t.Helper()
	c := &clock{now: noon}
	o.Now = c.Now
	return New(t, o), c
}

// numbers shows values with null as such.
func numbers(values []*float64) []any {
	out := []any{}
	for _, v := range values {
		if v == nil {
			out = append(out, nil)
		} else {
			out = append(out, *v)
		}
	}
	return out
}

func TestTimeseries(t *testing.T) {
	s, _ := newServer(t, Options{Series: []Series{
		constant("errors", 1, map[string]string{"env": "prod", "cluster": "EU One"}),
		constant("errors", 2, map[string]string{"env": "prod", "cluster": "us-1"}),
		constant("requests", 100, map[string]string{"env": "prod"}),
		{Metric: "gap", Points: func(at time.Time) (float64, bool) { return 7, at.Second() != 20 }},
		{Metric: "fine", Every: time.Second, Points: func(at time.Time) (float64, bool) { return float64(at.Second()), true }},
	}})
	v := dial(t, s, "a", "b")
	minute := func(seconds int) time.Time { return noon.Add(-time.Minute).Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		name     string
		from, to time.Time
		interval time.Duration
		queries  named
		formulas []string
		times    []int
		values   [][]any
		tags     [][]string
	}{
		{"buckets begin at multiples of the interval, the first one before from", minute(5), minute(25), 10 * time.Second, named{"a": "sum:errors{*}"}, nil,
			[]int{0, 10, 20}, [][]any{{nil, 3.0, 3.0}}, [][]string{{}}},
		{"a scope", minute(0), minute(10), 10 * time.Second, named{"a": "sum:errors{env:prod,cluster:eu_one}"}, nil, []int{0}, [][]any{{1.0}}, [][]string{{}}},
		{"not", minute(0), minute(10), 10 * time.Second, named{"a": "sum:errors{!cluster:us-1}"}, nil, []int{0}, [][]any{{1.0}}, [][]string{{}}},
		{"a wildcard", minute(0), minute(10), 10 * time.Second, named{"a": "max:errors{cluster:u*}"}, nil, []int{0}, [][]any{{2.0}}, [][]string{{}}},
		{"groups", minute(0), minute(10), 10 * time.Second, named{"a": "avg:errors{*} by {cluster}"}, nil,
			[]int{0}, [][]any{{1.0}, {2.0}}, [][]string{{"cluster:eu_one"}, {"cluster:us-1"}}},
		{"null where there is no point", minute(0), minute(40), 10 * time.Second, named{"a": "avg:gap{*}"}, nil, []int{0, 10, 20, 30}, [][]any{{7.0, 7.0, nil, 7.0}}, [][]string{{}}},
		{"a formula", minute(0), minute(10), 10 * time.Second, named{"e": "sum:errors{*}", "r": "sum:requests{*}"}, []string{"(e + 1) / r * 100 - 1"},
			[]int{0}, [][]any{{3.0}}, [][]string{{}}},
		{"two formulas", minute(0), minute(10), 10 * time.Second, named{"e": "sum:errors{*}", "r": "sum:requests{*}"}, []string{"e", "r"},
			[]int{0}, [][]any{{3.0}, {100.0}}, [][]string{{}, {}}},
		{"what is computed with null is null", minute(10), minute(30), 10 * time.Second, named{"a": "avg:gap{*}"}, []string{"a + 1"}, []int{10, 20}, [][]any{{8.0, nil}}, [][]string{{}}},
		{"unless a default is written", minute(10), minute(30), 10 * time.Second, named{"a": "avg:gap{*}"}, []string{"default_zero(a)"}, []int{10, 20}, [][]any{{7.0, 0.0}}, [][]string{{}}},
		{"divided by zero", minute(0), minute(10), 10 * time.Second, named{"a": "sum:errors{*}"}, []string{"a / 0"}, []int{0}, [][]any{{nil}}, [][]string{{}}},
		{"arithmetic in a query", minute(0), minute(10), 10 * time.Second, named{"a": "sum:errors{*} / sum:requests{*}"}, nil, []int{0}, [][]any{{0.03}}, [][]string{{}}},
		{"as a count", minute(0), minute(20), 10 * time.Second, named{"a": "sum:fine{*}.as_count()"}, nil, []int{0, 10}, [][]any{{45.0, 145.0}}, [][]string{{}}},
		{"as a rate", minute(0), minute(10), 10 * time.Second, named{"a": "sum:fine{*}.as_rate()"}, nil, []int{0}, [][]any{{4.5}}, [][]string{{}}},
		{"a rollup", minute(0), minute(60), 10 * time.Second, named{"a": "sum:fine{*}.rollup(max, 30)"}, nil, []int{0, 30}, [][]any{{29.0, 59.0}}, [][]string{{}}},
		{"nothing of that name", minute(0), minute(10), 10 * time.Second, named{"a": "sum:none{*}"}, nil, nil, nil, nil},
		{"nothing yet", noon, noon.Add(time.Minute), 10 * time.Second, named{"a": "sum:late{*}"}, nil, nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, _, err := v.timeseries(c.from, c.to, c.interval, c.queries, c.formulas...)
			if err != nil || r.UnparsedObject != nil || r.Errors != nil {
				t.Fatalf("%v, %v, errors %v", err, r.UnparsedObject, r.Errors)
			}
			var times []int
			for _, at := range r.Data.Attributes.Times {
				times = append(times, int(time.UnixMilli(at).Sub(minute(0)).Seconds()))
			}
			var values [][]any
			for _, one := range r.Data.Attributes.Values {
				values = append(values, numbers(one))
			}
			var tags [][]string
			for _, one := range r.Data.Attributes.Series {
				tags = append(tags, one.GroupTags)
			}
			if diff := cmp.Diff([]any{c.times, c.values, c.tags}, []any{times, values, tags}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestScalars(t *testing.T) {
	s, _ := newServer(t, Options{Series: []Series{
		{Metric: "ramp", Tags: map[string]string{"host": "a"}, Points: func(at time.Time) (float64, bool) { return float64(at.Second()), at.Second() != 50 }},
		constant("errors", 1, map[string]string{"cluster": "eu"}),
		constant("errors", 2, map[string]string{"cluster": "us"}),
		constant("requests", 10, map[string]string{"cluster": "eu"}),
	}})
	v := dial(t, s, "a", "b")
	for _, c := range []struct {
		aggregator datadogV2.MetricsAggregator
		queries    named
		formulas   []string
		want       []any // columns: [][]string of tags or []any of values
	}{
		{"last", named{"a": "avg:ramp{*}"}, nil, []any{[]any{40.0}}},
		{"avg", named{"a": "avg:ramp{*}"}, nil, []any{[]any{20.0}}},
		{"mean", named{"a": "avg:ramp{*}"}, nil, []any{[]any{20.0}}},
		{"max", named{"a": "avg:ramp{*}"}, nil, []any{[]any{40.0}}},
		{"min", named{"a": "avg:ramp{*}"}, nil, []any{[]any{0.0}}},
		{"sum", named{"a": "avg:ramp{*}"}, []string{"a", "a / 10 + 1"}, []any{[]any{100.0}, []any{11.0}}},
		{"sum", named{"a": "sum:none{*}"}, nil, []any{[]any{}}},
		{"sum", named{"a": "sum:none{*}"}, []string{"default_zero(a)"}, []any{[]any{0.0}}},
		{"last", named{"a": "sum:errors{*} by {cluster}"}, nil, []any{[][]string{{"eu"}, {"us"}}, []any{1.0, 2.0}}},
		{"last", named{"a": "sum:errors{*} by {cluster}", "b": "sum:requests{*} by {cluster}"}, []string{"a", "a / b"},
			[]any{[][]string{{"eu"}, {"us"}}, []any{1.0, 2.0}, []any{0.1, nil}}},
	} {
		r, _, err := v.scalar(noon.Add(-time.Minute), noon, c.aggregator, c.queries, c.formulas...)
		if err != nil || r.UnparsedObject != nil || r.Errors != nil {
			t.Fatalf("%v: %v, %v, errors %v", c.queries, err, r.UnparsedObject, r.Errors)
		}
		var got []any
		for _, column := range r.Data.Attributes.Columns {
			switch one := column.GetActualInstance().(type) {
			case *datadogV2.GroupScalarColumn:
				got = append(got, one.Values)
			case *datadogV2.DataScalarColumn:
				got = append(got, numbers(one.Values))
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s of %v, %v: %s", c.aggregator, c.queries, c.formulas, diff)
		}
	}
}

func TestQueriesOfVersionOne(t *testing.T) {
	s, _ := newServer(t, Options{MinInterval: 10 * time.Second, Series: []Series{
		{Metric: "gap", Tags: map[string]string{"host": "a"}, Points: func(at time.Time) (float64, bool) { return 7, at.Second() != 40 }},
	}})
	v := dial(t, s, "a", "b")
	r, _, err := v.v1.QueryMetrics(v.ctx, noon.Add(-30*time.Second).Unix(), noon.Unix(), "avg:gap{*} by {host}")
	if err != nil || r.UnparsedObject != nil || r.GetStatus() != "ok" || len(r.Series) != 1 {
		t.Fatalf("%v, %+v", err, r)
	}
	one := r.Series[0]
	var got []any
	for _, point := range one.Pointlist {
		got = append(got, numbers(point))
	}
	at := func(seconds float64) float64 { return float64(noon.UnixMilli()) + seconds*1000 }
	want := []any{[]any{at(-30), 7.0}, []any{at(-20), nil}, []any{at(-10), 7.0}}
	if diff := cmp.Diff(want, got); diff != "" || one.GetInterval() != 10 || one.GetScope() != "host:a" || one.GetLength() != 3 {
		t.Errorf("%s interval %d, scope %s, length %d", diff, one.GetInterval(), one.GetScope(), one.GetLength())
	}
	if r, _, err = v.v1.QueryMetrics(v.ctx, noon.Add(-time.Minute).Unix(), noon.Unix(), "avg:none{*}"); err != nil || len(r.Series) != 0 {
		t.Errorf("no data: %v, %+v", err, r)
	}
	valid, _, err := v.key.Validate(v.ctx)
	if err != nil || !valid.GetValid() {
		t.Errorf("validate: %v, %+v", err, valid)
	}
	s.Set(ErrorIn200)
	if r, _, err = v.v1.QueryMetrics(v.ctx, noon.Add(-time.Minute).Unix(), noon.Unix(), "avg:gap{*}"); err != nil || r.GetStatus() != "error" || r.GetError() == "" {
		t.Errorf("error in a 200: %v, %+v", err, r)
	}
}

func TestALatePointIsHiddenUntilItsTime(t *testing.T) {
	late := constant("errors", 1, nil)
	late.Late = 45 * time.Second
	s, c := newServer(t, Options{Series: []Series{late}})
	v := dial(t, s, "a", "b")
	for _, test := range []struct {
		now  time.Time
		want [][]any
	}{
		{noon, [][]any{{1.0, 1.0, nil, nil, nil, nil}}},
		{noon.Add(20 * time.Second), [][]any{{1.0, 1.0, 1.0, 1.0, nil, nil}}},
		{noon.Add(35 * time.Second), [][]any{{1.0, 1.0, 1.0, 1.0, 1.0, 1.0}}},
	} {
		c.set(test.now)
		r, _, err := v.timeseries(noon.Add(-time.Minute), noon, 10*time.Second, named{"a": "sum:errors{*}"})
		if err != nil {
			t.Fatal(err)
		}
		var got [][]any
		for _, one := range r.Data.Attributes.Values {
			got = append(got, numbers(one))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("at %s: %s", test.now, diff)
		}
	}
}

func TestBucketsAreAsLongAsTheyMustBe(t *testing.T) {
	s, _ := newServer(t, Options{MinInterval: 60 * time.Second, Series: []Series{constant("errors", 1, nil)}})
	v := dial(t, s, "a", "b")
	for _, c := range []struct {
		ago, interval, want time.Duration
	}{
		{10 * time.Minute, 10 * time.Second, time.Minute},
		{10 * time.Minute, 0, time.Minute},
		{10 * time.Hour, 0, 2 * time.Minute},
		{48 * time.Hour, time.Minute, 2 * time.Minute},
	} {
		r, _, err := v.timeseries(noon.Add(-c.ago), noon, c.interval, named{"a": "sum:errors{*}"})
		if err != nil {
			t.Fatal(err)
		}
		times := r.Data.Attributes.Times
		if got := time.Duration(times[1]-times[0]) * time.Millisecond; got != c.want {
			t.Errorf("%s asked in steps of %s: got %s, want %s", c.ago, c.interval, got, c.want)
		}
	}
}

// errorsOf are the texts in an API error.
func errorsOf(err error) string {
	var e client.GenericOpenAPIError
	if !errors.As(err, &e) {
		return ""
	}
	if model, ok := e.ErrorModel.(datadogV2.APIErrorResponse); ok {
		return strings.Join(model.Errors, "; ")
	}
	if model, ok := e.ErrorModel.(datadogV1.APIErrorResponse); ok {
		return strings.Join(model.Errors, "; ")
	}
	return string(e.ErrorBody)
}

func TestWrongRequestsAreRefused(t *testing.T) {
	s, _ := newServer(t, Options{Series: []Series{constant("errors", 1, nil)}})
	v := dial(t, s, "a", "b")
	for _, c := range []struct{ query, formula, want string }{
		{"errors{*}", "", `Error parsing query: no metric query at "errors{*}"`},
		{"sum:errors", "", `no metric query`},
		{"sum:errors{env}", "", `"env" is not a tag`},
		{"sum:errors{cluster:a,cluster:b} or {*}", "", `unexpected "or {*}"`},
		{"sum:errors{cluster:a OR cluster:b}", "", `"cluster:a OR cluster:b" is not a tag`},
		{"sum:errors{cluster:a", "", `a scope is not closed`},
		{"sum:errors{*} by {a b}", "", `"a b" is not a tag to group by`},
		{"sum:errors{*}.fill(zero)", "", `unexpected ".fill(zero)"`},
		{"sum:errors{*}.rollup(best, 60)", "", `"best" is not a method of rollup`},
		{"sum:errors{*}.as_count(1)", "", `as_count takes no argument`},
		{"p95:errors{*}", "", `no metric query`},
		{"sum:errors{*}", "a + b", `unknown query name at "b"`},
		{"sum:errors{*}", "(a", `a parenthesis is not closed`},
		{"sum:errors{*}", "a a", `unexpected "a"`},
		{"sum:errors{*}", "anomalies(a)", `unknown query name at "anomalies(a)"`},
	} {
		var formulas []string
		if c.formula != "" {
			formulas = []string{c.formula}
		}
		_, r, err := v.timeseries(noon.Add(-time.Minute), noon, 0, named{"a": c.query}, formulas...)
		if r == nil || r.StatusCode != http.StatusBadRequest || !strings.Contains(errorsOf(err), c.want) {
			t.Errorf("%s %s: got %v %q, want 400 with %q", c.query, c.formula, err, errorsOf(err), c.want)
		}
	}
	if _, r, err := v.timeseries(noon, noon, 0, named{"a": "sum:errors{*}"}); r == nil || r.StatusCode != http.StatusBadRequest {
		t.Errorf("no window: %v", err)
	}
	if _, r, err := v.scalar(noon.Add(-time.Minute), noon, "best", named{"a": "sum:errors{*}"}); err == nil || r != nil && r.StatusCode != http.StatusBadRequest {
		t.Errorf("an aggregator that there is not: %v", err)
	}
	if _, r, err := v.v1.QueryMetrics(v.ctx, noon.Add(-time.Minute).Unix(), noon.Unix(), "errors"); r == nil || r.StatusCode != http.StatusBadRequest || errorsOf(err) == "" {
		t.Errorf("version 1: %v", err)
	}
	for _, c := range []struct{ contentType, body string }{
		{"text/plain", `{}`}, {"application/json", `{`}, {"application/json", `{"data": {"type": "scalar_request"}}`}, {"application/json", `{"data": 1}`}, {"application/json", `{"dta": {}}`},
	} {
		r, err := http.NewRequest(http.MethodPost, s.URL+"/api/v2/query/timeseries", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Content-Type": {c.contentType}, "Dd-Api-Key": {"a"}, "Dd-Application-Key": {"b"}}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusBadRequest {
			t.Errorf("%s as %s: %s", c.body, c.contentType, answer.Status)
		}
	}
}

func TestKeysAreChecked(t *testing.T) {
	s, _ := newServer(t, Options{APIKey: "a", AppKey: "b", Series: []Series{constant("errors", 1, nil)}})
	for _, c := range []struct {
		api, app        string
		query, validate int
	}{{"a", "b", 200, 200}, {"x", "b", 403, 403}, {"a", "x", 403, 200}, {"", "b", 403, 403}, {"a", "", 403, 200}} {
		v := dial(t, s, c.api, c.app)
		_, r, err := v.timeseries(noon.Add(-time.Minute), noon, 0, named{"a": "sum:errors{*}"})
		if r == nil || r.StatusCode != c.query || c.query == 403 && errorsOf(err) != "Forbidden" {
			t.Errorf("%q and %q: %v, want %d", c.api, c.app, err, c.query)
		}
		if _, r, err = v.v1.QueryMetrics(v.ctx, noon.Add(-time.Minute).Unix(), noon.Unix(), "sum:errors{*}"); r == nil || r.StatusCode != c.query {
			t.Errorf("version 1: %q and %q: %v, want %d", c.api, c.app, err, c.query)
		}
		if _, r, err = v.key.Validate(v.ctx); r == nil || r.StatusCode != c.validate {
			t.Errorf("validate: %q and %q: %v, want %d", c.api, c.app, err, c.validate)
		}
	}
}

func TestFaults(t *testing.T) {
	s, _ := newServer(t, Options{Series: []Series{constant("errors", 1, nil)}})
	v := dial(t, s, "a", "b")
	ask := func() (datadogV2.TimeseriesFormulaQueryResponse, *http.Response, error) {
		return v.timeseries(noon.Add(-time.Minute), noon, 0, named{"a": "sum:errors{*}"})
	}
	for fault, status := range map[Fault]int{Down: 503, Forbidden: 403, Limited: 429} {
		s.Set(fault)
		if _, r, err := ask(); err == nil || r == nil || r.StatusCode != status {
			t.Errorf("%s: %v, want %d", fault, err, status)
		}
	}
	s.Set(ErrorIn200)
	if r, _, err := ask(); err != nil || r.Errors == nil || *r.Errors == "" || r.Data != nil {
		t.Errorf("error in a 200: %v, %+v", err, r)
	}
	s.Set(NoData)
	if r, _, err := ask(); err != nil || len(r.Data.Attributes.Series) != 0 || len(r.Data.Attributes.Times) != 0 {
		t.Errorf("no data: %v, %+v", err, r)
	}
	s.Set(Malformed)
	if _, _, err := ask(); err == nil {
		t.Error("malformed: no error")
	}
	s.Set(Slow)
	impatient := v
	ctx, cancel := context.WithTimeout(v.ctx, 20*time.Millisecond)
	defer cancel()
	impatient.ctx = ctx
	if _, _, err := impatient.timeseries(noon.Add(-time.Minute), noon, 0, named{"a": "sum:errors{*}"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("slow: %v", err)
	}
	let := time.AfterFunc(20*time.Millisecond, func() { s.Set(None) })
	defer let.Stop()
	if r, _, err := ask(); err != nil || len(r.Data.Attributes.Series) != 1 {
		t.Errorf("slow and let go: %v, %+v", err, r)
	}
	last := s.Requests()[len(s.Requests())-1]
	if want := (Request{At: noon, Method: "POST", Path: "/api/v2/query/timeseries", Queries: []string{"sum:errors{*}"}, From: noon.Add(-time.Minute).Local(), To: noon.Local(), Status: 200}); !cmp.Equal(want, last) {
		t.Error(cmp.Diff(want, last))
	}
}

func TestTheLimitIsCounted(t *testing.T) {
	s, c := newServer(t, Options{Series: []Series{constant("errors", 1, nil)}})
	s.SetLimit(Limit{Requests: 2, Period: time.Minute})
	v := dial(t, s, "a", "b")
	for i, want := range []struct {
		at                      time.Duration
		status                  int
		limit, remaining, reset string
	}{
		{15 * time.Second, 200, "2", "1", "45"},
		{20 * time.Second, 200, "2", "0", "40"},
		{59*time.Second + time.Millisecond, 429, "2", "0", "1"},
		{60 * time.Second, 200, "2", "1", "60"},
	} {
		c.set(noon.Add(want.at))
		_, r, _ := v.timeseries(noon.Add(-time.Minute), noon, 0, named{"a": "sum:errors{*}"})
		if r == nil {
			t.Fatalf("request %d was not answered", i+1)
		}
		got := []any{r.StatusCode, r.Header.Get("X-RateLimit-Limit"), r.Header.Get("X-RateLimit-Remaining"), r.Header.Get("X-RateLimit-Reset"),
			r.Header.Get("X-RateLimit-Period"), r.Header.Get("X-RateLimit-Name")}
		if diff := cmp.Diff([]any{want.status, want.limit, want.remaining, want.reset, "60", limitName}, got); diff != "" {
			t.Errorf("request %d: %s", i+1, diff)
		}
	}
	s.SetLimit(Limit{})
	if _, r, err := v.timeseries(noon.Add(-time.Minute), noon, 0, named{"a": "sum:errors{*}"}); err != nil || r.Header.Get("X-RateLimit-Limit") != "" {
		t.Errorf("without a limit: %v, %v", err, r.Header)
	}
}
