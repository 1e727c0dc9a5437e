package workflows

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/seed-a0a4f4e3/sluice/policy"
)

// status answers StatusQuery.
func (r *rollout) status() RolloutStatus {
	p := r.progress
	s := RolloutStatus{Rollout: r.in.Rollout, Mode: r.in.Mode, Of: r.in.Of, Deployment: r.in.Deployment, Environment: r.in.Environment, Version: r.in.Version,
		State: r.phase, Reason: r.reason, By: r.in.By, StartedAt: r.started, EndedAt: r.ended, PlanDigest: p.Plan.Digest, BundleDigest: r.in.BundleDigest,
		SnapshotDigest: p.Plan.SnapshotDigest, Targets: p.Plan.Targets, Waits: r.waits, Approvals: p.Approvals, Commands: r.receipts, Timeline: r.timeline}
	s.Glance = r.glance()
	s.Counts = map[policy.TargetState]int{}
	for i, w := range p.Waves {
		ws := r.waveStatus(i)
		s.Waves = append(s.Waves, ws)
		for _, state := range policy.TargetStates() {
			if n := ws.Counts[state]; n > 0 {
				s.Counts[state] += n
			}
		}
		if w.Open {
			s.AttentionTotal += r.reports[i].AttentionTotal
			s.Attention = append(s.Attention, r.reports[i].Attention...)
			continue
		}
		for _, t := range r.outcomes[i] {
			if t.State.Attention() {
				s.AttentionTotal++
				s.Attention = append(s.Attention, TargetStatus{Name: t.Name, Wave: t.Wave, State: t.State, Reason: t.Reason, Reached: t.Reached, From: t.From, Attempt: t.Attempt})
			}
		}
	}
	if len(s.Attention) > maxListed {
		s.Attention = s.Attention[:maxListed]
	}
	if p.Back.Begun {
		back := r.back
		back.Counts = map[policy.TargetState]int{}
		for _, t := range r.backDone {
			back.Counts[t.State]++
		}
		for _, part := range r.partsOf(r.way) {
			for _, state := range policy.TargetStates() {
				if n := part.report.States[state]; n > 0 {
					back.Counts[state] += n
				}
			}
			back.InFlight += part.report.Counts.InFlight
		}
		if !p.Back.Ended {
			back.WaitingFor = r.inFlight()
		}
		s.Rollback = &back
	} else if p.ByHand.Returning > 0 || !r.byHand.StartedAt.IsZero() {
		s.Rollback = r.byHandStatus()
	}
	return s
}

func (r *rollout) waveStatus(i int) WaveStatus {
	w, plan := r.progress.Waves[i], r.progress.Plan.Waves[i]
	s := WaveStatus{Number: i + 1, Name: plan.Name, State: string(w.Phase), Reason: w.Reason, Size: plan.Size, Counts: map[policy.TargetState]int{}, InFlight: w.Counts.InFlight,
		Failures: w.Counts.Failures, MaxFailures: plan.Budget.Failures(w.Counts.Skipped), MaxConcurrency: plan.MaxConcurrency, StartedAt: r.openedAt[i], EndedAt: r.closedAt[i], SoakUntil: w.SoakUntil}
	if w.Phase == policy.WavePending && !w.AskedAt.IsZero() {
		s.State = "awaiting approval"
	}
	if !r.openedAt[i].IsZero() {
		s.Workflow = WaveID(r.in.Environment, r.in.Deployment, r.in.Rollout, i+1)
	}
	switch {
	case w.Open && len(r.reports[i].States) > 0:
		for _, state := range policy.TargetStates() {
			if n := r.reports[i].States[state]; n > 0 {
				s.Counts[state] = n
			}
		}
	default:
		for _, t := range r.outcomes[i] {
			s.Counts[t.State]++
		}
		left := plan.Size - len(r.outcomes[i])
		switch {
		case left == 0 || r.in.Mode == ModeRollback && len(r.outcomes[i]) > 0:
		case w.ByHand && !w.Open: // left out before they had been read
			s.Counts[policy.Skipped] += left
		default:
			s.Counts[policy.Pending] += left
		}
	}
	return s
}

