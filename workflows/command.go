package workflows

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/policy"
)

// descriptions are what the Temporal UI shows beside each command's name.
var descriptions = map[string]string{
	Approve:  `Count one approval for the waiting wave, or accept what a wave holds for. JSON: {"by":"you","wave":2}`,
	Reject:   `Stop, then do what the policy's onReject says (default: take back what was reached). JSON: {"by":"you","reason":"why"}`,
	RollBack: `Stop and bring every target that was reached back to its previous version; with {"by":"you","target":"NAME"} or {"by":"you","wave":2} only that, then hold. JSON: {"by":"you","reason":"why"}`,
	Pause:    `Start nothing new; what has begun finishes. JSON: {"by":"you","reason":"why"}`,
	Resume:   `Go on after a pause, without what went back by hand, or with a rollback that is over its budget. JSON: {"by":"you"}`,
	Skip:     `Leave one target out. JSON: {"by":"you","target":"NAME","reason":"why"}`,
	Retry:    `Try one target again with the same version. JSON: {"by":"you","target":"NAME"}`,
	Abort:    `Stop without a rollback; targets in flight reach a safe point. JSON: {"by":"you","reason":"why"}`,
}

// isStop reports whether a command only ever stops: such a one is taken with unknown fields too.
func isStop(name string) bool {
	return name == Reject || name == RollBack || name == Pause || name == Abort
}

// ParseCommand reads a signal's payload. No payload is an empty object. Values of the wrong type are refused, unknown
// fields too, except that the stops take them with a remark: a typing error must not keep anybody from stopping.
func ParseCommand(name string, payload *commonpb.Payload) (c Command, remark string, err error) {
	data := bytes.TrimSpace(payload.GetData())
	switch encoding := string(payload.GetMetadata()["encoding"]); {
	case len(data) == 0:
		return Command{}, "", nil
	case encoding != "json/plain" && encoding != "json/protobuf" && encoding != "":
		return Command{}, "", fmt.Errorf("the payload is encoded as %q; send a JSON object such as %s", clip(encoding, 40), example(name))
	case bytes.Equal(data, []byte("null")):
		return Command{}, "", nil
	}
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	err = strict.Decode(&c)
	if err == nil {
		if _, more := strict.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is something after the object")
		}
	}
	if err == nil {
		return c, "", nil
	}
	if field, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
		if isStop(name) {
			if lax := json.Unmarshal(data, &c); lax == nil {
				return c, "the unknown field " + clip(field, 60) + " was ignored", nil
			} else {
				err = lax
			}
		} else {
			return Command{}, "", fmt.Errorf("unknown field %s; allowed are id, by, reason, rollout, wave, target and plan", clip(field, 60))
		}
	}
	return Command{}, "", fmt.Errorf("the payload is not understood (%s); send a JSON object such as %s", clip(strings.TrimPrefix(err.Error(), "json: "), 120), example(name))
}

// misspeltScope returns a field that may be meant to say what goes back. Ignoring it would take back everything where a
// person named one target.
func misspeltScope(payload *commonpb.Payload) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(payload.GetData(), &fields) != nil {
		return ""
	}
	for _, name := range workflow.DeterministicKeys(fields) {
		lower := strings.ToLower(name)
		if lower == "target" || lower == "wave" {
			continue
		}
		for _, part := range []string{"tar", "trag", "trg", "tgt", "wav", "wve", "resource", "cluster", "node", "scope"} {
			if strings.Contains(lower, part) {
				return name
			}
		}
	}
	return ""
}

func example(name string) string {
	_, after, _ := strings.Cut(descriptions[name], "JSON: ")
	return after
}

// CommandFacts is what ApplyCommand must know beside the progress.
type CommandFacts struct {
	// Rollout is the running rollout's id.
	Rollout string
	// Planned reports that the plan is there.
	Planned bool
	// Target is what is known of the command's target.
	Target TargetFacts
	// Earlier reports that the run began when no single target or wave could be taken back.
	Earlier bool
	// Limited is what this run takes back, when that is one target or wave of an ended rollout.
	Limited string
	Now     time.Time
}

