package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// How much of the lists a table shows; JSON has all.
const (
	shownAttention = 10
	shownCommands  = 5
)

// paintState colours a state; the word itself says the same.
func paintState(style out.Style, state workflows.Phase) string {
	switch state {
	case workflows.Succeeded:
		return style.Good(string(state))
	case workflows.Failed, workflows.RollbackIncomplete, workflows.Aborted, workflows.Rejected:
		return style.Bad(string(state))
	case workflows.AwaitingApproval, workflows.Holding, workflows.Paused, workflows.RollingBack, workflows.SucceededWithFailures, workflows.RolledBack,
		workflows.Superseded:
		return style.Warn(string(state))
	case workflows.Planned, workflows.Running:
	}
	return string(state)
}

// laneOf is the lane that a status is of.
func laneOf(s workflows.RolloutStatus) lane {
	return lane{Deployment: s.Deployment, Environment: s.Environment}
}

// writeStatus writes a status for people.
func writeStatus(w io.Writer, f *Factory, style out.Style, s workflows.RolloutStatus) error {
	var text strings.Builder
	title := s.Deployment + "@" + out.Clean(s.Version.Name)
	if s.Mode == workflows.ModeRollback {
		title = "rollback of " + title
	}
	fmt.Fprintf(&text, "%s in %s: %s", style.Bold(title), style.Bold(s.Environment), paintState(style, s.State))
	if s.Glance != "" {
		fmt.Fprintf(&text, " (%s)", s.Glance)
	}
	text.WriteByte('\n')
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%-8s %s\n", name, value)
		}
	}
	field("reason", out.Clean(s.Reason))
	field("rollout", s.Rollout)
	field("of", s.Of)
	field("by", out.Clean(s.By))
	field("started", f.moment(s.StartedAt))
	if !s.EndedAt.IsZero() {
		field("ended", fmt.Sprintf("%s, after %s", f.moment(s.EndedAt), short(s.EndedAt.Sub(s.StartedAt))))
	}
	if s.Targets > 0 {
		field("targets", fmt.Sprintf("%d: %s", s.Targets, countsOf(s.Counts)))
	}
	field("plan", s.PlanDigest)

	if len(s.Waves) > 0 {
		text.WriteString("\n" + style.Bold("Waves") + "\n")
		grid := out.NewGrid("WAVE", "NAME", "STATE", "DONE", "IN FLIGHT", "FAILED", "TARGETS", "NOTE")
		grid.Indent = "  "
		for _, wave := range s.Waves {
			grid.Row(strconv.Itoa(wave.Number), out.Clean(wave.Name), wave.State, fmt.Sprintf("%d of %d", doneOf(wave.Counts), wave.Size),
				fmt.Sprintf("%d of %d", wave.InFlight, wave.MaxConcurrency), fmt.Sprintf("%d of %d allowed", wave.Failures, wave.MaxFailures),
				countsOf(wave.Counts), waveNote(f, wave))
		}
		if _, err := grid.WriteTo(&text); err != nil {
			return err
		}
	}
	if back := s.Rollback; back != nil {
		text.WriteString("\n" + style.Bold("Rollback") + "\n")
		fmt.Fprintf(&text, "  %s; %s, %d in flight: %s\n", out.Clean(back.Cause), counted(back.Targets, "target"), back.InFlight, countsOf(back.Counts))
		if len(back.WaitingFor) > 0 {
			fmt.Fprintf(&text, "  a step must end first on: %s\n", out.Clean(strings.Join(back.WaitingFor, ", ")))
		}
		if !back.EndedAt.IsZero() {
			fmt.Fprintf(&text, "  ended %s, after %s\n", f.moment(back.EndedAt), short(back.EndedAt.Sub(back.StartedAt)))
		}
	}
	if len(s.Waits) > 0 {
		text.WriteString("\n" + style.Bold("Waiting for") + "\n")
		for _, wait := range s.Waits {
			fmt.Fprintf(&text, "  %s\n", style.Warn(out.Clean(wait.Reason)))
			writeLifts(&text, f, s, wait)
		}
	}
	if len(s.Attention) > 0 {
		total := max(s.AttentionTotal, len(s.Attention))
		text.WriteString("\n" + style.Bold(fmt.Sprintf("Look at %s", counted(total, "target"))) + "\n")
		grid := out.NewGrid("TARGET", "STATE", "WAVE", "REASON")
		grid.Indent = "  "
		for _, one := range s.Attention[:min(shownAttention, len(s.Attention))] {
			grid.Row(out.Clean(one.Name), string(one.State), strconv.Itoa(one.Wave), out.Clean(one.Reason))
		}
		if _, err := grid.WriteTo(&text); err != nil {
			return err
		}
		if total > shownAttention {
			fmt.Fprintf(&text, "  and %d more; -o json lists up to 50\n", total-min(shownAttention, len(s.Attention)))
		}
	}
	if len(s.Approvals) > 0 {
		text.WriteString("\n" + style.Bold("Approvals") + "\n")
		for _, a := range s.Approvals {
			claimed := ""
			if a.Claimed {
				claimed = " (claimed)"
			}
			fmt.Fprintf(&text, "  wave %d: %s%s, %s%s\n", a.Wave, out.Clean(a.By), claimed, f.moment(a.At), because(a.Reason))
		}
	}
	if len(s.Commands) > 0 {
		text.WriteString("\n" + style.Bold("Last commands") + "\n")
		grid := out.NewGrid("AT", "COMMAND", "BY", "", "ANSWER")
		grid.Indent = "  "
		for _, c := range s.Commands[max(0, len(s.Commands)-shownCommands):] {
			verdict := "accepted"
			switch {
			case c.Pending:
				verdict = "passed on"
			case !c.Accepted:
				verdict = style.Bad("refused")
			}
			grid.Row(f.clock(c.At), commandOf(c), out.Clean(c.By), verdict, out.Clean(c.Answer))
		}
		if _, err := grid.WriteTo(&text); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// commandOf is a command with what it was about. Where it names a target, the receipt's wave is where that was found.
func commandOf(c workflows.Receipt) string {
	switch {
	case c.Target != "":
		return c.Name + " " + out.Clean(c.Target)
	case c.Wave > 0:
		return fmt.Sprintf("%s wave %d", c.Name, c.Wave)
	}
	return c.Name
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + out.Clean(reason)
}

// countsOf lists how many targets are in which state, in the order of the states.
func countsOf(counts map[policy.TargetState]int) string {
	var parts []string
	for _, state := range policy.TargetStates() {
		if n := counts[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	return strings.Join(parts, ", ")
}

// doneOf counts the targets that have nothing more to come.
func doneOf(counts map[policy.TargetState]int) int {
	done := 0
	for state, n := range counts {
		if state.Terminal() {
			done += n
		}
	}
	return done
}

// waveNote is what else a person should know of a wave.
func waveNote(f *Factory, wave workflows.WaveStatus) string {
	note := out.Clean(wave.Reason)
	if wave.SoakUntil.After(f.Now()) && wave.EndedAt.IsZero() {
		if note != "" {
			note += "; "
		}
		note += "soaks until " + f.moment(wave.SoakUntil)
	}
	return note
}

// writeLifts writes what lifts a wait, when it is looked at next, and the commands to type.
func writeLifts(text *strings.Builder, f *Factory, s workflows.RolloutStatus, wait policy.Wait) {
	if wait.Lifts != "" {
		fmt.Fprintf(text, "    lifted by: %s\n", out.Clean(wait.Lifts))
	}
	if !wait.Next.IsZero() {
		fmt.Fprintf(text, "    next look: %s\n", f.moment(wait.Next))
	}
	for _, command := range liftingCommands(f.Program, s, wait) {
		fmt.Fprintf(text, "    $ %s\n", command)
	}
}

// liftingCommands are the commands that a wait's own words name, ready to type.
func liftingCommands(program string, s workflows.RolloutStatus, wait policy.Wait) []string {
	var commands []string
	words := strings.FieldsFunc(strings.ToLower(wait.Lifts), func(r rune) bool { return r < 'a' || r > 'z' })
	for _, word := range words {
		if !slices.Contains(workflows.CommandNames(), word) {
			continue
		}
		command := fmt.Sprintf("%s %s %s", program, word, laneOf(s).args())
		switch word {
		case workflows.Approve, workflows.Reject:
			if wait.Wave > 0 {
				command += fmt.Sprintf(" --wave %d", wait.Wave)
			}
		case workflows.Skip, workflows.Retry:
			command += " --target " + quote(cmp.Or(wait.Target, firstFailed(s)))
		}
		if !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	return commands
}

// firstFailed names a target that a person may skip or retry: the first that failed or whose
// checks came to no conclusion, else the word TARGET.
func firstFailed(s workflows.RolloutStatus) string {
	for _, one := range s.Attention {
		if one.State == policy.Waiting || one.State == policy.Failed || one.State == policy.NeedsRecovery || one.State == policy.Unreachable {
			return one.Name
		}
	}
	return "TARGET"
}
