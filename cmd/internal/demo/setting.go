package demo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/inventory"
)

// Names in the demo's documents.
const (
	deployment  = "ledger-db"
	environment = "Production"
	before      = "v1"
	after       = "v2"
)

// setting is what happens: who the clusters are and what their policy says.
type setting struct {
	scenario fleet.Scenario
	waves    []waveSetting
	// maxFailures is the rollout's budget.
	maxFailures int
	// backConcurrency is how many clusters go back at once.
	backConcurrency int
	// soak follows each wave. interval and count are those of the check, which begins one interval after the change and
	// must still be running when the regression shows.
	soak, interval time.Duration
	count          int
}

// waveSetting is one wave.
type waveSetting struct {
	name        string
	tier        int
	limit       int // 0: all of the tier that are left
	concurrency int
}

// story is the setting of the demo. Its figures make it watchable: about a minute on two cores, with a wave every few
// seconds, and a breach while others are in flight.
func story(seed int64) setting {
	scenario := fleet.Demo(seed)
	// Longer than anything that the engine does between two of them, so that the order in the log is the one that was
	// meant.
	scenario.Duration = fleet.Span{Min: 600 * time.Millisecond, Max: 1300 * time.Millisecond}
	return setting{
		scenario: scenario,
		waves: []waveSetting{
			{name: "pilot", tier: 3, limit: 10, concurrency: 5},
			{name: "tier-3", tier: 3, concurrency: 40},
			{name: "tier-2", tier: 2, concurrency: 20},
			{name: "tier-1", tier: 1, concurrency: 10},
		},
		maxFailures: 4, backConcurrency: 15,
		soak: 5 * time.Second, interval: time.Second, count: 3,
	}
}

// size says how large the fleet is.
func (s setting) size() string {
	targets := s.scenario.Targets()
	regions := map[any]bool{}
	for _, t := range targets {
		regions[t.Metadata["region"]] = true
	}
	return fmt.Sprintf("%d clusters in %d regions", len(targets), len(regions))
}

// expectation is what the effect log must show if the documents are obeyed. It is made from the scenario, not from the
// rollout's plan, which is among what is judged.
func (s setting) expectation() Expectation {
	e := Expectation{From: before, To: after, BackConcurrency: s.backConcurrency, Checks: time.Duration(s.count) * s.interval, Grace: grace}
	left := s.scenario.Targets()
	slices.SortStableFunc(left, func(a, b inventory.Target) int { return cmp.Compare(customers(a), customers(b)) })
	for _, w := range s.waves {
		wave := Wave{Name: w.name, Concurrency: w.concurrency}
		left = slices.DeleteFunc(left, func(t inventory.Target) bool {
			if t.Metadata["tier"] != float64(w.tier) || w.limit > 0 && len(wave.Clusters) == w.limit {
				return false
			}
			wave.Clusters = append(wave.Clusters, t.Name)
			return true
		})
		e.Waves = append(e.Waves, wave)
	}
	return e
}

// grace is long for two cores that do nothing else, and short beside the way back, which takes 20 s.
const grace = 5 * time.Second

func customers(t inventory.Target) float64 {
	n, _ := t.Metadata["customers"].(float64)
	return n
}

// documents is the demo's release but for the clusters.
var documents = template.Must(template.New("release").Parse(`# What is released, where, and when: the documents of ` + "`sluice-dev demo`" + `.
type: Environment
name: {{.Environment}}
resourceSelector: target.kind == "Cluster"
---
type: Deployment
name: {{.Deployment}}
environments: [{{.Environment}}]
steps:
  apply:
    - name: upgrade
      deadline: 2m
      sim: {url: {{printf "%q" .Fleet}}, pollInterval: 100ms}
---
# A write must not take half as long again as it took just before the change.
type: Check
name: write-latency
provider:
  type: prometheus
  connection: fleet
  query: 'write_latency_ms{target="{{"{{"}}.target.name{{"}}"}}"}'
successCondition: result.value < baseline.value * 1.5
---
type: Policy
name: careful
selectors:
  - environment: environment.name == "{{.Environment}}"
rules:
  # The smallest first: whoever hurts nobody much.
  - waves:
      sortBy: target.metadata.customers
      waves:
{{- range .Waves}}
        - {name: {{.Name}}, select: target.metadata.tier == {{.Tier}}, {{if .Limit}}limit: {{.Limit}}, {{end}}maxConcurrency: {{.Concurrency}}}
{{- end}}
  - soak: {{.Soak}}
  - verification:
      metrics:
        - {check: write-latency, interval: {{.Interval}}, count: {{.Count}}, during: both}
  - failureThreshold: {maxFailures: {{.MaxFailures}}}
  # A cluster that fails waits for the others: the way back is one, in the order in which they were reached.
  - rollback: {onTargetFailed: none, onBreach: rollout, order: deployed, maxConcurrency: {{.BackConcurrency}}}
`))

// writeDocuments writes what a platform engineer would have written.
func (s *show) writeDocuments() error {
	type wave struct {
		Name                     string
		Tier, Limit, Concurrency int
	}
	var waves []wave
	for _, w := range s.setting.waves {
		waves = append(waves, wave{w.name, w.tier, w.limit, w.concurrency})
	}
	var release strings.Builder
	err := documents.Execute(&release, map[string]any{
		"Environment": environment, "Deployment": deployment, "Fleet": s.fleet.url, "Waves": waves, "MaxFailures": s.setting.maxFailures,
		"BackConcurrency": s.setting.backConcurrency, "Soak": s.setting.soak, "Interval": s.setting.interval, "Count": s.setting.count,
	})
	if err != nil {
		return fmt.Errorf("write the documents: %w", err)
	}
	var clusters strings.Builder
	clusters.WriteString("# The fleet. In real life an inventory source says who is in it.\n")
	for _, t := range s.setting.scenario.Targets() {
		metadata, err := json.Marshal(t.Metadata) // which is YAML too
		if err != nil {
			return fmt.Errorf("write the documents: cluster %s: %w", t.Name, err)
		}
		fmt.Fprintf(&clusters, "- {type: Resource, name: %s, kind: %s, metadata: %s}\n", t.Name, t.Kind, metadata)
	}
	if err := os.Mkdir(s.path(documentsFolder), 0o700); err != nil {
		return fmt.Errorf("write the documents: %w", err)
	}
	for name, text := range map[string]string{"release.yaml": release.String(), "clusters.yaml": clusters.String()} {
		if err := os.WriteFile(filepath.Join(s.path(documentsFolder), name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write the documents: %w", err)
		}
	}
	return nil
}
