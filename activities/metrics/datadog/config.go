package datadog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/DataDog/datadog-api-client-go/v2/api/datadogV2"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
)

// Config is the metric's configuration. Ctrlplane's documents are read as they are, except for credentials.
type Config struct {
	// Query is one metric query that gives one series, e.g. "sum:errors{env:prod,cluster:eu-1}". It or Queries is
	// required.
	Query string
	// Queries are metric queries by the names that Formula and conditions call them.
	Queries map[string]string
	// Formula makes one value of the queries, e.g. "errors / requests". Without it a condition sees the queries' values.
	Formula string
	// Mode says who makes one value of the points; default Timeseries.
	Mode Mode
	// Aggregator says how; default "last".
	Aggregator string
	// Window is how far back is looked, but never to before the change; default 1 m. A longer one lets a series that has
	// fallen silent pass on what it said before; data that comes less often than once a minute needs one.
	Window time.Duration
	// EvaluationDelay is how old data must be: the newest is still on its way, and incomplete. Default 30 s.
	EvaluationDelay time.Duration
}

// Mode is the API that is asked. The set is closed.
type Mode string

// The modes.
const (
	// Timeseries asks for points, takes those of whole buckets after the change, and makes one value of them here.
	Timeseries Mode = "timeseries"
	// Scalar lets Datadog make one value of the window.
	Scalar Mode = "scalar"
)

const (
	// defaultWindow is the usual time between measurements, so that each judges data that the one before it did not.
	defaultWindow = time.Minute
	// defaultDelay is within what agents need to send (10 to 15 s) and Datadog to make visible.
	defaultDelay = 30 * time.Second
	// finest is the bucket that is asked for: agents send every 10 s, so a shorter one is empty in between.
	finest = 10 * time.Second
	// maxWindow keeps a window below the 1500 points for which Datadog would lengthen the buckets unasked, see bucket.
	maxWindow = 24 * time.Hour
	// maxPoints is how many buckets are asked for at most.
	maxPoints = 1000
	// maxRollup bounds a query's own buckets: none of them is whole until twice as long after the change.
	maxRollup = time.Hour
	// maxDelay is far above what a source of data needs, the slowest being the clouds' own metrics.
	maxDelay = time.Hour
	// maxQueries bounds one request.
	maxQueries = 20
)

// fields are the configuration's, in the order in which they are listed to people.
var fields = []string{"query", "queries", "formula", "mode", "aggregator", "window", "intervalSeconds", "evaluationDelay"}

// overPoints are the aggregators of mode timeseries.
var overPoints = []string{"last", "avg", "mean", "max", "min", "sum"}

// overWindow are the aggregators of mode scalar, which are the API's.
func overWindow() []string {
	var all []string
	for _, one := range new(datadogV2.MetricsAggregator).GetAllowedValues() {
		all = append(all, string(one))
	}
	return all
}

// queryName is what a formula can name.
var queryName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// templated reports whether text is not known yet: it still holds a template.
func templated(text string) bool { return strings.Contains(text, "{{") }

// decoder collects the faults of one configuration.
type decoder struct {
	raw    map[string]json.RawMessage
	faults metrics.Faults
}

func (d *decoder) fault(path, format string, args ...any) {
	d.faults = append(d.faults, metrics.Fault{Path: path, Message: fmt.Sprintf(format, args...)})
}

// text reads a text field; not ok: there is none.
func (d *decoder) text(name string) (text string, ok bool) {
	raw, there := d.raw[name]
	if !there {
		return "", false
	}
	if json.Unmarshal(raw, &text) != nil || string(raw) == "null" {
		d.fault(name, "must be text")
		return "", false
	}
	return text, true
}

// duration reads a duration field; a template gives the default.
func (d *decoder) duration(name string, standard, least, most time.Duration) time.Duration {
	text, ok := d.text(name)
	if !ok || templated(text) {
		return standard
	}
	parsed, err := time.ParseDuration(text)
	if err != nil || parsed < least || parsed > most {
		d.fault(name, "%q is not a duration from %s to %s, such as 5m", text, least, most)
		return standard
	}
	return parsed
}

// decode checks a configuration, rendered or not.
func decode(config json.RawMessage) (Config, error) {
	d := &decoder{}
	stream := json.NewDecoder(bytes.NewReader(config))
	if err := stream.Decode(&d.raw); err != nil || d.raw == nil {
		return Config{}, metrics.Faults{{Message: "is not an object; allowed are " + strings.Join(fields, ", ")}}
	}
	if _, err := stream.Token(); err != io.EOF {
		return Config{}, metrics.Faults{{Message: "more than one value"}}
	}
	for _, name := range slices.Sorted(maps.Keys(d.raw)) {
		switch {
		case name == "apiKey" || name == "appKey" || name == "site":
			d.fault(name, "credentials and site belong in the worker's connection; write `connection: NAME`")
		case !slices.Contains(fields, name):
			d.fault(name, "unknown field; allowed are %s", strings.Join(fields, ", "))
		}
	}
	c := Config{Mode: Timeseries, Aggregator: "last"}
	d.queries(&c)
	d.aggregation(&c)
	c.Window = d.window()
	c.EvaluationDelay = d.duration("evaluationDelay", defaultDelay, 0, maxDelay)
	if len(d.faults) > 0 {
		return Config{}, d.faults
	}
	return c, nil
}

