package prometheus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
)

var (
	now   = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	since = time.Date(2026, 3, 1, 11, 58, 0, 0, time.UTC)
)

// server answers each query with its reply, and keeps what it was asked.
type server struct {
	*httptest.Server
	mu    sync.Mutex
	asked []*http.Request
}

type reply struct {
	status int
	body   string
}

func serve(t *testing.T, replies map[string]reply) *server {
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		s.asked = append(s.asked, r)
		s.mu.Unlock()
		answer, ok := replies[r.PostForm.Get("query")]
		if !ok {
			t.Errorf("unexpected query %q", r.PostForm.Get("query"))
		}
		if answer.status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(answer.status)
		_, _ = io.WriteString(w, answer.body)
	}))
	t.Cleanup(s.Close)
	return s
}

func config(query string) json.RawMessage {
	data, _ := json.Marshal(Config{Query: query})
	return data
}

func vector(values ...string) string { return vectorAnd("", values...) }

func vectorAnd(more string, values ...string) string {
	series := make([]string, len(values))
	for i, v := range values {
		series[i] = fmt.Sprintf(`{"metric":{"n":"%d"},"value":[1772366400.123,%q]}`, i, v)
	}
	return `{"status":"success","data":{"resultType":"vector","result":[` + strings.Join(series, ",") + `]}` + more + `}`
}

func result(kind, result string) string {
	return fmt.Sprintf(`{"status":"success","data":{"resultType":%q,"result":%s}}`, kind, result)
}

// TestWhatMayNotBeBelievedSaysWhy fails when an answer that proves nothing looks like a measurement.
func TestWhatMayNotBeBelievedSaysWhy(t *testing.T) {
	one := map[string]any{"value": 0.5}
	for _, c := range []struct {
		name, body string
		want       metrics.Sample
	}{
		{"one series", vector("0.5"), metrics.Sample{Result: one}},
		{"scalar", result("scalar", `[1772366400.123,"0.5"]`), metrics.Sample{Result: one}},
		{"zero", vector("0"), metrics.Sample{Result: map[string]any{"value": 0.0}}},
		{"small", vector("-1.5e-07"), metrics.Sample{Result: map[string]any{"value": -1.5e-07}}},
		{"empty vector", vector(), metrics.Sample{NoData: true, Problem: "no data: the query returned nothing"}},
		{"NaN", vector("NaN"), metrics.Sample{Problem: "the value is NaN"}},
		{"NaN scalar", result("scalar", `[1,"NaN"]`), metrics.Sample{Problem: "the value is NaN"}},
		{"+Inf", vector("+Inf"), metrics.Sample{Problem: "the value is +Inf"}},
		{"-Inf", vector("-Inf"), metrics.Sample{Problem: "the value is -Inf"}},
		{"out of range", vector("1e999"), metrics.Sample{Problem: "the value is +Inf"}},
		{"two series", vector("1", "2"), metrics.Sample{Result: map[string]any{"values": []any{1.0, 2.0}},
			Problem: "2 series instead of one: aggregate them, e.g. with max()"}},
		{"two series, one NaN", vector("NaN", "2"), metrics.Sample{Result: map[string]any{"values": []any{2.0}},
			Problem: "2 series instead of one: aggregate them, e.g. with max()"}},
		{"a warning", vectorAnd(`,"warnings":["storage a is down"]`, "0.5"),
			metrics.Sample{Result: one, Problem: "the server warns: storage a is down"}},
		{"two warnings", vectorAnd(`,"warnings":["a","b"]`, "0.5"),
			metrics.Sample{Result: one, Problem: "the server warns: a; the server warns: b"}},
		{"a remark", vectorAnd(`,"infos":["PromQL info: ignored histograms in sum (1:1)"]`, "0.5"),
			metrics.Sample{Result: one, Problem: "the server remarks: PromQL info: ignored histograms in sum (1:1)"}},
		{"a harmless remark", vectorAnd(`,"infos":["PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: \"e\" (1:6)"]`, "0.5"),
			metrics.Sample{Result: one}},
		{"partial, as VictoriaMetrics says it", vectorAnd(`,"isPartial":true`, "0.5"), metrics.Sample{Result: one, Problem: "the answer is partial"}},
		{"partial, as others say it", vectorAnd(`,"partialResponse":true`, "0.5"), metrics.Sample{Result: one, Problem: "the answer is partial"}},
		{"not partial", vectorAnd(`,"isPartial":false`, "0.5"), metrics.Sample{Result: one}},
		{"nothing in a partial answer is not no data", vectorAnd(`,"isPartial":true`),
			metrics.Sample{Problem: "the answer is partial; no data: the query returned nothing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, map[string]reply{"sum(q)": {200, c.body}})
			p, err := New(metrics.Connection{Name: "main", URL: s.URL})
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Measure(t.Context(), metrics.Query{Config: config("sum(q)"), Now: now, Since: since})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if _, err := json.Marshal(got); err != nil {
				t.Errorf("the sample can't be recorded: %v", err)
			}
		})
	}
}

