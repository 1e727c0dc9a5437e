package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

// effects writes an effect log from a script, one second a word. "+a" is a cluster that is asked to go to v2 and begins
// to, "-a" the end of that, "a" both; "<a", ">a" and "a!" are the same for the way back to v1. What is no cluster of one
// letter with these signs stands as KIND:CLUSTER:VERSION.
func effects(t *testing.T, script string) []fleet.Entry {
	t.Helper()
	at := time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)
	entries := []fleet.Entry{{Kind: fleet.KindStart, Version: "v1", Count: 6}}
	add := func(kind fleet.Kind, cluster, version, result string) {
		e := fleet.Entry{Kind: kind, Target: cluster, Version: version, Operation: cluster + version, Result: result}
		if kind == fleet.KindFinished {
			e.Runs = version
		}
		entries = append(entries, e)
	}
	begin := func(cluster, version string) {
		add(fleet.KindRequest, cluster, version, "")
		add(fleet.KindStarted, cluster, version, "")
	}
	end := func(cluster, version string) { add(fleet.KindFinished, cluster, version, string(fleet.Succeeded)) }
	for _, word := range strings.Fields(script) {
		first := len(entries)
		switch {
		case strings.Contains(word, ":"):
			parts := strings.SplitN(word, ":", 4)
			result := ""
			if len(parts) == 4 {
				result = parts[3]
			}
			add(fleet.Kind(parts[0]), parts[1], parts[2], result)
			if result == "failed" {
				entries[len(entries)-1].Runs = "v1"
			}
		case word[0] == '+':
			begin(word[1:], "v2")
		case word[0] == '-':
			end(word[1:], "v2")
		case word[0] == '<':
			begin(word[1:], "v1")
		case word[0] == '>':
			end(word[1:], "v1")
		case strings.HasSuffix(word, "!"):
			begin(word[:1], "v1")
			end(word[:1], "v1")
		default:
			begin(word, "v2")
			end(word, "v2")
		}
		for i := first; i < len(entries); i++ {
			entries[i].Time = at
		}
		at = at.Add(time.Second)
	}
	for i := range entries {
		entries[i].Seq = int64(i + 1)
	}
	return entries
}

