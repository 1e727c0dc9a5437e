// Package wire assembles a process: configuration to registries, registries to activities, activities to a worker.
//
// It is the only importer of adapters, and the lists below are the only places where a new one is entered. It decides
// nothing.
package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/activities/metrics/datadog"
	"github.com/seed-a0a4f4e3/sluice/activities/metrics/http"
	"github.com/seed-a0a4f4e3/sluice/activities/metrics/prometheus"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/config"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/command"
	"github.com/seed-a0a4f4e3/sluice/executors/sim"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/expr"
	"github.com/seed-a0a4f4e3/sluice/policy/load"
)

// executorKinds is the list of executors.
func executorKinds() []executors.Kind {
	return []executors.Kind{command.Kind(), sim.Kind()}
}

// providerKinds is the list of metric providers.
func providerKinds() []metrics.Kind {
	return []metrics.Kind{prometheus.Kind(), http.Kind(), datadog.Kind()}
}

// ConnectionTypes lists the types that a connection in the worker's configuration may have.
func ConnectionTypes() []config.Type {
	var types []config.Type
	for _, kind := range providerKinds() {
		types = append(types, config.Type{Name: kind.Name, Keys: kind.Keys, Example: kind.Example})
	}
	slices.SortFunc(types, func(a, b config.Type) int { return strings.Compare(a.Name, b.Name) })
	return types
}

// Loader returns the loader of documents, with everything in the lists.
func Loader() *load.Loader {
	r := load.Registry{Executors: executorKinds()}
	for _, kind := range providerKinds() {
		r.Providers = append(r.Providers, load.ProviderKind{Name: kind.Name, Decode: kind.Decode, Result: kind.Result})
	}
	return load.New(r)
}

// packed is how documents are uploaded and stored.
type packed struct {
	Files []packedFile `json:"files"`
}

type packedFile struct {
	Name string `json:"name"`
	// Text keeps documents readable where they are stored; what is not UTF-8 is not YAML and is refused.
	Text string `json:"text"`
}

// Pack writes documents as one canonical JSON, ordered by name: the same files give the same bytes and the same digest,
// always.
func Pack(files []load.File) (data []byte, digest string, err error) {
	p := packed{Files: make([]packedFile, 0, len(files))}
	for _, f := range files {
		if !utf8.Valid(f.Data) {
			return nil, "", policy.Faults{{Place: policy.Place{File: f.Name}, Message: "is not UTF-8 text"}}
		}
		p.Files = append(p.Files, packedFile{Name: f.Name, Text: string(f.Data)})
	}
	slices.SortFunc(p.Files, func(a, b packedFile) int { return strings.Compare(a.Name, b.Name) })
	data, err = json.Marshal(p)
	if err != nil {
		return nil, "", fmt.Errorf("pack the documents: %w", err)
	}
	return data, ledger.Digest(data), nil
}

// Unpack reads what Pack wrote.
func Unpack(data []byte) ([]load.File, error) {
	var p packed
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return nil, fmt.Errorf("unpack the documents: %w", err)
	}
	files := make([]load.File, len(p.Files))
	for i, f := range p.Files {
		files[i] = load.File{Name: f.Name, Data: []byte(f.Text)}
	}
	return files, nil
}

// Load reads packed documents. The error is policy.Faults when they are at fault.
func Load(data []byte) (policy.Bundle, error) {
	files, err := Unpack(data)
	if err != nil {
		return policy.Bundle{}, err
	}
	return Loader().Files(files)
}

// Refused is the error of Plan when the documents are valid and no plan comes of them: the policies refuse it. It
// unwraps to policy.Faults.
type Refused struct {
	Faults policy.Faults
}

// Error lists the faults.
func (r *Refused) Error() string { return r.Faults.Error() }

// Unwrap returns the faults.
func (r *Refused) Unwrap() error { return r.Faults }

var _ activities.Planner = Plan

// Plan loads packed documents, evaluates what the plan needs, and plans. The command line plans with it, and workers do.
// The error is policy.Faults when the documents or the names in the request are at fault, and a *Refused around
// policy.Faults when the policies refuse the plan.
func Plan(ctx context.Context, data []byte, r policy.Request) (activities.Planned, error) {
	bundle, err := Load(data)
	if err != nil {
		return activities.Planned{}, err
	}
	needs, err := policy.Needs(bundle, r)
	if err != nil {
		return activities.Planned{}, err
	}
	matches, err := expr.Matches(ctx, needs, bundle.Snapshot, expr.Vars{Environment: r.Environment, Deployment: r.Deployment, Version: r.Version})
	if err != nil {
		return activities.Planned{}, fmt.Errorf("evaluate the documents' expressions: %w", err)
	}
	plan, err := policy.MakePlan(bundle, r, matches)
	var faults policy.Faults
	if errors.As(err, &faults) {
		return activities.Planned{}, &Refused{Faults: faults}
	}
	if err != nil {
		return activities.Planned{}, err
	}
	return activities.Planned{Plan: plan, Snapshot: bundle.Snapshot}, nil
}
