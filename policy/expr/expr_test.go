package expr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/inventory"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

func metadata(t testing.TB, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func someVars(t testing.TB) Vars {
	return Vars{
		Target: inventory.Target{
			Name: "us-east-1/a", Kind: "Cluster", Version: "kubernetes/v1",
			Metadata: metadata(t, `{"tier": 3, "weight": 0.5, "region": "us-east", "gpu-type": "H100", "on": true, "none": null,
				"nested": {"rack": {"row": "r7"}}, "zones": ["a", "b"], "ports": [{"name": "http", "n": 80}, {"n": 443}], "key": "region", "id": "007"}`),
			Config: metadata(t, `{"server": "https://a.example"}`),
		},
		Environment: "Production", Deployment: "ledger-db",
		Version: policy.Version{Name: "v1.2.3", Artifacts: map[string]string{"image": "sha256:1"}, Params: map[string]string{"size": "big"}},
	}
}

func value(t *testing.T, source string, vars Vars) policy.Value {
	t.Helper()
	got, err := Matches(t.Context(), []policy.Expression{policy.Expression(source)}, inventory.Snapshot{Targets: []inventory.Target{vars.Target}}, vars)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	return got[policy.Expression(source)][0]
}

// Fails if an absent key, a number or a method reads differently from the rulebook, which would move targets between waves.
func TestWhatSelectorsRead(t *testing.T) {
	for source, want := range map[string]any{
		// Numbers stay numbers, whatever way they are written.
		`target.metadata.tier == 3`:                     true,
		`target.metadata.tier == 3.0`:                   true,
		`3 == target.metadata.tier`:                     true,
		`target.metadata.tier != 3`:                     false,
		`target.metadata.tier < 3`:                      false,
		`target.metadata.tier <= 3`:                     true,
		`target.metadata.tier < 3.5`:                    true,
		`2 < target.metadata.tier`:                      true,
		`target.metadata.tier in [1, 2, 3]`:             true,
		`target.metadata.tier in [1, 2]`:                false,
		`target.metadata.tier in [3.0]`:                 true,
		`target.metadata.tier == "3"`:                   false,
		`target.metadata.id == 7`:                       false,
		`target.metadata.weight == 0.5`:                 true,
		`target.metadata.tier + 1`:                      4.0,
		`1 + target.metadata.tier`:                      4.0,
		`target.metadata.tier * 1.5`:                    4.5,
		`target.metadata.tier / 2`:                      1.5,
		`target.metadata.tier % 2 == 1`:                 true,
		`target.metadata.tier - target.metadata.weight`: 2.5,
		`-target.metadata.tier`:                         -3.0,
		`7 / 2`:                                         3.0,
		`{3: "three"}[target.metadata.tier]`:            "three",
		`string(target.metadata.tier)`:                  "3",
		`size(target.metadata.zones) < 2.5`:             true,
		`target.metadata.zones[0]`:                      "a",
		// metadata and labels are one map; target and resource are one variable.
		`target.labels.region == target.metadata.region`:                               true,
		`resource.name == target.name`:                                                 true,
		`target.labels == resource.metadata`:                                           true,
		`target.metadata["gpu-type"]`:                                                  "H100",
		`target.metadata[target.metadata.key]`:                                         "us-east",
		`target["metadata"]["tier"] == 3`:                                              true,
		`target.config.server.endsWith(".example")`:                                    true,
		`target.kind + "/" + target.version`:                                           "Cluster/kubernetes/v1",
		`target.identifier`:                                                            "",
		`environment.name == "Production" && deployment.name == "ledger-db"`:           true,
		`version.name == version.tag && version.artifacts.image.startsWith("sha256:")`: true,
		`version.params.size == "big"`:                                                 true,
		`version.params.absent == null`:                                                true,
		`target.metadata.nested.rack.row`:                                              "r7",
		`target.metadata.nested.rack == {"row": "r7"}`:                                 true,
		`{"row": "r7"} == target.metadata.nested.rack`:                                 true,
		`target.metadata.nested.rack in [{"row": "r7"}]`:                               true,
		`target.metadata.ports.exists(p, p.name == "http" && p.n == 80)`:               true,
		`target.metadata.ports.filter(p, p.name == null).map(p, p.n)[0]`:               443.0,
		`target.metadata.ports.all(p, p.n > 0)`:                                        true,
		`target.metadata.exists(k, k == "tier")`:                                       true,
		`(target.metadata.on ? target.metadata : target.config).tier == 3`:             true,
		`(target.metadata.on ? target.metadata : target.config).absent == null`:        true,
		`[target.metadata][0].absent == null`:                                          true,
		`dyn(target.metadata).absent == null`:                                          true,
		`{"a": target.metadata}.a.absent.deeper == null`:                               true,
		// An absent key reads as null, at any depth.
		`target.metadata.absent == "x"`:                     false,
		`target.metadata.absent != "x"`:                     true,
		`"x" != target.metadata.absent`:                     true,
		`target.metadata.absent == null`:                    true,
		`null == target.metadata.absent`:                    true,
		`target.metadata.absent`:                            nil,
		`target.metadata.none`:                              nil,
		`target.metadata.none == null`:                      true,
		`target.metadata.none.deeper == null`:               true,
		`target.metadata["absent"] == null`:                 true,
		`target.metadata["absent"]["deeper"] != 1`:          true,
		`target.metadata.absent.deeper.still == null`:       true,
		`target.metadata.nested.absent == null`:             true,
		`target.metadata.nested.rack.absent == "x"`:         false,
		`target.config.absent != 3`:                         true,
		`target.metadata[target.name] == null`:              true,
		`target.metadata[target.metadata.region].x == null`: true,
		`target.metadata.absent == target.metadata.other`:   true,
		`target.metadata.absent in ["a", "b"]`:              false,
		`target.metadata.absent in ["a", null]`:             true,
		`!(target.metadata.absent in ["a"])`:                true,
		`type(target.metadata.absent) == null_type`:         true,
		// Presence.
		`has(target.metadata.tier)`:               true,
		`has(target.metadata.absent)`:             false,
		`has(target.metadata.none)`:               true,
		`has(target.metadata.absent.deeper)`:      false,
		`has(target.metadata.nested.rack.row)`:    true,
		`has(target.metadata.nested.rack.absent)`: false,
		`"tier" in target.metadata`:               true,
		`"absent" in target.metadata`:             false,
		// Errors are absorbed where the other side decides.
		`target.metadata.absent < 3 || true`:                                     true,
		`true || target.metadata.absent < 3`:                                     true,
		`target.metadata.absent < 3 && false`:                                    false,
		`has(target.metadata.absent) && target.metadata.absent < 3`:              false,
		`has(target.metadata.absent) ? target.metadata.absent < 3 : true`:        true,
		`target.metadata.on ? "yes" : target.metadata.absent.upper`:              "yes",
		`target.metadata.absent == null ? 9 : target.metadata.absent`:            9.0,
		`target.metadata.on || target.metadata.absent`:                           true,
		`[1, 2].exists(i, target.metadata.absent < i || i == 2)`:                 true,
		`!target.metadata.on`:                                                    false,
		"target.name == 'us-east-1/a' // a remark\n&& target.metadata.tier == 3": true,
	} {
		if got := value(t, source, someVars(t)); got.Err != "" || got.V != want {
			t.Errorf("%s\n got %#v\nwant %#v", source, got, want)
		}
	}
}

// Fails if a failed evaluation stops naming the key that is absent, or becomes a value.
func TestWhyAnEvaluationFails(t *testing.T) {
	for source, want := range map[string]string{
		`target.metadata.absent < 3`:                                     `no key "absent" in target.metadata`,
		`3 > target.metadata.absent`:                                     `no key "absent" in target.metadata`,
		`target.labels.absent >= "a"`:                                    `no key "absent" in target.labels`,
		`resource.metadata["a-b"] < 3`:                                   `no key "a-b" in resource.metadata`,
		`target.metadata.absent.startsWith("x")`:                         `no key "absent" in target.metadata`,
		`target.metadata.absent.deeper.startsWith("x")`:                  `no key "absent" in target.metadata`,
		`target.metadata.nested.absent < 1`:                              `no key "absent" in target.metadata.nested`,
		`target.metadata.nested["rack"].absent < 1`:                      `no key "absent" in target.metadata.nested.rack`,
		`"x".startsWith(target.metadata.absent)`:                         `no key "absent" in target.metadata`,
		`target.name.matches(target.metadata.absent)`:                    `no key "absent" in target.metadata`,
		`target.metadata.absent.matches("a")`:                            `no key "absent" in target.metadata`,
		`size(target.metadata.absent) == 0`:                              `no key "absent" in target.metadata`,
		`"x" in target.metadata.absent`:                                  `no key "absent" in target.metadata`,
		`target.metadata.absent.exists(x, x == 1)`:                       `no key "absent" in target.metadata`,
		`target.metadata.absent + 1`:                                     `no key "absent" in target.metadata`,
		`-target.metadata.absent`:                                        `no key "absent" in target.metadata`,
		`!target.metadata.absent`:                                        `no key "absent" in target.metadata`,
		`int(target.metadata.absent)`:                                    `no key "absent" in target.metadata`,
		`target.metadata.absent ? 1 : 2`:                                 `no key "absent" in target.metadata`,
		`target.metadata.absent && true`:                                 `no key "absent" in target.metadata`,
		`target.metadata.tier == 3 && (target.metadata.absent || false)`: `no key "absent" in target.metadata`,
		`target.metadata.a == "x" || target.metadata.b < 3`:              `no key "b" in target.metadata`,
		`target.metadata.none < 3`:                                       `target.metadata.none is null`,
		`target.metadata[target.metadata.absent]`:                        `no key "absent" in target.metadata`,
		`target.metadata.region < 3`:                                     `"target.metadata.region < 3": the types of its operands do not go together`,
		`target.metadata.region.deeper == "x"`:                           `"target.metadata.region.deeper": no such key: deeper`,
		`target.metadata.zones[7]`:                                       `"target.metadata.zones[7]": index out of bounds: 7`,
		`target.metadata.zones`:                                          `"target.metadata.zones" gives a list; allowed are true or false, a number, a text or null`,
		`target.metadata.nested`:                                         `"target.metadata.nested" gives a map; allowed are true or false, a number, a text or null`,
		`1 / 0 == 1`:                                                     `"1 / 0": division by zero`,
		`1.0 / 0.0`:                                                      `"1.0 / 0.0" gives +Inf, which is not a number to go by`,
		`target.metadata.ports.all(p, p.absent > 1)`:                     `"p.absent > 1": the types of its operands do not go together`,
		`target.metadata.tier % target.metadata.weight`:                  `"target.metadata.tier % target.metadata.weight": the types of its operands do not go together`,
		`[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, a + b + c + d + e > 0)))))`: `costs too much`,
	} {
		got := value(t, source, someVars(t))
		if got.V != nil || !strings.HasPrefix(got.Err, want) && !(want == "costs too much" && strings.Contains(got.Err, want)) {
			t.Errorf("%s\n got %#v\nwant %s", source, got, want)
		}
	}
}

// Fails if a metric condition judges a measurement otherwise than written.
func TestCondition(t *testing.T) {
	vars := someVars(t)
	vars.Args = map[string]any{"below": 0.7}
	vars.Result = map[string]any{"value": 6.0, "errors": 1.0, "total": 3.0, "body": map[string]any{"status": "ok"}}
	vars.Baseline = map[string]any{"value": 5.0}
	for source, want := range map[string]bool{
		`result.value < baseline.value * 1.2`:                   false, // 6 < 6
		`result.value <= baseline.value * 1.2`:                  true,
		`result.value < baseline.value * 2`:                     true,
		`result.errors / result.total < 0.05`:                   false, // never rounded down to 0
		`result.errors / result.total < args.below`:             true,
		`result.body.status == "ok"`:                            true,
		`result.absent == 5`:                                    false,
		`resource.metadata.tier == 3 && result.value * 100 > 1`: true,
	} {
		if got, err := Condition(t.Context(), source, vars); err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", source, got, err, want)
		}
	}
	vars.Baseline = nil
	for source, want := range map[string]string{
		`result.value < baseline.value * 1.2`: `no key "value" in baseline`,
		`result.value`:                        `"result.value" gives a number; it must give true or false`,
		`result.absent`:                       `"result.absent" gives null; it must give true or false`,
		`result.absent > 1`:                   `no key "absent" in result`,
		`result.`:                             `"result.": column 8: Syntax error: no viable alternative at input '.'`,
	} {
		if got, err := Condition(t.Context(), source, vars); got || err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v, %v\nwant %s", source, got, err, want)
		}
	}
}

