// Package datadog measures with a metric query to Datadog, through its own client.
//
// It reads one number and says why it may not be believed. It must not judge the number, nor take nothing for zero, nor
// ask while Datadog limits, nor show its keys.
package datadog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	client "github.com/DataDog/datadog-api-client-go/v2/api/datadog"
	"github.com/DataDog/datadog-api-client-go/v2/api/datadogV2"
	"golang.org/x/net/http/httpguts"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
)

const (
	// timeout bounds one request where the connection does not.
	timeout = 10 * time.Second
	// maxAnswer bounds an answer; 1000 points of 20 queries need half of it, so this is a query that forgot to aggregate.
	maxAnswer = 1 << 20
	// maxShown bounds how many groups of an ambiguous answer are named.
	maxShown = 5
	// maxSaid bounds how much of somebody else's message is shown: a reason has room for 300 bytes, advice among them.
	maxSaid = 200
	// stamp is how moments are shown.
	stamp = "2006-01-02T15:04:05Z07:00"
)

// errTooLong is what a body that is cut off ends with.
var errTooLong = fmt.Errorf("the answer is longer than %d KiB: aggregate the query, or shorten its window", maxAnswer>>10)

// Kind is the entry in the list of providers.
func Kind() metrics.Kind {
	return metrics.Kind{
		Name:            "datadog",
		NeedsConnection: true,
		Keys:            true,
		Example:         "https://api.datadoghq.com or https://api.datadoghq.eu",
		Decode: func(config json.RawMessage) error {
			_, err := decode(config)
			return err
		},
		Result: []string{"value", "queries", "ok", "statusCode", "query"},
		Quote:  Quote,
		New:    func(c metrics.Connection) (metrics.Provider, error) { return New(c) },
	}
}

// Provider measures over one connection.
type Provider struct {
	name    string
	host    string
	timeout time.Duration
	keys    map[string]client.APIKey
	scale   float64
	api     *datadogV2.MetricsApi
	limit   limiter
}

var _ metrics.Provider = (*Provider)(nil)

// New returns a provider. The connection's URL is the API's of a site, such as https://api.datadoghq.eu.
func New(c metrics.Connection) (*Provider, error) {
	base, err := url.Parse(c.URL)
	switch {
	case err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, fmt.Errorf("datadog: connection %s: its url is not an http or https address such as https://api.datadoghq.com", c.Name)
	case c.APIKey == "" || c.AppKey == "":
		return nil, fmt.Errorf("datadog: connection %s: needs an API key and an application key", c.Name)
	case !httpguts.ValidHeaderFieldValue(c.APIKey) || !httpguts.ValidHeaderFieldValue(c.AppKey):
		return nil, fmt.Errorf("datadog: connection %s: a key can't be sent in a header: it holds a line break or a control character", c.Name)
	case c.Token != "":
		return nil, fmt.Errorf("datadog: connection %s: takes keys, not a token", c.Name)
	case c.TimeScale != 0 && (c.TimeScale < 1 || math.IsInf(c.TimeScale, 0) || math.IsNaN(c.TimeScale)):
		return nil, fmt.Errorf("datadog: connection %s: its time scale is below 1", c.Name)
	}
	for name := range c.Headers {
		switch textproto.CanonicalMIMEHeaderKey(name) {
		case "Dd-Api-Key", "Dd-Application-Key", "Authorization":
			return nil, fmt.Errorf("datadog: connection %s: header %s is a credential; keys have their own fields", c.Name, name)
		}
	}
	if c.Timeout == 0 {
		c.Timeout = timeout
	}
	configuration := client.NewConfiguration()
	configuration.Servers = client.ServerConfigurations{{URL: strings.TrimRight(base.String(), "/")}}
	configuration.UserAgent = "sluice (" + configuration.UserAgent + ")"
	maps.Copy(configuration.DefaultHeader, c.Headers)
	// The client would sleep; what is tried again, and when, is the check's to say.
	configuration.RetryConfiguration.EnableRetry = false
	configuration.HTTPClient = &http.Client{
		Timeout:   c.Timeout,
		Transport: bounded{http.DefaultTransport},
		// A redirected request would carry the keys elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &Provider{
		name: c.Name, host: base.Host, timeout: c.Timeout, scale: max(c.TimeScale, 1),
		keys: map[string]client.APIKey{"apiKeyAuth": {Key: c.APIKey}, "appKeyAuth": {Key: c.AppKey}},
		api:  datadogV2.NewMetricsApi(client.NewAPIClient(configuration)),
	}, nil
}

