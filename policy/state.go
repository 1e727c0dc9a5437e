package policy

import "time"

// TargetState is where one target stands in a rollout. The set is closed.
type TargetState string

// The states of a target.
const (
	Pending       TargetState = "Pending"
	Waiting       TargetState = "Waiting" // for something its reason names
	Preparing     TargetState = "Preparing"
	Applying      TargetState = "Applying"
	Verifying     TargetState = "Verifying"
	Restoring     TargetState = "Restoring"
	Succeeded     TargetState = "Succeeded"
	NoChange      TargetState = "NoChange" // already on the version; a success that is never rolled back
	Failed        TargetState = "Failed"
	Unreachable   TargetState = "Unreachable"
	Deferred      TargetState = "Deferred"
	Skipped       TargetState = "Skipped"
	Removed       TargetState = "Removed"
	RolledBack    TargetState = "RolledBack"
	NeedsRecovery TargetState = "NeedsRecovery" // its real state is unknown; a person must look
)

// TargetStates lists the closed set in the order in which tables show it.
func TargetStates() []TargetState {
	return []TargetState{Pending, Waiting, Preparing, Applying, Verifying, Restoring, Succeeded, NoChange, Failed,
		Unreachable, Deferred, Skipped, Removed, RolledBack, NeedsRecovery}
}

// Terminal reports whether a target in this state has nothing more to come by itself.
func (s TargetState) Terminal() bool {
	switch s {
	case Succeeded, NoChange, Failed, Unreachable, Deferred, Skipped, Removed, RolledBack, NeedsRecovery:
		return true
	case Pending, Waiting, Preparing, Applying, Verifying, Restoring:
		return false
	}
	return false
}

// Attention reports whether a person should look at a target in this state.
func (s TargetState) Attention() bool {
	return s == Failed || s == NeedsRecovery || s == Unreachable || s == Waiting
}

// Glance is the state in one word: done, progressing or attention.
func (s TargetState) Glance() string {
	switch {
	case s.Attention():
		return "attention"
	case s.Terminal():
		return "done"
	}
	return "progressing"
}

// Wait is one thing that must be lifted before a rollout moves on.
type Wait struct {
	// Reason is one sentence, e.g. "wave 2 (tier-2) needs 1 more approval".
	Reason string `json:"reason"`
	// Rule and Policy say where the demand comes from; Policy is empty for what the rulebook demands by itself.
	Rule   string `json:"rule"`
	Policy string `json:"policy,omitempty"`
	// Lifts says what would lift it.
	Lifts string `json:"lifts"`
	Wave  int    `json:"wave,omitempty"`
	// Target is the first target that what lifts it is about; empty if it is about none.
	Target string `json:"target,omitempty"`
	// Next is the next moment at which it is looked at by itself; zero means: only when something happens.
	Next time.Time `json:"next,omitzero"`
}

// Approved is one person's approval that counts.
type Approved struct {
	By   string    `json:"by"`
	Wave int       `json:"wave"`
	At   time.Time `json:"at"`
	// Plan is the digest of the plan that was approved.
	Plan   string `json:"plan"`
	Reason string `json:"reason,omitempty"`
	// Claimed reports that the name is the sender's own claim, vouched for by nobody.
	Claimed bool `json:"claimed"`
}