// glance is the rollout in one word; empty once it has ended.
func (r *rollout) glance() Glance {
	switch r.phase {
	case Planned, AwaitingApproval, Paused:
		return WaitingIt
	case Holding:
		return BlockedIt
	case Running, RollingBack:
		for _, w := range r.progress.Waves {
			switch {
			case w.Phase == policy.WaveSoaking || w.Phase == policy.WaveVerified:
				return VerifyingIt
			case w.Open && w.Counts.InFlight == 0 && len(w.Waits) > 0:
				return WaitingIt
			}
		}
		return Advancing
	case Succeeded, SucceededWithFailures, Failed, RolledBack, RollbackIncomplete, Rejected, Aborted, Superseded:
	}
	return ""
}

// maxDetails keeps the details short enough for the URL in which the Temporal UI renders them.
const maxDetails = 3500

// show brings the current details and the state's search attribute up to date.
func (r *rollout) show(ctx workflow.Context) {
	workflow.SetCurrentDetails(ctx, r.markdown())
	if r.shown == r.phase {
		return
	}
	r.shown = r.phase
	if err := workflow.UpsertTypedSearchAttributes(ctx, stateKey.ValueSet(string(r.phase))); err != nil {
		workflow.GetLogger(ctx).Warn("The state could not be shown as a search attribute", "error", err)
	}
}

// markdown is what an operator reads in the Temporal UI, and answers from.
func (r *rollout) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "**%s** %s to %s: **%s**\n\n", escape(r.in.Deployment), escape(r.in.Version.Name), escape(r.in.Environment), r.phase)
	if r.reason != "" {
		fmt.Fprintf(&b, "%s\n\n", escape(clip(r.reason, 400)))
	}
	for _, w := range r.waits {
		fmt.Fprintf(&b, "- waits: %s (%s%s). Lifted by: %s\n", escape(w.Reason), w.Rule, policyOf(w.Policy), escape(w.Lifts))
	}
	if answer := r.howToAnswer(); answer != "" {
		fmt.Fprintf(&b, "\nMore Actions, Send a Signal: %s\n", answer)
	}
	// Above the waves, where a person who has just mistyped sees it, and where no length cuts it off.
	shown := 0
	for n := len(r.receipts) - 1; n >= 0 && shown < 3; n-- {
		if c := r.receipts[n]; !c.Accepted && !c.Pending {
			fmt.Fprintf(&b, "\nRefused: %s by %s: %s\n", c.Name, escape(cmp.Or(c.By, "somebody")), verbatim(clip(c.Answer, 200)))
			shown++
		}
	}
	if len(r.progress.Waves) > 0 {
		b.WriteString("\n| wave | state | size | done | failed | in flight |\n|---|---|---|---|---|---|\n")
	}
	for i := range r.progress.Waves {
		if i == 12 {
			fmt.Fprintf(&b, "| … %d more waves | | | | | |\n", len(r.progress.Waves)-i)
			break
		}
		w := r.waveStatus(i)
		done := w.Counts[policy.Succeeded] + w.Counts[policy.NoChange]
		fmt.Fprintf(&b, "| %d %s | %s | %d | %d | %d (max %d) | %d |\n", w.Number, escape(clip(w.Name, 30)), w.State, w.Size, done, w.Failures, w.MaxFailures, w.InFlight)
	}
	if r.progress.Back.Begun {
		flying := 0
		for _, part := range r.partsOf(r.way) {
			flying += part.report.Counts.InFlight
		}
		fmt.Fprintf(&b, "\nRollback of %d targets, %d in flight\n", r.back.Targets, flying)
	} else if r.byHand.ByHand {
		back := r.byHandStatus()
		fmt.Fprintf(&b, "\nRollback %s; %d targets so far, %d in flight\n", escape(clip(back.Cause, 200)), back.Targets, back.InFlight)
	}
	return clip(b.String(), maxDetails)
}