// bounded cuts off answers that are too long. It sees them unpacked.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = &body{answer.Body, maxAnswer}
	}
	return answer, err
}

type body struct {
	io.ReadCloser
	left int
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, errTooLong
	}
	return n, err
}

// question is one measurement's.
type question struct {
	Config
	// from and to are the window, cut to whole buckets. A point is good if its bucket begins not before from and ends
	// not after to.
	from, to time.Time
	bucket   time.Duration
	// names are what each output of the request is; "" is the value.
	names []string
	// clock is the measurement's own: q.Now, and what the request has taken since.
	clock func() time.Time
}

// output is what came back for one formula or query.
type output struct {
	value  float64
	groups []string // one for each series
	empty  bool
}

// Measure asks for the window that ends the evaluation delay before q.Now and begins no earlier than q.Since. Result is
// {"value": number, "ok": true, "statusCode": 200, "query": what was asked}; with named queries also "queries", their
// values by name, and without a formula over several of them no "value". Of a function that looks back by itself, such as
// timeshift, nobody can tell how old its data is: keep such a query from looking back to before the change.
//
// Where the first whole bucket after q.Since has not ended yet, or while Datadog limits, only NotBefore is set.
func (p *Provider) Measure(ctx context.Context, q metrics.Query) (metrics.Sample, error) {
	sample, err := p.measure(ctx, q)
	if err != nil {
		return metrics.Sample{}, fmt.Errorf("datadog: query %s at %s: %w", p.name, p.host, p.redact(err))
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
	if text := c.String(); templated(text) {
		return metrics.Sample{}, fmt.Errorf("%s still holds a template", text)
	}
	ask, early := p.ask(c, q)
	if early > 0 {
		return metrics.Sample{NotBefore: q.Now.Add(early)}, nil
	}
	if wait := p.limit.wait(q.Now); wait > 0 {
		return metrics.Sample{NotBefore: q.Now.Add(wait)}, nil
	}
	asked := time.Now()
	ask.clock = func() time.Time { return q.Now.Add(time.Since(asked)) }
	ctx = context.WithValue(ctx, client.ContextAPIKeys, p.keys)
	var outputs []output
	switch c.Mode {
	case Timeseries:
		outputs, err = p.timeseries(ctx, ask)
	case Scalar:
		outputs, err = p.scalar(ctx, ask)
	}
	if err != nil {
		return metrics.Sample{}, err
	}
	return ask.sample(outputs), nil
}

// scaled is one of the provider's own waits in scaled time.
func (p *Provider) scaled(d time.Duration) time.Duration {
	if p.scale == 1 || d == 0 {
		return d
	}
	// Datadog has no bucket below 1 s.
	return max(time.Duration(float64(d)/p.scale).Round(time.Second), time.Second)
}

// ask says what to ask for, or how much too early it is.
func (p *Provider) ask(c Config, q metrics.Query) (question, time.Duration) {
	window := p.scaled(c.Window)
	ask := question{Config: c, bucket: c.bucket(window, p.scaled)}
	end := q.Now.Add(-p.scaled(c.EvaluationDelay))
	ask.to = floor(end, ask.bucket)
	ask.from = floor(ask.to.Add(-window), ask.bucket)
	if since := ceil(q.Since, ask.bucket); !q.Since.IsZero() && since.After(ask.from) {
		ask.from = since
	}
	if ask.from.Before(ask.to) {
		ask.names = slices.Sorted(maps.Keys(c.Queries))
		if len(c.Queries) == 0 || c.Formula != "" {
			ask.names = append(ask.names, "")
		}
		return ask, 0
	}
	return ask, ask.from.Add(ask.bucket).Sub(end)
}

// floor and ceil are the multiples of a bucket next to a moment; Datadog's buckets begin at them, counted from the epoch.
func floor(at time.Time, bucket time.Duration) time.Time {
	return time.UnixMilli(at.UnixMilli() - at.UnixMilli()%bucket.Milliseconds())
}

func ceil(at time.Time, bucket time.Duration) time.Time {
	if down := floor(at, bucket); down.Before(at) {
		return down.Add(bucket)
	}
	return at
}

// formulas are one for each name; without a formula there are none, and the outputs are the queries.
func (ask question) formulas() []datadogV2.QueryFormula {
	if ask.Formula == "" {
		return nil
	}
	var all []datadogV2.QueryFormula
	for _, name := range ask.names {
		all = append(all, *datadogV2.NewQueryFormula(cmp.Or(name, ask.Formula)))
	}
	return all
}

// each visits each query, in the order of names.
func (ask question) each(visit func(name, query string)) {
	if len(ask.Queries) == 0 {
		visit("query", ask.Query)
	}
	for _, name := range slices.Sorted(maps.Keys(ask.Queries)) {
		visit(name, ask.Queries[name])
	}
}

// timeseries asks for points, and makes one value of each output's.
func (p *Provider) timeseries(ctx context.Context, ask question) ([]output, error) {
	var queries []datadogV2.TimeseriesQuery
	ask.each(func(name, query string) {
		q := datadogV2.NewMetricsTimeseriesQuery(datadogV2.METRICSDATASOURCE_METRICS, query)
		q.SetName(name)
		queries = append(queries, datadogV2.MetricsTimeseriesQueryAsTimeseriesQuery(q))
	})
	attributes := datadogV2.NewTimeseriesFormulaRequestAttributes(ask.from.UnixMilli(), queries, ask.to.UnixMilli())
	attributes.SetInterval(ask.bucket.Milliseconds())
	attributes.Formulas = ask.formulas()
	answer, response, err := p.api.QueryTimeseriesData(ctx, *datadogV2.NewTimeseriesFormulaQueryRequest(
		*datadogV2.NewTimeseriesFormulaRequest(*attributes, datadogV2.TIMESERIESFORMULAREQUESTTYPE_TIMESERIES_REQUEST)))
	if err := p.failed(ask, response, err, answer.Errors, answer.UnparsedObject); err != nil {
		return nil, err
	}
	if answer.Data == nil || answer.Data.Attributes == nil || answer.Data.Attributes.UnparsedObject != nil {
		return nil, errors.New("malformed answer: no points")
	}
	a := answer.Data.Attributes
	if len(a.Values) != len(a.Series) {
		return nil, fmt.Errorf("malformed answer: %d series and the values of %d", len(a.Series), len(a.Values))
	}
	good, err := ask.whole(a.Times)
	if err != nil {
		return nil, err
	}
	outputs := make([]output, len(ask.names))
	for i := range outputs {
		outputs[i].empty = true
	}
	for i, series := range a.Series {
		at := series.GetQueryIndex()
		switch {
		case series.UnparsedObject != nil || at < 0 || int(at) >= len(outputs):
			return nil, errors.New("malformed answer: a series of no query")
		case len(a.Values[i]) != len(a.Times):
			return nil, fmt.Errorf("malformed answer: %d times and %d values", len(a.Times), len(a.Values[i]))
		}
		o := &outputs[at]
		o.groups = append(o.groups, strings.Join(series.GroupTags, ","))
		var values []float64
		for _, j := range good {
			if v := a.Values[i][j]; v != nil { // null is no point, and not 0
				values = append(values, *v)
			}
		}
		if len(values) > 0 {
			o.value, o.empty = aggregate(ask.Aggregator, values), false
		}
	}
	return outputs, nil
}

// whole lists the points, in the order of time, whose buckets lie in the window as a whole. Datadog may have made the
// buckets longer than asked for; how long, only the steps between them tell. Of a single one it is not known, but then
// there were not too many points to lengthen it for.
func (ask question) whole(times []int64) ([]int, error) {
	order := make([]int, len(times))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(times[a], times[b]) })
	bucket := int64(math.MaxInt64)
	for i := 1; i < len(order); i++ {
		bucket = min(bucket, times[order[i]]-times[order[i-1]])
	}
	if bucket <= 0 {
		return nil, errors.New("malformed answer: one time twice")
	}
	if len(times) < 2 {
		bucket = 0
	}
	bucket = max(bucket, ask.bucket.Milliseconds())
	return slices.DeleteFunc(order, func(i int) bool {
		return times[i] < ask.from.UnixMilli() || times[i] > ask.to.UnixMilli()-bucket
	}), nil
}

