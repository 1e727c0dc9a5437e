package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

// Names in the documents.
const (
	deployment  = "bench"
	environment = "Production"
	before      = "v1"
	after       = "v2"
)

// settleTimeout is how long the visibility records of what has ended may take to be written; they follow within a second.
const settleTimeout = time.Minute

// stage is one measurement's own server, on an empty folder, and what runs against it.
type stage struct {
	folder                string
	server, worker, fleet *process
	client                client.Client
	environ               []string
	close                 []func() error
}

// stage starts a server. What fails later must end the stage.
func (b *bench) stage(ctx context.Context) (_ *stage, err error) {
	b.stages++
	s := &stage{folder: filepath.Join(b.folder, strconv.Itoa(b.stages))}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.end())
		}
	}()
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of a measurement: %w", err)
	}
	s.close = append(s.close, func() error { return os.RemoveAll(s.folder) })
	dev, err := b.program("sluice-dev")
	if err != nil {
		return nil, err
	}
	address := ""
	says := regexp.MustCompile(`export TEMPORAL_ADDRESS=(\S+)`)
	s.server, err = b.spawner.start(ctx, "server", plainEnviron(), func(line string) bool {
		found := says.FindStringSubmatch(line)
		if found != nil {
			address = found[1]
		}
		return found != nil
	}, dev, "up", "--worker=false", "--synchronous", b.synchronous, "--data", s.path("server"), "--port", "0", "--ui-port", "0")
	if err != nil {
		return nil, err
	}
	s.close = append(s.close, s.server.stop)
	s.environ = plainEnviron("TEMPORAL_ADDRESS="+address, "TEMPORAL_NAMESPACE=default", "SLUICE_ACTOR=bench")
	// What the client says of its own polling is no result.
	s.client, err = client.DialContext(ctx, client.Options{HostPort: address, Logger: sdklog.NewStructuredLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))})
	if err != nil {
		return nil, fmt.Errorf("connect to the server at %s: %w", address, err)
	}
	s.close = append(s.close, func() error { s.client.Close(); return nil })
	return s, nil
}

// end ends everything, the last first.
func (s *stage) end() (err error) {
	for i := len(s.close) - 1; i >= 0; i-- {
		err = errors.Join(err, s.close[i]())
	}
	s.close = nil
	return err
}

func (s *stage) path(name string) string { return filepath.Join(s.folder, name) }

// sluice starts a fleet and Sluice's worker, and writes the documents of a rollout over it.
func (b *bench) sluice(ctx context.Context, s *stage, f fleetSetting) error {
	dev, err := b.program("sluice-dev")
	if err != nil {
		return err
	}
	program, err := b.program("sluice")
	if err != nil {
		return err
	}
	scenario, err := f.scenario().Encode()
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.path("scenario.yaml"), scenario, 0o600); err != nil {
		return fmt.Errorf("write the fleet's scenario: %w", err)
	}
	var place struct{ URL string }
	s.fleet, err = b.spawner.start(ctx, "fleet", plainEnviron(), func(line string) bool {
		return json.Unmarshal([]byte(line), &place) == nil && place.URL != ""
	}, dev, "sim", "--scenario", s.path("scenario.yaml"), "--log", s.path("effects.ndjson"))
	if err != nil {
		return err
	}
	s.close = append(s.close, s.fleet.stop)
	if err := writeDocuments(s.path("documents"), f, place.URL); err != nil {
		return err
	}
	config := fmt.Sprintf("connections:\n  fleet: {type: prometheus, url: %q}\n", place.URL)
	if err := os.WriteFile(s.path("worker.yaml"), []byte(config), 0o600); err != nil {
		return fmt.Errorf("write the worker's configuration: %w", err)
	}
	s.worker, err = b.spawner.start(ctx, "worker", s.environ, func(line string) bool { return strings.Contains(line, "worker started") },
		program, "worker", "--config", s.path("worker.yaml"), "--data", s.path("worker"))
	if err != nil {
		return err
	}
	s.close = append(s.close, s.worker.stop)
	return nil
}

// started is what `sluice start` answers.
type started struct{ Rollout, Workflow, Run string }

// start starts a rollout as a person would.
func (b *bench) start(ctx context.Context, s *stage) (st started, err error) {
	program, err := b.program("sluice")
	if err != nil {
		return st, err
	}
	text, err := b.spawner.ask(ctx, s.environ, program, "start", deployment+"@"+after, "-e", environment, "-f", s.path("documents"), "-o", "json")
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal([]byte(text), &st); err != nil || st.Run == "" {
		return st, fmt.Errorf("understand the answer of sluice start, %.200q: %w", text, errors.Join(err))
	}
	return st, nil
}

