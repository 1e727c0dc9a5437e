// Package workflows walks a release through a fleet as durable Temporal workflows: Rollout (one a lane), Wave, Target
// and Rollback, and the short ones around them.
//
// Workflow code only waits, signals and schedules. What may happen is decided by package policy; what touches the world
// is in package activities. No adapter, no CEL, no zones, no clock but workflow.Now, no logic behind an interface.
package workflows

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/seed-a0a4f4e3/sluice/policy"
)

// Task queues. Control workflows have their own, so that thousands of target tasks do not delay a stop.
const (
	ControlQueue = "sluice-control" // Rollout, Wave, Batch, Rollback, Bundle
	TargetQueue  = "sluice-target"  // Target workflows and all activities
)

// Workflow type names, as registered and as the Temporal UI shows them.
const (
	RolloutType  = "Rollout"
	WaveType     = "Wave"
	BatchType    = "Batch"
	TargetType   = "Target"
	RollbackType = "Rollback"
	BundleType   = "Bundle"
)

// The eight commands: signals to a Rollout. Each payload is a JSON object, see Command.
const (
	Approve  = "approve"
	Reject   = "reject"
	RollBack = "rollback"
	Pause    = "pause"
	Resume   = "resume"
	Skip     = "skip"
	Retry    = "retry"
	Abort    = "abort"
)

// CommandNames lists the eight commands in the order in which the Temporal UI shows them.
func CommandNames() []string {
	return []string{Approve, Reject, RollBack, Pause, Resume, Skip, Retry, Abort}
}

// Signals between our own workflows, and queries.
const (
	controlSignal = "control" // parent to child: run, pause, stop
	targetSignal  = "target"  // Rollout to Wave: skip or retry one target, accept inconclusive ones
	reportSignal  = "report"  // Wave and Rollback to Rollout: counts so far, cumulative
	leaseSignal   = "lease"   // Wave to Batch: slots and what it must know of the others, cumulative
	batchSignal   = "batch"   // Batch to Wave: how it stands, cumulative
	outcomeSignal = "outcome" // Batch to Rollout: what came of its targets, once
	chunkSignal   = "chunk"   // CLI to Bundle: one part of an upload

	// StatusQuery on a Rollout answers RolloutStatus.
	StatusQuery = "status"
	// TargetsQuery on a Wave, Batch or Rollback takes a TargetsPage and answers TargetsAnswer.
	TargetsQuery = "targets"
)

// Search attribute names, all Keyword.
const (
	SluiceEnvironment = "SluiceEnvironment"
	SluiceDeployment  = "SluiceDeployment"
	SluiceVersion     = "SluiceVersion"
	SluiceRollout     = "SluiceRollout"
	SluiceState       = "SluiceState"
	SluiceTarget      = "SluiceTarget"
	SluiceSite        = "SluiceSite"
)

// MaxBatchTargets is the most targets that one workflow is the parent of; a larger wave has Batches.
const MaxBatchTargets = policy.BatchTargets

// RolloutID is the lane's workflow id: one open run at a time.
func RolloutID(environment, deployment string) string {
	return "rollout/" + environment + "/" + deployment
}

// WaveID is the workflow id of a wave, numbered from 1.
func WaveID(environment, deployment, rollout string, wave int) string {
	number := strconv.Itoa(wave)
	if wave < 10 {
		number = "0" + number
	}
	return RolloutID(environment, deployment) + "/" + rollout + "/w" + number
}

// BatchID is the workflow id of a batch of a wave, both numbered from 1.
func BatchID(environment, deployment, rollout string, wave, batch int) string {
	return WaveID(environment, deployment, rollout, wave) + "/b" + strconv.Itoa(batch)
}

// BackID is the workflow id of a rollout's rollback; part counts from 1, later parts take what the first could not hold
// or what was still in flight.
func BackID(environment, deployment, rollout string, part int) string {
	id := RolloutID(environment, deployment) + "/" + rollout + "/back"
	if part > 1 {
		id += strconv.Itoa(part)
	}
	return id
}

// maxID keeps workflow ids within the 255 characters of Temporal's SQL schemas, with room for what a later release adds.
const maxID = 199

// TargetID is the workflow id of one attempt at one target, under its wave's, its rollback's or the late id. Where all
// names are long, the target's is cut and told apart by a digest; its search attribute has it whole.
func TargetID(parent, target string, attempt int) string {
	end := "/" + strconv.Itoa(attempt)
	if room := maxID - len(parent) - len("/") - len(end); len(target) > room {
		sum := sha256.Sum256([]byte(target))
		mark := "~" + hex.EncodeToString(sum[:6]) // no name has a ~
		target = target[:max(0, room-len(mark))] + mark
	}
	return parent + "/" + target + end
}

// LateID is the parent part of a Target's id when its wave has closed before the attempt.
func LateID(environment, deployment, rollout string) string {
	return RolloutID(environment, deployment) + "/" + rollout + "/late"
}