// TargetFacts is what is known of the target that a command names.
type TargetFacts struct {
	// Wave is the wave that holds it; 0: no wave does.
	Wave int
	// State is where it stands, if its wave has closed; Retrying reports that it is being tried again.
	State    policy.TargetState
	Retrying bool
	// Waits is what it would have to wait for, if it were tried again after its wave has closed.
	Waits string
	// Reached, From and FromKnown are as in its outcome.
	Reached   bool
	From      string
	FromKnown bool
	// Returning reports that it is on its way back. For a whole wave, Retrying and Returning are about any of its targets.
	Returning bool
}

// Effect is what a command asks the workflow to do beside the new progress. At most one field is set.
type Effect struct {
	// Order goes to the open wave Wave.
	Order string
	Wave  int
	// SkipLater leaves the target out of a wave that has not been opened.
	SkipLater bool
	// SkipClosed and RetryLate concern a target whose wave has closed.
	SkipClosed, RetryLate bool
	// TakeTarget brings back a target whose wave has closed, TakeWave what was reached of Wave.
	TakeTarget, TakeWave bool
	// ResumeBack lets a rollback go on that is over its budget.
	ResumeBack bool
}

// ApplyCommand says what a command does: the new progress, what else must be done, and a sentence for the sender. An
// error is a refusal, and then nothing changes. It is pure.
func ApplyCommand(p policy.Progress, name string, c Command, f CommandFacts) (policy.Progress, Effect, string, error) {
	refuse := func(format string, args ...any) (policy.Progress, Effect, string, error) {
		return p, Effect{}, "", fmt.Errorf(format, args...)
	}
	if c.Rollout != "" && c.Rollout != f.Rollout {
		if name == RollBack && !p.Begun() && !stopsForGood(p) {
			p.Stop = policy.Stop{Cause: policy.StoppedSuperseded, By: c.By, Reason: "the rollback of rollout " + c.Rollout + " needs the lane"}
			return p, Effect{}, "it has started nothing and yields: send the rollback of " + c.Rollout + " again once it has ended", nil
		}
		return refuse("it is for rollout %s, and %s is running here", c.Rollout, f.Rollout)
	}
	backing := p.Back.Begun && !p.Back.Ended
	switch name {
	case RollBack, Reject, Abort:
		switch {
		case name == RollBack && f.Limited != "":
			return refuse("this run takes back %s of an ended rollout and nothing else; send the rollback again once it has ended", f.Limited)
		case name == RollBack && (c.Target != "" || c.Wave != 0):
			return applyByHand(p, c, f)
		}
		return applyStop(p, name, c, backing)
	case Pause:
		switch {
		case backing || stopsForGood(p):
			return refuse("nothing new starts any more: %s; a way back cannot be paused, abort leaves it", cmp.Or(string(p.Stop.Cause), "stopped"))
		case p.Paused:
			return p, Effect{}, "it is paused already", nil
		}
		p.Paused = true
		return p, Effect{}, "paused: nothing new starts, what has begun finishes", nil
	case Resume:
		switch {
		case backing && p.Back.Held != "", p.ByHand.Held != "":
			return p, Effect{ResumeBack: true}, "the rollback goes on with the others", nil
		case p.ByHand.Holding && p.ByHand.Returning > 0:
			return refuse("%s is still on the way back; send resume again once it is there, or rollback, reject or abort", p.ByHand.Names(p.Plan))
		case p.ByHand.Holding:
			answer := "resumed: it goes on without " + p.ByHand.Names(p.Plan)
			if p.Plan.Depends() {
				answer = fmt.Sprintf("resumed without %s; what waits for it still waits", p.ByHand.Names(p.Plan))
			}
			if p.Paused {
				answer += "; the pause is lifted, too"
			}
			p.Paused, p.ByHand.Holding, p.ByHand.Taken = false, false, nil
			return p, Effect{}, answer, nil
		case !p.Paused:
			return refuse("it is not paused")
		}
		p.Paused = false
		return p, Effect{}, "resumed", nil
	}
	if !f.Planned {
		return refuse("there is no plan yet; send it again in a moment")
	}
	switch name {
	case Approve:
		return applyApprove(p, c, f)
	case Skip, Retry:
		return applyTarget(p, name, c, f)
	}
	return refuse("unknown command %q; there are: %s", name, strings.Join(CommandNames(), ", "))
}