// Fails if a slip of the pen is found only when a rollout is under way, or a message stops saying what is allowed.
func TestCompile(t *testing.T) {
	for _, c := range []struct {
		source string
		scope  Scope
		want   string
	}{
		{`target.metadata.tier == 3`, InSelector, ""},
		{`true`, InSelector, ""},
		{`target.metadata.on`, InSelector, ""},
		{`target.metadata.tier`, InSortKey, ""},
		{`size(target.name)`, InSortKey, ""},
		{`result.value < 1`, InCondition, ""},
		{``, InSelector, `is empty; write a CEL expression`},
		{" \n", InSelector, `is empty; write a CEL expression`},
		{`size(target.name)`, InSelector, `gives a number; it must give true or false`},
		{`"x"`, InCondition, `gives a text; it must give true or false`},
		{`targt.name == "x"`, InSelector, `column 1: unknown name 'targt'; known here: target, resource, environment, deployment, version`},
		{`result.value < 1`, InSelector, `column 1: unknown name 'result'; known here: target, resource, environment, deployment, version`},
		{`target.nmae == "x"`, InSelector, `target has no field "nmae"; it has: name, kind, identifier, version, metadata, labels, config`},
		{`target["nmae"] == "x"`, InSelector, `target has no field "nmae"; it has: name, kind, identifier, version, metadata, labels, config`},
		{`has(environment.labels)`, InSelector, `environment has no field "labels"; it has: name`},
		{`[1].all(target, target > 0)`, InSelector, `"target" cannot name the element of a loop: it is a variable; choose another name`},
		{`target.name = "x"`, InSelector, `column 13: Syntax error: token recognition error at: '= '; column 15: Syntax error: extraneous input '"x"' expecting <EOF>`},
		{"true &&\n  target.name ==", InSelector, `line 2, column 17: Syntax error: it ends too early`},
		{`target.name.matches("(")`, InSelector, "column 21: invalid matches argument"},
		{`now() > 1`, InSelector, `column 4: unknown name 'now'; known here: target, resource, environment, deployment, version`},
		{strings.Repeat("!", 4097), InSelector, `is 4097 bytes long; at most 4096 are allowed`},
		{strings.Repeat("(", 1000) + "true" + strings.Repeat(")", 1000), InSelector, `expression recursion limit exceeded: 64`},
		{strings.Repeat("[", 1000) + strings.Repeat("]", 1000), InSelector, `expression recursion limit exceeded: 64`},
	} {
		err := Compile(c.source, c.scope)
		if got := message(err); got != c.want && (c.want == "" || !strings.Contains(got, c.want) || strings.Contains(got, "\n")) {
			t.Errorf("%.60s\n got %s\nwant %s", c.source, got, c.want)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Fails if the loader can no longer tell which metrics need a baseline or which arguments a condition reads.
func TestReads(t *testing.T) {
	got := strings.Join(Reads(`result.value < baseline.value * args.factor && [1].all(args2, args2 > 0) && has(args.on) && target.metadata.x == null && args["q"] == 1`), " ")
	want := "args args.factor args.on args.q baseline baseline.value result result.value target target.metadata"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := Reads("((("); got != nil {
		t.Errorf("got %v from what does not compile", got)
	}
}

// Fails if one bad target hides the values of the others, or the order of the snapshot is lost.
func TestMatchesKeepsSnapshotOrder(t *testing.T) {
	snap := inventory.Snapshot{Targets: []inventory.Target{
		{Name: "a", Metadata: metadata(t, `{"tier": 1}`)}, {Name: "b"}, {Name: "c", Metadata: metadata(t, `{"tier": 3}`)},
	}}
	got, err := Matches(t.Context(), []policy.Expression{"target.metadata.tier < 2", "target.name", "target.metadata.tier < 2"}, snap, Vars{})
	if err != nil {
		t.Fatal(err)
	}
	data, _ := json.Marshal(got)
	want := `{"target.metadata.tier \u003c 2":[{"v":true},{"err":"no key \"tier\" in target.metadata"},{"v":false}],"target.name":[{"v":"a"},{"v":"b"},{"v":"c"}]}`
	if string(data) != want {
		t.Errorf("got  %s\nwant %s", data, want)
	}
	if _, err := Matches(t.Context(), []policy.Expression{"nope"}, snap, Vars{}); err == nil || !strings.Contains(err.Error(), `"nope": column 1: unknown name 'nope'`) {
		t.Errorf("got %v for an expression that does not compile", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Matches(ctx, []policy.Expression{"true"}, snap, Vars{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v with a context that is done", err)
	}
}

// Fails if programs, their cache or the shared error values of cel-go race between two evaluations.
func TestConcurrentUse(t *testing.T) {
	vars := someVars(t)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 50 {
				for _, source := range []string{`target.metadata.absent < 3`, `target.metadata.absent.matches("a")`, `string(target.metadata.nested) == ""`, `target.metadata.tier + 1 > 2`} {
					value(t, source, vars)
				}
				_, _ = Render("{{.target.name}}", vars.Map(), nil)
			}
		})
	}
	wait.Wait()
}

// Fails if the cache grows without bound.
func TestCacheIsBounded(t *testing.T) {
	for i := range cacheLimit + 100 {
		blank := strings.NewReplacer("0", " ", "1", "\t").Replace(fmt.Sprintf("%013b", i))
		_, _ = compile(blank, false) // refused, and kept as refused
	}
	if got := len(compiled.entries); got > cacheLimit {
		t.Errorf("the cache holds %d programs; at most %d are allowed", got, cacheLimit)
	}
}

// Fails if a template puts something else into a command or query than what is written.
func TestRender(t *testing.T) {
	vars := someVars(t)
	vars.Args = map[string]any{"rate": 0.25, "big": 1e6, "n": 3.0, "on": true}
	for text, want := range map[string]string{
		"plain":                         "plain",
		"":                              "",
		"ledger-{{.target.name}}":       "ledger-us-east-1/a",
		"{{.resource.metadata.tier}}":   "3",
		"{{ .target.metadata.weight }}": "0.5",
		"{{.args.rate}} {{.args.big}} {{.args.n}}": "0.25 1000000 3",
		"{{.args.on}}":                               "true",
		"{{.version.name}}={{.version.tag}}":         "v1.2.3=v1.2.3",
		"{{.environment.name}}/{{.deployment.name}}": "Production/ledger-db",
		`{{index .target.metadata "gpu-type"}}`:      "H100",
		"{{.target.metadata.nested.rack.row}}":       "r7",
		"a {{- .target.labels.region -}} b":          "aus-eastb",
		"{{/* remark */}}x":                          "x",
		"{{.version.artifacts.image}}":               "sha256:1",
		"}} {":                                       "}} {",
	} {
		if got, err := Render(text, vars.Map(), nil); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", text, got, err, want)
		}
	}
	quote := func(s string) string { return "<" + s + ">" }
	if got, _ := Render(`x="{{.target.kind}}"`, vars.Map(), quote); got != `x="<Cluster>"` {
		t.Errorf("quoted: %s", got)
	}
	vars.Args["nan"] = math.NaN()
	for text, want := range map[string]string{
		"{{.target.metadata.absent}}":        `{{.target.metadata.absent}}: no key "absent" in target.metadata`,
		"{{.target.metadata.absent.deeper}}": `{{.target.metadata.absent.deeper}}: no key "absent" in target.metadata`,
		"{{.target.metadata.region.x}}":      `{{.target.metadata.region.x}}: target.metadata.region is a text, which has no keys`,
		"{{.target.metadata.none}}":          `{{.target.metadata.none}}: target.metadata.none is null, which cannot be written into a text`,
		"{{.target.metadata.zones}}":         `{{.target.metadata.zones}}: target.metadata.zones is a list, which cannot be written into a text`,
		"{{.target.metadata}}":               `{{.target.metadata}}: target.metadata is a map, which cannot be written into a text`,
		"{{.args.nan}}":                      `{{.args.nan}}: args.nan is NaN, which is not a number to write down`,
		"{{.nope.x}}":                        `{{.nope.x}}: unknown name "nope"`,
	} {
		if got, err := Render(text, vars.Map(), nil); got != "" || message(err) != want {
			t.Errorf("%s:\n got %q, %v\nwant %s", text, got, err, want)
		}
	}
}

// Fails if a template gets at functions, pipelines or control structures, or a slip is found only at run time.
func TestCheckTemplate(t *testing.T) {
	const allowed = "; " + allowedTemplate
	for text, want := range map[string]string{
		"{{.target.name}} {{.args.x}}":            "",
		`{{index .target.metadata "a-b" "c"}}`:    "",
		"no template":                             "",
		"{{.}}":                                   "{{.}}: not allowed in a template" + allowed,
		"{{.target.name | printf \"%s\"}}":        `{{.target.name | printf "%s"}}: not allowed in a template` + allowed,
		"{{printf \"%s\" .target.name}}":          `{{printf "%s" .target.name}}: not allowed in a template` + allowed,
		"{{len .target.name}}":                    "{{len .target.name}}: not allowed in a template" + allowed,
		"{{$x := .target.name}}":                  "{{$x := .target.name}}: not allowed in a template" + allowed,
		"{{if .target.name}}x{{end}}":             "{{if .target.name}}x{{end}}: not allowed in a template" + allowed,
		"{{range .target.metadata}}x{{end}}":      "{{range .target.metadata}}x{{end}}: not allowed in a template" + allowed,
		"{{template \"x\"}}":                      `{{template "x"}}: not allowed in a template` + allowed,
		"{{define \"x\"}}y{{end}}":                "defines templates" + allowed,
		"{{block \"x\" .}}y{{end}}":               "defines templates" + allowed,
		"{{\"text\"}}":                            `{{"text"}}: not allowed in a template` + allowed,
		"{{index .target.metadata .target.name}}": "{{index .target.metadata .target.name}}: not allowed in a template" + allowed,
		"{{.target.metadata.gpu-type}}":           `not a template: line 1: bad character U+002D '-'` + allowed,
		"{{.target.name":                          `not a template: line 1: unclosed action` + allowed,
		"{{.nope.x}}":                             `{{.nope.x}}: unknown name "nope"; known here: target, resource, environment, deployment, version, args`,
		"{{.target.nmae}}":                        `{{.target.nmae}}: target has no field "nmae"; it has: name, kind, identifier, version, metadata, labels, config`,
		"{{.target}}":                             `{{.target}}: names all of target; name one of its fields: name, kind, identifier, version, metadata, labels, config, …`,
		"{{.result.value}}":                       `{{.result.value}}: unknown name "result"; known here: target, resource, environment, deployment, version, args`,
		"{{" + strings.Repeat("x", 64<<10) + "}}": `a template of 65540 bytes; at most 65536 are allowed`,
	} {
		if got := message(CheckTemplate(text)); got != want {
			t.Errorf("%.60s:\n got %s\nwant %s", text, got, want)
		}
	}
	if got := message(CheckTemplate("{{.args.x}}", "target")); got != `{{.args.x}}: unknown name "args"; known here: target` {
		t.Errorf("outside a check: %s", got)
	}
	if got := TemplateReads(`{{.args.x}} and {{index .target.metadata "a-b"}}`); len(got) != 2 || got[0][1] != "x" || got[1][2] != "a-b" {
		t.Errorf("reads: %v", got)
	}
}

// Fails if a key, a number or anything but a text changes on its way through the templates.
func TestRenderJSON(t *testing.T) {
	raw := json.RawMessage(`{"{{.target.name}}": "{{.target.kind}}", "n": 12345678901234567890, "list": ["<&>", "{{.version.name}}", true, null, 1.50]}`)
	got, err := RenderJSON(raw, someVars(t).Map(), nil)
	want := `{"list":["<&>","v1.2.3",true,null,1.50],"n":12345678901234567890,"{{.target.name}}":"Cluster"}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
	for raw, want := range map[string]string{
		`{"a": {"b": ["x", "{{.target.metadata.absent}}"]}}`: `a.b[1]: {{.target.metadata.absent}}: no key "absent" in target.metadata`,
		`{`:   `expr: templates in JSON: unexpected EOF`,
		`1 2`: `expr: templates in JSON: more than one value`,
	} {
		if _, err := RenderJSON(json.RawMessage(raw), someVars(t).Map(), nil); message(err) != want {
			t.Errorf("%s:\n got %v\nwant %s", raw, err, want)
		}
	}
}

func BenchmarkMatches(b *testing.B) {
	snap := inventory.Snapshot{}
	for i := range 5000 {
		snap.Targets = append(snap.Targets, inventory.Target{Name: fmt.Sprint(i), Metadata: map[string]any{"tier": float64(i % 4), "region": "us-east"}})
	}
	exprs := []policy.Expression{`target.metadata.tier == 3 && target.metadata.region in ["us-east", "us-west"]`, `target.metadata.region`, `target.metadata.state != "down"`}
	for b.Loop() {
		if _, err := Matches(b.Context(), exprs, snap, Vars{}); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, seed := range []string{`target.metadata.tier == 3`, `has(a.b)`, `[1].map(x, x)`, `"\u00ff"`, `r"x"`, `b'x'`, `{1: 2}[3]`, `a ? b : c`, `target.?x`, "((((", `x.y{z: 1}`, `target.metadata.a.b["c"] < 3 || !target.labels.x`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, source string) {
		start := time.Now()
		_ = Reads(source)
		vars := Vars{Target: inventory.Target{Name: "a", Metadata: map[string]any{"tier": 3.0, "list": []any{"a", nil, map[string]any{"b": nil}}}}}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := Compile(source, InSelector); err == nil {
			if _, err := Matches(ctx, []policy.Expression{policy.Expression(source)}, inventory.Snapshot{Targets: []inventory.Target{vars.Target}}, vars); err != nil && ctx.Err() == nil {
				t.Fatalf("%q compiles and cannot be evaluated: %v", source, err)
			}
		}
		_, _ = Condition(ctx, source, vars)
		if spent := time.Since(start); spent > 5*time.Second {
			t.Fatalf("%q takes %v", source, spent)
		}
	})
}

func FuzzRender(f *testing.F) {
	for _, seed := range []string{"{{.target.name}}", "{{", "{{`", `{{index .target.metadata "a"}}`, "{{define `x`}}", "{{(((", "{{/*"} {
		f.Add(seed)
	}
	vars := Vars{Target: inventory.Target{Name: "a", Metadata: map[string]any{"tier": 3.0}}}.Map()
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := Render(text, vars, nil); err == nil && CheckTemplate(text) != nil && !strings.Contains(text, "result") && !strings.Contains(text, "baseline") {
			t.Fatalf("%q renders although it is refused: %v", text, CheckTemplate(text))
		}
	})
}
