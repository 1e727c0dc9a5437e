package demo

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

// Expectation is what was promised for a rollout that is caught and taken back.
type Expectation struct {
	// From is the version that every cluster runs before and, at the end, again; To is the one that is taken back.
	From, To string
	// Waves are in the order in which they may be reached. Who is in none of them must not be touched.
	Waves []Wave
	// BackConcurrency is the most clusters that may be on their way back at once.
	BackConcurrency int
	// Checks is how long the checks of a cluster take after its change. It is in flight meanwhile, which the effect log
	// does not show.
	Checks time.Duration
	// Grace is how much later than it could a cluster may be asked, or a check may end, on a machine that has other
	// things to do.
	Grace time.Duration
}

// Wave is one wave of an Expectation.
type Wave struct {
	Name     string
	Clusters []string
	// Concurrency is the most clusters that may be on their way to the new version at once.
	Concurrency int
}

// trip is what was asked of one cluster towards one version. The entries are those of its first one; zero if there was none.
type trip struct {
	requests, starts     int
	request, finished    fleet.Entry
	requested, succeeded bool
}

// journey is one cluster.
type journey struct {
	name      string
	wave      int
	out, back trip
	// runs is what it runs, "" if that cannot be told.
	runs string
	// open is how many of its operations have not ended.
	open int
}

// reached reports whether the new version was brought to the cluster, or began to be.
func (j *journey) reached() bool { return j.out.starts > 0 }

// Judge says what in a fleet's effect log is not as it must be after a rollout that was caught and taken back; nothing,
// if all is. It looks at nothing but the log:
//
//   - At least one cluster was reached, not all were, and at least one wave was complete before the way back began.
//   - Every cluster that was reached changed exactly once each way: one request, one operation, carried out at the first
//     asking. Nobody else was touched, and nothing was asked of anybody that is not in a wave.
//   - A wave began only when each cluster of the one before it had changed, and never had more in flight than it may.
//   - Once a cluster was back, none was asked to change any more, and never were more on their way back than may be.
//   - The way back was in the order of the way out: a was asked to go back before b unless both were in flight together.
//     On the way out those have no order: either may have been the first. A cluster is in flight until its checks have
//     ended, at most Checks and Grace after its change, and those of a wave before the next one begins. On the way back
//     a cluster takes its place before it is asked, so that of those with a place a later one may be asked, and be back,
//     before an earlier one is asked. So when b is asked, those that were reached before it and are not back are fewer
//     than may be under way at once; and none of them is asked later than Grace after b is back.
//   - Every cluster runs the old version at the end, with nothing still going on.
func Judge(entries []fleet.Entry, e Expectation) []string {
	var f faults
	clusters := read(entries, e, &f)
	ordered := slices.SortedFunc(maps.Values(clusters), func(a, b *journey) int {
		return cmp.Or(cmp.Compare(a.wave, b.wave), cmp.Compare(a.out.request.Seq, b.out.request.Seq), cmp.Compare(a.name, b.name))
	})
	judgeReach(ordered, e, &f)
	judgeTrips(ordered, e, &f)
	judgeWaves(ordered, e, &f)
	judgeStop(ordered, e, &f)
	judgeOrder(ordered, e, &f)
	judgeEnd(ordered, e, &f)
	return f.list()
}

// read follows every cluster through the log.
func read(entries []fleet.Entry, e Expectation, f *faults) map[string]*journey {
	clusters := map[string]*journey{}
	for i, w := range e.Waves {
		for _, name := range w.Clusters {
			clusters[name] = &journey{name: name, wave: i, runs: e.From}
		}
	}
	if len(entries) == 0 || entries[0].Kind != fleet.KindStart {
		f.add("the effect log does not begin with the start of the fleet", "")
	}
	for _, entry := range entries {
		switch entry.Kind {
		case fleet.KindStart:
			if entry.Version != e.From {
				f.add(fmt.Sprintf("the fleet began on %s, not on %s", entry.Version, e.From), "")
			}
			if entry.Count != len(clusters) {
				f.add(fmt.Sprintf("the fleet has %d clusters, and the waves %d", entry.Count, len(clusters)), "")
			}
			continue
		case fleet.KindRestarted:
			continue // what was done before counts as it did
		case fleet.KindFenced:
			f.add(fmt.Sprintf("an operation was looked for that had never been asked for: %s", entry.Operation), "")
			continue
		case fleet.KindRequest, fleet.KindDropped, fleet.KindRefused, fleet.KindRepeated, fleet.KindStarted, fleet.KindFinished, fleet.KindReleased:
		}
		j := clusters[entry.Target]
		if j == nil {
			f.add(fmt.Sprintf("is in no wave and was touched (%s)", entry.Kind), entry.Target)
			continue
		}
		j.note(entry, e, f)
	}
	return clusters
}

