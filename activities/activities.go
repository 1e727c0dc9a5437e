// Package activities touches the world for the workflows: it plans, reads and changes targets, measures and records.
//
// Activities look up and act; they never decide whether a rollout may go on. Each is idempotent or says that it is not.
// Everything outside (executors, metric providers, loader, evaluator, ledger) is injected.
package activities

import (
	"context"
	"encoding/json"
	"time"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// Planned is a plan and what it was made from.
type Planned struct {
	Plan     policy.Plan
	Snapshot inventory.Snapshot
}

// Planner loads documents as they were uploaded and plans a request. It is deterministic. Its error is policy.Faults
// when the documents or the request are at fault, and anything else when it could not find out.
type Planner func(ctx context.Context, documents []byte, r policy.Request) (Planned, error)

// Evaluator renders templates and judges conditions.
type Evaluator interface {
	// RenderJSON renders the templates in each string of a JSON document; quote, when not nil, makes values safe.
	RenderJSON(config json.RawMessage, vars map[string]any, quote func(string) string) (json.RawMessage, error)
	// Condition evaluates a metric's condition; a result that is not a bool is an error.
	Condition(ctx context.Context, source policy.Expression, vars map[string]any) (bool, error)
}

// Connections holds the opened metric providers.
type Connections struct {
	// Kinds are the known types.
	Kinds []metrics.Kind
	// Open maps a type to its providers by connection name; a type that needs no connection has one under "".
	Open map[string]map[string]metrics.Provider
}

// Activities is registered as a whole: each exported method that takes a context is an activity.
type Activities struct {
	Executors   executors.Registry
	Connections Connections
	Plan        Planner
	Evaluator   Evaluator
	Blobs       ledger.Blobs
	Log         ledger.Log
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// TimeScale shortens what rollouts wait for, on a development machine; 0 is the real time.
	TimeScale policy.TimeScale
	// At, when not nil, is called at named points of each activity: "submit.begin", "submit.asked", "submit.end" and so
	// on. Tests end the process there.
	At func(point, target string)

	plans planCache
}
