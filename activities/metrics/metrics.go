// Package metrics is the port to whatever can be asked how a target is doing: a time-series database, an HTTP endpoint.
//
// A provider measures once and reports what it saw. It must not judge: conditions, counts and limits are policy.
package metrics

import (
	"context"
	"encoding/json"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

// Query is one measurement to take.
type Query struct {
	// Config is the provider's part of the metric in the provider's own grammar, templates rendered.
	Config json.RawMessage
	// Since is when the change under judgement ended. Data older than this is never judged.
	Since time.Time
	// Now is the moment to measure at.
	Now time.Time
}

// Sample is what one measurement saw.
type Sample struct {
	// Result is the variable `result` of the conditions, e.g. {"value": 0.3} or {"status": 200, "body": "…"}.
	// Values as encoding/json decodes them.
	Result map[string]any `json:"result,omitempty"`
	// NoData reports that the provider answered and had nothing to say; Problem says so in words too.
	NoData bool `json:"noData,omitempty"`
	// Problem, when not empty, is why nothing may be concluded whatever the condition says: no data, NaN, an infinite
	// value, a partial answer, a warning, more series than expected, data older than the change.
	Problem string `json:"problem,omitempty"`
	// NotBefore, when not zero, says: measure again then; nothing was seen, and nothing counts. It is for what must wait
	// before there can be an answer: data that is not there yet, a rate limit. More than 3 h from now is an error.
	NotBefore time.Time `json:"notBefore,omitzero"`
}

// Provider takes measurements over one connection.
type Provider interface {
	// Measure takes one measurement. Idempotent and read-only. An error is a measurement error (unreachable, refused,
	// malformed, timed out): it is counted, never judged.
	Measure(ctx context.Context, q Query) (Sample, error)
}

// Fault is one thing wrong with a configuration, as for executors.
type Fault = executors.Fault

// Faults is an error that lists every fault found.
type Faults = executors.Faults

// Connection is where a provider is and how to speak to it; it comes from the worker's configuration, never from
// documents.
type Connection struct {
	// Name is how documents refer to it.
	Name string
	// Type is the provider's kind.
	Type string
	// URL is the base address.
	URL string
	// Token is sent as a bearer token when not empty.
	Token string
	// APIKey and AppKey are what kinds with Keys authenticate with, in place of Token.
	APIKey, AppKey string
	// Headers are sent with each request.
	Headers map[string]string
	// Timeout bounds one request; zero means 10 s.
	Timeout time.Duration
	// TimeScale divides a provider's own waiting, for tests and demonstrations in rapid time: how old data must be, how far
	// back is looked, how long its buckets are. 0 and 1: none. Nothing scaled is below 1 s.
	TimeScale float64
}

// Kind is one entry of the visible list of providers.
type Kind struct {
	// Name is the `type` of a metric's provider, e.g. "prometheus".
	Name string
	// NeedsConnection reports whether a metric of this type must have a connection.
	NeedsConnection bool
	// Keys reports whether a connection authenticates with an API key and an application key, and not with a token.
	Keys bool
	// Example is what a connection's URL may look like, for people who have not written one yet.
	Example string
	// Decode checks the provider's configuration (without type and connection), templates not yet rendered; the error
	// is a Faults value that lists every fault by field path.
	Decode func(config json.RawMessage) error
	// Result are the fields that a Sample's Result may have in conditions.
	Result []string
	// Quote makes a template value safe inside this provider's query language.
	Quote func(value string) string
	// New opens a provider over a connection; for a kind that needs none the connection may be zero.
	New func(c Connection) (Provider, error)
}
