package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]string{"": "", "400x50": "400x50x1", "400x50x3,5x1": "400x50x3,5x1x1"} {
		var s sizes
		if err := s.Set(text); err != nil || s.String() != want {
			t.Errorf("%q: got %q, %v; want %q", text, s.String(), err, want)
		}
	}
	for _, text := range []string{"400", "400x", "x50", "0x50", "400x-1", "400x50x0", "400x50x1x1", "axb", "400x50,"} {
		var s sizes
		if err := s.Set(text); err == nil {
			t.Errorf("%q is taken for %s", text, &s)
		}
	}
}

// A flag that is misread would measure something else than what was asked for, for many minutes.
func TestCommandLine(t *testing.T) {
	if _, err := parse(nil, io.Discard); err != nil {
		t.Errorf("without flags: %v", err)
	}
	if o, err := parse([]string{"-quick"}, io.Discard); err != nil || o.cells.String() != "40x10x1" || o.quiet.Trials != 5 {
		t.Errorf("-quick: %+v, %v", o, err)
	}
	for _, args := range [][]string{{"fast"}, {"-synchronous", "OFF"}, {"-checked", "401x50"}, {"-checked", "400x50x9"}, {"-cells", "many"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}

func TestProcessFigures(t *testing.T) {
	stat := "42 (a) b (c) S 1 42 42 0 -1 4194560 900 0 0 0 150 25 0 0 20 0 9 0 100 1000 200 18446744073709551615\n"
	if cpu, err := parseStat([]byte(stat)); err != nil || cpu != 1750*time.Millisecond {
		t.Errorf("processor time: got %v, %v; want 1.75s", cpu, err)
	}
	for _, bad := range []string{"", "42 no name S 1", "42 (a) S 1 2 3", "42 (a) S 1 42 42 0 -1 4194560 900 0 0 0 x 25 0 0"} {
		if cpu, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: got %v", bad, cpu)
		}
	}
	if peak, err := parseKilobytes([]byte("Name:\ta\nVmHWM:\t   2048 kB\nVmRSS:\t 1 kB\n"), "VmHWM"); err != nil || peak != 2048*1024 {
		t.Errorf("peak: got %d, %v; want 2 MiB", peak, err)
	}
	for _, bad := range []string{"", "Name:\ta\n", "VmHWM:\t2048\n", "VmHWM:\tx kB\n"} {
		if peak, err := parseKilobytes([]byte(bad), "VmHWM"); err == nil {
			t.Errorf("%q: got %d", bad, peak)
		}
	}
	if u, err := readUsage(os.Getpid()); err != nil || u.peak <= 0 {
		t.Errorf("this process: %+v, %v", u, err)
	}
}

func TestMachineLoad(t *testing.T) {
	l, err := parseLoad([]byte("cpu  10 1 5 80 4 2 3 5 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n"))
	if err != nil || l != (load{busy: 26, all: 110}) {
		t.Errorf("got %+v, %v; want 26 of 110 busy: neither idle nor waiting for the disk, and guests once", l, err)
	}
	if got := l.since(load{busy: 16, all: 90}); got != 0.5 {
		t.Errorf("since 16 of 90: got %v, want 0.5", got)
	}
	if got := l.since(l); got != 0 {
		t.Errorf("since now: got %v, want 0", got)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3\n", "cpu a 2 3 4 5 6 7 8\n"} {
		if l, err := parseLoad([]byte(bad)); err == nil {
			t.Errorf("%q: got %+v", bad, l)
		}
	}
}

// The log is read while it is written: a line that is only half there must neither be an error nor be lost.
func TestEffectsAreReadAsTheyAreWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "effects.ndjson")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	log, err := openEffects(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.close()
	for _, step := range []struct {
		write string
		want  []int64
	}{
		{"", nil},
		{`{"seq":1,"time":"2026-01-02T03:04:05.000000001Z","kind":"start"}` + "\n" + `{"seq":2,"ti`, []int64{1}},
		{`me":"2026-01-02T03:04:06Z","kind":"started","version":"v2"}`, nil},
		{"\n" + `{"seq":3,"kind":"request"}` + "\n", []int64{2, 3}},
		{"", nil},
	} {
		if _, err := file.WriteString(step.write); err != nil {
			t.Fatal(err)
		}
		entries, err := log.more()
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, e := range entries {
			got = append(got, e.Seq)
		}
		if len(got) != len(step.want) || len(got) > 0 && got[len(got)-1] != step.want[len(step.want)-1] {
			t.Errorf("after %q: got %v, want %v", step.write, got, step.want)
		}
	}
	if _, err := file.WriteString("no JSON\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := log.more(); err == nil {
		t.Error("a damaged log is read")
	}
}