func TestJudge(t *testing.T) {
	base := Expectation{From: "v1", To: "v2", BackConcurrency: 2, Waves: []Wave{
		{Name: "pilot", Clusters: []string{"a", "b"}, Concurrency: 1},
		{Name: "rest", Clusters: []string{"c", "d", "e", "f"}, Concurrency: 2},
	}}
	const settled = 3 * time.Second
	tests := []struct {
		name, script string
		change       func(*Expectation)
		want         []string
	}{
		{name: "as promised", script: "a b +c +d -c -d <a <b >a <c >b <d >c >d"},
		{name: "in flight together on the way out: either may go back first", script: "a b +c +d -d -c a! b! d! c!"},
		{name: "in flight together on the way back: their requests may overtake", script: "a b c <b <a >a >b c!"},
		{name: "still being checked when the next one was asked for", script: "a b c d a! b! d! c!",
			change: func(e *Expectation) { e.Checks = settled }},

		{name: "nobody was reached", script: "", want: []string{"no cluster was reached by v2: nothing was shown"}},
		{name: "the check said nothing", script: "a b c d e f", want: []string{
			"all 6 clusters were reached by v2: nothing stopped it",
			"a, b, c, d, e and 1 more: was reached by v2 and never asked to go back",
			"a, b, c, d, e and 1 more: runs v2 at the end, not v1"}},
		{name: "taken back, but only when all had been reached", script: "a b c d e f a! b! c! d! e! f!", want: []string{
			"all 6 clusters were reached by v2: nothing stopped it"}},
		{name: "no wave was complete", script: "a a!", want: []string{"no wave was complete before the way back began"}},
		{name: "a restore was lost", script: "a b c a! c!", want: []string{
			"b: was reached by v2 and never asked to go back", "b: runs v2 at the end, not v1"}},
		{name: "a restore did nothing", script: "a b a! <b finished:b:v1:failed", want: []string{
			"b: did not take v1 (failed)"}},
		{name: "a restore was not over", script: "a b a! <b", want: []string{
			"b: is still being changed at the end", "b: runs v2 at the end, not v1"}},
		{name: "a restore was asked for and did not begin", script: "a b a! request:b:v1", want: []string{
			"b: was asked to go to v1 and did not begin to", "b: runs v2 at the end, not v1"}},
		{name: "changed twice", script: "a b b a! b!", want: []string{
			"b: was asked to go to v2 2 times", "b: was changed to v2 2 times"}},
		{name: "taken back twice", script: "a b a! b! b!", want: []string{
			"b: was asked to go to v1 2 times", "b: was changed to v1 2 times"}},
		{name: "asked twice for one change", script: "a b request:b:v2 repeated:b:v2 a! b!", want: []string{
			"b: was asked for the same change to v2 again", "b: was asked to go to v2 2 times"}},
		{name: "refused", script: "a b request:c:v2 refused:c:v2:busy a! b!", want: []string{
			"c: refused to go to v2 (busy)", "c: was asked to go to v2 and did not begin to"}},
		{name: "lost on its way", script: "a b dropped:c:v2 a! b!", want: []string{"c: was asked to go to v2 and the request was lost"}},
		{name: "looked for and never asked for", script: "a b fenced:: a! b!", want: []string{
			"an operation was looked for that had never been asked for: "}},
		{name: "did not take the new version", script: "a b +c finished:c:v2:failed a! b! c!", want: []string{
			"c: did not take v2 (failed)"}},
		{name: "released by hand", script: "a b released:b:v2 a! b!", want: []string{"b: was released by hand"}},
		{name: "an outsider of a later time", script: "a b a! b! c", want: []string{
			"c: was reached by v2 and never asked to go back", "c: was asked to go to v2 when a was already back", "c: runs v2 at the end, not v1"}},
		{name: "an outsider of a later wave", script: "a c b a! b!", want: []string{
			"c: was reached by v2 and never asked to go back",
			"c: was asked to go to v2 in wave rest before wave pilot was complete",
			"c: runs v2 at the end, not v1"}},
		{name: "a stranger", script: "a b z a! b!", want: []string{
			"z: is in no wave and was touched (request)", "z: is in no wave and was touched (started)", "z: is in no wave and was touched (finished)"}},
		{name: "an outsider that was only taken back", script: "a b a! b! c!", want: []string{
			"c: was asked to go to v1 without ever having been reached by v2"}},
		{name: "something else altogether", script: "a b request:c:v7 started:c:v7 finished:c:v7:succeeded a! b!", want: []string{
			"c: had something done to it that is neither v2 nor v1 (request v7)",
			"c: had something done to it that is neither v2 nor v1 (started v7)",
			"c: had something done to it that is neither v2 nor v1 (finished v7)",
			"c: runs v7 at the end, not v1"}},
		{name: "a wave began too early", script: "+a -a +b c -b a! b! c!", want: []string{
			"c: was asked to go to v2 in wave rest before wave pilot was complete"}},
		{name: "too many on the way out", script: "+a +b -a -b a! b!", want: []string{"wave pilot had 2 in flight at once, and 1 are allowed"}},
		{name: "too many on the way back", script: "a b c <a <b <c >a >b >c", want: []string{
			"3 were on their way back at once, and 2 are allowed",
			"c: was asked to go back before its turn: too many that had been reached before it were not back"}},
		{name: "out of order within a wave", script: "a b b! a!", want: []string{
			"a: was asked to go back only when clusters that had been reached later were back"}},
		{name: "a little late on the way back", script: "a b c c! a! b!", change: func(e *Expectation) { e.BackConcurrency, e.Grace = 3, 2*time.Second }},
		{name: "too late on the way back", script: "a b c c! b! a!", change: func(e *Expectation) { e.BackConcurrency, e.Grace = 3, time.Second },
			want: []string{"a: was asked to go back only when clusters that had been reached later were back"}},
		{name: "newest first, all at once", script: "a b c c! b! a!", change: func(e *Expectation) { e.Grace = time.Minute },
			want: []string{"c: was asked to go back before its turn: too many that had been reached before it were not back"}},
		{name: "out of order across waves", script: "a b c <c <b >c >b a!", change: func(e *Expectation) { e.Checks = settled }, want: []string{
			"a: was asked to go back only when clusters that had been reached later were back",
			"c: was asked to go back before its turn: too many that had been reached before it were not back"}},
		{name: "out of order, checks long over", script: "a b c +d -d +e -e a! b! e! c! d!", want: []string{
			"c: was asked to go back only when clusters that had been reached later were back"},
			change: func(e *Expectation) { e.Checks = settled - time.Second }},
		{name: "another fleet", script: "a b a! b!", change: func(e *Expectation) { e.Waves[1].Clusters = []string{"c", "d", "e"} },
			want: []string{"the fleet has 6 clusters, and the waves 5"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := base
			e.Waves = append([]Wave(nil), base.Waves...)
			if tt.change != nil {
				tt.change(&e)
			}
			if diff := cmp.Diff(tt.want, Judge(effects(t, tt.script), e)); diff != "" {
				t.Errorf("faults of %q (-want +got):\n%s", tt.script, diff)
			}
		})
	}
	if got := Judge(nil, base); len(got) == 0 {
		t.Error("an empty log proves something")
	}
}

// TestTheStoryPutsEveryClusterIntoOneWave fails when the verdict would not know some cluster, or would look for it in a
// wave that the documents do not put it in.
func TestTheStoryPutsEveryClusterIntoOneWave(t *testing.T) {
	for seed := range int64(5) {
		s := story(seed)
		seen := map[string]bool{}
		var sizes []int
		for _, w := range s.expectation().Waves {
			sizes = append(sizes, len(w.Clusters))
			for _, name := range w.Clusters {
				if seen[name] {
					t.Errorf("seed %d: %s is in two waves", seed, name)
				}
				seen[name] = true
			}
		}
		if len(seen) != len(s.scenario.Targets()) || sizes[0] != 10 {
			t.Errorf("seed %d: waves of %v hold %d clusters of %d", seed, sizes, len(seen), len(s.scenario.Targets()))
		}
	}
}
