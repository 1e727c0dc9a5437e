// Command bench measures Sluice beside its floor, the bare engine, in one run on one machine: `make bench`.
//
// It drives the programs from outside: a server, a worker and a simulated fleet, each a process of its own, so that the
// processor and the memory of each are seen apart. What it says is measured and never judged: it must not fail because a
// machine is slow.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// maxBusy is how busy a machine may be that is said not to be: it still answers at once.
const maxBusy = 0.7

// floorWorker is the argument under which this program is the floor's worker.
const floorWorker = "floor-worker"

// size is one cell: so many targets, so many of them in flight, measured so often.
type size struct {
	targets, window, repeats int
}

// sizes is a flag: TARGETSxWINDOW[xREPEATS], separated by commas.
type sizes []size

// String writes the flag as it is read.
func (s *sizes) String() string {
	var parts []string
	for _, one := range *s {
		parts = append(parts, fmt.Sprintf("%dx%dx%d", one.targets, one.window, one.repeats))
	}
	return strings.Join(parts, ",")
}

// Set reads the flag; an empty one measures nothing.
func (s *sizes) Set(text string) error {
	*s = nil
	if text == "" {
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		var numbers []int
		for field := range strings.SplitSeq(part, "x") {
			n, err := strconv.Atoi(field)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is not TARGETSxWINDOW or TARGETSxWINDOWxREPEATS, e.g. 400x50x3", part)
			}
			numbers = append(numbers, n)
		}
		if len(numbers) == 2 {
			numbers = append(numbers, 1)
		}
		if len(numbers) != 3 {
			return fmt.Errorf("%q is not TARGETSxWINDOW or TARGETSxWINDOWxREPEATS, e.g. 400x50x3", part)
		}
		*s = append(*s, size{numbers[0], numbers[1], numbers[2]})
	}
	return nil
}

// options are what the bench is asked.
type options struct {
	bin, synchronous, json string
	cells, checked         sizes
	quiet, saturated       signalLoad
	quick                  bool
}

// parse reads the command line. The figures of a run without flags are those that the documentation gives.
func parse(args []string, usage io.Writer) (options, error) {
	o := options{
		cells:   sizes{{400, 50, 3}, {400, 200, 3}, {1200, 50, 1}, {1200, 200, 1}},
		checked: sizes{{400, 200, 1}},
		// A start follows each end: there is always one to stop, and two cores are some 60 % busy.
		quiet: signalLoad{Load: "steady", Trials: 100, Targets: 200, InFlight: 24, OperationMin: 300 * time.Millisecond, OperationMax: 600 * time.Millisecond, MaxBusy: maxBusy},
		// Everything at once, as fast as the machine can. Each trial takes half a minute.
		saturated: signalLoad{Load: "saturated", Trials: 5, Targets: 400, InFlight: 200},
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(usage)
	f.StringVar(&o.bin, "bin", "bin", "the folder with sluice and sluice-dev")
	f.StringVar(&o.synchronous, "synchronous", "FULL", "SQLite's setting of that name, for the floor and for Sluice: FULL, which `sluice-dev up` has, or NORMAL")
	f.StringVar(&o.json, "json", "", "also write everything that was measured to this file, as JSON")
	f.Var(&o.cells, "cells", "what to measure, as `TARGETSxWINDOW[xREPEATS],…`")
	f.Var(&o.checked, "checked", "which of these also with one check a target, in the same form")
	f.IntVar(&o.quiet.Trials, "trials", o.quiet.Trials, "how often to stop a steady rollout on a machine that is not busy; 0 leaves it out")
	f.IntVar(&o.quiet.InFlight, "in-flight", o.quiet.InFlight, fmt.Sprintf("how many targets such a rollout has in flight, lowered while the machine is more than %.0f %% busy", 100*maxBusy))
	f.IntVar(&o.saturated.Trials, "saturated-trials", o.saturated.Trials, "how often to stop a rollout that keeps the machine as busy as it can; 0 leaves it out")
	f.BoolVar(&o.quick, "quick", false, "everything once and small, to see that it works; the figures mean nothing")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("bench takes flags only, not %q", f.Args())
	}
	if o.quick {
		o.cells, o.checked = sizes{{40, 10, 1}}, sizes{{40, 10, 1}}
		o.quiet.Trials, o.quiet.InFlight, o.quiet.OperationMin, o.quiet.OperationMax = 5, 5, 100*time.Millisecond, 200*time.Millisecond
		o.saturated.Trials, o.saturated.Targets, o.saturated.InFlight = 2, 100, 20
	}
	if o.synchronous != "FULL" && o.synchronous != "NORMAL" {
		return o, fmt.Errorf("-synchronous is FULL or NORMAL, not %q", o.synchronous)
	}
	for _, c := range o.checked {
		if !slices.ContainsFunc(o.cells, func(s size) bool { return s.targets == c.targets && s.window == c.window && s.repeats >= c.repeats }) {
			return o, fmt.Errorf("-checked %dx%dx%d is not among -cells, whose floor it is held against", c.targets, c.window, c.repeats)
		}
	}
	return o, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second Ctrl-C ends this at once; the kernel then ends what it has started.
	context.AfterFunc(ctx, stop)
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command runs the bench, or the floor's worker, and returns the exit code.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := error(nil)
	if len(args) == 1 && args[0] == floorWorker {
		err = runFloorWorker(ctx, stdout)
	} else {
		err = runBench(ctx, args, stdout, stderr)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 0
	}
	_, _ = fmt.Fprintln(stderr, "bench:", err)
	return 1
}

