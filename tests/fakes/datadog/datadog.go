// Package datadog is a Datadog for tests: its query API over HTTP, with series that follow a script, a clock that can be
// set, and faults that are switched while it runs. It answers as https://docs.datadoghq.com/api/latest/metrics/ says, and
// refuses what it does not know.
//
// It knows nothing of Sluice, and no part of a product may import it: it is for tests, and for trying things out on a
// development machine.
package datadog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Fault is what is wrong with a server. The set is closed.
type Fault string

// The faults.
const (
	// None: it works.
	None Fault = ""
	// Down answers 503.
	Down Fault = "down"
	// Slow answers nothing until the fault is switched, the request is given up or the server ends.
	Slow Fault = "slow"
	// Limited answers 429 to everything, as if the limit were used up for ever.
	Limited Fault = "limited"
	// Forbidden answers 403 to any key, as the wrong site does.
	Forbidden Fault = "forbidden"
	// ErrorIn200 answers 200 with an error in it.
	ErrorIn200 Fault = "error in 200"
	// NoData answers that nothing is known.
	NoData Fault = "no data"
	// Malformed answers something that is not JSON.
	Malformed Fault = "malformed"
)

const (
	// maxPoints is how many points of one series are given; a longer time gets longer buckets.
	maxPoints = 1500
	// maxRequest bounds a request's body.
	maxRequest = 1 << 20
	// maxRequests is how many requests are remembered; half of them are forgotten when there are more.
	maxRequests = 20_000
	// limitName is what the limit is called, as in Datadog's own headers.
	limitName = "query_timeseries_data"
)

// Limit is how many requests are answered in each period, which begin at its multiples.
type Limit struct {
	Requests int
	Period   time.Duration
}

// Request is one request that was made.
type Request struct {
	At     time.Time
	Method string
	Path   string
	// Queries are the metric queries, in the order of the request; Formulas likewise.
	Queries, Formulas []string
	// From and To are the window, Interval is the bucket that was asked for.
	From, To time.Time
	Interval time.Duration
	// Status is what was answered; 0: nothing.
	Status int
}

// Options say how a server behaves from the start. The zero value accepts any keys that are not empty.
type Options struct {
	// APIKey and AppKey are the only ones accepted; empty: any but none.
	APIKey, AppKey string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// MinInterval is the shortest bucket, whatever is asked for; zero means 1 s.
	MinInterval time.Duration
	Series      []Series
}

// Server is a Datadog.
type Server struct {
	// URL is its base address on 127.0.0.1.
	URL string

	options Options
	mux     *http.ServeMux

	mu       sync.Mutex
	series   []Series
	fault    Fault
	switched chan struct{} // closed when the fault is switched
	limit    Limit
	period   time.Time
	used     int
	requests []Request
}

// T is the test that a server belongs to; a *testing.T or *testing.B.
type T interface {
	Helper()
	Fatal(args ...any)
	Cleanup(func())
}

// New starts a server that ends with the test.
func New(t T, o Options) *Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(o)
	s.URL = "http://" + listener.Addr().String()
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // until it is closed
	}()
	t.Cleanup(func() {
		s.Set(None)        // lets go what hangs
		_ = server.Close() // the listener and what is left of connections; nobody reads them any more
		<-ended
	})
	return s
}

// Serve returns a server to be put behind an address of the caller's; its URL is empty.
func Serve(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MinInterval == 0 {
		o.MinInterval = time.Second
	}
	s := &Server{options: o, series: o.Series, switched: make(chan struct{}), mux: http.NewServeMux()}
	s.mux.HandleFunc("POST /api/v2/query/timeseries", s.handle(s.timeseries, true))
	s.mux.HandleFunc("POST /api/v2/query/scalar", s.handle(s.scalar, true))
	s.mux.HandleFunc("GET /api/v1/query", s.handle(s.query, true))
	s.mux.HandleFunc("GET /api/v1/validate", s.handle(s.validate, false))
	return s
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Set switches the fault.
func (s *Server) Set(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
	close(s.switched)
	s.switched = make(chan struct{})
}

// SetLimit sets the rate limit and forgets what was used of the one before; zero: none.
func (s *Server) SetLimit(l Limit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit, s.used, s.period = l, 0, time.Time{}
}

// Add adds series.
func (s *Server) Add(series ...Series) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.series = append(slices.Clone(s.series), series...)
}

// Requests are the requests made so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// call is one request on its way.
type call struct {
	*http.Request
	body   []byte
	note   Request
	series []Series
}