// BundleID is the workflow id of an upload.
func BundleID(digest string) string { return "bundle/" + digest }

// Mode tells a rollout from a later rollback in the same lane.
type Mode string

// The modes of a lane's run.
const (
	ModeRollout  Mode = "rollout"
	ModeRollback Mode = "rollback"
)

// RolloutInput starts a run of a lane.
type RolloutInput struct {
	// Rollout is this run's own id, a ULID.
	Rollout     string         `json:"rollout"`
	Mode        Mode           `json:"mode"`
	Deployment  string         `json:"deployment"`
	Environment string         `json:"environment"`
	Version     policy.Version `json:"version"`
	// BundleDigest names the uploaded documents.
	BundleDigest string `json:"bundleDigest,omitempty"`
	// PlanDigest is the plan that the starter saw; a worker that plans differently refuses. Empty: not seen.
	PlanDigest string `json:"planDigest,omitempty"`
	Unguarded  bool   `json:"unguarded,omitempty"`
	// Of is the rollout to take back, in ModeRollback.
	Of string `json:"of,omitempty"`
	// Target or Wave limit what is taken back, in ModeRollback.
	Target string `json:"target,omitempty"`
	Wave   int    `json:"wave,omitempty"`
	// By is the starter as claimed, Reason theirs.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// RolloutResult is how a lane's run ended.
type RolloutResult struct {
	Rollout string `json:"rollout"`
	State   Phase  `json:"state"`
	Reason  string `json:"reason,omitempty"`
	// Unplanned reports that it ended before it had a plan: it started nothing, and the ledger holds nothing of it.
	Unplanned bool `json:"unplanned,omitempty"`
}

// Phase is the state of a rollout. The set is closed.
type Phase string

// The phases.
const (
	Planned               Phase = "Planned"
	AwaitingApproval      Phase = "AwaitingApproval"
	Running               Phase = "Running"
	Paused                Phase = "Paused"
	Holding               Phase = "Holding"
	RollingBack           Phase = "RollingBack"
	Succeeded             Phase = "Succeeded"
	SucceededWithFailures Phase = "SucceededWithFailures"
	Failed                Phase = "Failed"
	RolledBack            Phase = "RolledBack"
	RollbackIncomplete    Phase = "RollbackIncomplete"
	Rejected              Phase = "Rejected"
	Aborted               Phase = "Aborted"
	Superseded            Phase = "Superseded"
)

// Ended reports whether a rollout in this phase is over.
func (p Phase) Ended() bool {
	switch p {
	case Succeeded, SucceededWithFailures, Failed, RolledBack, RollbackIncomplete, Rejected, Aborted, Superseded:
		return true
	case Planned, AwaitingApproval, Running, Paused, Holding, RollingBack:
		return false
	}
	return false
}

// Glance is a rollout or a target in one word.
type Glance string

// The words for rollouts.
const (
	Advancing   Glance = "advancing"
	VerifyingIt Glance = "verifying"
	WaitingIt   Glance = "waiting"
	BlockedIt   Glance = "blocked"
)

// RolloutStatus answers StatusQuery, and is what `sluice status -o json` prints.
type RolloutStatus struct {
	Rollout     string         `json:"rollout"`
	Mode        Mode           `json:"mode"`
	Of          string         `json:"of,omitempty"`
	Deployment  string         `json:"deployment"`
	Environment string         `json:"environment"`
	Version     policy.Version `json:"version"`
	State       Phase          `json:"state"`
	// Reason is one sentence on why it is in that state.
	Reason         string    `json:"reason,omitempty"`
	Glance         Glance    `json:"glance,omitempty"`
	By             string    `json:"by,omitempty"`
	StartedAt      time.Time `json:"startedAt"`
	EndedAt        time.Time `json:"endedAt,omitzero"`
	PlanDigest     string    `json:"planDigest,omitempty"`
	BundleDigest   string    `json:"bundleDigest,omitempty"`
	SnapshotDigest string    `json:"snapshotDigest,omitempty"`
	Targets        int       `json:"targets"`
	// Counts are over all waves, by target state; states without a target are left out.
	Counts map[policy.TargetState]int `json:"counts,omitempty"`
	Waves  []WaveStatus               `json:"waves,omitempty"`
	// Waits are everything that has to be lifted before the rollout moves on.
	Waits []policy.Wait `json:"waits,omitempty"`
	// Approvals are those counted so far.
	Approvals []policy.Approved `json:"approvals,omitempty"`
	// Rollback is there once one has begun.
	Rollback *RollbackStatus `json:"rollback,omitempty"`
	// Attention are targets that a person should look at, at most 50; AttentionTotal is how many there are.
	Attention      []TargetStatus `json:"attention,omitempty"`
	AttentionTotal int            `json:"attentionTotal,omitempty"`
	// Commands are the last 50 received, oldest first, each acknowledged or refused.
	Commands []Receipt `json:"commands,omitempty"`
	// Timeline is who, what, when and why, oldest first, the last 200 entries.
	Timeline []Event `json:"timeline,omitempty"`
}

// WaveStatus is one wave of a RolloutStatus.
type WaveStatus struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
	// State is pending, passed, awaiting approval, running, verified, soaking, done, breached, held or stopped.
	State          string                     `json:"state"`
	Reason         string                     `json:"reason,omitempty"`
	Size           int                        `json:"size"`
	Counts         map[policy.TargetState]int `json:"counts,omitempty"`
	InFlight       int                        `json:"inFlight"`
	Failures       int                        `json:"failures"`
	MaxFailures    int                        `json:"maxFailures"`
	MaxConcurrency int                        `json:"maxConcurrency"`
	StartedAt      time.Time                  `json:"startedAt,omitzero"`
	EndedAt        time.Time                  `json:"endedAt,omitzero"`
	SoakUntil      time.Time                  `json:"soakUntil,omitzero"`
	// Workflow is the id to query for the wave's targets; empty until it has been opened.
	Workflow string `json:"workflow,omitempty"`
}

