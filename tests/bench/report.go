package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// Kind says what a cell measures. The set is closed.
type Kind string

// The kinds of cells.
const (
	KindFloor   Kind = "floor"
	KindSluice  Kind = "Sluice"
	KindChecked Kind = "Sluice, a check each"
)

// Report is everything that one run of the bench has measured.
type Report struct {
	Machine Machine `json:"machine"`
	// Version is the program's, Synchronous SQLite's setting of that name; the journal is always a write-ahead log.
	Version     string    `json:"version"`
	Synchronous string    `json:"synchronous"`
	Started     time.Time `json:"started"`
	Seconds     float64   `json:"seconds"`
	// Quick reports that it only shows that the bench works.
	Quick   bool     `json:"quick,omitempty"`
	Cells   []Cell   `json:"cells"`
	Signals []Signal `json:"signals"`
}

// Machine is what it ran on.
type Machine struct {
	OS          string `json:"os"`
	Arch        string `json:"arch"`
	Go          string `json:"go"`
	Cores       int    `json:"cores"`
	MemoryBytes int64  `json:"memoryBytes"`
}

// Cell is one line of the table: so many targets, so many of them in flight.
type Cell struct {
	Kind    Kind `json:"kind"`
	Targets int  `json:"targets"`
	Window  int  `json:"window"`
	// Runs are the repeats, Median the median of each of their figures.
	Runs   []Run `json:"runs,omitempty"`
	Median *Run  `json:"median,omitempty"`
	// OfFloor is its targets a second against those of the floor of the same size, which was measured just before: the
	// median of these ratios, because what else a machine does at one moment is not what it does at another.
	OfFloor float64 `json:"ofFloor,omitempty"`
	// Error is why it could not be measured.
	Error string `json:"error,omitempty"`
}

// Run is one measurement of a cell. Time and events are those of the histories, from the first target's start to the last
// target's end. What processes use is counted from just before the start is asked for to the end of the last workflow,
// so that Sluice's planning is in it.
type Run struct {
	WallSeconds      float64 `json:"wallSeconds"`
	TargetsPerSecond float64 `json:"targetsPerSecond"`
	// EventsMean and EventsMax are of the targets' histories.
	EventsMean float64 `json:"eventsMean"`
	EventsMax  int64   `json:"eventsMax"`
	// ControlEvents is the length of the longest history above the targets, Control that workflow's type.
	ControlEvents int64  `json:"controlEvents"`
	Control       string `json:"control"`
	Server        Usage  `json:"server"`
	Worker        Usage  `json:"worker"`
	Fleet         *Usage `json:"fleet,omitempty"`
	// Busy is the busy share of the whole machine, whatever else it did.
	Busy float64 `json:"busy"`
}

// Usage is what one process used. The peak is since its start.
type Usage struct {
	CPUSeconds         float64 `json:"cpuSeconds"`
	CPUMillisPerTarget float64 `json:"cpuMillisPerTarget"`
	PeakBytes          int64   `json:"peakBytes"`
}

// Signal is how fast a rollout stops starting.
type Signal struct {
	Load         string  `json:"load"`
	Targets      int     `json:"targets"`
	InFlight     int     `json:"inFlight"`
	OperationMin float64 `json:"operationMinSeconds"`
	OperationMax float64 `json:"operationMaxSeconds"`
	// Lowered are the loads that kept the machine too busy.
	Lowered []Lowered `json:"lowered,omitempty"`
	// Busy is the mean of the machine's busy share while targets were started, BusyMax the most in one trial.
	Busy    float64 `json:"busy"`
	BusyMax float64 `json:"busyMax"`
	// TooBusy reports that it was above what this load allows, for other reasons than the load.
	TooBusy   bool    `json:"tooBusy,omitempty"`
	Trials    []Trial `json:"trials,omitempty"`
	P50Millis float64 `json:"p50Millis"`
	P90Millis float64 `json:"p90Millis"`
	P99Millis float64 `json:"p99Millis"`
	MaxMillis float64 `json:"maxMillis"`
	Error     string  `json:"error,omitempty"`
}

// Trial is one rollout that was told to go back.
type Trial struct {
	// Millis is from just before the signal was sent to the last new start, by the fleet's clock, which is the sender's; 0
	// where no start came after the signal.
	Millis float64 `json:"millis"`
	// Busy is the machine's busy share from the moment when all slots were taken to the signal.
	Busy float64 `json:"busy"`
}