// stopsForGood reports whether a stop has been decided that no resume undoes.
func stopsForGood(p policy.Progress) bool { return p.Stop.Cause != policy.NotStopped }

func applyStop(p policy.Progress, name string, c Command, backing bool) (policy.Progress, Effect, string, error) {
	refuse := func(format string, args ...any) (policy.Progress, Effect, string, error) {
		return p, Effect{}, "", fmt.Errorf(format, args...)
	}
	causes := map[string]policy.StopCause{RollBack: policy.StoppedRollback, Reject: policy.StoppedReject, Abort: policy.StoppedAbort}
	switch {
	case p.Stop.Cause == policy.StoppedAbort && name == RollBack:
		return refuse("it is aborting, and nothing goes back: send the rollback again once it has ended")
	case p.Stop.Cause == policy.StoppedAbort:
		return p, Effect{}, "it is aborting already; nothing new starts", nil
	case backing && p.Back.Scope == 0 && name != Abort, p.Stop.Cause == policy.StoppedRollback && name == Reject:
		return p, Effect{}, "it is rolling back already", nil
	case p.Stop.Cause == causes[name]:
		return p, Effect{}, "it has been stopped so already", nil
	}
	p.Stop = policy.Stop{Cause: causes[name], By: c.By, Reason: c.Reason}
	p.Paused, p.ByHand.Holding, p.ByHand.Taken = false, false, nil
	switch name {
	case Reject:
		if p.Plan.Rollback.OnReject == policy.RejectHolds {
			return p, Effect{}, "rejected: nothing new starts; what was reached stays until somebody decides", nil
		}
		return p, Effect{}, "rejected: nothing new starts; what was reached goes back", nil
	case Abort:
		return p, Effect{}, "aborting: nothing new starts, targets in flight reach a safe point, nothing goes back", nil
	}
	return p, Effect{}, "rolling back: nothing new starts, what was reached goes back", nil
}

