package wire

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/config"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/load"
)

const documents = `
type: Environment
name: Production
resourceSelector: resource.metadata.env == "prod"
---
type: Resource
name: eu-1
metadata: {env: prod}
---
type: Deployment
name: web
steps:
  apply: [{name: install, command: {check: [cat, version], apply: [install], rollback: [install]}}]
`

const guard = `
type: Policy
name: production
rules: [{soak: 1m}]
`

func request() policy.Request {
	return policy.Request{Deployment: "web", Environment: "Production", Version: policy.Version{Name: "v1"}}
}

func TestPackIsCanonical(t *testing.T) {
	a, b := load.File{Name: "a.yaml", Data: []byte("x: <&>\n")}, load.File{Name: "b.yaml", Data: []byte("y: ü\n")}
	one, digest, err := Pack([]load.File{a, b})
	if err != nil {
		t.Fatal(err)
	}
	other, same, err := Pack([]load.File{b, a})
	if err != nil || digest != same || string(one) != string(other) {
		t.Errorf("the order of files shows: %s and %s (%v)", one, other, err)
	}
	back, err := Unpack(one)
	if diff := cmp.Diff([]load.File{a, b}, back); err != nil || diff != "" {
		t.Errorf("unpacked (-want +got), %v:\n%s", err, diff)
	}
	if _, _, err := Pack([]load.File{{Name: "x.yaml", Data: []byte{0xff}}}); err == nil {
		t.Error("bytes that JSON would change were packed")
	}
	for _, bad := range []string{"", "[]", `{"files":[],"more":1}`} {
		if _, err := Unpack([]byte(bad)); err == nil {
			t.Errorf("%q was unpacked", bad)
		}
	}
}

func TestPlanTellsInvalidFromRefused(t *testing.T) {
	pack := func(text string) []byte {
		data, _, err := Pack([]load.File{{Name: "d.yaml", Data: []byte(text)}})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	plan := func(text string, r policy.Request) error {
		_, err := Plan(context.Background(), pack(text), r)
		return err
	}
	var (
		refused *Refused
		faults  policy.Faults
	)
	if err := plan(documents+"---"+guard, request()); err != nil {
		t.Errorf("valid documents with a policy: %v", err)
	}
	err := plan(documents, request())
	if !errors.As(err, &refused) || !errors.As(err, &faults) {
		t.Errorf("no policy: got %v, want a refusal with faults", err)
	}
	for name, err := range map[string]error{
		"an unknown field":      plan(documents+"---\ntype: Policy\nname: p\nrols: []\n", request()),
		"an unknown deployment": plan(documents, policy.Request{Deployment: "wev", Environment: "Production", Version: policy.Version{Name: "v1"}}),
	} {
		if refused = nil; !errors.As(err, &faults) || errors.As(err, &refused) {
			t.Errorf("%s: got %v, want faults and no refusal", name, err)
		}
	}
}

func TestEvaluatorKnowsEveryVariable(t *testing.T) {
	vars := map[string]any{
		"target": map[string]any{"name": "eu-1", "kind": "Cluster", "identifier": "id", "version": "t1", "metadata": map[string]any{"tier": 3.0},
			"config": map[string]any{"server": "s"}},
		"environment": map[string]any{"name": "Production"},
		"deployment":  map[string]any{"name": "web"},
		"version":     map[string]any{"name": "v1", "artifacts": map[string]any{"image": "i"}, "params": map[string]any{"p": "q"}},
		"args":        map[string]any{"below": 0.7},
		"result":      map[string]any{"value": 0.5},
		"baseline":    map[string]any{"value": 0.4},
	}
	for _, condition := range []policy.Expression{
		`target.name == "eu-1" && target.kind == "Cluster" && target.identifier == "id" && target.version == "t1" && target.config.server == "s"`,
		`resource.metadata.tier == 3 && target.labels.tier == 3`,
		`environment.name == "Production" && deployment.name == "web" && version.name == "v1"`,
		`version.artifacts.image == "i" && version.params.p == "q"`,
		`result.value < args.below && result.value > baseline.value`,
	} {
		if holds, err := (evaluator{}).Condition(context.Background(), condition, vars); err != nil || !holds {
			t.Errorf("%s: got %v and %v", condition, holds, err)
		}
	}
	delete(vars, "baseline")
	if holds, err := (evaluator{}).Condition(context.Background(), "baseline.value == null", vars); err != nil || !holds {
		t.Errorf("without a baseline: got %v and %v, want null", holds, err)
	}
	got, err := evaluator{}.RenderJSON(json.RawMessage(`{"q":"up{name=\"{{.target.name}}\"}"}`), vars, func(s string) string { return "<" + s + ">" })
	if want := `{"q":"up{name=\"<eu-1>\"}"}`; err != nil || string(got) != want {
		t.Errorf("rendered %s and %v, want %s", got, err, want)
	}
}

// TestDatadogMetricsAreLoaded fails when a metric that is written as Ctrlplane's guide has it is not accepted, or when
// credentials in it are.
func TestDatadogMetricsAreLoaded(t *testing.T) {
	const rule = `
type: Policy
name: production
rules:
  - verification:
      metrics:
        - name: error-rate
          provider:
            type: datadog
            query: "sum:errors{env:prod,cluster:{{.resource.name}}}"
          successCondition: result.ok && result.value < 0.01
          intervalSeconds: 60
          count: 5
        - name: cpu
          provider:
            type: datadog
            intervalSeconds: 300
            queries: {cpu: "avg:kubernetes.cpu.usage{cluster:{{.resource.name}}}"}
            formula: cpu
          successCondition: result.ok && result.queries.cpu != null && result.queries.cpu < 80
`
	bundle, err := Loader().Files([]load.File{{Name: "d.yaml", Data: []byte(documents + "---" + rule)}})
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]any{"resource": map[string]any{"name": "EU 1,cluster:us-1"}}
	var quote func(string) string
	for _, kind := range providerKinds() {
		if kind.Name == "datadog" {
			quote = kind.Quote
		}
	}
	var queries []string
	for _, p := range bundle.Policies {
		for _, m := range p.Verification {
			got, err := evaluator{}.RenderJSON(m.Config, vars, quote)
			if err != nil {
				t.Fatal(err)
			}
			queries = append(queries, string(got))
		}
	}
	want := []string{
		`{"query":"sum:errors{env:prod,cluster:eu_1_cluster:us-1}"}`,
		`{"formula":"cpu","intervalSeconds":300,"queries":{"cpu":"avg:kubernetes.cpu.usage{cluster:eu_1_cluster:us-1}"}}`,
	}
	if diff := cmp.Diff(want, queries); diff != "" {
		t.Error(diff)
	}
	_, err = Loader().Files([]load.File{{Name: "d.yaml", Data: []byte(documents + "---" + strings.Replace(rule, "type: datadog", "type: datadog\n            apiKey: k", 1))}})
	if err == nil || !strings.Contains(err.Error(), "apiKey: credentials and site belong in the worker's connection; write `connection: NAME`") {
		t.Errorf("a key in a document: %v", err)
	}
	for text, result := range map[string]map[string]any{
		"result.ok && result.value < 0.01":                                     {"ok": true, "statusCode": 200.0, "value": 0.001},
		"result.ok && result.queries.cpu != null && result.queries.cpu < 80":   {"ok": true, "statusCode": 200.0, "queries": map[string]any{"cpu": 7.0}},
		"result.ok && result.statusCode == 200 && result.queries.none == null": {"ok": true, "statusCode": 200.0, "queries": map[string]any{}},
	} {
		if holds, err := (evaluator{}).Condition(t.Context(), policy.Expression(text), map[string]any{"result": result}); err != nil || !holds {
			t.Errorf("%s: %t, %v", text, holds, err)
		}
	}
}

