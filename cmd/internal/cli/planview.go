package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// shownTargets is how many targets of a wave the table names without --targets.
const shownTargets = 8

// writePlan writes a plan for people.
func writePlan(w io.Writer, style out.Style, p policy.Plan, everyTarget bool) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s to %s: %s in %s\n", style.Bold(p.Deployment+"@"+p.Version.Name), style.Bold(p.Environment),
		counted(p.Targets, "target"), counted(len(p.Waves), "wave"))
	fmt.Fprintf(&text, "plan      %s\ndocuments %s\nfleet     %s\n", p.Digest, p.BundleDigest, p.SnapshotDigest)
	for _, pair := range []struct {
		name   string
		values map[string]string
	}{{"artifact", p.Version.Artifacts}, {"param", p.Version.Params}} {
		for _, key := range sortedKeys(pair.values) {
			fmt.Fprintf(&text, "%-9s %s=%s\n", pair.name, out.Clean(key), out.Clean(pair.values[key]))
		}
	}
	fmt.Fprintf(&text, "step      %s (%s), deadline %s a target\n", out.Clean(p.Step.Name), p.Step.Kind, p.Step.Deadline)

	text.WriteString("\n" + style.Bold("Waves") + "\n")
	waves := out.NewGrid("WAVE", "NAME", "TARGETS", "AT ONCE", "MAY FAIL", "UNREACHABLE", "SOAK", "APPROVAL", "BLAST RADIUS", "POLICY")
	waves.Indent = "  "
	for _, wave := range p.Waves {
		name := out.Clean(wave.Name)
		if wave.Size == 0 {
			waves.Row(strconv.Itoa(wave.Number), name, "0", "", "", "", "", "", "", wave.Policy)
			continue
		}
		waves.Row(strconv.Itoa(wave.Number), name, strconv.Itoa(wave.Size), strconv.Itoa(wave.MaxConcurrency),
			amount(wave.Budget.MaxFailures, wave.Budget.Failures(0)), amount(wave.Budget.MaxUnreachable, wave.Budget.Unreachable(0)),
			soakOf(wave.Soak), approvalsOf(wave.Approvals), strconv.Itoa(wave.BlastRadius), orDefault(wave.Policy))
	}
	if _, err := waves.WriteTo(&text); err != nil {
		return err
	}
	for _, wave := range p.Waves {
		if wave.Passed != "" {
			fmt.Fprintf(&text, "  wave %d (%s): %s\n", wave.Number, out.Clean(wave.Name), out.Clean(wave.Passed))
		}
	}
	fmt.Fprintf(&text, "  whole rollout: %s may fail, %s may be unreachable%s (%s)\n", amount(p.Budget.MaxFailures, p.Budget.Failures(0)),
		amount(p.Budget.MaxUnreachable, p.Budget.Unreachable(0)), boundedOf(p.Budget), orDefault(p.Budget.From))

	text.WriteString("\n" + style.Bold("Rules") + "\n")
	writeRules(&text, style, p)

	text.WriteString("\n" + style.Bold("Targets, in the order in which they start") + "\n")
	if err := writePlannedTargets(&text, p, everyTarget); err != nil {
		return err
	}
	if err := writeOut(&text, style, p.Out, everyTarget); err != nil {
		return err
	}
	for _, note := range p.Notes {
		fmt.Fprintf(&text, "\n%s %s\n", style.Warn("note:"), out.Clean(note))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// writeRules writes which policies hold, what they demand of every wave, the checks and the way back.
func writeRules(text *strings.Builder, style out.Style, p policy.Plan) {
	if p.Unguarded {
		fmt.Fprintf(text, "  %s no policy matches, and --unguarded was given\n", style.Warn("unguarded:"))
	}
	for _, use := range p.Policies {
		scope := ""
		if use.Targets < p.Targets {
			scope = fmt.Sprintf(" on %s", counted(use.Targets, "target"))
		}
		fmt.Fprintf(text, "  policy %s (priority %d): %s%s\n", use.Name, use.Priority, strings.Join(use.Rules, ", "), scope)
	}
	for _, wave := range p.Waves {
		if wave.Soak > 0 {
			fmt.Fprintf(text, "  wave %d soaks %s (%s)\n", wave.Number, wave.Soak, orDefault(strings.Join(wave.SoakFrom, ", ")))
		}
		for _, c := range wave.Approvals {
			fmt.Fprintf(text, "  %s\n", consentOf(wave, c))
		}
	}
	for _, pace := range p.Paces {
		fmt.Fprintf(text, "  %s\n", paceOf(pace))
	}
	for n, d := range p.Dependencies {
		fmt.Fprintf(text, "  %s\n", dependencyOf(p, n, d))
	}
	for _, m := range p.Metrics {
		fmt.Fprintf(text, "  %s\n", metricOf(m))
	}
	r := p.Rollback
	verify := "verified"
	if !r.Verify {
		verify = "not verified"
	}
	failures := "no number of failed returns stops the others"
	if r.MaxFailures != nil {
		failures = r.MaxFailures.String() + " failed returns pause it"
	}
	fmt.Fprintf(text, "  rollback: in order %s, %s at once, %s, %s; a target that fails: %s; budget breached: %s; rejected: %s (%s)\n",
		r.Order, r.MaxConcurrency, verify, failures, r.OnTargetFailed, r.OnBreach, r.OnReject, orDefault(r.Policy))
	switch {
	case p.NoReturn != "":
		fmt.Fprintf(text, "  %s no target could go back: %s\n", style.Bad("no way back:"), out.Clean(p.NoReturn))
	case !p.Step.Uninstalls:
		text.WriteString("  a target on which nothing is installed yet could not go back: its step cannot uninstall\n")
	}
	if !p.Step.Observes {
		fmt.Fprintf(text, "  %s the step cannot read which version runs: no target is verified, and an unknown effect needs a person\n", style.Warn("unverified:"))
	}
}

// writePlannedTargets writes the targets of each wave.
func writePlannedTargets(text *strings.Builder, p policy.Plan, every bool) error {
	if !every {
		for _, wave := range p.Waves {
			names := make([]string, len(wave.Targets))
			for i, t := range wave.Targets {
				names[i] = t.Name
			}
			line := strings.Join(names, ", ")
			if len(names) > shownTargets {
				line = strings.Join(names[:shownTargets], ", ") + fmt.Sprintf(" and %d more; --targets lists them", len(names)-shownTargets)
			}
			if line == "" {
				line = "none"
			}
			fmt.Fprintf(text, "  %d (%s): %s\n", wave.Number, out.Clean(wave.Name), out.Clean(line))
		}
		return nil
	}
	grid := out.NewGrid("#", "TARGET", "WAVE", "REASON", "CHECKS")
	grid.Indent = "  "
	position := 0
	for _, wave := range p.Waves {
		for _, t := range wave.Targets {
			position++
			var checks []string
			for _, m := range t.Metrics {
				checks = append(checks, p.Metrics[m].Metric.Name)
			}
			grid.Row(strconv.Itoa(position), out.Clean(t.Name), fmt.Sprintf("%d (%s)", wave.Number, out.Clean(wave.Name)), out.Clean(t.Reason),
				strings.Join(checks, ", "))
		}
	}
	_, err := grid.WriteTo(text)
	return err
}

// writeOut writes the targets that are left out: each one, or how many for each reason.
func writeOut(text *strings.Builder, style out.Style, left []policy.Out, every bool) error {
	if len(left) == 0 {
		return nil
	}
	fmt.Fprintf(text, "\n%s\n", style.Bold(fmt.Sprintf("Left out: %s", counted(len(left), "target"))))
	grid := out.NewGrid("TARGET", "REASON")
	if every {
		for _, one := range left {
			grid.Row(out.Clean(one.Target), out.Clean(one.Reason))
		}
	} else {
		var reasons []string
		names := map[string][]string{}
		for _, one := range left {
			if _, seen := names[one.Reason]; !seen {
				reasons = append(reasons, one.Reason)
			}
			names[one.Reason] = append(names[one.Reason], one.Target)
		}
		grid = out.NewGrid("TARGETS", "", "REASON")
		for _, reason := range reasons {
			some := names[reason]
			line := strings.Join(some, ", ")
			if len(some) > shownTargets {
				line = strings.Join(some[:shownTargets], ", ") + " …"
			}
			grid.Row(strconv.Itoa(len(some)), out.Clean(line), out.Clean(reason))
		}
	}
	grid.Indent = "  "
	_, err := grid.WriteTo(text)
	return err
}

// amount shows what was written and, for a percentage, what it comes to.
func amount(written policy.Amount, comes int) string {
	if !written.Percent {
		return written.String()
	}
	return fmt.Sprintf("%d (%s)", comes, written)
}

func soakOf(d policy.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func boundedOf(b policy.Budget) string {
	if b.Bounded {
		return ", bounded: never more in flight than may still fail, and one"
	}
	return ""
}

// approvalsOf is how many people a wave needs, for the table; the rules below it say whose demand that is.
func approvalsOf(all []policy.Consent) string {
	if len(all) == 0 {
		return ""
	}
	parts := make([]string, len(all))
	for i, c := range all {
		parts[i] = strconv.Itoa(c.Min)
		if c.Rollout {
			parts[i] += " (rollout)"
		}
	}
	return strings.Join(parts, " + ")
}

// consentOf is one demand for approval as a sentence.
func consentOf(wave policy.Wave, c policy.Consent) string {
	what := fmt.Sprintf("wave %d", wave.Number)
	if c.Rollout {
		what = "the rollout"
	}
	line := fmt.Sprintf("%s needs the approval of %s", what, people(c.Min))
	if c.NotAuthor {
		line += ", not of whoever starts it"
	}
	if c.Within > 0 {
		line += fmt.Sprintf(", within %s", c.Within)
	}
	return line + " (" + c.Policy + ")"
}

func people(n int) string {
	if n == 1 {
		return "1 person"
	}
	return fmt.Sprintf("%d people", n)
}

// paceOf is one gradual rollout as a sentence.
func paceOf(pace policy.Pace) string {
	line := fmt.Sprintf("%s starts one after the other", counted(pace.Targets, "target"))
	switch {
	case pace.Interval > 0 && pace.Overlap:
		line += fmt.Sprintf(", %s apart, whether those before are done or not", pace.Interval)
	case pace.Interval > 0:
		line += fmt.Sprintf(", %s apart and not before the one before is done", pace.Interval)
	case pace.Overlap:
		line = fmt.Sprintf("%s starts without waiting for each other", counted(pace.Targets, "target"))
	default:
		line += ", each when the one before is done"
	}
	if pace.Targets > 1 {
		line = strings.Replace(line, " starts", " start", 1)
	}
	return line + " (" + pace.Policy + ")"
}

// dependencyOf is one dependency as a sentence.
func dependencyOf(p policy.Plan, n int, d policy.Dependency) string {
	waiting := 0
	for _, wave := range p.Waves {
		for _, t := range wave.Targets {
			if slices.Contains(t.After, n) {
				waiting++
			}
		}
	}
	verb := "wait"
	if waiting == 1 {
		verb = "waits"
	}
	line := fmt.Sprintf("%s %s until %s %s has succeeded on this version", counted(waiting, "target"), verb, d.Kind, out.Clean(d.Name))
	if d.Kind == policy.WaitForPolicy {
		line = fmt.Sprintf("%s %s until the %s of policy %s have succeeded on this version", counted(waiting, "target"), verb, counted(len(d.Targets), "target"), out.Clean(d.Name))
	}
	return line + " (" + d.Policy + ")"
}

// metricOf is one check as a sentence.
func metricOf(m policy.PlannedMetric) string {
	when := "after each change"
	switch m.Metric.During {
	case policy.DuringSoak:
		when = "during the soak"
	case policy.DuringBoth:
		when = "after each change and during the soak"
	case policy.DuringApply:
	}
	line := fmt.Sprintf("check %s %s: ", m.Metric.Name, when)
	if m.Metric.Count == 1 {
		line += "once"
	} else {
		line += fmt.Sprintf("%d times", m.Metric.Count)
	}
	if m.Metric.Interval > 0 && m.Metric.Count > 1 {
		line += fmt.Sprintf(" every %s, %s in all", m.Metric.Interval, policy.Duration(time.Duration(m.Metric.Interval)*time.Duration(m.Metric.Count)))
	}
	if m.Metric.Success != "" {
		line += ", passes on " + out.Clean(string(m.Metric.Success))
	}
	if m.Metric.Failure != "" {
		line += ", fails on " + out.Clean(string(m.Metric.Failure))
	}
	if m.Metric.DryRun {
		line += ", shown and not judged"
	}
	return line + " (" + m.Policy + ")"
}

// orDefault names the policy behind a demand.
func orDefault(policy string) string {
	if policy == "" {
		return "default"
	}
	return policy
}

// sortedKeys lists a map's keys in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
