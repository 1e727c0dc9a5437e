package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

// A percentile that lies between two measurements, or one too low, would make a promise that no trial has kept.
func TestPercentileIsAMeasurement(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, tt := range []struct {
		figures []float64
		p, want float64
	}{
		{nil, 99, 0},
		{[]float64{7}, 50, 7},
		{[]float64{7}, 99, 7},
		{[]float64{3, 1, 2}, 50, 2},
		{[]float64{3, 1, 2, 4}, 50, 2},
		{[]float64{3, 1, 2}, 0, 1},
		{[]float64{3, 1, 2}, 100, 3},
		{hundred, 50, 50},
		{hundred, 90, 90},
		{hundred, 99, 99},
		{hundred, 100, 100},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 99, 10},
	} {
		if got := percentile(tt.figures, tt.p); got != tt.want {
			t.Errorf("percentile %v of %v: got %v, want %v", tt.p, tt.figures, got, tt.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("percentile sorts what it is given, so that the report loses the order of its trials")
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		figures []float64
		want    float64
	}{{[]float64{5}, 5}, {[]float64{9, 1, 5}, 5}, {[]float64{1, 9, 5, 7}, 6}} {
		if got := median(tt.figures); got != tt.want {
			t.Errorf("median of %v: got %v, want %v", tt.figures, got, tt.want)
		}
	}
}

// example is a report with a line of each sort.
func example() *Report {
	run := func(seconds float64, events int64, fleet *Usage) Run {
		return Run{WallSeconds: seconds, TargetsPerSecond: 400 / seconds, EventsMean: 29, EventsMax: events, ControlEvents: 2000 + events, Control: "Wave",
			Worker: Usage{CPUMillisPerTarget: 7.25, PeakBytes: 50e6}, Server: Usage{CPUMillisPerTarget: 30, PeakBytes: 210e6}, Fleet: fleet, Busy: 0.5}
	}
	f := &Usage{CPUMillisPerTarget: 0.8, PeakBytes: 120e6}
	r := &Report{Machine: Machine{OS: "linux", Arch: "amd64", Go: "go1", Cores: 2, MemoryBytes: 16e9}, Version: "sluice v1", Synchronous: "FULL", Seconds: 61,
		Cells: []Cell{
			{Kind: KindFloor, Targets: 400, Window: 50, Runs: []Run{run(12, 29, nil), run(10, 29, nil), run(20, 29, nil)}},
			{Kind: KindSluice, Targets: 400, Window: 50, Runs: []Run{run(30, 29, f), run(16, 31, f), run(15, 29, f)}},
			{Kind: KindSluice, Targets: 1200, Window: 50, Error: "plan: 1200 targets | too many\nsecond line"},
		},
		Signals: []Signal{{Load: "steady", InFlight: 25, OperationMin: 0.5, OperationMax: 1}, {Load: "saturated", InFlight: 200, Error: "trial 1: late"}}}
	for i := range r.Cells {
		r.Cells[i].summarize(r.Cells[0])
	}
	r.Signals[0].summarize([]Trial{{Millis: 10, Busy: 0.6}, {Millis: 300, Busy: 0.9}}, 0.7)
	return r
}

// A cell's figures are those of the run in the middle, but for the longest history: that one run kept within a limit
// says nothing if another did not.
func TestCellIsSummarized(t *testing.T) {
	r := example()
	floor, sluice, refused := r.Cells[0], r.Cells[1], r.Cells[2]
	if floor.Median.WallSeconds != 12 || floor.OfFloor != 0 || floor.Median.Fleet != nil {
		t.Errorf("floor: %+v of floor %v; want 12 s, and neither a ratio nor a fleet", floor.Median, floor.OfFloor)
	}
	if m := sluice.Median; m.WallSeconds != 16 || m.EventsMax != 31 || m.ControlEvents != 2031 || m.Fleet.PeakBytes != 120e6 {
		t.Errorf("Sluice: %+v; want 16 s, histories of 31 and 2031 events at most, and the fleet's peak", m)
	}
	// Round by round it is 12/30, 10/16 and 20/15 of the floor.
	if want := 10.0 / 16; math.Abs(sluice.OfFloor-want) > 1e-9 {
		t.Errorf("Sluice against the floor: got %v, want %v", sluice.OfFloor, want)
	}
	if refused.Median != nil || refused.OfFloor != 0 {
		t.Errorf("a cell that was not measured has figures: %+v", refused)
	}
	if s := r.Signals[0]; !s.TooBusy || s.Busy != 0.75 || s.BusyMax != 0.9 || s.P50Millis != 10 || s.P99Millis != 300 || s.MaxMillis != 300 {
		t.Errorf("steady: %+v; want 75 %% busy, which is too much, 10 ms at p50 and 300 ms at p99", s)
	}
}

// What could not be measured must end the bench with an error, whatever else was.
func TestFaultsAreAnError(t *testing.T) {
	r := example()
	err := r.faults()
	if err == nil || !strings.Contains(err.Error(), "1200 targets | too many") || !strings.Contains(err.Error(), "trial 1: late") {
		t.Errorf("got %v; want both faults", err)
	}
	r.Cells, r.Signals = r.Cells[:2], r.Signals[:1]
	if err := r.faults(); err != nil {
		t.Errorf("nothing went wrong: %v", err)
	}
}

// The tables go into the documentation as they are: they must be tables, each line of as many cells as the head.
func TestTablesAreTables(t *testing.T) {
	var b strings.Builder
	if err := example().writeTables(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"sluice v1: 2 cores, 16 GB, linux/amd64, go1; SQLite in WAL mode, synchronous FULL. Took 1m1s.\n",
		"| Sluice | 400     | 50        | 3    | 16.0    | 25.0      | 62 %     | 29.0 (31)              | 2031, Wave     | 7.2                     | 30.0   | 0.8   | 50              | 210    | 120   | 50 % |\n",
		"not measured: plan: 1200 targets / too many",
		"| steady, on a machine that was too busy",
		"not measured: trial 1: late",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the tables lack %q:\n%s", want, b.String())
		}
	}
	cells := 0
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "|") {
			cells = 0
			continue
		}
		if n := strings.Count(line, "|"); cells != 0 && n != cells {
			t.Errorf("a line of %d cells under a head of %d: %s", n-1, cells-1, line)
		} else {
			cells = n
		}
	}
}

// What was measured must come back from the file as it went in: others compute from it.
func TestReportIsReadBack(t *testing.T) {
	want := example()
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(got)
	if err != nil || string(again) != string(data) {
		t.Errorf("read back, %v: got %s, want %s", err, again, data)
	}
}

// Both are measured by the same two moments, whatever order the records come in.
func TestRunCountsFromFirstStartToLastEnd(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	var r Run
	err := r.count([]record{{"Target", at(12), at(14), 29}, {"Target", at(10), at(13), 35}, {"Target", at(11), at(20), 29}},
		[]record{{"Rollout", at(0), at(30), 70}, {"Wave", at(9), at(21), 300}}, 3)
	if err != nil || r.WallSeconds != 10 || r.TargetsPerSecond != 0.3 || r.EventsMean != 31 || r.EventsMax != 35 || r.ControlEvents != 300 || r.Control != "Wave" {
		t.Errorf("got %+v, %v; want 10 s, 31 events and 35 at most, and 300 of the Wave", r, err)
	}
	if err := r.count([]record{{"Target", at(1), at(2), 29}}, nil, 2); err == nil {
		t.Error("a target without a workflow was not missed")
	}
}