func TestConnectionsAreOpenedByTypeAndName(t *testing.T) {
	wrapped := map[string]int{}
	o := Options{
		Config: config.Config{Connections: []config.Connection{
			{Name: "main", Type: "prometheus", URL: "http://a.example", Token: "t", Headers: map[string]config.Secret{"X-A": "b"}, Timeout: time.Second},
			{Name: "other", Type: "prometheus", URL: "http://b.example"},
			{Name: "dd", Type: "datadog", URL: "https://api.datadoghq.eu", APIKey: "a", AppKey: "b"},
		}},
		WrapProvider: func(kind, connection string, p metrics.Provider) metrics.Provider {
			wrapped[kind+" "+connection]++
			return p
		},
	}
	connections, err := open(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"main", "other"} {
		if connections.Open["prometheus"][name] == nil || wrapped["prometheus "+name] != 1 {
			t.Errorf("connection %s: opened %v, wrapped %d times", name, connections.Open["prometheus"][name] != nil, wrapped["prometheus "+name])
		}
	}
	if connections.Open["datadog"]["dd"] == nil || wrapped["datadog dd"] != 1 || len(connections.Open["datadog"]) != 1 {
		t.Errorf("datadog: opened %v, wrapped %d times", connections.Open["datadog"], wrapped["datadog dd"])
	}
	o.Config.Connections = append(o.Config.Connections, config.Connection{Name: "odd", Type: "graphite"})
	if _, err := open(o); err == nil {
		t.Error("a connection of an unknown type was opened")
	}
}

func TestEveryListedExecutorIsOpenedAndWrapped(t *testing.T) {
	var wrapped []string
	registry, err := executorsOf(Options{DataDir: t.TempDir(), Wrap: func(kind string, e executors.Executor) executors.Executor {
		wrapped = append(wrapped, kind)
		return e
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range executorKinds() {
		if _, err := registry.Find(kind.Name); err != nil {
			t.Errorf("documents may name what no worker has: %v", err)
		}
		if !slices.Contains(wrapped, kind.Name) {
			t.Errorf("%s is not wrapped", kind.Name)
		}
	}
	if len(registry) != len(executorKinds()) {
		t.Errorf("%d executors opened, %d listed", len(registry), len(executorKinds()))
	}
}

func TestConnectionTypesShowHowTheirAddressLooks(t *testing.T) {
	for _, one := range ConnectionTypes() {
		if !strings.HasPrefix(one.Example, "http") {
			t.Errorf("type %s: got the example %q, want an address: a connection without one gets it as a hint", one.Name, one.Example)
		}
	}
}