// aggregate makes one value of some; mode timeseries' aggregators.
func aggregate(how string, values []float64) float64 {
	switch how {
	case "max":
		return slices.Max(values)
	case "min":
		return slices.Min(values)
	case "avg", "mean", "sum":
		sum := 0.0
		for _, v := range values {
			sum += v
		}
		if how == "sum" {
			return sum
		}
		return sum / float64(len(values))
	}
	return values[len(values)-1]
}

// scalar asks for one value of each output.
func (p *Provider) scalar(ctx context.Context, ask question) ([]output, error) {
	var queries []datadogV2.ScalarQuery
	ask.each(func(name, query string) {
		q := datadogV2.NewMetricsScalarQuery(datadogV2.MetricsAggregator(ask.Aggregator), datadogV2.METRICSDATASOURCE_METRICS, query)
		q.SetName(name)
		queries = append(queries, datadogV2.MetricsScalarQueryAsScalarQuery(q))
	})
	attributes := datadogV2.NewScalarFormulaRequestAttributes(ask.from.UnixMilli(), queries, ask.to.UnixMilli())
	attributes.Formulas = ask.formulas()
	answer, response, err := p.api.QueryScalarData(ctx, *datadogV2.NewScalarFormulaQueryRequest(
		*datadogV2.NewScalarFormulaRequest(*attributes, datadogV2.SCALARFORMULAREQUESTTYPE_SCALAR_REQUEST)))
	if err := p.failed(ask, response, err, answer.Errors, answer.UnparsedObject); err != nil {
		return nil, err
	}
	if answer.Data == nil || answer.Data.Attributes == nil || answer.Data.Attributes.UnparsedObject != nil {
		return nil, errors.New("malformed answer: no columns")
	}
	var rows []string
	var numbers []*datadogV2.DataScalarColumn
	for _, column := range answer.Data.Attributes.Columns {
		switch {
		case column.DataScalarColumn != nil:
			numbers = append(numbers, column.DataScalarColumn)
		case column.GroupScalarColumn != nil:
			for i, values := range column.GroupScalarColumn.Values {
				tag := column.GroupScalarColumn.GetName() + ":" + strings.Join(values, ",")
				if i < len(rows) {
					rows[i] += "," + tag
				} else {
					rows = append(rows, tag)
				}
			}
		default:
			return nil, errors.New("malformed answer: a column that is neither of numbers nor of groups")
		}
	}
	if len(numbers) != len(ask.names) && len(numbers) > 0 {
		return nil, fmt.Errorf("malformed answer: %d columns of numbers where %d were asked for", len(numbers), len(ask.names))
	}
	outputs := make([]output, len(ask.names))
	for i := range outputs {
		outputs[i].empty = true
		if i >= len(numbers) {
			continue
		}
		for j, v := range numbers[i].Values {
			group := ""
			if j < len(rows) {
				group = rows[j]
			}
			outputs[i].groups = append(outputs[i].groups, group)
			if v != nil { // null is no value, and not 0
				outputs[i].value, outputs[i].empty = *v, false
			}
		}
	}
	return outputs, nil
}

