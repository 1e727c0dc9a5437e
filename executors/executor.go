// Package executors is the port to whatever really changes a target: a script, a sync, a job, a flash.
//
// An executor asks for a change once and then finds out what became of it, however often the process around it dies.
// It must not decide whether a change may start, retry a change by itself, or know Temporal.
package executors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/inventory"
)

// Direction says which way a change goes.
type Direction string

// The two directions.
const (
	Apply   Direction = "apply"   // to the rollout's version
	Restore Direction = "restore" // back to the version that was read before the change
)

// Change is one change of one target, completely described: two calls with equal changes mean the same change.
type Change struct {
	// Operation is the idempotency key: it names the intent, is stable over crashes and retries of activities, and
	// differs between two intents. Any characters; adapters hash it where they need a file name.
	Operation string `json:"operation"`
	// Direction tells an apply from a restore.
	Direction Direction `json:"direction"`
	// Target is the member of the fleet to change.
	Target inventory.Target `json:"target"`
	// Deployment and Environment name what is released and where to.
	Deployment  string `json:"deployment"`
	Environment string `json:"environment"`
	// Version is the version wanted on the target afterwards; empty means: uninstalled.
	Version string `json:"version"`
	// From is the version read before the change; empty if there was none or it could not be told.
	From string `json:"from,omitempty"`
	// Artifacts and Params are the version's own, by name.
	Artifacts map[string]string `json:"artifacts,omitempty"`
	Params    map[string]string `json:"params,omitempty"`
	// Config is the step's configuration in the executor's own grammar, templates already rendered.
	Config json.RawMessage `json:"config"`
}

// Reading is what a target says of itself.
type Reading struct {
	// Known reports whether the running version could be told at all. A change on an unknown reading is never
	// reported as verified.
	Known bool `json:"known"`
	// Version is the running version; empty with Known means: not installed.
	Version string `json:"version,omitempty"`
	// Detail is one line for people, e.g. where the reading came from.
	Detail string `json:"detail,omitempty"`
}

// Ticket is what Submit leaves for Await. A zero Ticket means that Submit's answer was lost.
type Ticket struct {
	// Handle is the outside system's own name of the operation.
	Handle string `json:"handle,omitempty"`
	// SubmittedAt is when the outside system accepted the change.
	SubmittedAt time.Time `json:"submittedAt,omitzero"`
}

// Outcome is how one step of a change ended. The set is closed.
type Outcome string

// The five outcomes.
const (
	Succeeded     Outcome = "succeeded"     // done, as far as the executor can tell; Verify reads it back
	Failed        Outcome = "failed"        // it ended and did not do what was asked
	Blocked       Outcome = "blocked"       // the world refuses for a reason that passes; nothing was changed
	Indeterminate Outcome = "indeterminate" // the effect is unknown: read the target and decide from that
	Unreachable   Outcome = "unreachable"   // the target could not be asked, and nothing was changed
)

// Outcomes lists the closed set, for validation and for exhaustive tests.
func Outcomes() []Outcome {
	return []Outcome{Succeeded, Failed, Blocked, Indeterminate, Unreachable}
}

// Result is the end of a step.
type Result struct {
	Outcome Outcome `json:"outcome"`
	// Reason is one sentence for the operator; required unless Succeeded.
	Reason string `json:"reason,omitempty"`
	// Output is the bounded tail of what the change printed, at most 4 KiB.
	Output string `json:"output,omitempty"`
	// Retryable reports whether the executor vouches that asking for the same change again, as a new operation, is safe.
	Retryable bool `json:"retryable,omitempty"`
	// Reading is the target's own word, where the step read it.
	Reading Reading `json:"reading,omitzero"`
}

