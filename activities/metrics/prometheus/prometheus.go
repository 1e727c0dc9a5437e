// Package prometheus measures with a query to anything that speaks the Prometheus query API: Prometheus, VictoriaMetrics,
// Thanos, Mimir.
//
// It reads one number and says why it may not be believed. It must not judge the number, nor let an answer pass that is
// empty, partial, old or ambiguous.
package prometheus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
)

// Config is the metric's configuration.
type Config struct {
	// Query is PromQL that gives one number: a scalar, or a vector of one series; required.
	Query string `json:"query"`
}

const (
	// timeout bounds one request where the connection does not.
	timeout = 10 * time.Second
	// maxAnswer bounds an answer; one number needs 200 bytes, so this is a query that forgot to aggregate.
	maxAnswer = 1 << 20
	// maxShown bounds how many values of an ambiguous answer are shown.
	maxShown = 10
)

// Kind is the entry in the list of providers.
func Kind() metrics.Kind {
	return metrics.Kind{
		Name:            "prometheus",
		NeedsConnection: true,
		Example:         "http://prometheus:9090",
		Decode: func(config json.RawMessage) error {
			_, err := decode(config)
			return err
		},
		Result: []string{"value"},
		Quote:  Quote,
		New:    func(c metrics.Connection) (metrics.Provider, error) { return New(c) },
	}
}

func decode(config json.RawMessage) (Config, error) {
	var c Config
	decoder := json.NewDecoder(bytes.NewReader(config))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return Config{}, metrics.Faults{{Message: strings.TrimPrefix(err.Error(), "json: ") + "; allowed is query"}}
	}
	if _, err := decoder.Token(); err != io.EOF {
		return Config{}, metrics.Faults{{Message: "more than one value"}}
	}
	if strings.TrimSpace(c.Query) == "" {
		return Config{}, metrics.Faults{{Path: "query", Message: "is required: PromQL that gives one number"}}
	}
	return c, nil
}

// Quote makes a value safe inside a PromQL string, whichever of the three quotes stand around it: none of them can be
// closed from within. It does not escape the value for a regular expression, so it is meant for = and !=.
func Quote(value string) string {
	quoted := strconv.Quote(value)
	quoted = quoted[1 : len(quoted)-1]
	return strings.NewReplacer("'", `\x27`, "`", `\x60`).Replace(quoted)
}

// Provider measures over one connection.
type Provider struct {
	name    string
	address string
	token   string
	headers map[string]string
	client  *http.Client
}

var _ metrics.Provider = (*Provider)(nil)