// refusal is why a plan for such a fleet is refused, before anything is started; nil if it is not.
func (b *bench) refusal(ctx context.Context, f fleetSetting) error {
	program, err := b.program("sluice")
	if err != nil {
		return err
	}
	folder := filepath.Join(b.folder, "plan")
	if err := os.RemoveAll(folder); err != nil {
		return fmt.Errorf("remove the last plan's documents: %w", err)
	}
	if err := writeDocuments(folder, f, "http://127.0.0.1:9"); err != nil {
		return err
	}
	_, err = b.spawner.ask(ctx, plainEnviron(), program, "plan", deployment+"@"+after, "-e", environment, "-f", folder, "--offline")
	return err
}

// version is what the program says of itself.
func (b *bench) version(ctx context.Context) (string, error) {
	program, err := b.program("sluice")
	if err != nil {
		return "", err
	}
	text, err := b.spawner.ask(ctx, plainEnviron(), program, "version")
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line), err
}

// fleetSetting is a fleet and the rollout over it: one wave.
type fleetSetting struct {
	targets, window int
	// back is how many go back at once; 0: a window.
	back     int
	duration fleet.Span
	check    bool
}

// scenario is the fleet's.
func (f fleetSetting) scenario() fleet.Scenario {
	return fleet.Scenario{
		Seed: 1, Version: before, Duration: f.duration,
		Generate: &fleet.Generate{Count: f.targets, Regions: []string{"here"}, Tiers: []fleet.Tier{{Tier: 1, Share: 1, MaxCustomers: 1}}},
		Metrics:  []fleet.Metric{{Name: "error_rate", Help: "Share of requests that fail.", Base: 0.001, Spread: 0.2}},
	}
}

// writeDocuments writes what a rollout over the fleet is made from. JSON is YAML too.
func writeDocuments(folder string, f fleetSetting, url string) error {
	type object = map[string]any
	rules := []object{
		{"waves": object{"waves": []object{{"name": "all", "select": "true", "maxConcurrency": f.window}}}},
		{"rollback": object{"onTargetFailed": "none", "onBreach": "hold", "maxConcurrency": cmp.Or(f.back, f.window)}},
	}
	var documents []object
	if f.check {
		documents = append(documents, object{"type": "Check", "name": "errors", "successCondition": "result.value < 0.5", "provider": object{
			"type": "prometheus", "connection": "fleet", "query": `error_rate{target="{{.target.name}}"}`}})
		rules = append(rules, object{"verification": object{"metrics": []object{{"check": "errors", "count": 1, "during": "apply"}}}})
	}
	for _, t := range f.scenario().Targets() {
		documents = append(documents, object{"type": "Resource", "name": t.Name, "kind": t.Kind})
	}
	documents = append(documents,
		object{"type": "Environment", "name": environment, "resourceSelector": "true"},
		object{"type": "Deployment", "name": deployment, "environments": []string{environment}, "steps": object{
			"apply": []object{{"name": "change", "sim": object{"url": url}}}}},
		object{"type": "Policy", "name": "bench", "rules": rules})
	data, err := json.Marshal(documents)
	if err == nil {
		err = os.MkdirAll(folder, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "bench.json"), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the documents: %w", err)
	}
	return nil
}

// record is what Temporal says of a workflow that has ended.
type record struct {
	kind         string
	start, close time.Time
	events       int64
}

// records lists the workflows that a query finds, once there are as many as that and all have ended: what is listed
// follows what has happened a little later.
func (s *stage) records(ctx context.Context, query string, count int) ([]record, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for {
		found, err := s.list(ctx, query)
		if err != nil {
			return nil, err
		}
		open := 0
		for _, r := range found {
			if r.close.IsZero() {
				open++
			}
		}
		if len(found) >= count && open == 0 {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d workflows are listed by %q, %d of them open; want %d, none open: %w", len(found), query, open, count, ctx.Err())
		case <-time.After(100 * time.Millisecond): // nothing is measured any more
		}
	}
}

// list lists the workflows that a query finds.
func (s *stage) list(ctx context.Context, query string) ([]record, error) {
	var found []record
	for page := []byte(nil); ; {
		answer, err := s.client.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Query: query, PageSize: 1000, NextPageToken: page})
		if err != nil {
			return nil, fmt.Errorf("list the workflows of %q: %w", query, err)
		}
		for _, e := range answer.GetExecutions() {
			r := record{kind: e.GetType().GetName(), start: e.GetStartTime().AsTime(), events: e.GetHistoryLength()}
			if e.GetCloseTime() != nil {
				r.close = e.GetCloseTime().AsTime()
			}
			found = append(found, r)
		}
		if page = answer.GetNextPageToken(); len(page) == 0 {
			return found, nil
		}
	}
}