// applyByHand decides about the rollback of one target or of one wave. A target of an open wave is passed to that wave,
// which knows its targets; nothing new starts from the moment of receipt all the same.
func applyByHand(p policy.Progress, c Command, f CommandFacts) (policy.Progress, Effect, string, error) {
	refuse := func(format string, args ...any) (policy.Progress, Effect, string, error) {
		return p, Effect{}, "", fmt.Errorf(format, args...)
	}
	what := c.Target
	switch {
	case f.Earlier:
		return refuse("this rollout began under a release that takes back no single target or wave; without target and wave everything goes back")
	case !f.Planned:
		return refuse("there is no plan yet, and nothing has been reached")
	case p.Stop.Cause == policy.StoppedAbort:
		return refuse("it is aborting, and nothing goes back: send the rollback again once it has ended")
	case p.Stop.Cause == policy.StoppedSuperseded:
		return refuse("it has started nothing and yields the lane")
	case c.Wave < 0 || c.Wave > len(p.Waves):
		return refuse("there is no wave %d; the plan has %d, counted from 1", c.Wave, len(p.Waves))
	case c.Target != "" && f.Target.Wave == 0:
		return refuse("the plan has no target %q", c.Target)
	case c.Target != "" && c.Wave != 0 && c.Wave != f.Target.Wave:
		return refuse("%s is in wave %d, not in wave %d", c.Target, f.Target.Wave, c.Wave)
	}
	number := max(c.Wave, f.Target.Wave)
	wave := p.Waves[number-1]
	if what == "" {
		what = fmt.Sprintf("wave %d (%s)", number, p.Plan.Waves[number-1].Name)
	}
	switch {
	case wave.Phase == policy.WavePassed:
		return refuse("wave %d was passed over: nothing of it was reached", number)
	case wave.Phase == policy.WavePending && c.Target != "":
		return refuse("%s has not been reached: wave %d has not begun; skip leaves it out", c.Target, number)
	case wave.Phase == policy.WavePending:
		return refuse("wave %d has not begun: nothing of it was reached", number)
	case p.GoesBack():
		return p, Effect{}, "everything that was reached is going back already; this changes nothing", nil
	}
	taken := p
	then := "; nothing new starts until resume, which goes on without it"
	if p.Stop.Cause == policy.NotStopped {
		taken.ByHand.Holding = true
		taken.ByHand.Taken = append(append([]policy.Taken(nil), p.ByHand.Taken...), policy.Taken{Target: c.Target, Wave: number, By: c.By, Reason: c.Reason})
	} else {
		then = fmt.Sprintf("; that it was stopped (%s) stands", p.Stop.Cause)
	}
	if c.Target == "" {
		switch {
		case wave.ByHand && (wave.Open || f.Target.Returning):
			return p, Effect{}, what + " is going back by hand already; this changes nothing", nil
		case !wave.Open && wave.Reached == 0 && !f.Target.Retrying && wave.Counts.Taken > 0:
			return p, Effect{}, "what was reached of " + what + " is back already; this changes nothing", nil
		case !wave.Open && wave.Reached == 0 && !f.Target.Retrying:
			return refuse("nothing of %s was reached, or it is back already: there is nothing to take back", what)
		}
		taken.Waves = append([]policy.WaveProgress(nil), p.Waves...)
		taken.Waves[number-1].ByHand = true
		return taken, Effect{TakeWave: true, Wave: number}, "what was reached of " + what + " goes back" + then, nil
	}
	switch t := f.Target; {
	case wave.Open && wave.ByHand:
		return p, Effect{}, fmt.Sprintf("wave %d is going back by hand already, and %s with it; this changes nothing", number, c.Target), nil
	case wave.Open:
		return taken, Effect{Order: RollBack, Wave: number}, fmt.Sprintf("passed to wave %d", number), nil
	case t.Returning:
		return p, Effect{}, c.Target + " is on its way back already; this changes nothing", nil
	case t.Retrying:
		return taken, Effect{TakeTarget: true, Wave: number}, c.Target + " is being tried again: it reaches a safe point first, then goes back" + then, nil
	case t.State == policy.NoChange:
		return refuse("%s", neverChanged(c.Target))
	case !t.Reached && isBack(t.State, t.FromKnown):
		return p, Effect{}, fmt.Sprintf("%s runs %s again already; this changes nothing", c.Target, versionOr(t.From)), nil
	case !t.Reached:
		return refuse("%s was not reached (%s): there is nothing to take back", c.Target, cmp.Or(string(t.State), "left out"))
	}
	return taken, Effect{TakeTarget: true, Wave: number}, fmt.Sprintf("%s goes back to %s%s", c.Target, backTo(f.Target.From, f.Target.FromKnown), then), nil
}

// isBack reports whether a target that carries the change no longer is known to have come back.
func isBack(s policy.TargetState, fromKnown bool) bool {
	return s == policy.RolledBack || (s == policy.Failed && fromKnown)
}

func neverChanged(target string) string {
	return target + " ran the version already (NoChange): what was not changed is never rolled back"
}

// backTo names the version to return to.
func backTo(from string, known bool) string {
	if !known {
		return "the version it had"
	}
	return versionOr(from)
}