// Lowered is a load that was too much.
type Lowered struct {
	InFlight int     `json:"inFlight"`
	Busy     float64 `json:"busy"`
}

// summarize fills in the medians, and the ratio to the floor.
func (c *Cell) summarize(floor Cell) {
	if len(c.Runs) == 0 {
		return
	}
	of := func(figure func(Run) float64) float64 { return median(each(c.Runs, figure)) }
	use := func(process func(Run) Usage) Usage {
		return Usage{
			CPUSeconds:         of(func(r Run) float64 { return process(r).CPUSeconds }),
			CPUMillisPerTarget: of(func(r Run) float64 { return process(r).CPUMillisPerTarget }),
			PeakBytes:          int64(of(func(r Run) float64 { return float64(process(r).PeakBytes) })),
		}
	}
	m := &Run{
		WallSeconds: of(func(r Run) float64 { return r.WallSeconds }), TargetsPerSecond: of(func(r Run) float64 { return r.TargetsPerSecond }),
		EventsMean: of(func(r Run) float64 { return r.EventsMean }), Busy: of(func(r Run) float64 { return r.Busy }),
		Server: use(func(r Run) Usage { return r.Server }), Worker: use(func(r Run) Usage { return r.Worker }),
	}
	for _, r := range c.Runs {
		// Of histories the longest of all runs counts: a limit holds always, or not.
		m.EventsMax = max(m.EventsMax, r.EventsMax)
		if r.ControlEvents > m.ControlEvents {
			m.ControlEvents, m.Control = r.ControlEvents, r.Control
		}
	}
	if c.Runs[0].Fleet != nil {
		f := use(func(r Run) Usage { return *r.Fleet })
		m.Fleet = &f
	}
	c.Median = m
	var ratios []float64
	for i := range min(len(c.Runs), len(floor.Runs)) {
		ratios = append(ratios, c.Runs[i].TargetsPerSecond/floor.Runs[i].TargetsPerSecond)
	}
	if c.Kind != KindFloor && len(ratios) > 0 {
		c.OfFloor = median(ratios)
	}
}

// summarize takes the trials. allowed is how busy the machine may have been; 0: as busy as it gets.
func (s *Signal) summarize(trials []Trial, allowed float64) {
	s.Trials = trials
	var millis []float64
	for _, t := range trials {
		millis = append(millis, t.Millis)
		s.Busy += t.Busy / float64(len(trials))
		s.BusyMax = max(s.BusyMax, t.Busy)
	}
	s.TooBusy = allowed > 0 && s.Busy > allowed
	s.P50Millis, s.P90Millis, s.P99Millis = percentile(millis, 50), percentile(millis, 90), percentile(millis, 99)
	s.MaxMillis = percentile(millis, 100)
}

// each takes one figure of each run.
func each(runs []Run, figure func(Run) float64) []float64 {
	figures := make([]float64, len(runs))
	for i, r := range runs {
		figures[i] = figure(r)
	}
	return figures
}

// percentile is the smallest figure that at least p of a hundred are not above: one that was measured, never one between
// two. Without figures it is 0.
func percentile(figures []float64, p float64) float64 {
	if len(figures) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(figures))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// median is the figure in the middle, or between the two in the middle.