// note takes one entry about the cluster.
func (j *journey) note(entry fleet.Entry, e Expectation, f *faults) {
	var t *trip
	switch entry.Version {
	case e.To:
		t = &j.out
	case e.From:
		t = &j.back
	default:
		f.add(fmt.Sprintf("had something done to it that is neither %s nor %s (%s %s)", e.To, e.From, entry.Kind, entry.Version), j.name)
		t = &trip{}
	}
	switch entry.Kind {
	case fleet.KindRequest:
		if t.requests++; !t.requested {
			t.request, t.requested = entry, true
		}
	case fleet.KindStarted:
		j.open++
		t.starts++
	case fleet.KindFinished:
		j.open--
		j.runs = entry.Runs
		switch {
		case entry.Unreadable:
			j.runs = ""
			f.add(fmt.Sprintf("cannot be read any more after its change to %s", entry.Version), j.name)
		case entry.Result != string(fleet.Succeeded):
			f.add(fmt.Sprintf("did not take %s (%s)", entry.Version, entry.Result), j.name)
		case !t.succeeded:
			t.finished, t.succeeded = entry, true
		}
	case fleet.KindDropped:
		f.add(fmt.Sprintf("was asked to go to %s and the request was lost", entry.Version), j.name)
	case fleet.KindRefused:
		f.add(fmt.Sprintf("refused to go to %s (%s)", entry.Version, entry.Result), j.name)
	case fleet.KindRepeated:
		f.add(fmt.Sprintf("was asked for the same change to %s again", entry.Version), j.name)
	case fleet.KindReleased:
		f.add("was released by hand", j.name)
	case fleet.KindStart, fleet.KindRestarted, fleet.KindFenced:
	}
}

// judgeReach looks at how far the new version came.
func judgeReach(clusters []*journey, e Expectation, f *faults) {
	reached := 0
	firstBack := int64(0)
	for _, j := range clusters {
		if j.reached() {
			reached++
		}
		if j.back.requested && (firstBack == 0 || j.back.request.Seq < firstBack) {
			firstBack = j.back.request.Seq
		}
	}
	switch {
	case reached == 0:
		f.add(fmt.Sprintf("no cluster was reached by %s: nothing was shown", e.To), "")
		return
	case reached == len(clusters):
		f.add(fmt.Sprintf("all %d clusters were reached by %s: nothing stopped it", reached, e.To), "")
	}
	for i := range e.Waves {
		if complete(clusters, i, firstBack) {
			return
		}
	}
	f.add("no wave was complete before the way back began", "")
}

// complete reports whether each cluster of a wave had changed before an entry; 0 stands for the end of the log.
func complete(clusters []*journey, wave int, before int64) bool {
	some := false
	for _, j := range clusters {
		if j.wave != wave {
			continue
		}
		if !j.out.succeeded || before != 0 && j.out.finished.Seq > before {
			return false
		}
		some = true
	}
	return some
}

// judgeTrips looks at each cluster's changes: none, or one each way.
func judgeTrips(clusters []*journey, e Expectation, f *faults) {
	for _, j := range clusters {
		for _, one := range []struct {
			trip    trip
			version string
		}{{j.out, e.To}, {j.back, e.From}} {
			if one.trip.requests > 1 {
				f.add(fmt.Sprintf("was asked to go to %s %d times", one.version, one.trip.requests), j.name)
			}
			if one.trip.starts > 1 {
				f.add(fmt.Sprintf("was changed to %s %d times", one.version, one.trip.starts), j.name)
			}
			if one.trip.requested && one.trip.starts == 0 {
				f.add(fmt.Sprintf("was asked to go to %s and did not begin to", one.version), j.name)
			}
		}
		switch {
		case j.reached() && !j.back.requested:
			f.add(fmt.Sprintf("was reached by %s and never asked to go back", e.To), j.name)
		case !j.reached() && j.back.requested:
			f.add(fmt.Sprintf("was asked to go to %s without ever having been reached by %s", e.From, e.To), j.name)
		case j.reached() && j.back.request.Seq < j.out.request.Seq:
			f.add(fmt.Sprintf("was asked to go to %s before %s", e.From, e.To), j.name)
		}
	}
}

