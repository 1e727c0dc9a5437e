package demo

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// alike is how many events of one kind in a row the timeline shows before it only counts them.
const alike = 3

// writeTimeline writes who did what, when and why.
func (s *show) writeTimeline(status workflows.RolloutStatus) {
	if len(status.Timeline) == 0 {
		return
	}
	s.say("\n%s", s.style.Bold("Timeline"))
	grid := out.NewGrid("AFTER", "WHO", "WHAT", "WHY")
	grid.Indent = "  "
	begun := status.Timeline[0].At
	events := status.Timeline
	for i := 0; i < len(events); {
		same := 1
		for i+same < len(events) && kind(events[i]) != "" && kind(events[i+same]) == kind(events[i]) {
			same++
		}
		shown := same
		if same > alike {
			shown = alike - 1
		}
		for _, e := range events[i : i+shown] {
			grid.Row(seconds(e.At.Sub(begun)), out.Clean(e.Who), out.Clean(e.What), out.Clean(e.Why))
		}
		if last := events[i+same-1]; shown < same {
			grid.Row(seconds(last.At.Sub(begun)), out.Clean(last.Who), fmt.Sprintf("%d more: %s", same-shown, kind(last)))
		}
		i += same
	}
	s.write(grid)
}

// kind is what many clusters may have in common: their state, where the event is about one cluster.
func kind(e workflows.Event) string {
	_, state, _ := strings.Cut(e.What, ": ")
	if !slices.Contains(policy.TargetStates(), policy.TargetState(state)) {
		return ""
	}
	return state
}

// write writes a table, see say.
func (s *show) write(grid io.WriterTo) { _, _ = grid.WriteTo(s.Out) }

// seconds writes a duration so that those of one table line up.
func seconds(d time.Duration) string { return fmt.Sprintf("%5.1fs", d.Seconds()) }

// sums are figures of an effect log, for the summary. They judge nothing.
type sums struct {
	clusters int
	// reached and returned count clusters; outs and backs are how long all of them took together.
	reached, returned int
	outs, backs       time.Duration
	mostOut, mostBack int
	// versions are what runs at the end, and on how many.
	versions map[string]int
}

// sum adds an effect log up.
func sum(entries []fleet.Entry, e Expectation) sums {
	var ignored faults
	clusters := read(entries, e, &ignored)
	total := sums{clusters: len(clusters), versions: map[string]int{}}
	var (
		all                  []*journey
		first, last          time.Time
		firstBack, latestEnd time.Time
	)
	earliest := func(to *time.Time, at time.Time) {
		if to.IsZero() || at.Before(*to) {
			*to = at
		}
	}
	latest := func(to *time.Time, at time.Time) {
		if at.After(*to) {
			*to = at
		}
	}
	for _, j := range clusters {
		all = append(all, j)
		total.versions[j.runs]++
		if j.reached() {
			total.reached++
			earliest(&first, j.out.request.Time)
			latest(&last, j.out.finished.Time)
		}
		if j.back.succeeded {
			total.returned++
			earliest(&firstBack, j.back.request.Time)
			latest(&latestEnd, j.back.finished.Time)
		}
	}
	total.outs, total.backs = last.Sub(first), latestEnd.Sub(firstBack)
	total.mostOut = mostAtOnce(all, func(j *journey) trip { return j.out })
	total.mostBack = mostAtOnce(all, func(j *journey) trip { return j.back })
	return total
}

// writeSummary writes what was done, in figures.
func (s *show) writeSummary(entries []fleet.Entry) {
	e := s.setting.expectation()
	total := sum(entries, e)
	s.say("\n%s", s.style.Bold("Summary"))
	grid := out.NewGrid("", "", "")
	grid.Indent = "  "
	grid.Row("reached by "+e.To, fmt.Sprintf("%d of %d clusters", total.reached, total.clusters),
		fmt.Sprintf("in %s, at most %d at once", short(total.outs), total.mostOut))
	grid.Row("back on "+e.From, fmt.Sprintf("%d clusters", total.returned), fmt.Sprintf("in %s, at most %d at once", short(total.backs), total.mostBack))
	grid.Row("never touched", fmt.Sprintf("%d clusters", total.clusters-total.reached))
	var versions []string
	for version, n := range total.versions {
		versions = append(versions, fmt.Sprintf("%d on %s", n, cmp.Or(version, "something that cannot be read")))
	}
	slices.Sort(versions)
	grid.Row("at the end", strings.Join(versions, ", "))
	s.write(grid)
}

func short(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }
