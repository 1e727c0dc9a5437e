package datadog

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	fake "github.com/seed-a0a4f4e3/sluice/tests/fakes/datadog"
)

func TestConfigurations(t *testing.T) {
	const credentials = "credentials and site belong in the worker's connection; write `connection: NAME`"
	const shorten = "after a change there is none for up to twice as long, so shorten the rollup"
	const allowed = "allowed are query, queries, formula, mode, aggregator, window, intervalSeconds, evaluationDelay"
	for _, c := range []struct{ config, want string }{
		{`{"query": "sum:errors{env:prod,cluster:{{.resource.name}}}"}`, ""},
		{`{"query": "sum:errors{service:api}.as_rate()", "mode": "scalar", "aggregator": "percentile", "window": "1h", "evaluationDelay": "2m"}`, ""},
		{`{"queries": {"errors": "sum:errors{*}", "requests": "sum:requests{*}"}, "formula": "errors / requests * 100", "intervalSeconds": 300}`, ""},
		{`{"queries": {"a": "avg:kubernetes.cpu.usage{cluster:{{.resource.name}}}"}, "formula": "a", "aggregator": "last"}`, ""},
		{`{"queries": {"a": "x{*}", "b": "y{*}"}, "formula": "{{.version.params.formula}}"}`, ""},
		{`{"query": "{{.args.query}}", "mode": "{{.args.mode}}", "aggregator": "{{.args.how}}", "window": "{{.args.window}}", "evaluationDelay": "{{.args.delay}}"}`, ""},
		{`{"query": "x{*}", "mode": "{{.args.mode}}", "aggregator": "area", "intervalSeconds": "{{.args.seconds}}"}`, ""},
		{`{}`, "query: is required: a metric query such as sum:errors{env:prod}; or queries, by name"},
		{`{"query": " "}`, "query: is empty"},
		{`{"query": 7}`, "query: must be text"},
		{`{"query": null}`, "query: must be text"},
		{`{"query": "x{*}", "queries": {"a": "x{*}"}}`, "query: write either query or queries"},
		{`{"query": "x{*}", "formula": "a"}`, "formula: needs queries, by the names that it calls them"},
		{`{"queries": {}}`, "queries: must be a mapping of names to metric queries, and hold one at least"},
		{`{"queries": ["x{*}"]}`, "queries: must be a mapping of names to metric queries, and hold one at least"},
		{`{"queries": {"1st": "x{*}", "a": ""}, "formula": "c / d"}`,
			"queries.1st: a formula can't name it: a name is letters, digits and _, and does not begin with a digit\nqueries.a: is empty\nformula: names none of the queries: 1st, a"},
		{`{"query": "x{*}", "apiKey": "{{.variables.key}}", "appKey": "k", "site": "datadoghq.eu"}`,
			"apiKey: " + credentials + "\nappKey: " + credentials + "\nsite: " + credentials},
		{`{"query": "x{*}", "mode": "fast", "aggregator": "best", "window": "5", "evaluationDelay": "-1s", "widow": 1}`,
			"widow: unknown field; " + allowed + "\nmode: \"fast\" is neither timeseries nor scalar\n" +
				"aggregator: \"best\" is not one of avg, min, max, sum, last, percentile, mean, l2norm, area\n" +
				"window: \"5\" is not a duration from 10s to 24h0m0s, such as 5m\nevaluationDelay: \"-1s\" is not a duration from 0s to 1h0m0s, such as 5m"},
		{`{"query": "x{*}", "aggregator": "area"}`, `aggregator: "area" needs mode: scalar; in mode timeseries it is one of last, avg, mean, max, min, sum`},
		{`{"query": "x{*}", "mode": 7}`, "mode: must be text"},
		{`{"query": "x{*}", "window": "5m", "intervalSeconds": 300}`, "intervalSeconds: write either window or intervalSeconds, which are the same"},
		{`{"query": "x{*}", "intervalSeconds": 1.5}`, "intervalSeconds: 1.5 is not a number of seconds from 10 to 86400"},
		{`{"query": "x{*}", "window": "1s"}`, `window: "1s" is not a duration from 10s to 24h0m0s, such as 5m`},
		{`{"query": "x{*}.rollup(avg, 3600)"}`, ""},
		{`{"query": "x{*}.rollup(avg, {{.args.rollup}})"}`, ""},
		{`{"query": "x{cluster:{{.resource.name}}}.rollup(avg, 86400)"}`, "query: its buckets are longer than 3600 s: .rollup(avg, 86400); " + shorten},
		{`{"queries": {"a": "x{*}.rollup(99999999999999999999)", "b": "y{*}.rollup(avg, 3601)"}}`,
			"queries.a: its buckets are longer than 3600 s: .rollup(99999999999999999999); " + shorten + "\nqueries.b: its buckets are longer than 3600 s: .rollup(avg, 3601); " + shorten},
		{`{"query": "x{*}"} 1`, "more than one value"},
		{`null`, "is not an object; " + allowed},
		{`[]`, "is not an object; " + allowed},
	} {
		err := Kind().Decode(json.RawMessage(c.config))
		var faults metrics.Faults
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &faults) || err.Error() != c.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", c.config, err, c.want)
		}
	}
}

// TestAValueCannotChangeTheQuery fails when a target's name can make a query look at other targets.
func TestAValueCannotChangeTheQuery(t *testing.T) {
	b := newBench(t, fake.Options{Series: []fake.Series{
		constant("errors", 1, map[string]string{"cluster": "a"}),
		constant("errors", 100, map[string]string{"cluster": "b"}),
	}}, nil)
	for _, name := range []string{"a,cluster:b} or {*", "*", "a*", "!a", "a} by {cluster", "a,!cluster:b", "a OR cluster:b", "(a)", `"a"`, "a\n", "a\t,b", "a}.rollup(max)", "\u202ea"} {
		config, err := json.Marshal(map[string]string{"query": "sum:errors{cluster:" + Quote(name) + "}"})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := b.measure(t, string(config)); err != nil || !got.NoData {
			t.Errorf("%q: %+v, %v; want no data of a cluster that there is not", name, got, err)
		}
		b.server.Add(constant("own", 5, map[string]string{"cluster": name}))
		config = []byte(strings.Replace(string(config), "errors", "own", 1))
		if got, err := b.measure(t, string(config)); err != nil || got.Result["value"] == nil {
			t.Errorf("%q: %+v, %v; want its own data", name, got, err)
		}
	}
	for value, want := range map[string]string{
		"EU-1": "eu-1", "a/b.c:d_e": "a/b.c:d_e", `{,}()!*" ` + "\n": "__________", "Größe ７": "größe_７", "v1+b": "v1_b", "\xff": "_", "": "",
	} {
		if got := Quote(value); got != want {
			t.Errorf("%q: got %q, want %q", value, got, want)
		}
	}
}