// TestWhatIsNoAnswerIsAnError fails when a refusal, or something that is not a number, looks like a measurement.
func TestWhatIsNoAnswerIsAnError(t *testing.T) {
	for _, c := range []struct {
		name string
		reply
		want string
	}{
		{"bad query", reply{400, `{"status":"error","errorType":"bad_data","error":"invalid parameter \"query\": 1:5: parse error"}`},
			`HTTP 400 bad_data: invalid parameter "query": 1:5: parse error`},
		{"can't be executed", reply{422, `{"status":"error","errorType":"execution","error":"found duplicate series"}`}, "HTTP 422 execution: found duplicate series"},
		{"timed out", reply{503, `{"status":"error","errorType":"timeout","error":"query timed out"}`}, "HTTP 503 timeout: query timed out"},
		{"a proxy's page", reply{502, "<html>bad gateway</html>\nmore"}, "HTTP 502: <html>bad gateway</html>"},
		{"unauthorised", reply{401, ""}, "HTTP 401: no message"},
		{"no content", reply{204, ""}, "HTTP 204: no message"},
		{"redirect", reply{302, ""}, "HTTP 302: redirected; put the final address into the connection"},
		{"status error with 200", reply{200, `{"status":"error","errorType":"internal","error":"boom"}`}, `status "error", internal: boom`},
		{"no status", reply{200, `{}`}, `status "", : `},
		{"not JSON", reply{200, `<html>`}, "malformed answer: invalid character '<' looking for beginning of value"},
		{"cut short", reply{200, vector("1")[:40]}, "malformed answer: unexpected end of JSON input"},
		{"string", reply{200, result("string", `[1,"up"]`)}, "the result is text, not a number"},
		{"matrix", reply{200, result("matrix", `[]`)}, "the result is a range of values, not a number; use e.g. rate() or last_over_time()"},
		{"histogram", reply{200, result("vector", `[{"metric":{},"histogram":[1,{"count":"1"}]}]`)}, "the result is a histogram, not a number; use e.g. histogram_quantile()"},
		{"another type", reply{200, result("table", `[]`)}, `result type "table" is not known`},
		{"no type", reply{200, `{"status":"success"}`}, `result type "" is not known`},
		{"no result", reply{200, `{"status":"success","data":{"resultType":"vector"}}`}, "malformed vector: unexpected end of JSON input"},
		{"a vector that is none", reply{200, result("vector", `{}`)}, "malformed vector: json: cannot unmarshal object into Go value of type []struct"},
		{"no value", reply{200, result("vector", `[{"metric":{}}]`)}, `malformed value ""`},
		{"a value that is a number", reply{200, result("vector", `[{"value":[1,2]}]`)}, `malformed value "[1,2]"`},
		{"a value that is a word", reply{200, vector("many")}, `malformed value "many"`},
		{"a pair of three", reply{200, result("scalar", `[1,"2","3"]`)}, `malformed value "[1,\"2\",\"3\"]"`},
		{"too long", reply{200, strings.Repeat(" ", maxAnswer) + vector("1")}, "the answer is longer than 1048576 bytes: aggregate the query"},
		{"closed without an answer", reply{}, "EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, map[string]reply{"sum(q)": c.reply})
			p, err := New(metrics.Connection{Name: "main", URL: s.URL})
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Measure(t.Context(), metrics.Query{Config: config("sum(q)"), Now: now})
			if want := "prometheus: query main: " + c.want; err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got  %v\nwant %s", err, want)
			}
			if diff := cmp.Diff(metrics.Sample{}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDataFromBeforeTheChangeIsNotJudged fails when a stale sample passes for a reading of the new version.
func TestDataFromBeforeTheChangeIsNotJudged(t *testing.T) {
	const q = `latency{target="a"}`
	stamp := func(at time.Time) string { return vector(fmt.Sprintf("%.3f", float64(at.UnixMilli())/1000)) }
	value := map[string]any{"value": 0.5}
	for _, c := range []struct {
		name, age string
		since     time.Time
		want      metrics.Sample
	}{
		{"sampled after the change", stamp(since.Add(time.Second)), since, metrics.Sample{Result: value}},
		{"sampled as it ended", stamp(since), since, metrics.Sample{Result: value}},
		{"sampled within its last millisecond", stamp(since), since.Add(500 * time.Microsecond),
			metrics.Sample{Result: value, Problem: "older than the change: sampled at 2026-03-01T11:58:00.000Z, the change ended at 2026-03-01T11:58:00.000Z"}},
		{"sampled before the change", stamp(since.Add(-time.Millisecond)), since,
			metrics.Sample{Result: value, Problem: "older than the change: sampled at 2026-03-01T11:57:59.999Z, the change ended at 2026-03-01T11:58:00.000Z"}},
		{"no stamp", vector(), since, metrics.Sample{Result: value, Problem: "the age of the data can't be told"}},
		{"two stamps", vector("1", "2"), since, metrics.Sample{Result: value, Problem: "the age of the data can't be told"}},
		{"no number", vector("NaN"), since, metrics.Sample{Result: value, Problem: "the age of the data can't be told"}},
		{"a partial stamp", vectorAnd(`,"isPartial":true`, "1e12"), since, metrics.Sample{Result: value, Problem: "the answer is partial"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, map[string]reply{q: {200, vector("0.5")}, "timestamp(" + q + ")": {200, c.age}})
			p, err := New(metrics.Connection{Name: "main", URL: s.URL})
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Measure(t.Context(), metrics.Query{Config: config(q), Now: now, Since: c.since})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			// A sample that comes in between must not lend its age to the value before it.
			if first := s.asked[0].PostForm.Get("query"); first != "timestamp("+q+")" || len(s.asked) != 2 {
				t.Errorf("asked %d times, first %s", len(s.asked), first)
			}
		})
	}
	t.Run("the age can't be asked", func(t *testing.T) {
		s := serve(t, map[string]reply{"timestamp(" + q + ")": {422, `{"status":"error","errorType":"execution","error":"no"}`}})
		p, err := New(metrics.Connection{Name: "main", URL: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Measure(t.Context(), metrics.Query{Config: config(q), Now: now, Since: since})
		if want := "prometheus: query main: the age of the data: HTTP 422 execution: no"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
	t.Run("no change to be older than", func(t *testing.T) {
		s := serve(t, map[string]reply{q: {200, vector("0.5")}})
		p, err := New(metrics.Connection{Name: "main", URL: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Measure(t.Context(), metrics.Query{Config: config(q), Now: now})
		if diff := cmp.Diff(metrics.Sample{Result: value}, got); diff != "" || err != nil {
			t.Error(diff, err)
		}
	})
}

func TestPlainSelectors(t *testing.T) {
	for _, q := range []string{
		"up", " up ", "job:rate:sum", `up{}`, `up{a="b"}`, `up { a = "b" , c != 'd' , } `, "up{a=~`x\\`}", `up{a="\"}"}`, `{__name__="up"}`,
		`{"a.metric"}`, `{"a.metric","a.label"!~"x"}`, "up{a=\"},{\"}", "sum", "by",
	} {
		if !plainSelector(q) {
			t.Errorf("%s is a plain selector", q)
		}
	}
	for _, q := range []string{
		"", " ", "1", "inf", "NaN", "-up", "up[5m]", "up offset 5m", "up @ 1", "up > 1", "up or vector(0)", "sum(up)", "(up)", "up{a=\"b\"", `up{a="b}`,
		`up{a="b"}[5m]`, `up{a="b"} > 1`, `up{a="b" c="d"}`, `up{a}`, `up{a==="b"}`, `up{a=b}`, `up{,}`, `up{"a}`, "up{a=\"b\n\"}", "up # comment",
		`up{a="b" or c="d"}`, `up{a="b"} {`, `up up`, "timestamp(up)", `"up"`,
	} {
		if plainSelector(q) {
			t.Errorf("%s is not certainly a plain selector", q)
		}
	}
}

func TestTheRequestSaysWhenAndWho(t *testing.T) {
	s := serve(t, map[string]reply{"sum(q)": {200, vector("1")}})
	p, err := New(metrics.Connection{
		Name: "main", URL: s.URL + "/select/0/prometheus/?extra_label=a%3Db", Token: "secret", Headers: map[string]string{"X-Scope-OrgID": "team"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Measure(t.Context(), metrics.Query{Config: config("sum(q)"), Now: now, Since: since}); err != nil {
		t.Fatal(err)
	}
	if len(s.asked) != 1 {
		t.Fatalf("asked %d times, want once: a computed value has no age", len(s.asked))
	}
	r := s.asked[0]
	if r.Method != "POST" || r.URL.String() != "/select/0/prometheus/api/v1/query?extra_label=a%3Db" {
		t.Errorf("%s %s", r.Method, r.URL)
	}
	want := url.Values{"query": {"sum(q)"}, "time": {"1772366400.123"}, "deny_partial_response": {"1"}, "nocache": {"1"}}
	if diff := cmp.Diff(want, r.PostForm); diff != "" {
		t.Error(diff)
	}
	if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("X-Scope-OrgID") != "team" {
		t.Errorf("headers %v", r.Header)
	}
}

func TestAServerThatIsNotThereIsAnErrorWithoutSecrets(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := New(metrics.Connection{Name: "main", URL: "http://user:secret@" + address + "/?key=secret"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Measure(t.Context(), metrics.Query{Config: config("up"), Now: now})
	if want := "prometheus: query main: dial tcp " + address + ": connect: connection refused"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestAStuckServerIsGivenUp(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer s.Close()
	defer close(release)
	p, err := New(metrics.Connection{Name: "main", URL: s.URL, Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.Measure(t.Context(), metrics.Query{Config: config("up"), Now: now}); err == nil {
		t.Errorf("%+v without an error", got)
	}
}

func TestConfigurationsAndConnections(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{`{"query": "up{target=\"{{.target.name}}\"}"}`, ""},
		{`{}`, "query: is required: PromQL that gives one number"},
		{`{"query": " \n"}`, "query: is required: PromQL that gives one number"},
		{`{"query": "up", "interval": "1m"}`, `unknown field "interval"; allowed is query`},
		{`{"query": ["up"]}`, "cannot unmarshal array into Go struct field Config.query of type string; allowed is query"},
		{`{"query": "up"}{}`, "more than one value"},
		{``, "EOF; allowed is query"},
	} {
		err := Kind().Decode(json.RawMessage(c.config))
		var faults metrics.Faults
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &faults) || err.Error() != c.want) {
			t.Errorf("%s: got  %v\nwant %s", c.config, err, c.want)
		}
	}
	for _, address := range []string{"", "prometheus:9090", "ftp://a", "http://", "/api", "http://a#b", "http://[::1"} {
		_, err := Kind().New(metrics.Connection{Name: "main", URL: address})
		if want := "prometheus: connection main: its url is not an http or https address"; err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", address, err, want)
		}
	}
	p, err := Kind().New(metrics.Connection{Name: "main", URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Measure(t.Context(), metrics.Query{Config: json.RawMessage(`{"query":""}`), Now: now}); err == nil ||
		err.Error() != "prometheus: query main: query: is required: PromQL that gives one number" {
		t.Errorf("an empty rendered query: %v", err)
	}
	if _, err := p.Measure(t.Context(), metrics.Query{Config: config("up")}); err == nil || err.Error() != "prometheus: query main: no moment to measure at" {
		t.Errorf("no time: %v", err)
	}
}

// TestQuotedValuesStayInsideTheirString fails when a target's name can change a query.
func TestQuotedValuesStayInsideTheirString(t *testing.T) {
	for value, want := range map[string]string{
		"eu/edge-1.a_b": "eu/edge-1.a_b",
		`a"b`:           `a\"b`,
		`a\`:            `a\\`,
		"a\nb":          `a\nb`,
		"a'b`c":         `a\x27b\x60c`,
		"ü\x00\xff":     `ü\x00\xff`,
	} {
		if got := Quote(value); got != want {
			t.Errorf("%q: got %s, want %s", value, got, want)
		}
		for _, quote := range []string{`"`, "'", "`"} {
			if quoted := quote + Quote(value) + quote; stringLength(quoted) != len(quoted) {
				t.Errorf("%q breaks out of %s", value, quoted)
			}
		}
	}
}