func median(figures []float64) float64 {
	sorted := slices.Sorted(slices.Values(figures))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// faults is an error that names the cells without figures.
func (r *Report) faults() error {
	var faults []error
	for _, c := range r.Cells {
		if c.Error != "" {
			faults = append(faults, fmt.Errorf("%s, %d targets, %d in flight: %s", c.Kind, c.Targets, c.Window, c.Error))
		}
	}
	for _, s := range r.Signals {
		if s.Error != "" {
			faults = append(faults, fmt.Errorf("stop, %s: %s", s.Load, s.Error))
		}
	}
	return errors.Join(faults...)
}

// writeTables writes the tables, in Markdown, as the documentation has them.
func (r *Report) writeTables(w io.Writer) error {
	quick := ""
	if r.Quick {
		quick = " A quick run: it shows that the bench works, and the figures mean nothing."
	}
	text := fmt.Sprintf("%s: %d cores, %.0f GB, %s/%s, %s; SQLite in WAL mode, synchronous %s. Took %s.%s\n\n", r.Version, r.Machine.Cores, float64(r.Machine.MemoryBytes)/1e9,
		r.Machine.OS, r.Machine.Arch, r.Machine.Go, r.Synchronous, time.Duration(r.Seconds*float64(time.Second)).Round(time.Second), quick)
	text += table(r.cellRows())
	if len(r.Signals) > 0 {
		text += "\n" + table(r.signalRows())
	}
	_, err := io.WriteString(w, text)
	return err
}

// cellRows are the table of cells.
func (r *Report) cellRows() [][]string {
	rows := [][]string{{"what", "targets", "in flight", "runs", "seconds", "targets/s", "of floor", "events a target (most)", "longest parent",
		"CPU ms a target: worker", "server", "fleet", "peak MB: worker", "server", "fleet", "busy"}}
	for _, c := range r.Cells {
		row := []string{string(c.Kind), fmt.Sprint(c.Targets), fmt.Sprint(c.Window), fmt.Sprint(len(c.Runs))}
		m := c.Median
		if m == nil {
			first, _, _ := strings.Cut(c.Error, "\n")
			rows = append(rows, append(row, "not measured: "+strings.ReplaceAll(first, "|", "/")))
			continue
		}
		of, fleetCPU, fleetPeak := "", "", ""
		if c.OfFloor > 0 {
			of = percent(c.OfFloor)
		}
		if m.Fleet != nil {
			fleetCPU, fleetPeak = fmt.Sprintf("%.1f", m.Fleet.CPUMillisPerTarget), megabytes(m.Fleet.PeakBytes)
		}
		rows = append(rows, append(row, fmt.Sprintf("%.1f", m.WallSeconds), fmt.Sprintf("%.1f", m.TargetsPerSecond), of,
			fmt.Sprintf("%.1f (%d)", m.EventsMean, m.EventsMax), fmt.Sprintf("%d, %s", m.ControlEvents, m.Control),
			fmt.Sprintf("%.1f", m.Worker.CPUMillisPerTarget), fmt.Sprintf("%.1f", m.Server.CPUMillisPerTarget), fleetCPU,
			megabytes(m.Worker.PeakBytes), megabytes(m.Server.PeakBytes), fleetPeak, percent(m.Busy)))
	}
	return rows
}

// signalRows are the table of stops.
func (r *Report) signalRows() [][]string {
	rows := [][]string{{"from `rollback` to the last new start", "in flight", "a change takes", "trials", "busy", "p50 ms", "p90 ms", "p99 ms", "most ms"}}
	for _, s := range r.Signals {
		takes := "no time"
		if s.OperationMax > 0 {
			takes = fmt.Sprintf("%g to %g s", s.OperationMin, s.OperationMax)
		}
		load := s.Load
		if s.TooBusy {
			load += ", on a machine that was too busy"
		}
		row := []string{load, fmt.Sprint(s.InFlight), takes, fmt.Sprint(len(s.Trials))}
		if s.Error != "" {
			first, _, _ := strings.Cut(s.Error, "\n")
			rows = append(rows, append(row, "not measured: "+strings.ReplaceAll(first, "|", "/")))
			continue
		}
		rows = append(rows, append(row, percent(s.Busy), fmt.Sprintf("%.0f", s.P50Millis), fmt.Sprintf("%.0f", s.P90Millis),
			fmt.Sprintf("%.0f", s.P99Millis), fmt.Sprintf("%.0f", s.MaxMillis)))
	}
	return rows
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

func megabytes(bytes int64) string { return fmt.Sprintf("%.0f", float64(bytes)/1e6) }

// table writes rows as a Markdown table that can be read as it is; the first row is the head. A row may be shorter.
func table(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			if len(row) == len(widths) || i < len(row)-1 { // a short row's last cell is a sentence
				widths[i] = max(widths[i], len([]rune(cell)), 3)
			}
		}
	}
	var b strings.Builder
	line := func(row []string) {
		b.WriteString("|")
		for i, width := range widths {
			cell := ""
			if i < len(row) {
				cell = row[i]
			}
			fmt.Fprintf(&b, " %-*s |", width, cell)
		}
		b.WriteString("\n")
	}
	line(rows[0])
	b.WriteString("|")
	for _, width := range widths {
		b.WriteString(strings.Repeat("-", width+2) + "|")
	}
	b.WriteString("\n")
	for _, row := range rows[1:] {
		line(row)
	}
	return b.String()
}