func applyApprove(p policy.Progress, c Command, f CommandFacts) (policy.Progress, Effect, string, error) {
	refuse := func(format string, args ...any) (policy.Progress, Effect, string, error) {
		return p, Effect{}, "", fmt.Errorf(format, args...)
	}
	asked, held := p.Asked(), p.Held()
	wave := c.Wave
	if wave == 0 {
		wave = max(asked, held)
	}
	switch {
	case c.By == "":
		return refuse(`an approval needs a name; send {"by":"you"}`)
	case p.Stop.Cause != policy.NotStopped:
		return refuse("nothing waits for approval: it was stopped (%s)", p.Stop.Cause)
	case c.Wave == 0 && asked != 0 && held != 0 && asked != held:
		return refuse(`wave %d holds and wave %d needs approval; say which is meant: {"by":"you","wave":%d} accepts what wave %d holds for, {"by":"you","wave":%d} approves`, held, asked, held, held, asked)
	case wave == 0:
		return refuse("nothing waits for approval")
	case wave != asked && wave != held:
		return refuse("wave %d is not waiting for approval; wave %d is", wave, max(asked, held))
	case c.Plan != "" && c.Plan != p.Plan.Digest:
		return refuse("it approves plan %s, and the current one is %s", c.Plan, p.Plan.Digest)
	case wave == asked && onlyOthers(p, wave, c.By):
		return refuse("it needs somebody else: %s started it, and policy %s does not count them", c.By, p.Plan.Waves[wave-1].Approvals[0].Policy)
	case wave == held:
		return p, Effect{Order: Approve, Wave: wave}, fmt.Sprintf("passed to wave %d", wave), nil
	}
	for _, a := range p.Approvals {
		if a.Wave == wave && a.By == c.By && a.Plan == p.Plan.Digest {
			return p, Effect{}, c.By + " has approved it already; one person counts once", nil
		}
	}
	p.Approvals = append(append([]policy.Approved(nil), p.Approvals...),
		policy.Approved{By: c.By, Wave: wave, At: f.Now, Plan: p.Plan.Digest, Reason: c.Reason, Claimed: true})
	answer := fmt.Sprintf("counted for wave %d", wave)
	if p.Asked() == wave {
		answer += ", which needs more"
		for _, a := range p.Plan.Waves[wave-1].Approvals {
			if a.NotAuthor && c.By == p.Author {
				answer += fmt.Sprintf("; policy %s does not count %s, who started it", a.Policy, c.By)
			}
		}
	}
	return p, Effect{}, answer, nil
}

// onlyOthers reports whether a person's approval would count for no demand of a wave: each wants somebody other than
// whoever started the rollout.
func onlyOthers(p policy.Progress, wave int, by string) bool {
	for _, a := range p.Plan.Waves[wave-1].Approvals {
		if !a.NotAuthor {
			return false
		}
	}
	return by == p.Author
}

func applyTarget(p policy.Progress, name string, c Command, f CommandFacts) (policy.Progress, Effect, string, error) {
	refuse := func(format string, args ...any) (policy.Progress, Effect, string, error) {
		return p, Effect{}, "", fmt.Errorf(format, args...)
	}
	switch {
	case c.Target == "":
		return refuse(`%s needs a target; send {"target":"NAME"}`, name)
	case f.Target.Wave == 0:
		return refuse("the plan has no target %q", c.Target)
	case c.Wave != 0 && c.Wave != f.Target.Wave:
		return refuse("%s is in wave %d, not in wave %d", c.Target, f.Target.Wave, c.Wave)
	}
	wave := p.Waves[f.Target.Wave-1]
	if wave.Open {
		return p, Effect{Order: name, Wave: f.Target.Wave}, fmt.Sprintf("passed to wave %d", f.Target.Wave), nil
	}
	if name == Retry && p.Stop.Cause != policy.NotStopped {
		return refuse("nothing new starts any more: %s", p.Stop.Cause)
	}
	if wave.Phase == policy.WavePending {
		if name == Retry {
			return refuse("%s has not been tried yet: wave %d has not begun", c.Target, f.Target.Wave)
		}
		return p, Effect{SkipLater: true}, fmt.Sprintf("%s will be left out of wave %d", c.Target, f.Target.Wave), nil
	}
	switch {
	case f.Target.Retrying:
		return refuse("%s is being tried again and finishes its steps first", c.Target)
	case f.Target.Returning:
		return refuse("%s is on its way back", c.Target)
	case name == Skip && f.Target.State == policy.RolledBack:
		return refuse("%s went back and is left out already", c.Target)
	case !retriable(f.Target.State):
		return refuse("%s is %s: there is nothing to %s", c.Target, f.Target.State, name)
	case name == Retry && p.Paused:
		return refuse("the rollout is paused; resume it first")
	case name == Retry && p.ByHand.Holding:
		return refuse("the rollout holds since %s went back by hand; resume it first", p.ByHand.Names(p.Plan))
	case name == Retry && f.Target.Waits != "":
		return refuse("%s may not be tried again yet: it waits for %s", c.Target, f.Target.Waits)
	case name == Skip:
		return p, Effect{SkipClosed: true}, c.Target + " is left out", nil
	}
	return p, Effect{RetryLate: true}, c.Target + " is tried again", nil
}