// refusal is an error with its HTTP status.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func bad(format string, args ...any) error {
	return &refusal{status: http.StatusBadRequest, text: fmt.Sprintf(format, args...)}
}

// handle answers with what answer returns, after keys, limits and faults.
func (s *Server) handle(answer func(*call) (any, error), appKey bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{Request: r, note: Request{At: s.options.Now(), Method: r.Method, Path: r.URL.Path}}
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.requests = append(s.requests, c.note); len(s.requests) > maxRequests {
				s.requests = slices.Delete(s.requests, 0, len(s.requests)-maxRequests/2)
			}
		}()
		// The whole body first: only then does the server notice that a client has gone.
		var err error
		if c.body, err = io.ReadAll(io.LimitReader(r.Body, maxRequest)); err != nil {
			return
		}
		s.mu.Lock()
		fault, switched := s.fault, s.switched
		c.series = s.series
		within := s.count(w.Header(), fault, c.note.At)
		s.mu.Unlock()
		if fault == Slow {
			select {
			case <-r.Context().Done():
				return
			case <-switched:
			}
		}
		value, err := s.answer(c, answer, fault, within, appKey)
		var refused *refusal
		c.note.Status = http.StatusOK
		switch {
		case errors.As(err, &refused):
			c.note.Status, value = refused.status, map[string]any{"errors": []string{refused.text}}
		case err != nil:
			c.note.Status, value = http.StatusInternalServerError, map[string]any{"errors": []string{err.Error()}}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(c.note.Status)
		if text, ok := value.(string); ok {
			_, _ = io.WriteString(w, text)
			return
		}
		_ = json.NewEncoder(w).Encode(value) // a caller that has gone needs no answer
	}
}

// answer is the value to send, or a *refusal. Even where a fault hides the answer, the request is read, for the record.
func (s *Server) answer(c *call, answer func(*call) (any, error), fault Fault, within, appKey bool) (any, error) {
	if fault == NoData {
		c.series = nil
	}
	value, err := answer(c)
	switch fault {
	case Down:
		return nil, &refusal{http.StatusServiceUnavailable, "Service Unavailable"}
	case Limited:
		return nil, &refusal{http.StatusTooManyRequests, "Too many requests"}
	case None, Slow, Forbidden, ErrorIn200, NoData, Malformed:
	}
	switch {
	case fault == Forbidden, !accepted(c.Header.Get("DD-API-KEY"), s.options.APIKey),
		appKey && !accepted(c.Header.Get("DD-APPLICATION-KEY"), s.options.AppKey):
		return nil, &refusal{http.StatusForbidden, "Forbidden"}
	case !within:
		return nil, &refusal{http.StatusTooManyRequests, "Too many requests"}
	case err != nil:
		return nil, err
	case fault == ErrorIn200 && strings.HasPrefix(c.URL.Path, "/api/v1/"):
		return map[string]any{"status": "error", "error": "query timed out", "series": []any{}}, nil
	case fault == ErrorIn200:
		return map[string]any{"errors": "query timed out"}, nil
	case fault == Malformed:
		return `{"data": {"attributes": <html>`, nil
	}
	return value, nil
}

func accepted(got, want string) bool {
	return got != "" && (want == "" || got == want)
}

// count counts a request against the limit and writes the headers of
// https://docs.datadoghq.com/api/latest/rate-limits/. It reports whether the request is within the limit.
func (s *Server) count(h http.Header, fault Fault, now time.Time) bool {
	limit := s.limit
	if limit == (Limit{}) && fault != Limited {
		return true
	}
	if limit == (Limit{}) {
		limit = Limit{Requests: 100, Period: time.Minute}
	}
	if period := floor(now, limit.Period); !period.Equal(s.period) {
		s.period, s.used = period, 0
	}
	if fault == Limited {
		s.used = limit.Requests
	}
	within := s.used < limit.Requests
	if within {
		s.used++
	}
	h.Set("X-RateLimit-Name", limitName)
	h.Set("X-RateLimit-Limit", strconv.Itoa(limit.Requests))
	h.Set("X-RateLimit-Period", strconv.Itoa(int(limit.Period.Seconds())))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(limit.Requests-s.used))
	h.Set("X-RateLimit-Reset", strconv.Itoa(int(math.Ceil(s.period.Add(limit.Period).Sub(now).Seconds()))))
	return within
}