// runBench measures, writes the tables to stdout and everything else where it was asked for.
func runBench(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return fmt.Errorf("make a folder for what is measured: %w", err)
	}
	b := &bench{options: o, folder: folder, log: stderr, spawner: newSpawner()}
	report, err := b.measure(ctx)
	if removed := os.RemoveAll(folder); removed != nil {
		err = errors.Join(err, fmt.Errorf("remove what was measured: %w", removed))
	}
	if ctx.Err() != nil {
		return errors.New("interrupted; everything that it had started was ended")
	}
	if err != nil {
		return err
	}
	if err := report.writeTables(stdout); err != nil {
		return fmt.Errorf("write the tables: %w", err)
	}
	if o.json != "" {
		data, err := json.MarshalIndent(report, "", "  ")
		if err != nil {
			return fmt.Errorf("write %s: %w", o.json, err)
		}
		if err := os.WriteFile(o.json, append(data, '\n'), 0o600); err != nil {
			return fmt.Errorf("write what was measured: %w", err)
		}
	}
	return report.faults()
}

// bench is one run.
type bench struct {
	options
	folder  string
	log     io.Writer
	spawner *spawner
	stages  int
}

// note tells whoever waits what goes on.
func (b *bench) note(format string, args ...any) {
	_, _ = fmt.Fprintf(b.log, "%s %s\n", time.Now().UTC().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// measure fills the report. What cannot be measured stands in its cell and keeps nothing else from being measured.
func (b *bench) measure(ctx context.Context) (*Report, error) {
	machine, err := describeMachine()
	if err != nil {
		return nil, err
	}
	r := &Report{Machine: machine, Synchronous: b.synchronous, Quick: b.quick, Started: time.Now().UTC()}
	if r.Version, err = b.version(ctx); err != nil {
		return nil, err
	}
	for _, s := range b.cells {
		r.Cells = append(r.Cells, b.compare(ctx, s)...)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	for _, load := range []signalLoad{b.quiet, b.saturated} {
		if load.Trials > 0 {
			r.Signals = append(r.Signals, b.stopping(ctx, load))
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	r.Seconds = time.Since(r.Started).Seconds()
	return r, nil
}

// compare measures one size: the floor, Sluice, and Sluice with a check, in turn, so that what else the machine does
// meets all three.
func (b *bench) compare(ctx context.Context, s size) []Cell {
	cells := []Cell{{Kind: KindFloor}, {Kind: KindSluice}}
	checked := 0
	for _, c := range b.checked {
		if c.targets == s.targets && c.window == s.window {
			checked = c.repeats
			cells = append(cells, Cell{Kind: KindChecked})
		}
	}
	for i := range cells {
		cells[i].Targets, cells[i].Window = s.targets, s.window
	}
	for n := range s.repeats {
		for i := range cells {
			c := &cells[i]
			if c.Error != "" || c.Kind == KindChecked && n >= checked {
				continue
			}
			run, err := b.run(ctx, *c)
			if err != nil {
				c.Error = err.Error()
				b.note("%s, %d targets, %d in flight: %v", c.Kind, c.Targets, c.Window, err)
				continue
			}
			c.Runs = append(c.Runs, run)
			b.note("%s, %d targets, %d in flight: %.1f targets/s, machine %.0f %% busy", c.Kind, c.Targets, c.Window, run.TargetsPerSecond, 100*run.Busy)
		}
	}
	for i := range cells {
		cells[i].summarize(cells[0])
	}
	return cells
}

// run measures one cell once, on a server with an empty data folder.
func (b *bench) run(ctx context.Context, c Cell) (run Run, err error) {
	if c.Kind == KindFloor {
		return b.floor(ctx, c)
	}
	return b.rollout(ctx, c)
}

// program is the path of one of the programs that are measured.
func (b *bench) program(name string) (string, error) {
	path, err := filepath.Abs(filepath.Join(b.bin, name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("find %s: %w; `make bench` builds it, -bin says where it is", name, err)
	}
	return path, nil
}
