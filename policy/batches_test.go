package policy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Each target of a wave is in exactly one batch, in the wave's order, and none is above what one workflow bears.
func TestBatchesHoldEachTargetOnce(t *testing.T) {
	for _, size := range []int{1, 500, 501, 1000, 1001, 1200, 9999, 10_000} {
		w := Wave{Size: size, Batches: batches(size)}
		next := 0
		for n := 1; n <= max(1, w.Batches); n++ {
			from, to := w.Batch(n)
			if from != next || to <= from || to-from > BatchTargets {
				t.Fatalf("batch %d of %d targets holds [%d, %d), want from %d", n, size, from, to, next)
			}
			next = to
		}
		if next != size || (w.Batches == 0) != (size <= BatchTargets) {
			t.Errorf("%d batches hold %d of %d targets", w.Batches, next, size)
		}
	}
}

// leasing is a wave of batches and all that is under way between them. Messages take any time: a report or a lease arrives
// when the test lets it.
type leasing struct {
	wave    BatchedWave
	leases  []lease // the newest to each batch, sent one at a time
	arrived []int   // the sequence of the lease that a batch knows
	batches []WaveState
	shares  []Share
	beside  []Beside
	asked   []int
	reports [][]BatchProgress // under way, oldest first
	told    []BatchProgress   // the newest report of each batch
	started []string
	phase   WavePhase
}

type lease struct {
	sequence, granted, asked int
	beside                   Beside
}

// decide has the wave decide.
func (l *leasing) decide() {
	d := DecideBatches(l.wave)
	l.wave.Breached, l.wave.Again, l.wave.Turns, l.phase = d.Breached, d.Again, d.Turns, d.Phase
	for n, slots := range d.Grants {
		l.wave.Batches[n].Granted += slots
	}
	for n := range l.leases {
		was := l.leases[n]
		next := Beside{Again: l.wave.Again, Turns: l.wave.Turn(n)}
		for other, one := range l.wave.Batches {
			if other != n {
				next.Counts.Failures += one.Counts.Failures
				next.Counts.Unreachable += one.Counts.Unreachable
			}
		}
		if d.Breached != "" {
			next.Held = true // nothing starts any more
		}
		ask := next.Again != was.beside.Again || !slices.Equal(next.Turns, was.beside.Turns)
		if !ask && l.wave.Batches[n].Granted == was.granted && next.Counts == was.beside.Counts && next.Held == was.beside.Held {
			continue
		}
		now := lease{sequence: was.sequence + 1, granted: l.wave.Batches[n].Granted, beside: next, asked: was.asked}
		if ask {
			now.asked = now.sequence
		}
		l.leases[n] = now
		l.wave.Batches[n].Current = l.told[n].Size > 0 && l.toldAsked(n) >= now.asked
	}
}

// toldAsked is kept in the report's Size, which a batch's reports do not need.
func (l *leasing) toldAsked(n int) int { return l.told[n].Size - 1 }

// work has a batch decide, start what that says and report.
func (l *leasing) work(n int) {
	s, a := &l.batches[n], &l.shares[n]
	s.Beside = &l.beside[n]
	a.Settle(s)
	s.Mark(begun)
	d := DecideWave(*s, begun)
	for _, i := range slices.Concat(d.Start, d.Again) {
		t := &s.Targets[i]
		t.Tried = t.State == Unreachable
		t.InFlight, t.State = true, Applying
		l.started = append(l.started, t.Name)
	}
	uses, flying := s.Uses()
	r := BatchProgress{Known: true, Counts: s.Count(), Returned: a.Returned, Room: s.Room(), Untried: s.Untried(), Stuck: d.Stuck, Uses: uses, Flying: flying,
		Turns: l.beside[n].Turns, Size: l.asked[n] + 1}
	l.reports[n] = append(l.reports[n], r)
}