// RollbackStatus is a rollback under way or over.
type RollbackStatus struct {
	Cause string `json:"cause"`
	// ByHand reports that single targets or waves were taken back, all of them counted here, and that the rollout goes on
	// without them.
	ByHand    bool                       `json:"byHand,omitempty"`
	Targets   int                        `json:"targets"`
	Counts    map[policy.TargetState]int `json:"counts,omitempty"`
	InFlight  int                        `json:"inFlight"`
	StartedAt time.Time                  `json:"startedAt"`
	EndedAt   time.Time                  `json:"endedAt,omitzero"`
	// WaitingFor names the targets whose running step must end before they can go back.
	WaitingFor []string `json:"waitingFor,omitempty"`
	// Workflows are the ids to query for the targets.
	Workflows []string `json:"workflows,omitempty"`
}

// TargetStatus is one target.
type TargetStatus struct {
	Name    string             `json:"name"`
	Wave    int                `json:"wave"`
	State   policy.TargetState `json:"state"`
	Reason  string             `json:"reason,omitempty"`
	Reached bool               `json:"reached,omitempty"`
	From    string             `json:"from,omitempty"`
	Attempt int                `json:"attempt,omitempty"`
	// Next is when a target that waits may start by itself; zero: when what its reason names has happened.
	Next time.Time `json:"next,omitzero"`
	// Workflow is the id of the last attempt; empty if there was none.
	Workflow string `json:"workflow,omitempty"`
}

// TargetsPage asks for targets [Offset, Offset+Limit) of a wave; a Limit of 0 or above 500 means 500.
type TargetsPage struct {
	Offset int `json:"offset"`
	Limit  int `json:"limit"`
}

// TargetsAnswer is one page.
type TargetsAnswer struct {
	Total   int            `json:"total"`
	Targets []TargetStatus `json:"targets"`
	// Batches are the workflows to ask instead, where they share the targets.
	Batches []string `json:"batches,omitempty"`
}

// Event is one line of a timeline.
type Event struct {
	At  time.Time `json:"at"`
	Who string    `json:"who"`
	// What is operator English, e.g. "wave 2 (tier-2) opened".
	What string `json:"what"`
	Why  string `json:"why,omitempty"`
}

// Command is the payload of each of the eight signals; every field may be left out where the meaning is clear.
type Command struct {
	// ID makes the command idempotent, and names it in its receipt.
	ID string `json:"id,omitempty"`
	// By is who sends it, as claimed.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Rollout, when written, must be the running one.
	Rollout string `json:"rollout,omitempty"`
	// Wave is the wave meant, from 1.
	Wave int `json:"wave,omitempty"`
	// Target is the target meant (skip, retry and rollback).
	Target string `json:"target,omitempty"`
	// Plan is the plan digest that an approval is for; unwritten: the current one.
	Plan string `json:"plan,omitempty"`
}

// Receipt is what became of a command.
type Receipt struct {
	ID     string    `json:"id,omitempty"`
	Name   string    `json:"name"`
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
	Wave   int       `json:"wave,omitempty"`
	Target string    `json:"target,omitempty"`
	// Accepted reports whether it took effect; Answer says what it did, or why it was refused.
	Accepted bool   `json:"accepted"`
	Answer   string `json:"answer"`
	// Pending reports that the command was passed on and its answer is still to come.
	Pending bool `json:"pending,omitempty"`
}

// BundleInput starts an upload. The documents are one gzipped tar-like JSON, cut into Chunks parts that follow as
// chunk signals.
type BundleInput struct {
	Digest string `json:"digest"`
	Chunks int    `json:"chunks"`
}

// BundleChunk is one part of an upload, at most 200 KiB.
type BundleChunk struct {
	Index int    `json:"index"`
	Data  []byte `json:"data"`
}

// ChunkSignal is the name of the signal that carries a BundleChunk.
const ChunkSignal = chunkSignal