// New returns a provider. The connection's URL is the server's, with its path prefix if it has one and without
// /api/v1/query.
func New(c metrics.Connection) (*Provider, error) {
	base, err := url.Parse(c.URL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.Fragment != "" {
		return nil, fmt.Errorf("prometheus: connection %s: its url is not an http or https address", c.Name)
	}
	if c.Timeout == 0 {
		c.Timeout = timeout
	}
	return &Provider{
		name: c.Name, address: base.JoinPath("api", "v1", "query").String(), token: c.Token, headers: c.Headers,
		client: &http.Client{
			Timeout: c.Timeout,
			// A redirected POST would lose its query, and could carry the token elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Measure runs the query at q.Now. Result is {"value": number}; of more than one series it is {"values": the first 10},
// with a Problem. Where the query is a plain selector, a sample from before q.Since is a Problem; of a computed value
// nobody can tell the age, so such a query must not look back further than the metric's initial delay.
func (p *Provider) Measure(ctx context.Context, q metrics.Query) (metrics.Sample, error) {
	sample, err := p.measure(ctx, q)
	if err != nil {
		return metrics.Sample{}, fmt.Errorf("prometheus: query %s: %w", p.name, err)
	}
	return sample, nil
}

func (p *Provider) measure(ctx context.Context, q metrics.Query) (metrics.Sample, error) {
	c, err := decode(q.Config)
	if err != nil {
		return metrics.Sample{}, err
	}
	if q.Now.IsZero() {
		return metrics.Sample{}, errors.New("no moment to measure at")
	}
	// The age is asked first: a sample that arrives between the two answers then makes the value newer than its
	// stamp, and never lends a new stamp to an old value.
	var ages *answer
	if !q.Since.IsZero() && plainSelector(c.Query) {
		if ages, err = p.ask(ctx, "timestamp("+c.Query+")", q.Now); err != nil {
			return metrics.Sample{}, fmt.Errorf("the age of the data: %w", err)
		}
	}
	values, err := p.ask(ctx, c.Query, q.Now)
	if err != nil {
		return metrics.Sample{}, err
	}
	problems := values.problems
	sample := metrics.Sample{}
	switch n := len(values.values); {
	case n == 0:
		// Nothing in an incomplete answer is not the same as nothing.
		sample.NoData = len(problems) == 0
		problems = append(problems, "no data: the query returned nothing")
	case n > 1:
		problems = append(problems, fmt.Sprintf("%d series instead of one: aggregate them, e.g. with max()", n))
		shown := []any{}
		for _, v := range values.values[:min(n, maxShown)] {
			if finite(v) {
				shown = append(shown, v)
			}
		}
		sample.Result = map[string]any{"values": shown}
	case !finite(values.values[0]):
		problems = append(problems, "the value is "+strconv.FormatFloat(values.values[0], 'f', -1, 64))
	default:
		sample.Result = map[string]any{"value": values.values[0]}
		if ages != nil {
			problems = append(problems, ages.problems...)
			problems = append(problems, tooOld(ages.values, q.Since)...)
		}
	}
	sample.Problem = strings.Join(problems, "; ")
	return sample, nil
}

// tooOld says why the one sample with these stamps, in seconds, may be from before the change.
func tooOld(stamps []float64, since time.Time) []string {
	if len(stamps) != 1 || !finite(stamps[0]) {
		return []string{"the age of the data can't be told"}
	}
	at := time.UnixMilli(int64(math.Round(stamps[0] * 1000)))
	if !at.Before(since) {
		return nil
	}
	const stamp = "2006-01-02T15:04:05.000Z07:00"
	return []string{fmt.Sprintf("older than the change: sampled at %s, the change ended at %s", at.UTC().Format(stamp), since.UTC().Format(stamp))}
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// answer is what one query gave.
type answer struct {
	values   []float64
	problems []string
}

// response is https://prometheus.io/docs/prometheus/latest/querying/api/#format-overview, with the fields by which
// VictoriaMetrics and others say that an answer is not whole.
type response struct {
	Status    string `json:"status"`
	ErrorType string `json:"errorType"`
	Error     string `json:"error"`
	Data      struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	} `json:"data"`
	Warnings        []string `json:"warnings"`
	Infos           []string `json:"infos"`
	IsPartial       bool     `json:"isPartial"`
	PartialResponse bool     `json:"partialResponse"`
}

// ask runs one query.
func (p *Provider) ask(ctx context.Context, query string, now time.Time) (*answer, error) {
	form := url.Values{
		"query": {query},
		"time":  {strconv.FormatFloat(float64(now.UnixMilli())/1000, 'f', 3, 64)},
		// VictoriaMetrics: fail instead of leaving out storage nodes that don't answer.
		"deny_partial_response": {"1"},
		// VictoriaMetrics: evaluate at the time given. Without it the last 30 s are hidden, and the answer is about
		// the time before the change. Prometheus ignores both.
		"nocache": {"1"},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.address, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, errors.New("the request can't be made") // the address in the error may hold a password
	}
	for name, value := range p.headers {
		request.Header.Set(name, value)
	}
	if p.token != "" {
		request.Header.Set("Authorization", "Bearer "+p.token)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	reply, err := p.client.Do(request)
	if err != nil {
		return nil, withoutAddress(err)
	}
	defer func() { _ = reply.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(reply.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(data) > maxAnswer {
		return nil, fmt.Errorf("the answer is longer than %d bytes: aggregate the query", maxAnswer)
	}
	var r response
	malformed := json.Unmarshal(data, &r)
	switch {
	case reply.StatusCode >= 300 && reply.StatusCode < 400:
		return nil, fmt.Errorf("HTTP %d: redirected; put the final address into the connection", reply.StatusCode)
	case reply.StatusCode != http.StatusOK && malformed == nil && r.Error != "":
		return nil, fmt.Errorf("HTTP %d %s: %s", reply.StatusCode, r.ErrorType, r.Error)
	case reply.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("HTTP %d: %s", reply.StatusCode, firstLine(data))
	case malformed != nil:
		return nil, fmt.Errorf("malformed answer: %w", malformed)
	case r.Status != "success":
		return nil, fmt.Errorf("status %q, %s: %s", r.Status, r.ErrorType, r.Error)
	}
	a := &answer{}
	if a.values, err = numbers(r.Data.ResultType, r.Data.Result); err != nil {
		return nil, err
	}
	if r.IsPartial || r.PartialResponse {
		a.problems = append(a.problems, "the answer is partial")
	}
	for _, warning := range r.Warnings {
		a.problems = append(a.problems, "the server warns: "+warning)
	}
	for _, info := range r.Infos {
		if !harmless(info) {
			a.problems = append(a.problems, "the server remarks: "+info)
		}
	}
	return a, nil
}

// harmless reports whether a remark is about the name of a metric only. Every other one may mean that data was left
// out.
func harmless(info string) bool {
	return strings.HasPrefix(info, "PromQL info: metric might not be a counter")
}

// withoutAddress leaves out the address that net/http puts into its errors: it may hold credentials.
func withoutAddress(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// firstLine is what a person needs of an error page.
func firstLine(data []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	if line == "" {
		return "no message"
	}
	return strings.ToValidUTF8(line[:min(len(line), 200)], "")
}

// numbers decodes a result that holds numbers at one moment.
func numbers(kind string, result json.RawMessage) ([]float64, error) {
	switch kind {
	case "scalar":
		v, err := number(result)
		if err != nil {
			return nil, err
		}
		return []float64{v}, nil
	case "vector":
		var series []struct {
			Value     json.RawMessage `json:"value"`
			Histogram json.RawMessage `json:"histogram"`
		}
		if err := json.Unmarshal(result, &series); err != nil {
			return nil, fmt.Errorf("malformed vector: %w", err)
		}
		values := make([]float64, len(series))
		for i, s := range series {
			if s.Histogram != nil {
				return nil, errors.New("the result is a histogram, not a number; use e.g. histogram_quantile()")
			}
			var err error
			if values[i], err = number(s.Value); err != nil {
				return nil, err
			}
		}
		return values, nil
	case "matrix":
		return nil, errors.New("the result is a range of values, not a number; use e.g. rate() or last_over_time()")
	case "string":
		return nil, errors.New("the result is text, not a number")
	}
	return nil, fmt.Errorf("result type %q is not known", kind)
}

// number decodes [seconds, "value"].
func number(pair json.RawMessage) (float64, error) {
	var parts []json.RawMessage
	var text string
	if err := json.Unmarshal(pair, &parts); err != nil || len(parts) != 2 || json.Unmarshal(parts[1], &text) != nil {
		return 0, fmt.Errorf("malformed value %.100q", pair)
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) { // out of range is an infinite value
		return 0, fmt.Errorf("malformed value %q", text)
	}
	return v, nil
}