// judgeWaves looks at the order of the waves and at how many were in flight on the way out.
func judgeWaves(clusters []*journey, e Expectation, f *faults) {
	for i, w := range e.Waves {
		var wave []*journey
		for _, j := range clusters {
			if j.wave == i && j.out.requested {
				wave = append(wave, j)
			}
		}
		if most := mostAtOnce(wave, func(j *journey) trip { return j.out }); most > w.Concurrency {
			f.add(fmt.Sprintf("wave %s had %d in flight at once, and %d are allowed", w.Name, most, w.Concurrency), "")
		}
		if i == 0 {
			continue
		}
		for _, j := range wave {
			if !complete(clusters, i-1, j.out.request.Seq) {
				f.add(fmt.Sprintf("was asked to go to %s in wave %s before wave %s was complete", e.To, w.Name, e.Waves[i-1].Name), j.name)
			}
		}
	}
}

// judgeStop looks at what happened once the way back had begun.
func judgeStop(clusters []*journey, e Expectation, f *faults) {
	if most := mostAtOnce(clusters, func(j *journey) trip { return j.back }); most > e.BackConcurrency {
		f.add(fmt.Sprintf("%d were on their way back at once, and %d are allowed", most, e.BackConcurrency), "")
	}
	var first *journey
	for _, j := range clusters {
		if j.back.succeeded && (first == nil || j.back.finished.Seq < first.back.finished.Seq) {
			first = j
		}
	}
	for _, j := range clusters {
		if first != nil && j.out.requested && j.out.request.Seq > first.back.finished.Seq {
			f.add(fmt.Sprintf("was asked to go to %s when %s was already back", e.To, first.name), j.name)
		}
	}
}

// mostAtOnce is the most trips that were under way at the same time.
func mostAtOnce(clusters []*journey, of func(*journey) trip) int {
	type step struct {
		seq   int64
		delta int
	}
	var steps []step
	for _, j := range clusters {
		t := of(j)
		if !t.requested {
			continue
		}
		steps = append(steps, step{t.request.Seq, 1})
		if t.succeeded {
			steps = append(steps, step{t.finished.Seq, -1})
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.seq, b.seq) })
	now, most := 0, 0
	for _, s := range steps {
		now += s.delta
		most = max(most, now)
	}
	return most
}

// judgeOrder looks at the order of the way back; clusters are in the order of the way out.
func judgeOrder(clusters []*journey, e Expectation, f *faults) {
	for i, b := range clusters {
		if !b.back.requested {
			continue
		}
		notBack := 0
		for _, a := range clusters[:i] {
			together := a.wave == b.wave && !a.out.finished.Time.Add(e.Checks+e.Grace).Before(b.out.request.Time)
			if !a.out.succeeded || !a.back.requested || together {
				continue // no order between the two, or a fault of its own
			}
			if !a.back.succeeded || a.back.finished.Seq > b.back.request.Seq {
				notBack++
			}
			if b.back.succeeded && a.back.request.Seq > b.back.finished.Seq && a.back.request.Time.Sub(b.back.finished.Time) > e.Grace {
				f.add("was asked to go back only when clusters that had been reached later were back", a.name)
			}
		}
		if notBack >= e.BackConcurrency {
			f.add("was asked to go back before its turn: too many that had been reached before it were not back", b.name)
		}
	}
}

// judgeEnd looks at where the clusters are left.
func judgeEnd(clusters []*journey, e Expectation, f *faults) {
	for _, j := range clusters {
		if j.open > 0 {
			f.add("is still being changed at the end", j.name)
		}
		if j.runs != e.From {
			f.add(fmt.Sprintf("runs %s at the end, not %s", cmp.Or(j.runs, "something that cannot be read"), e.From), j.name)
		}
	}
}

// faults collects what is wrong. Clusters of which the same is wrong are told together.
type faults struct {
	order []string
	names map[string][]string
}

// namedAtOnce is how many clusters one fault names before it only counts.
const namedAtOnce = 5

// add adds a fault; name is the cluster, or "" if it is about none in particular.
func (f *faults) add(what, name string) {
	if f.names == nil {
		f.names = map[string][]string{}
	}
	if _, known := f.names[what]; !known {
		f.order = append(f.order, what)
		f.names[what] = nil
	}
	if name != "" && !slices.Contains(f.names[what], name) {
		f.names[what] = append(f.names[what], name)
	}
}

// list writes each fault as a sentence.
func (f *faults) list() []string {
	var list []string
	for _, what := range f.order {
		names := f.names[what]
		switch n := len(names); {
		case n == 0:
			list = append(list, what)
		case n <= namedAtOnce:
			list = append(list, strings.Join(names, ", ")+": "+what)
		default:
			list = append(list, fmt.Sprintf("%s and %d more: %s", strings.Join(names[:namedAtOnce], ", "), n-namedAtOnce, what))
		}
	}
	return list
}