// queries reads what is asked.
func (d *decoder) queries(c *Config) {
	var one, formula bool
	c.Query, one = d.text("query")
	c.Formula, formula = d.text("formula")
	raw, many := d.raw["queries"]
	if many && (json.Unmarshal(raw, &c.Queries) != nil || len(c.Queries) == 0) {
		d.fault("queries", "must be a mapping of names to metric queries, and hold one at least")
		return
	}
	switch {
	case one && many:
		d.fault("query", "write either query or queries")
	case one && strings.TrimSpace(c.Query) == "":
		d.fault("query", "is empty")
	case one:
		d.rollups("query", c.Query)
	case !many && c.Query == "" && d.raw["query"] == nil:
		d.fault("query", "is required: a metric query such as sum:errors{env:prod}; or queries, by name")
	}
	if len(c.Queries) > maxQueries {
		d.fault("queries", "more than %d", maxQueries)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Queries)) {
		switch {
		case !queryName.MatchString(name):
			d.fault("queries."+name, "a formula can't name it: a name is letters, digits and _, and does not begin with a digit")
		case strings.TrimSpace(c.Queries[name]) == "":
			d.fault("queries."+name, "is empty")
		default:
			d.rollups("queries."+name, c.Queries[name])
		}
	}
	if !formula {
		return
	}
	switch {
	case strings.TrimSpace(c.Formula) == "":
		d.fault("formula", "is empty")
	case !many:
		d.fault("formula", "needs queries, by the names that it calls them")
	case !templated(c.Formula):
		named := strings.FieldsFunc(c.Formula, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' })
		if !slices.ContainsFunc(named, func(name string) bool { return c.Queries[name] != "" }) {
			d.fault("formula", "names none of the queries: %s", strings.Join(slices.Sorted(maps.Keys(c.Queries)), ", "))
		}
	}
}

// aggregation reads how one value comes of many.
func (d *decoder) aggregation(c *Config) {
	mode, _ := d.text("mode")
	unknown := templated(mode)
	switch Mode(mode) {
	case Timeseries, Scalar:
		c.Mode = Mode(mode)
	default:
		if d.raw["mode"] != nil && !unknown && !d.at("mode") {
			d.fault("mode", "%q is neither timeseries nor scalar", mode)
		}
	}
	aggregator, ok := d.text("aggregator")
	if !ok || templated(aggregator) {
		return
	}
	c.Aggregator = aggregator
	if slices.Contains(overPoints, aggregator) || slices.Contains(overWindow(), aggregator) && (c.Mode == Scalar || unknown) {
		return
	}
	if slices.Contains(overWindow(), aggregator) {
		d.fault("aggregator", "%q needs mode: scalar; in mode timeseries it is one of %s", aggregator, strings.Join(overPoints, ", "))
		return
	}
	d.fault("aggregator", "%q is not one of %s", aggregator, strings.Join(overWindow(), ", "))
}

// at reports whether a fault of this field is known already.
func (d *decoder) at(path string) bool {
	return slices.ContainsFunc(d.faults, func(f metrics.Fault) bool { return f.Path == path })
}

// window reads the look-back in either spelling.
func (d *decoder) window() time.Duration {
	raw, seconds := d.raw["intervalSeconds"]
	if !seconds {
		return d.duration("window", defaultWindow, finest, maxWindow)
	}
	if d.raw["window"] != nil {
		d.fault("intervalSeconds", "write either window or intervalSeconds, which are the same")
		return defaultWindow
	}
	if text := strings.Trim(string(raw), `"`); !templated(text) {
		n, err := strconv.Atoi(text)
		if least, most := int(finest/time.Second), int(maxWindow/time.Second); err != nil || n < least || n > most {
			d.fault("intervalSeconds", "%s is not a number of seconds from %d to %d", raw, least, most)
			return defaultWindow
		}
		return time.Duration(n) * time.Second
	}
	return defaultWindow
}

// rollup is the bucket that a query asks for itself, in seconds.
var rollup = regexp.MustCompile(`\.rollup\(\s*(?:[a-z0-9]+\s*,\s*)?([0-9]+)\s*\)`)

// rollups refuses a query whose buckets are too long to wait for.
func (d *decoder) rollups(path, query string) {
	for _, found := range rollup.FindAllStringSubmatch(query, -1) {
		if seconds, err := strconv.Atoi(found[1]); err != nil || seconds > int(maxRollup/time.Second) {
			d.fault(path, "its buckets are longer than %d s: %s; after a change there is none for up to twice as long, so shorten the rollup", int(maxRollup/time.Second), found[0])
		}
	}
}

// bucket is the interval to ask for: no shorter than a query's own, so that it is known how long the buckets are, and
// long enough that Datadog does not lengthen it.
func (c Config) bucket(window time.Duration, scale func(time.Duration) time.Duration) time.Duration {
	bucket := scale(finest)
	if points := window / bucket; points > maxPoints {
		bucket *= points/maxPoints + 1
	}
	for _, query := range append(slices.Collect(maps.Values(c.Queries)), c.Query) {
		for _, found := range rollup.FindAllStringSubmatch(query, -1) {
			if seconds, err := strconv.Atoi(found[1]); err == nil {
				bucket = max(bucket, time.Duration(seconds)*time.Second)
			}
		}
	}
	return bucket
}

// String is what was asked, for people.
func (c Config) String() string {
	if len(c.Queries) == 0 {
		return c.Query
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(c.Queries)) {
		parts = append(parts, name+"="+c.Queries[name])
	}
	if c.Formula == "" {
		return strings.Join(parts, ", ")
	}
	return c.Formula + " of " + strings.Join(parts, ", ")
}

// Quote makes a value safe as (part of) a tag's value: it does to it what Datadog does to tags when they are sent, so
// that it matches them and can hold none of the query's own characters.
// https://docs.datadoghq.com/getting_started/tagging/#define-tags
func Quote(value string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_-:./", r) {
			return unicode.ToLower(r)
		}
		return '_'
	}, value)
}