// Only what begins on the new version is a start, and only what begins after the signal is late.
func TestLastNewStart(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond) }
	begun := starts([]fleet.Entry{
		{Kind: fleet.KindStarted, Version: after, Time: at(100)},
		{Kind: fleet.KindRequest, Version: after, Time: at(400)},
		{Kind: fleet.KindStarted, Version: after, Time: at(250)},
		{Kind: fleet.KindStarted, Version: before, Time: at(500)},
	}, after)
	if len(begun) != 2 {
		t.Fatalf("starts: got %v, want two", begun)
	}
	if got := lastAfter(begun, at(200)); got != 50*time.Millisecond {
		t.Errorf("last start after 200 ms: got %v, want 50ms", got)
	}
	if got := lastAfter(begun, at(300)); got != 0 {
		t.Errorf("no start after 300 ms: got %v, want 0", got)
	}
}

// Targets that are lost or windows that grow when the floor is split would make it another floor.
func TestFloorIsSplitWhole(t *testing.T) {
	for _, in := range []floorInput{{Targets: 1, Window: 1}, {Targets: 400, Window: 50}, {Targets: 401, Window: 50}, {Targets: 1200, Window: 50}, {Targets: 1200, Window: 2}} {
		targets, window, seen := 0, 0, map[int]bool{}
		for _, p := range in.parts() {
			targets, window = targets+p.Targets, window+p.Window
			seen[p.Parent] = true
			if p.Window < 1 || p.Targets < 1 || p.Targets > parentSize && in.Window > 2 {
				t.Errorf("%+v: a part is %+v", in, p)
			}
		}
		if targets != in.Targets || window != in.Window || len(seen) != len(in.parts()) {
			t.Errorf("%+v: parts of %d targets, %d in flight, %d names; want all of it", in, targets, window, len(seen))
		}
	}
}

// A floor whose worker polls more or less than Sluice's is no floor of it.
func TestFloorWorkerIsSetAsTheWorker(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("..", "..", "cmd", "internal", "wire", "worker.go"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"pollers": strconv.Itoa(pollers), "workflowTasks": strconv.Itoa(workflowTasks), "controlActivities": strconv.Itoa(controlActivities),
		"targetActivities": `2 \* workflows\.MaxBatchTargets`,
	} {
		if !regexp.MustCompile(`\n\t` + name + ` += ` + want + `\n`).Match(source) {
			t.Errorf("the worker's %s are no longer %s, as the floor's", name, want)
		}
	}
}

// Whoever waits for a process that cannot start, or ends early, must be told why, and at once.
func TestProcessThatDoesNotBecomeReady(t *testing.T) {
	s := newSpawner()
	never := func(string) bool { return false }
	if _, err := s.start(t.Context(), "nobody", nil, never, filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
	if _, err := s.start(t.Context(), "mute", nil, never, "/bin/sh", "-c", "echo out of paper >&2; exit 3"); err == nil || !regexp.MustCompile(`mute ended.*\n.*out of paper`).MatchString(err.Error()) {
		t.Errorf("a program that ends: %v", err)
	}
	p, err := s.start(t.Context(), "sleeper", nil, func(line string) bool { return line == "ready" }, "/bin/sh", "-c", "echo ready; exec sleep 600")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	if _, err := p.usage(); err == nil {
		t.Error("a process that has ended still uses something")
	}
	if _, err := s.ask(t.Context(), nil, "/bin/sh", "-c", "echo no >&2; exit 1"); err == nil || err.Error() != "-c: no" {
		t.Errorf("a question that is refused: %v", err)
	}
}