// request is a ScalarFormulaQueryRequest or a TimeseriesFormulaQueryRequest.
type request struct {
	Data struct {
		Type       string `json:"type"`
		Attributes struct {
			From     *int64 `json:"from"`
			To       *int64 `json:"to"`
			Interval int64  `json:"interval"`
			Queries  []struct {
				Aggregator string `json:"aggregator"`
				DataSource string `json:"data_source"`
				Name       string `json:"name"`
				Query      string `json:"query"`
			} `json:"queries"`
			Formulas []struct {
				Formula string          `json:"formula"`
				Limit   json.RawMessage `json:"limit"`
			} `json:"formulas"`
		} `json:"attributes"`
	} `json:"data"`
}

// output is one formula's, or without formulas one query's, values.
type output struct {
	name   string
	values table
}

// run reads a request of version 2 and computes its outputs. aggregated reports whether it is a scalar one.
func (s *Server) run(c *call, kind string, aggregated bool) (grid, []output, error) {
	if media, _, _ := mime.ParseMediaType(c.Header.Get("Content-Type")); media != "application/json" {
		return grid{}, nil, bad("Content-Type must be application/json")
	}
	var r request
	decoder := json.NewDecoder(strings.NewReader(string(c.body)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return grid{}, nil, bad("invalid JSON: %v", err)
	}
	a := r.Data.Attributes
	for _, q := range a.Queries {
		c.note.Queries = append(c.note.Queries, q.Query)
	}
	for _, f := range a.Formulas {
		c.note.Formulas = append(c.note.Formulas, f.Formula)
	}
	switch {
	case r.Data.Type != kind:
		return grid{}, nil, bad("data.type must be %q", kind)
	case a.From == nil || a.To == nil:
		return grid{}, nil, bad("from and to are required")
	case *a.From >= *a.To:
		return grid{}, nil, bad("from must be before to")
	case len(a.Queries) == 0:
		return grid{}, nil, bad("at least one query is required")
	case a.Interval < 0 || aggregated && a.Interval != 0:
		return grid{}, nil, bad("invalid interval")
	}
	c.note.From, c.note.To, c.note.Interval = time.UnixMilli(*a.From), time.UnixMilli(*a.To), time.Duration(a.Interval)*time.Millisecond
	expressions, names := []*expression{}, []string{}
	var rollup time.Duration
	for i, q := range a.Queries {
		e, err := parse(q.Query, nil)
		if err != nil {
			return grid{}, nil, bad("%v", err)
		}
		if q.Name == "" {
			q.Name = fmt.Sprintf("query%d", i+1)
		}
		if q.DataSource != "metrics" {
			return grid{}, nil, bad("invalid data_source %q", q.DataSource)
		}
		if aggregated != slices.Contains([]string{"avg", "min", "max", "sum", "last", "mean", "l2norm", "area"}, q.Aggregator) {
			return grid{}, nil, bad("invalid aggregator %q", q.Aggregator)
		}
		if slices.Contains(names, q.Name) {
			return grid{}, nil, bad("duplicate query name %q", q.Name)
		}
		expressions, names, rollup = append(expressions, e), append(names, q.Name), max(rollup, e.rollup())
	}
	g := s.grid(c, rollup)
	tables := map[string]table{}
	var outputs []output
	for i, e := range expressions {
		values := e.evaluate(c.series, g, nil)
		if aggregated {
			values = values.aggregate(a.Queries[i].Aggregator, g)
		}
		tables[names[i]] = values
		outputs = append(outputs, output{names[i], values})
	}
	if len(a.Formulas) > 0 {
		outputs = nil
	}
	if aggregated {
		g = grid{from: g.from, to: g.from.Add(1), step: 1} // one value is left of each
	}
	for _, f := range a.Formulas {
		e, err := parse(f.Formula, names)
		if err != nil {
			return grid{}, nil, bad("%v", err)
		}
		outputs = append(outputs, output{f.Formula, e.evaluate(nil, g, tables)})
	}
	return g, outputs, nil
}

// grid is the window in buckets: as long as asked for or as a query says, but not shorter than can be had.
func (s *Server) grid(c *call, rollup time.Duration) grid {
	g := grid{from: c.note.From, to: c.note.To, step: max(c.note.Interval, s.options.MinInterval), now: s.options.Now()}
	if c.note.Interval == 0 {
		// Datadog chooses some 300 points.
		g.step = max(g.step, g.to.Sub(g.from)/300).Truncate(time.Second)
	}
	if rollup > 0 {
		g.step = rollup
	}
	for g.to.Sub(g.from)/g.step > maxPoints {
		g.step *= 2
	}
	return g
}

// aggregate makes one value of each group's buckets.
func (t table) aggregate(method string, g grid) table {
	out := table{}
	for key, buckets := range t {
		var values []float64
		for _, v := range buckets {
			if v != nil {
				values = append(values, *v)
			}
		}
		out[key] = []*float64{aggregate(method, values, g.step)}
	}
	return out
}

// timeseries answers POST /api/v2/query/timeseries.
func (s *Server) timeseries(c *call) (any, error) {
	g, outputs, err := s.run(c, "timeseries_request", false)
	if err != nil {
		return nil, err
	}
	series, values, times := []any{}, []any{}, []int64{}
	for i, one := range outputs {
		for _, key := range one.values.keys() {
			series = append(series, map[string]any{"group_tags": groupTags(key), "query_index": i, "unit": nil})
			values = append(values, one.values[key])
		}
	}
	if len(series) > 0 {
		for _, at := range g.starts() {
			times = append(times, at.UnixMilli())
		}
	}
	return document("timeseries_response", map[string]any{"series": series, "times": times, "values": values}), nil
}

// scalar answers POST /api/v2/query/scalar.
func (s *Server) scalar(c *call) (any, error) {
	_, outputs, err := s.run(c, "scalar_request", true)
	if err != nil {
		return nil, err
	}
	// The rows are all groups of all outputs; the columns are the tags and the outputs.
	var rows []string
	for _, one := range outputs {
		for _, key := range one.values.keys() {
			if !slices.Contains(rows, key) {
				rows = append(rows, key)
			}
		}
	}
	slices.Sort(rows)
	columns := []any{}
	if len(rows) > 0 && rows[len(rows)-1] != "" {
		for i, tag := range groupTags(rows[len(rows)-1]) {
			name, _, _ := strings.Cut(tag, ":")
			values := [][]string{}
			for _, key := range rows {
				_, value, _ := strings.Cut(groupTags(key)[i], ":")
				values = append(values, []string{value})
			}
			columns = append(columns, map[string]any{"name": name, "type": "group", "values": values})
		}
	}
	for _, one := range outputs {
		values := []*float64{}
		for _, key := range rows {
			if v := one.values.of(key); v != nil {
				values = append(values, v[0])
			} else {
				values = append(values, nil)
			}
		}
		columns = append(columns, map[string]any{"name": one.name, "type": "number", "values": values, "meta": map[string]any{"unit": nil}})
	}
	return document("scalar_response", map[string]any{"columns": columns}), nil
}

func document(kind string, attributes any) any {
	return map[string]any{"data": map[string]any{"id": "0", "type": kind, "attributes": attributes}}
}

func groupTags(key string) []string {
	if key == "" {
		return []string{}
	}
	return strings.Split(key, ",")
}

// query answers GET /api/v1/query, whose window is in seconds.
func (s *Server) query(c *call) (any, error) {
	text := c.URL.Query().Get("query")
	c.note.Queries = []string{text}
	from, err := strconv.ParseInt(c.URL.Query().Get("from"), 10, 64)
	to, err2 := strconv.ParseInt(c.URL.Query().Get("to"), 10, 64)
	if err != nil || err2 != nil || from >= to {
		return nil, bad("from and to must be seconds, in this order")
	}
	c.note.From, c.note.To = time.Unix(from, 0), time.Unix(to, 0)
	e, err := parse(text, nil)
	if err != nil {
		return nil, bad("%v", err)
	}
	g := s.grid(c, e.rollup())
	values := e.evaluate(c.series, g, nil)
	series := []any{}
	for _, key := range values.keys() {
		points := [][]*float64{}
		for i, at := range g.starts() {
			ms := float64(at.UnixMilli())
			points = append(points, []*float64{&ms, values[key][i]})
		}
		metric, scope := text, "*"
		if e.query != nil {
			metric = e.query.metric
		}
		if key != "" {
			scope = key
		}
		series = append(series, map[string]any{
			"metric": metric, "display_name": metric, "expression": text, "scope": scope, "tag_set": groupTags(key), "aggr": nil, "unit": nil, "query_index": 0,
			"interval": int64(g.step / time.Second), "length": len(points), "pointlist": points, "start": from * 1000, "end": to*1000 - 1,
		})
	}
	return map[string]any{
		"status": "ok", "res_type": "time_series", "query": text, "message": "", "group_by": []string{}, "from_date": from * 1000, "to_date": to * 1000, "series": series,
	}, nil
}

// validate answers GET /api/v1/validate.
func (s *Server) validate(*call) (any, error) { return map[string]any{"valid": true}, nil }