// sample says what was seen, and why it may not be believed.
func (ask question) sample(outputs []output) metrics.Sample {
	var sample metrics.Sample
	var value any
	named := map[string]any{}
	var problems []string
	missing := true
	for i, o := range outputs {
		problem := o.problem()
		name := ask.names[i]
		// Where there is a formula its value decides; a query that has none may well be one for which it has a default.
		decides := name == "" || ask.Formula == ""
		switch {
		case problem == "" && o.empty:
			if decides {
				what := ask.String()
				if name != "" {
					what = name + "=" + ask.Queries[name]
				}
				problems = append(problems, fmt.Sprintf("no data: %s had no value from %s to %s", what, ask.from.UTC().Format(stamp), ask.to.UTC().Format(stamp)))
			}
			continue
		case problem == "" && name == "":
			value = o.value
		case problem == "":
			named[name] = o.value
			if len(outputs) == 1 {
				value = o.value
			}
		case decides:
			problems = append(problems, strings.TrimPrefix(name+": "+problem, ": "))
		}
		missing = missing && !decides
	}
	sample.NoData, sample.Problem = missing, strings.Join(problems, "; ")
	switch {
	case sample.Problem == "":
		sample.Result = map[string]any{"ok": true, "statusCode": float64(http.StatusOK), "query": ask.String()}
		if value != nil {
			sample.Result["value"] = value
		}
		if len(ask.Queries) > 0 {
			sample.Result["queries"] = named
		}
	case len(named) > 0:
		sample.Result = map[string]any{"queries": named} // for people; no condition sees it
	}
	return sample
}

