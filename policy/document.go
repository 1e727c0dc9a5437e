// Package policy decides. It holds the documents a platform engineer writes, turns them with a fleet into a plan, and
// says at each moment of a rollout what may happen next and why.
//
// It is pure: no YAML, no CEL, no clock, no zones, no I/O, no Temporal, no map order. What has to be looked up comes in
// as a value; the present moment comes in as `now`.
package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/inventory"
)

// Duration is a time.Duration that reads and writes itself as Go writes durations, e.g. "1h30m0s".
type Duration time.Duration

// MarshalText writes the duration as time.Duration prints it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	*d = Duration(parsed)
	return nil
}

// String prints the duration without needless zero units: 30m, not 30m0s.
func (d Duration) String() string {
	text := time.Duration(d).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Place is where in the documents something stands. Line and Column count from 1; zero means unknown.
type Place struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

// String prints file:line:column, as far as known.
func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Fault is one thing wrong with the documents or with what was asked of them.
type Fault struct {
	Place Place `json:"place"`
	// Path is the document and the field, e.g. `Policy "production" rules[0].waves[1].limit`.
	Path string `json:"path,omitempty"`
	// Message says what is wrong and what is allowed.
	Message string `json:"message"`
}

// String prints the fault on one line.
func (f Fault) String() string {
	parts := make([]string, 0, 3)
	for _, part := range []string{f.Place.String(), f.Path, f.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// Faults is an error that lists every fault that was found, in the order of the documents.
type Faults []Fault

// Error prints one fault a line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// Expression is the source of a CEL expression that has been compiled once, when the documents were loaded.
type Expression string

// Bundle is everything one rollout is decided from, apart from the fleet.
type Bundle struct {
	Environments []Environment `json:"environments,omitempty"`
	Deployments  []Deployment  `json:"deployments,omitempty"`
	Policies     []Policy      `json:"policies,omitempty"`
	Checks       []Check       `json:"checks,omitempty"`
	// Snapshot holds the hand-written targets in document order.
	Snapshot inventory.Snapshot `json:"snapshot"`
}

// Environment is a named selector over targets.
type Environment struct {
	Name        string     `json:"name"`
	Description string     `json:"description,omitempty"`
	Selector    Expression `json:"selector"` // `resourceSelector` in the documents
	Place       Place      `json:"-"`
}

// Deployment is what is released, and how.
type Deployment struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Environments are the bound ones; empty means that any may be named at start.
	Environments []string `json:"environments,omitempty"`
	// Apply is the one step that changes a target.
	Apply Step `json:"apply"`
	// Rollback says how a target goes back.
	Rollback RollbackKind `json:"rollback"`
	Place    Place        `json:"-"`
}

// RollbackKind says how a target returns to its previous version.
type RollbackKind string

// The ways back. The default is RollbackPrevious.
const (
	RollbackPrevious RollbackKind = "previous" // apply again with the version read before
	RollbackNone     RollbackKind = "none"     // it cannot go back; a rollback lists it
)

// Step is one call of an executor.
type Step struct {
	Name string `json:"name"`
	// Kind selects the executor, e.g. "command".
	Kind string `json:"kind"`
	// Config is the executor's own configuration as JSON, templates not rendered.
	Config json.RawMessage `json:"config"`
	// Deadline bounds how long a step waits for a blocked target, and how long its change may then take. Default 1h.
	Deadline Duration `json:"deadline"`
	// Observes, Restores and Uninstalls are what the executor promises of this configuration; Reason says why it does
	// not restore.
	Observes   bool   `json:"observes"`
	Restores   bool   `json:"restores"`
	Uninstalls bool   `json:"uninstalls"`
	Reason     string `json:"reason,omitempty"`
}

// Policy says when: rules that hold wherever its selectors match.
type Policy struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	// Priority decides which policy's order is taken; higher wins, default 0.
	Priority int `json:"priority,omitempty"`
	// Selectors are alternatives; none means that the policy matches everything.
	Selectors []Selector `json:"selectors,omitempty"`

	Waves            *Waves            `json:"waves,omitempty"`
	Gradual          *GradualRollout   `json:"gradualRollout,omitempty"`
	WaitFor          []WaitFor         `json:"waitFor,omitempty"`
	Verification     []Metric          `json:"verification,omitempty"`
	Approval         *Approval         `json:"approval,omitempty"`
	FailureThreshold *FailureThreshold `json:"failureThreshold,omitempty"`
	Rollback         *Rollback         `json:"rollback,omitempty"`
	// Soak holds for every wave of the rollout.
	Soak  Duration `json:"soak,omitempty"`
	Place Place    `json:"-"`
}

// Selector matches when all of its written expressions do. Environment and Deployment are asked once per rollout,
// Resource once per target; all see target, environment, deployment and version.
type Selector struct {
	Environment Expression `json:"environment,omitempty"`
	Deployment  Expression `json:"deployment,omitempty"`
	Resource    Expression `json:"resource,omitempty"`
}

// Waves is the order in which a rollout walks.
type Waves struct {
	Waves []WaveRule `json:"waves"`
	// Unmatched says what becomes of targets that no wave selects. Default: the plan is refused.
	Unmatched Unmatched `json:"unmatched,omitempty"`
	// SortBy orders the targets of every wave that has no SortBy of its own.
	SortBy []SortKey `json:"sortBy,omitempty"`
}

// Unmatched is the closed set of answers to a target that no wave selects.
type Unmatched string

// The answers.
const (
	UnmatchedRefuse   Unmatched = ""         // refuse the plan, naming the targets
	UnmatchedIgnore   Unmatched = "ignore"   // leave them out, shown
	UnmatchedLastWave Unmatched = "lastWave" // add them to the last wave
)

// WaveRule is one wave as written.
type WaveRule struct {
	Name   string     `json:"name"`
	Select Expression `json:"select"`
	// Limit is the most targets it takes; nil means all. Percent is of the whole environment as planned.
	Limit *Amount `json:"limit,omitempty"`
	// MaxConcurrency is how many may be in flight; nil means 1. Percent is of the wave.
	MaxConcurrency *Amount `json:"maxConcurrency,omitempty"`
	// MaxFailures and MaxUnreachable are the wave's own budget; nil means: the first wave 0, the others the rollout's.
	MaxFailures    *Amount   `json:"maxFailures,omitempty"`
	MaxUnreachable *Amount   `json:"maxUnreachable,omitempty"`
	Soak           Duration  `json:"soak,omitempty"`
	Approval       *Approval `json:"approval,omitempty"`
	SortBy         []SortKey `json:"sortBy,omitempty"`
	// EmptyWaveSkip is `emptyWave: skip`: an empty wave is passed over even where it would be refused.
	EmptyWaveSkip bool  `json:"emptyWaveSkip,omitempty"`
	Place         Place `json:"-"`
}

// GradualRollout starts the targets of its policy one after the other, in an order and at a pace.
type GradualRollout struct {
	Type RolloutType `json:"rolloutType"`
	// Interval is `timeScaleInterval`: between two starts (linear), or the time in which all of them start
	// (linear-normalized). 0, where it is not written: each as soon as the one before it is done.
	Interval Duration  `json:"interval,omitempty"`
	SortBy   []SortKey `json:"sortBy,omitempty"`
	// Overlap is `waitForVerification: false`: a target starts at its time, whether those before it are done or not.
	Overlap bool  `json:"overlap,omitempty"`
	Place   Place `json:"-"`
}

// RolloutType is how the interval of a gradual rollout is meant.
type RolloutType string

// The types.
const (
	Linear           RolloutType = "linear"            // the interval is the time between two starts
	LinearNormalized RolloutType = "linear-normalized" // the interval is divided among the targets
)

// WaitFor is `deploymentDependency.waitFor`: what must have succeeded on the version before a target starts.
type WaitFor struct {
	Name string         `json:"name"`
	Kind DependencyKind `json:"kind"`
	// Place is where the name stands.
	Place Place `json:"-"`
}

// DependencyKind is what kind of thing is waited for. The set is closed.
type DependencyKind string

// The kinds.
const (
	WaitForTarget      DependencyKind = "target"      // a target of the same rollout
	WaitForPolicy      DependencyKind = "policy"      // the targets of the same rollout that the policy matches
	WaitForEnvironment DependencyKind = "environment" // the deployment's rollout to another environment
	WaitForDeployment  DependencyKind = "deployment"  // another deployment, on the same target
)

// Outside reports whether it is met outside of the rollout, so that the ledger has to be asked.
func (k DependencyKind) Outside() bool { return k == WaitForEnvironment || k == WaitForDeployment }

// Amount is a number of targets, or a percentage of a scope that its field names.
type Amount struct {
	Value   int  `json:"value"`
	Percent bool `json:"percent,omitempty"`
}

// String prints the amount as documents write it.
func (a Amount) String() string {
	if a.Percent {
		return fmt.Sprintf("%d%%", a.Value)
	}
	return fmt.Sprint(a.Value)
}

// SortKey is one key of an order.
type SortKey struct {
	By Expression `json:"by"`
	// Order lists text values first to last; values that it lacks come after them.
	Order []string `json:"order,omitempty"`
	Desc  bool     `json:"desc,omitempty"`
}

// Approval is what people must say before a rollout or a wave starts.
type Approval struct {
	// Min is the number of distinct people, at least 1.
	Min int `json:"min"`
	// NotAuthor: whoever started the rollout does not count. Default: true when Min is 2 or more.
	NotAuthor bool `json:"notAuthor,omitempty"`
	// Within, when not zero, is how long the question stands; then the rollout holds.
	Within Duration `json:"within,omitempty"`
}

// FailureThreshold is a budget over the whole rollout.
type FailureThreshold struct {
	MaxFailures    *Amount `json:"maxFailures,omitempty"`
	MaxUnreachable *Amount `json:"maxUnreachable,omitempty"`
	// Bounded keeps at most budget + 1 - failures in flight.
	Bounded bool  `json:"bounded,omitempty"`
	Place   Place `json:"-"`
}

// Rollback says what goes back when, and how.
type Rollback struct {
	OnTargetFailed OnTargetFailed `json:"onTargetFailed,omitempty"` // default target
	OnBreach       OnBreach       `json:"onBreach,omitempty"`       // default hold
	OnReject       OnReject       `json:"onReject,omitempty"`       // default rollout
	Order          RollbackOrder  `json:"order,omitempty"`          // default deployed
	// MaxConcurrency: nil means the largest that any wave of the plan has. Percent is of the targets to bring back.
	MaxConcurrency *Amount `json:"maxConcurrency,omitempty"`
	// MaxFailures: nil means that no number of failed returns stops the others. Percent is of the targets to bring back.
	MaxFailures *Amount `json:"maxFailures,omitempty"`
	// SkipVerify is `verify: false`: a returned target is not read back.
	SkipVerify bool  `json:"skipVerify,omitempty"`
	Place      Place `json:"-"`
}

// OnTargetFailed is what happens to one target that failed within budget.
type OnTargetFailed string

// The answers; the default is TargetGoesBack.
const (
	TargetGoesBack OnTargetFailed = "target" // that one goes back; it stays counted as failed
	TargetStays    OnTargetFailed = "none"   // it stays as it is for a person, or for the rollback of all
)

// OnBreach is what happens when the budget is breached.
type OnBreach string

// The answers; the default is BreachHolds. In each of them nothing new starts.
const (
	BreachHolds      OnBreach = "hold"    // the others stay on their version while people look
	BreachFails      OnBreach = "fail"    // the rollout ends as Failed
	BreachWaveBack   OnBreach = "wave"    // the wave goes back, then the rollout holds
	BreachRolloutAll OnBreach = "rollout" // everything that was reached goes back
)

// OnReject is what happens to what was reached when a person rejects.
type OnReject string

// The answers; the default is RejectRolloutBack.
const (
	RejectRolloutBack OnReject = "rollout" // what was reached goes back
	RejectHolds       OnReject = "hold"    // it stays while people look
)

// RollbackOrder is the order in which targets go back.
type RollbackOrder string

// The orders; the default is OrderDeployed.
const (
	OrderDeployed RollbackOrder = "deployed" // first changed, first back
	OrderNewest   RollbackOrder = "newest"   // last changed, first back
)

// Check is a reusable metric.
type Check struct {
	Name   string `json:"name"`
	Metric Metric `json:"metric"`
	Place  Place  `json:"-"`
}

// Metric is one thing that is measured, and how it is judged. After loading it is complete: a metric that named a Check
// carries the check's fields.
type Metric struct {
	Name string `json:"name"`
	// Provider, Connection and Config say what to ask. Connection may be empty: the only one of its type. Config is the
	// provider's own configuration as JSON, templates not rendered.
	Provider   string          `json:"provider"`
	Connection string          `json:"connection,omitempty"`
	Config     json.RawMessage `json:"config"`
	// Args are the check's arguments with their defaults filled in.
	Args map[string]any `json:"args,omitempty"`
	// Success and Failure judge a measurement; at least one is written.
	Success Expression `json:"successCondition,omitempty"`
	Failure Expression `json:"failureCondition,omitempty"`
	// Interval is the time between measurements, InitialDelay before the first (default: one interval).
	Interval     Duration `json:"interval,omitempty"`
	InitialDelay Duration `json:"initialDelay,omitempty"`
	// Count is how many measurements are judged, at least 1.
	Count int `json:"count"`
	// FailureLimit and InconclusiveLimit are how many are borne; ConsecutiveErrorLimit is how many errors in a row
	// (default 4). ConsecutiveSuccessLimit, when not 0, passes the metric after that many successes in a row.
	FailureLimit            int `json:"failureLimit,omitempty"`
	InconclusiveLimit       int `json:"inconclusiveLimit,omitempty"`
	ConsecutiveErrorLimit   int `json:"consecutiveErrorLimit"`
	ConsecutiveSuccessLimit int `json:"consecutiveSuccessLimit,omitempty"`
	// DryRun measures and shows, and never decides.
	DryRun   bool     `json:"dryRun,omitempty"`
	OnNoData OnNoData `json:"onNoData,omitempty"`
	During   During   `json:"during,omitempty"`
	// UsesBaseline reports that a condition reads `baseline`: the same measurement on this target just before the change.
	UsesBaseline bool  `json:"usesBaseline,omitempty"`
	Place        Place `json:"-"`
}

// OnNoData is how an answer without data counts.
type OnNoData string

// The answers; the default is NoDataInconclusive.
const (
	NoDataInconclusive OnNoData = "inconclusive"
	NoDataFails        OnNoData = "fail"
)

// During is when a metric is measured.
type During string

// The times; the default is DuringApply.
const (
	DuringApply During = "apply" // after each target's change, before it counts as succeeded
	DuringSoak  During = "soak"  // while the wave soaks
	DuringBoth  During = "both"
)

// Version is one release of a deployment.
type Version struct {
	Name      string            `json:"name"`
	Artifacts map[string]string `json:"artifacts,omitempty"`
	Params    map[string]string `json:"params,omitempty"`
}

// Value is what an expression says about one target: a bool, float64, string or nil, or an error.
type Value struct {
	V   any    `json:"v,omitempty"`
	Err string `json:"err,omitempty"`
}

// Matches holds, for each expression that a plan needs, its value for each target, in the snapshot's order. The
// evaluator fills it; the same expression has the same value wherever it is written, because its variables are the same.
type Matches map[Expression][]Value
