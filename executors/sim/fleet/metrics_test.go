package fleet

import (
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const measured = two + `
metrics:
  - {name: write_latency_ms, help: "Time to\ncommit.", base: 10}
  - {name: errors, base: 2, spread: 0.5}
regressions:
  - {version: v2, metric: write_latency_ms, factor: 5, after: 30s, minCustomers: 500}
`

// query asks and returns the values by target, or the error.
func query(t *testing.T, f *Fleet, q string) (map[string]string, string) {
	t.Helper()
	status, got := ask(t, f, "GET", "/api/v1/query?query="+url.QueryEscape(q), "")
	if (status == 200) != (got["status"] == "success") {
		t.Fatalf("%s: %d %v", q, status, got)
	}
	if status != 200 {
		if status != 400 || got["errorType"] != "bad_data" {
			t.Errorf("%s: %d %v", q, status, got)
		}
		return nil, got["error"].(string)
	}
	values := map[string]string{}
	for _, one := range got["data"].(map[string]any)["result"].([]any) {
		labels := one.(map[string]any)["metric"].(map[string]any)
		values[labels["target"].(string)] = one.(map[string]any)["value"].([]any)[1].(string)
	}
	return values, ""
}

func TestARegressionShowsUnderLoadAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, measured, filepath.Join(t.TempDir(), "log"))
		latency := func(want map[string]string) {
			t.Helper()
			got, _ := query(t, f, "write_latency_ms")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		}
		clean := map[string]string{"eu/one": "10", "two": "10"}
		latency(clean)
		apply(t, f, "two", "a", "v2")
		apply(t, f, "eu%2Fone", "b", "v2")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		time.Sleep(30*time.Second - 1)
		latency(clean)
		time.Sleep(time.Nanosecond)
		latency(map[string]string{"eu/one": "10", "two": "50"})
		apply(t, f, "two", "c", "v1")
		latency(map[string]string{"eu/one": "10", "two": "50"})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		latency(clean)
	})
}

func TestMetricsPage(t *testing.T) {
	f := open(t, measured+"unreachable: [{select: {targets: [eu/one]}, untilReleased: true}]\n", filepath.Join(t.TempDir(), "log"))
	w := httptest.NewRecorder()
	f.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	errors, _ := query(t, f, `errors{target="two"}`)
	want := `# HELP write_latency_ms Time to\ncommit.
# TYPE write_latency_ms gauge
write_latency_ms{target="two",region="us",tier="1",version="v0"} 10
# TYPE errors gauge
errors{target="two",region="us",tier="1",version="v0"} ` + errors["two"] + "\n"
	if diff := cmp.Diff(want, w.Body.String()); diff != "" {
		t.Error(diff)
	}
	if v, err := strconv.ParseFloat(errors["two"], 64); err != nil || v < 1 || v > 3 || v == 2 {
		t.Errorf("errors is %q, want it spread around 2 by half", errors["two"])
	}
	if got := w.Header().Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("content type %q", got)
	}
}

func TestQueriesAnswerExactSelectorsOnly(t *testing.T) {
	f := open(t, measured, filepath.Join(t.TempDir(), "log"))
	both, one, none := map[string]string{"eu/one": "10", "two": "10"}, map[string]string{"eu/one": "10"}, map[string]string{}
	for q, want := range map[string]map[string]string{
		`write_latency_ms`:                                       both,
		` write_latency_ms { } `:                                 both,
		`write_latency_ms{target="eu/one"}`:                      one,
		`write_latency_ms{region="eu", tier="3",}`:               one,
		"write_latency_ms{\n\tregion = \"\\x65u\" , tier=\"3\"}": one,
		`write_latency_ms{zone="",target="eu/one"}`:              one,
		`write_latency_ms{zone="a"}`:                             none,
		`write_latency_ms{tier="3",tier="1"}`:                    none,
		`read_latency_ms`:                                        none,
	} {
		got, fault := query(t, f, q)
		if diff := cmp.Diff(want, got); diff != "" || fault != "" {
			t.Errorf("%s: %s %s", q, fault, diff)
		}
	}
	for _, q := range []string{
		``, `1`, `sum(errors)`, `errors[5m]`, `errors{tier=~"3"}`, `errors{tier!="3"}`, `errors{tier='3'}`, "errors{tier=`3`}",
		`errors{tier="3"`, `errors{tier="3"} > 1`, `errors offset 5m`, `errors @ 1`, `{__name__="errors"}`, `errors{__name__="x"}`,
		`errors{tier="3" region="eu"}`, `errors{,}`, `timestamp(errors[5m])`, `timestamp(timestamp(errors))`, `timestamp(errors`,
		`errors or vector(0)`, `errors + errors`,
	} {
		got, fault := query(t, f, q)
		if !strings.HasPrefix(fault, `invalid parameter "query": parse error at `) {
			t.Errorf("%s: %v %s", q, got, fault)
		}
	}
}

func TestQueriesFollowThePrometheusAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, measured, filepath.Join(t.TempDir(), "log"))
		time.Sleep(1500 * time.Millisecond)
		now := time.Now()
		status, got := ask(t, f, "GET", `/api/v1/query?query=write_latency_ms{target="two"}&time=`+strconv.FormatFloat(float64(now.UnixMilli()-1000)/1000, 'f', 3, 64), "")
		seconds := float64(now.UnixMilli()) / 1000
		want := map[string]any{"status": "success", "data": map[string]any{"resultType": "vector", "result": []any{map[string]any{
			"metric": map[string]any{"__name__": "write_latency_ms", "target": "two", "region": "us", "tier": "1", "version": "v0"},
			"value":  []any{seconds - 1, "10"},
		}}}}
		if diff := cmp.Diff(want, got); diff != "" || status != 200 {
			t.Errorf("%d %s", status, diff)
		}
		values, _ := query(t, f, `timestamp(write_latency_ms{target="two"})`)
		if diff := cmp.Diff(map[string]string{"two": strconv.FormatFloat(seconds, 'f', -1, 64)}, values); diff != "" {
			t.Error(diff)
		}
		for text, want := range map[string]string{
			"yesterday": `invalid parameter "time": cannot parse "yesterday" to a valid timestamp`,
			"NaN":       `invalid parameter "time": cannot parse "NaN" to a valid timestamp`,
			now.Add(-time.Hour).UTC().Format(time.RFC3339): `invalid parameter "time": ` + now.Add(-time.Hour).UTC().Format(time.RFC3339) +
				` is more than 30s from now, and this fleet keeps no history`,
		} {
			if status, got := ask(t, f, "GET", "/api/v1/query?query=errors&time="+url.QueryEscape(text), ""); status != 400 || got["error"] != want {
				t.Errorf("time %s: %d %v", text, status, got)
			}
		}
		request := httptest.NewRequest("POST", "/api/v1/query", strings.NewReader(url.Values{"query": {"errors{"}}.Encode()))
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		f.Handler().ServeHTTP(w, request)
		if w.Code != 400 || !strings.Contains(w.Body.String(), `"errorType":"bad_data"`) {
			t.Errorf("POST: %d %s", w.Code, w.Body)
		}
	})
}

// TestTheDemoRegressionShowsOnlyUnderLoad fails when the demo's first wave would see the fault, or its second would not.
func TestTheDemoRegressionShowsOnlyUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := New(Demo(1), filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		for _, target := range f.order {
			apply(t, f, target.Name, "to-v2/"+target.Name, "v2")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		values, fault := query(t, f, `write_latency_ms{version="v2"}`)
		if len(values) != 400 {
			t.Fatalf("%d targets on v2, want 400: %s", len(values), fault)
		}
		for _, target := range f.order {
			v, err := strconv.ParseFloat(values[target.Name], 64)
			if err != nil || target.Tier == 3 && v > 15 || target.Tier < 3 && v < 50 {
				t.Errorf("%s of tier %d: %v ms, %v", target.Name, target.Tier, v, err)
			}
		}
	})
}

// Whoever asks for the past must not be told that a version was bad before it ran. Its sleeps are those of the bubble: they
// move its clock, and take no time.
func TestAGaugeKnowsWhatItWasBeforeTheChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, measured, filepath.Join(t.TempDir(), "log"))
		before := time.Now()
		time.Sleep(time.Minute)
		apply(t, f, "two", "a", "v2")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		changed := time.Now()
		time.Sleep(time.Hour)
		for _, tt := range []struct {
			metric, target string
			at             time.Time
			want           float64
			ok             bool
		}{
			{"write_latency_ms", "two", before, 10, true},
			{"write_latency_ms", "two", changed.Add(29 * time.Second), 10, true},
			{"write_latency_ms", "two", changed.Add(time.Minute), 50, true},
			{"write_latency_ms", "eu/one", changed.Add(time.Minute), 10, true},
			{"write_latency_ms", "three", before, 0, false},
			{"nothing", "two", before, 0, false},
		} {
			if got, ok := f.Gauge(tt.metric, tt.target, tt.at); got != tt.want || ok != tt.ok {
				t.Errorf("%s of %s at %s: got %v, %v; want %v, %v", tt.metric, tt.target, tt.at.Sub(changed), got, ok, tt.want, tt.ok)
			}
		}
		if names, metrics := f.Names(), f.Metrics(); len(names) != 2 || len(metrics) != 2 || names[0] != "eu/one" || metrics[1] != "errors" {
			t.Errorf("got targets %v and metrics %v", names, metrics)
		}
	})
}
