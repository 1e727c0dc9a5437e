package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
)

// Request is what a person or CI asks for.
type Request struct {
	Deployment  string  `json:"deployment"`
	Environment string  `json:"environment"`
	Version     Version `json:"version"`
	// BundleDigest names the documents; it becomes part of the plan and so of its digest.
	BundleDigest string `json:"bundleDigest,omitempty"`
	// Unguarded allows a rollout that no policy matches.
	Unguarded bool `json:"unguarded,omitempty"`
}

// Plan is what a rollout will do, fixed before it starts: same documents, fleet and request, same plan, same digest.
type Plan struct {
	// Digest is "sha256:" and the hex digest of the plan's JSON with this field empty.
	Digest         string  `json:"digest"`
	Deployment     string  `json:"deployment"`
	Environment    string  `json:"environment"`
	Version        Version `json:"version"`
	BundleDigest   string  `json:"bundleDigest,omitempty"`
	SnapshotDigest string  `json:"snapshotDigest"`
	// Policies are those that match, by priority and then name.
	Policies []PolicyUse `json:"policies"`
	// Unguarded reports that no policy matches and that this was asked for.
	Unguarded bool   `json:"unguarded,omitempty"`
	Waves     []Wave `json:"waves"`
	// Targets is how many the waves hold.
	Targets int `json:"targets"`
	// Out are the targets of the documents that the rollout leaves out, each with the reason.
	Out []Out `json:"out,omitempty"`
	// Budget is over the whole rollout.
	Budget   Budget       `json:"budget"`
	Rollback RollbackPlan `json:"rollback"`
	// Metrics are all that any target is judged by; targets refer to them by index.
	Metrics []PlannedMetric `json:"metrics,omitempty"`
	// Paces are the gradual rollouts in force, Dependencies what targets wait for; targets refer to both.
	Paces        []Pace       `json:"paces,omitempty"`
	Dependencies []Dependency `json:"dependencies,omitempty"`
	Step         Step         `json:"step"`
	// NoReturn says why targets could not go back; empty if they can.
	NoReturn string `json:"noReturn,omitempty"`
	// Notes are what a reader should know and no field says.
	Notes []string `json:"notes,omitempty"`
}

// PolicyUse is one policy that matches the rollout, and the rules that it contributes.
type PolicyUse struct {
	Name     string   `json:"name"`
	Priority int      `json:"priority"`
	Rules    []string `json:"rules"`
	Targets  int      `json:"targets"`
}

// Wave is one ordered step of a plan.
type Wave struct {
	// Number counts from 1 over the waves of the plan, empty ones included.
	Number int    `json:"number"`
	Name   string `json:"name"`
	// Policy is the one that the wave comes from; empty for the single wave of a plan without waves.
	Policy string `json:"policy,omitempty"`
	Size   int    `json:"size"`
	// Targets are in the order in which they start. A summary of the plan leaves them out.
	Targets []PlannedTarget `json:"targets,omitempty"`
	// Batches is how many workflows share the targets, see Batch; 0: one has them all.
	Batches int `json:"batches,omitempty"`
	// MaxConcurrency is how many may be in flight, at most Size, at least 1 unless the wave is empty.
	MaxConcurrency int `json:"maxConcurrency"`
	// MaxUnpaced is how many of the targets that keep no pace may be in flight, where others do; 0: MaxConcurrency.
	MaxUnpaced int       `json:"maxUnpaced,omitempty"`
	Budget     Budget    `json:"budget"`
	Soak       Duration  `json:"soak"`
	SoakFrom   []string  `json:"soakFrom,omitempty"`
	Approvals  []Consent `json:"approvals,omitempty"`
	// BlastRadius is the most targets that can be failed or in flight when the budget stops the wave.
	BlastRadius int `json:"blastRadius"`
	// Passed says why an empty wave is passed over.
	Passed string `json:"passed,omitempty"`
}

// PlannedTarget is one target of a wave.
type PlannedTarget struct {
	Name string `json:"name"`
	// Reason says why it is in this wave.
	Reason string `json:"reason"`
	// Metrics are indices into the plan's Metrics.
	Metrics []int `json:"metrics,omitempty"`
	// Pace is the number of the plan's Pace that it keeps, from 1; 0: none.
	Pace int `json:"pace,omitempty"`
	// After are indices into the plan's Dependencies: it starts when all of them are met.
	After []int `json:"after,omitempty"`
}

// Pace is a gradual rollout as it holds for the targets that one policy orders.
type Pace struct {
	Policy string      `json:"policy"`
	Type   RolloutType `json:"rolloutType"`
	// Interval is the least time between two starts; 0: as soon as the one before is done.
	Interval Duration `json:"interval,omitempty"`
	// Overlap: a target does not wait until those before it are done.
	Overlap bool `json:"overlap,omitempty"`
	// SortBy is the order; none: that of the documents.
	SortBy []SortKey `json:"sortBy,omitempty"`
	// Targets is how many keep it.
	Targets int `json:"targets"`
}

// Dependency is what some targets wait for.
type Dependency struct {
	Policy string         `json:"policy"`
	Name   string         `json:"name"`
	Kind   DependencyKind `json:"kind"`
	// Targets are those of the rollout that must have succeeded, for a target or a policy that is waited for.
	Targets []string `json:"targets,omitempty"`
}

// Out is a target that the rollout leaves out.
type Out struct {
	Target string `json:"target"`
	Reason string `json:"reason"`
}

// Consent is one policy's demand for approval, before a wave or (before the first one) the rollout.
type Consent struct {
	Policy    string   `json:"policy"`
	Min       int      `json:"min"`
	NotAuthor bool     `json:"notAuthor,omitempty"`
	Within    Duration `json:"within,omitempty"`
	// Rollout reports that the whole rollout was meant, not this wave.
	Rollout bool `json:"rollout,omitempty"`
}

// PlannedMetric is a metric and the policy that asks for it.
type PlannedMetric struct {
	Policy string `json:"policy"`
	Metric Metric `json:"metric"`
}

// RollbackPlan is how a rollback will run, all policies combined.
type RollbackPlan struct {
	OnTargetFailed OnTargetFailed `json:"onTargetFailed"`
	OnBreach       OnBreach       `json:"onBreach"`
	OnReject       OnReject       `json:"onReject"`
	Order          RollbackOrder  `json:"order"`
	MaxConcurrency Amount         `json:"maxConcurrency"`
	// MaxFailures: nil means that no number of failed returns stops the others.
	MaxFailures *Amount `json:"maxFailures,omitempty"`
	Verify      bool    `json:"verify"`
	// Policy is the one that it comes from; empty means the defaults.
	Policy string `json:"policy,omitempty"`
}

// seal computes the plan's digest.
func (p *Plan) seal() error {
	p.Digest = ""
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("policy: digest of the plan: %w", err)
	}
	sum := sha256.Sum256(data)
	p.Digest = "sha256:" + hex.EncodeToString(sum[:])
	return nil
}

// Depends reports whether targets of the plan wait for others.
func (p Plan) Depends() bool {
	return len(p.Dependencies) > 0
}

// Summary returns the plan without what grows with the fleet: the targets of its waves and those left out.
func (p Plan) Summary() Plan {
	waves := make([]Wave, len(p.Waves))
	for i, w := range p.Waves {
		w.Targets = nil
		waves[i] = w
	}
	dependencies := slices.Clone(p.Dependencies)
	for i := range dependencies {
		dependencies[i].Targets = nil
	}
	p.Waves, p.Out, p.Metrics, p.Dependencies = waves, nil, nil, dependencies
	return p
}