// A protocol with two parties that each act on old news must still keep what the wave promises: never more in flight than the
// concurrency, with a bounded budget never more than budget + 1 - failures, one at a time where a pace says so, each target at
// most once (twice if it was out of reach), and an end whatever the order in which messages arrive.
func TestLeasesKeepEveryLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(2, 4).Draw(t, "batches")
		size := rapid.IntRange(count, 24).Draw(t, "size")
		limit := rapid.IntRange(0, 6).Draw(t, "budget")
		bounded := rapid.Bool().Draw(t, "bounded")
		unreachable := rapid.IntRange(0, 6).Draw(t, "unreachable")
		concurrency := rapid.IntRange(1, 10).Draw(t, "concurrency")
		paced := rapid.Bool().Draw(t, "paced")
		l := &leasing{}
		l.wave = BatchedWave{MaxConcurrency: concurrency, Budget: &Budget{MaxFailures: Amount{Value: limit}, MaxUnreachable: Amount{Value: unreachable}, Size: size, Bounded: bounded}}
		if paced {
			l.wave.Turns = make([]int, 2)
		}
		wave := Wave{Size: size, Batches: count}
		for n := range count {
			from, to := wave.Batch(n + 1)
			s := WaveState{Budget: l.wave.Budget}
			if paced {
				s.Paces = []PaceState{{}}
			}
			for i := from; i < to; i++ {
				one := TargetProgress{Name: fmt.Sprintf("t%02d", i), State: Pending}
				if paced && i%2 == 0 {
					one.Pace = 1
				}
				s.Targets = append(s.Targets, one)
			}
			l.batches = append(l.batches, s)
			l.wave.Batches = append(l.wave.Batches, BatchProgress{Size: to - from, Counts: WaveCounts{Pending: to - from}, Known: !paced, Room: (to - from) * (1 - toInt(paced))})
			l.told = append(l.told, BatchProgress{})
		}
		l.leases, l.arrived, l.shares, l.asked = make([]lease, count), make([]int, count), make([]Share, count), make([]int, count)
		l.beside, l.reports = make([]Beside, count), make([][]BatchProgress, count)
		l.decide()
		for n := range count {
			l.take(n)
			l.work(n)
		}
		for step := 0; ; step++ {
			var can []func()
			for n := range count {
				if l.leases[n].sequence > l.arrived[n] {
					can = append(can, func() { l.take(n); l.work(n) })
				}
				if len(l.reports[n]) > 0 {
					can = append(can, func() { l.hear(n) })
				}
				for i := range l.batches[n].Targets {
					if one := &l.batches[n].Targets[i]; one.InFlight {
						can = append(can, func() {
							one.InFlight = false
							switch end := rapid.IntRange(0, 5).Draw(t, "end"); {
							case end == 0:
								one.State, one.Counted = Failed, true
							case end == 1 && !one.Tried:
								one.State = Unreachable
							default:
								one.State, one.Counted = Succeeded, false
							}
							l.work(n)
						})
					}
				}
			}
			if len(can) == 0 {
				break
			}
			can[rapid.IntRange(0, len(can)-1).Draw(t, "next")]()
			l.check(t, concurrency, limit, bounded)
			if step > 10_000 {
				t.Fatalf("it does not come to an end: %+v", l.wave)
			}
		}
		switch l.phase {
		case WaveVerified, WaveFailed, WaveDraining:
		case WavePending, WavePassed, WaveRunning, WaveHeld, WaveSoaking, WaveDone, WaveBreached, WaveStopped:
			t.Fatalf("nothing is under way any more, and the wave is %s: %+v", l.phase, l.wave)
		}
		times := map[string]int{}
		for _, name := range l.started {
			if times[name]++; times[name] > 2 {
				t.Fatalf("%s was started %d times", name, times[name])
			}
		}
	})
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// take has a batch hear its newest lease.
func (l *leasing) take(n int) {
	now := l.leases[n]
	l.arrived[n], l.shares[n].Granted, l.beside[n], l.asked[n] = now.sequence, now.granted, now.beside, now.asked
}

// hear has the wave hear the oldest report of a batch.
func (l *leasing) hear(n int) {
	r := l.reports[n][0]
	l.reports[n] = l.reports[n][1:]
	l.told[n] = r
	one := &l.wave.Batches[n]
	granted, size := one.Granted, one.Size
	*one = r
	one.Granted, one.Size = granted, size
	one.Current = l.toldAsked(n) >= l.leases[n].asked
	l.decide()
}

// check checks what really is under way, whoever knows of it.
func (l *leasing) check(t *rapid.T, concurrency, limit int, bounded bool) {
	flying, failures, paced, held := 0, 0, 0, 0
	for n, s := range l.batches {
		c := s.Count()
		flying += c.InFlight
		failures += c.Failures
		held += l.shares[n].Granted - l.shares[n].Returned
		for _, one := range s.Targets {
			if one.InFlight && one.Pace > 0 {
				paced++
			}
		}
	}
	if flying > concurrency || held > concurrency {
		t.Fatalf("%d in flight with %d slots, %d allowed", flying, held, concurrency)
	}
	if bounded && (flying+failures > limit+1 || held+failures > limit+1) {
		t.Fatalf("%d in flight with %d slots and %d failures, with a bounded budget of %d", flying, held, failures, limit)
	}
	if paced > 1 {
		t.Fatalf("%d targets of one pace are in flight", paced)
	}
}