func policyOf(name string) string {
	if name == "" {
		return ""
	}
	return " of policy " + escape(name)
}

// howToAnswer says which signals make sense now, with their payloads.
func (r *rollout) howToAnswer() string {
	switch {
	case r.phase.Ended():
		return ""
	case r.phase == RollingBack && r.progress.Back.Held+r.progress.ByHand.Held != "":
		return "`resume` `{\"by\":\"you\"}` goes on, `abort` leaves the rest"
	case r.progress.ByHand.Holding && r.progress.ByHand.Returning > 0:
		return "`rollback`, `reject` or `abort`, each `{\"by\":\"you\",\"reason\":\"why\"}`; `resume` once it is back"
	case r.progress.ByHand.Holding:
		return "`resume` `{\"by\":\"you\"}` goes on without it; `rollback`, `reject` or `abort` ends it"
	case r.phase == RollingBack:
		return "`abort` leaves the rest as it is"
	case r.progress.Held() > 0:
		return fmt.Sprintf("`approve` `{\"by\":\"you\",\"wave\":%d}` accepts, `reject` takes back", r.progress.Held())
	case r.progress.Asked() > 0:
		return fmt.Sprintf("`approve` `{\"by\":\"you\",\"wave\":%d}`, `reject` `{\"by\":\"you\",\"reason\":\"why\"}`", r.progress.Asked())
	case r.phase == Holding:
		return "`rollback`, `reject` or `abort`, each `{\"by\":\"you\",\"reason\":\"why\"}`"
	case r.phase == Paused:
		return "`resume` `{\"by\":\"you\"}`, or `rollback`, `reject`, `abort`"
	}
	return "`pause`, `rollback`, `reject`, `abort`, each `{\"by\":\"you\",\"reason\":\"why\"}`"
}

// show brings a walk's current details up to date.
func (w *walk) show(ctx workflow.Context) {
	c := w.state.Count()
	var b strings.Builder
	fmt.Fprintf(&b, "**%s** %d targets: %d succeeded, %d failed, %d in flight, %d to start\n", w.phase, len(w.state.Targets), c.Succeeded, c.Failures, c.InFlight, c.Pending)
	if w.reason != "" {
		fmt.Fprintf(&b, "\n%s\n", escape(w.reason))
	}
	if w.soak != nil {
		fmt.Fprintf(&b, "\nSoaks until %s\n", w.soak.until.UTC().Format(time.RFC3339))
	}
	n := 0
	for i, t := range w.state.Targets {
		if t.State.Attention() && n < 15 {
			if n++; n == 1 {
				b.WriteString("\n| target | state | why |\n|---|---|---|\n")
			}
			s := w.targetStatus(i)
			fmt.Fprintf(&b, "| %s | %s | %s |\n", escape(s.Name), s.State, escape(clip(s.Reason, 120)))
		}
	}
	workflow.SetCurrentDetails(ctx, clip(b.String(), maxDetails))
}

// escape keeps operators' and systems' words from being read as Markdown or HTML.
func escape(text string) string { return plain.Replace(text) }

var plain = strings.NewReplacer("\\", "\\\\", "|", "\\|", "<", "&lt;", ">", "&gt;", "*", "\\*", "_", "\\_", "`", "'", "[", "\\[", "]", "\\]", "\r", " ", "\n", " ")

// verbatim shows a text as it is. Elsewhere the UI makes typographic quotes of straight ones, and JSON that an operator
// copies from there is refused.
func verbatim(text string) string {
	return "`" + strings.NewReplacer("`", "'", "\r", " ", "\n", " ").Replace(text) + "`"
}