// problem is why an output can't be one number; empty: it is one, or none.
func (o output) problem() string {
	switch {
	case len(o.groups) > 1:
		shown := o.groups[:min(len(o.groups), maxShown)]
		text := strings.Join(shown, " ")
		if len(shown) < len(o.groups) {
			text += " …"
		}
		return fmt.Sprintf("%d series instead of one (%s): aggregate them, e.g. without by {…}", len(o.groups), text)
	case !o.empty && (math.IsNaN(o.value) || math.IsInf(o.value, 0)):
		return fmt.Sprintf("the value is %v", o.value)
	}
	return ""
}

// failed says what is wrong with an answer, and what to do about it.
func (p *Provider) failed(ask question, response *http.Response, err error, inside *string, unparsed map[string]any) error {
	limited := ""
	if response != nil {
		limited = p.limit.learn(response, ask.clock())
	}
	var refused client.GenericOpenAPIError
	var address *url.Error
	var slow net.Error
	switch {
	case limited != "":
		return fmt.Errorf("HTTP 429: rate limited: %s; nothing is asked until then. Lengthen the interval of checks, or have Datadog raise the limit", limited)
	case errors.Is(err, errTooLong):
		return errTooLong
	case errors.As(err, &refused) && response != nil && response.StatusCode >= 300:
		return fmt.Errorf("HTTP %d: %s%s", response.StatusCode, p.said(refused), advice(response.StatusCode))
	case errors.As(err, &refused):
		return fmt.Errorf("malformed answer: %s", refused.ErrorMessage)
	case errors.As(err, &slow) && slow.Timeout():
		return fmt.Errorf("no answer within %s", p.timeout)
	case errors.As(err, &address):
		return address.Err // without the address, as in the rest of these texts
	case err != nil:
		return err
	case inside != nil && *inside != "":
		return fmt.Errorf("HTTP 200 with an error in it: %s", p.shown(*inside))
	case unparsed != nil && unparsed["errors"] != nil:
		return fmt.Errorf("HTTP 200 with an error in it: %s", p.shown(fmt.Sprint(unparsed["errors"])))
	case unparsed != nil:
		return errors.New("malformed answer: not the documented shape")
	}
	return nil
}

// said is what Datadog says about a refusal.
func (p *Provider) said(refused client.GenericOpenAPIError) string {
	if model, ok := refused.ErrorModel.(datadogV2.APIErrorResponse); ok && len(model.Errors) > 0 {
		return p.shown(strings.Join(model.Errors, "; "))
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(refused.ErrorBody)), "\n")
	return p.shown(cmp.Or(line, "no message"))
}

// shown is the beginning of what somebody else wrote. Keys leave it before it is cut, since the cut could go through one.
func (p *Provider) shown(text string) string {
	text = p.redacted(text)
	return strings.ToValidUTF8(text[:min(len(text), maxSaid)], "")
}

// advice says what to do about a status.
func advice(status int) string {
	switch {
	case status == http.StatusBadRequest:
		return "; correct the query"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return "; a key is wrong, lacks timeseries_query, or belongs to another site: keys are per site, and the connection's url must be that site's API"
	case status >= 300 && status < 400:
		return "; redirected: put the final address into the connection"
	}
	return ""
}

// redact takes the keys out of an error that Datadog, or whoever stands between, may have put them into.
func (p *Provider) redact(err error) error {
	if text := p.redacted(err.Error()); text != err.Error() {
		return errors.New(text)
	}
	return err
}

// redacted is text without the keys.
func (p *Provider) redacted(text string) string {
	for _, key := range p.keys {
		text = strings.ReplaceAll(text, key.Key, "(redacted)")
	}
	return text
}