// What a wave of batches is, once nothing is under way, must be what a whole wave would be.
func TestBatchesAreJudgedAsAWave(t *testing.T) {
	tests := []struct {
		name    string
		batches []string // as in targetsOf
		control Control
		want    WavePhase
	}{
		{"all done", []string{"SS", "NS"}, "", WaveVerified},
		{"a failure within budget", []string{"SF", "SS"}, "", WaveVerified},
		{"failures above it, each batch within", []string{"SF", "FS"}, "", WaveDraining},
		{"no success anywhere", []string{"KF", "KK"}, "", WaveFailed},
		{"a success in another batch", []string{"KK", "KS"}, "", WaveVerified},
		{"all skipped", []string{"KK", "KK"}, "", WaveHeld},
		{"one holds", []string{"SH", "PP"}, "", WaveHeld},
		{"one is paused", []string{"SS", "PP"}, ControlPause, WaveRunning},
		{"one was stopped", []string{"SS", "PP"}, ControlStop, WaveDraining},
		{"one is to be tried again", []string{"SS", "SU"}, "", WaveRunning},
		{"one was", []string{"SS", "ST"}, "", WaveVerified},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := BatchedWave{MaxConcurrency: 4, Control: tt.control, Budget: &Budget{MaxFailures: Amount{Value: 1}, MaxUnreachable: Amount{Value: 1}, Size: 4}}
			for _, letters := range tt.batches {
				part := WaveState{Targets: targetsOf(letters), Beside: &Beside{}}
				held := 0
				for _, one := range part.Targets {
					held += toInt(one.Held)
				}
				s.Batches = append(s.Batches, BatchProgress{Size: len(part.Targets), Known: true, Current: true, Counts: part.Count(), Untried: part.Untried(), Held: held,
					Stuck: DecideWave(part, time.Time{}).Stuck})
			}
			if d := DecideBatches(s); d.Phase != tt.want {
				t.Errorf("got %s (%s), want %s", d.Phase, d.Reason, tt.want)
			}
		})
	}
}

// What nothing can lift but a person, in any batch, makes the wave hold; a batch that has not heard the newest word is waited for.
func TestStuckBatchesHold(t *testing.T) {
	s := BatchedWave{MaxConcurrency: 2, Batches: []BatchProgress{
		{Size: 2, Known: true, Current: true, Counts: WaveCounts{Succeeded: 2}},
		{Size: 2, Known: true, Current: true, Counts: WaveCounts{Pending: 2}, Stuck: "2 targets wait for canary"}}}
	if d := DecideBatches(s); d.Phase != WaveHeld || d.Reason != "2 targets wait for canary" {
		t.Errorf("got %s (%s)", d.Phase, d.Reason)
	}
	s.Batches[1].Current = false
	if d := DecideBatches(s); d.Phase != WaveRunning {
		t.Errorf("with news under way: %s (%s)", d.Phase, d.Reason)
	}
	s.Batches[1].Current, s.Batches[0].Counts, s.Batches[0].Untried = true, WaveCounts{Succeeded: 1, Unreachable: 1}, 1
	s.Budget = &Budget{MaxUnreachable: Amount{Value: 1}}
	if d := DecideBatches(s); d.Phase != WaveRunning || !d.Again {
		t.Errorf("with one that may be reached by now: %s (%s), again %t", d.Phase, d.Reason, d.Again)
	}
}

// A turn that was ended, and given again before the batch's word on that came, is not over by that word: the batch may have
// started a target since, and two of one pace would be in flight.
func TestATurnIsNotOverByAnOldReport(t *testing.T) {
	s := BatchedWave{MaxConcurrency: 2, Turns: []int{0, 2}, Batches: []BatchProgress{
		{Size: 2, Known: true, Current: true, Counts: WaveCounts{Pending: 1, Succeeded: 1}, Uses: []bool{false, true}, Flying: []bool{false, false}, Turns: []bool{false, false}},
		{Size: 2, Known: true, Counts: WaveCounts{Pending: 2}, Uses: []bool{false, true}, Flying: []bool{false, false}, Turns: []bool{false, false}}}}
	if d := DecideBatches(s); d.Turns[1] != 2 {
		t.Errorf("the turn went to batch %d on old news", d.Turns[1])
	}
	s.Batches[1].Current = true
	if d := DecideBatches(s); d.Turns[1] != 1 {
		t.Errorf("it is batch %d's turn, want the first that uses the pace", d.Turns[1])
	}
}