// Sentinels. An error that wraps none of them means: this call could not find out. For Observe, Await and Verify that
// is retried; for Submit it means that the effect is unknown, and Await adopts whatever came of it.
var (
	// ErrUnreachable: the target could not be asked. From Submit it vouches that nothing was sent.
	ErrUnreachable = errors.New("unreachable")
	// ErrRejected: the change was refused for good, nothing was started, asking again will not help.
	ErrRejected = errors.New("rejected")
	// ErrBlocked: the change was refused for a reason that passes, nothing was started, a later Submit may work.
	ErrBlocked = errors.New("blocked")
	// ErrNotSubmitted, from Await: this operation never started and, the executor vouches, never will, even if a lost
	// request still arrives. A new operation may be submitted.
	ErrNotSubmitted = errors.New("not submitted")
	// ErrRunning, from Await: the operation is still running when the context ends. Await again.
	ErrRunning = errors.New("still running")
)

// Executor makes and follows changes of one kind.
type Executor interface {
	// Observe reads which version runs on the target. Idempotent and read-only; blocks for a bounded time.
	// Errors: ErrUnreachable; others are retried.
	Observe(ctx context.Context, c Change) (Reading, error)
	// Submit asks for the change. NOT idempotent in general: the caller calls it at most once for an Operation and
	// never retries it. It returns as soon as the change was accepted; it does not wait for its end.
	// Errors: ErrUnreachable, ErrRejected, ErrBlocked vouch that nothing started; any other means: unknown.
	Submit(ctx context.Context, c Change) (Ticket, error)
	// Await follows the operation to its end, adopting it by Operation when the ticket is zero. Idempotent: it may be
	// called again, from another process too. Blocks until the operation has ended or ctx is done.
	// Errors: ErrRunning when ctx is done first; ErrNotSubmitted; ErrUnreachable; others are retried.
	Await(ctx context.Context, c Change, t Ticket) (Result, error)
	// Verify reads the target back and says whether c.Version runs on it. Idempotent and read-only; it never takes the
	// operation's own word for it. Errors as for Observe.
	Verify(ctx context.Context, c Change) (Result, error)
}

// Traits is what a step's configuration promises, read without running anything.
type Traits struct {
	// Observes reports whether the running version can be read; without it no change is ever verified, and an unknown
	// effect needs a person.
	Observes bool
	// Restores reports whether the change can be taken back; if not, Reason says why.
	Restores bool
	// Uninstalls reports whether a first install can be taken back.
	Uninstalls bool
	// Reason is why it does not restore, for the plan.
	Reason string
	// Longest is how long a change may take by its own configuration; 0: it does not say. A step that is given up on
	// before that may still be at work.
	Longest time.Duration
}

// Kind is one entry of the visible list of executors: how its configuration is checked when documents are loaded.
type Kind struct {
	// Name is the key that selects the executor in a step, e.g. "command".
	Name string
	// Decode checks the step's configuration, given as JSON with its templates not yet rendered, strictly: unknown
	// fields are faults. The error is a Faults value that lists every fault.
	Decode func(config json.RawMessage) (Traits, error)
}

// Fault is one thing wrong with a configuration.
type Fault struct {
	// Path is the field, relative to the configuration, e.g. "exitCodes.75" or "apply[0]"; empty for the whole.
	Path string
	// Message says what is wrong and what is allowed.
	Message string
}

// Faults is an error that lists every fault found.
type Faults []Fault

// Error joins the faults, one a line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = strings.TrimPrefix(one.Path+": "+one.Message, ": ")
	}
	return strings.Join(lines, "\n")
}

// Registry maps a kind's name to its executor.
type Registry map[string]Executor

// Find returns the executor of that kind; the error lists the known ones.
func (r Registry) Find(kind string) (Executor, error) {
	if e, ok := r[kind]; ok {
		return e, nil
	}
	known := make([]string, 0, len(r))
	for name := range r {
		known = append(known, name)
	}
	slices.Sort(known)
	return nil, fmt.Errorf("executors: no executor of kind %q; known: %s", kind, strings.Join(known, ", "))
}
