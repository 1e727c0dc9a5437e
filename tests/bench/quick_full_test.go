//go:build full

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// quickTimeout is far more than a quick run takes beside a full test on two cores.
const quickTimeout = 10 * time.Minute

// build builds the programs into a folder of their own, so that the test measures this source and no other.
func build(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "./cmd/sluice", "./cmd/sluice-dev", "./tests/bench")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as make has it, whose build cache is full
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
	}
	return bin
}

// TestBench builds the programs once for what follows.
func TestBench(t *testing.T) {
	bin := build(t)
	t.Run("measures everything", func(t *testing.T) { measuresEverything(t, bin) })
	t.Run("interrupted", func(t *testing.T) { leavesNothing(t, bin, syscall.SIGINT) })
	t.Run("killed", func(t *testing.T) { leavesNothing(t, bin, syscall.SIGKILL) })
}

// measuresEverything fails when the bench has no figure where it promises one, writes other figures than it
// prints, leaves something behind, or when a change of a target costs more events than it may. No time is asserted.
func measuresEverything(t *testing.T, bin string) {
	folder := t.TempDir()
	file := filepath.Join(t.TempDir(), "figures.json")
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "bench"), "-bin", bin, "-quick", "-json", file)
	cmd.Env = append(os.Environ(), "TMPDIR="+folder)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	stop := time.AfterFunc(quickTimeout, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop.Stop()
	if err := cmd.Run(); err != nil {
		t.Fatalf("bench: %v\n%s\n%s", err, out.String(), log.String())
	}
	t.Logf("%s\n%s", log.String(), out.String())
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("the bench leaves %v in its folder, %v", left, err)
	}

	if !r.Quick || r.Seconds <= 0 || r.Machine.Cores < 1 || r.Machine.MemoryBytes <= 0 || r.Synchronous != "FULL" || !strings.HasPrefix(r.Version, "sluice ") {
		t.Errorf("the report does not say what was measured where: %+v", r)
	}
	var kinds []Kind
	for _, c := range r.Cells {
		kinds = append(kinds, c.Kind)
		m := c.Median
		if m == nil || len(c.Runs) == 0 {
			t.Errorf("%s has no figures: %s", c.Kind, c.Error)
			continue
		}
		figures := map[string]float64{"wall": m.WallSeconds, "targets/s": m.TargetsPerSecond, "events": m.EventsMean, "events at most": float64(m.EventsMax),
			"parent's events": float64(m.ControlEvents), "busy": m.Busy, "worker's CPU": m.Worker.CPUSeconds, "worker's peak": float64(m.Worker.PeakBytes),
			"server's CPU": m.Server.CPUSeconds, "server's peak": float64(m.Server.PeakBytes)}
		if c.Kind != KindFloor {
			if m.Fleet == nil {
				t.Errorf("%s: no figures of the fleet", c.Kind)
			} else {
				figures["fleet's CPU"], figures["fleet's peak"] = m.Fleet.CPUSeconds, float64(m.Fleet.PeakBytes)
			}
			figures["of the floor"] = c.OfFloor
		}
		for name, figure := range figures {
			if !(figure > 0) {
				t.Errorf("%s: %s is %v, want a positive figure", c.Kind, name, figure)
			}
		}
		// Four activities, and what the engine writes around them; a check is a fifth.
		if most := map[Kind]int64{KindFloor: 29, KindSluice: 29, KindChecked: 35}[c.Kind]; m.EventsMax > most {
			t.Errorf("%s: a target's history has %d events, want %d at most", c.Kind, m.EventsMax, most)
		}
	}
	if want := []Kind{KindFloor, KindSluice, KindChecked}; !slices.Equal(kinds, want) {
		t.Errorf("measured %v, want %v", kinds, want)
	}
	if len(r.Signals) != 2 {
		t.Errorf("%d loads were stopped, want 2", len(r.Signals))
	}
	for _, s := range r.Signals {
		if len(s.Trials) == 0 || s.Busy <= 0 || s.InFlight < 1 || s.P50Millis < 0 || s.P99Millis < s.P90Millis || s.MaxMillis < s.P99Millis {
			t.Errorf("stop, %s: %+v", s.Load, s)
		}
	}

	var again strings.Builder
	if err := r.writeTables(&again); err != nil || again.String() != out.String() {
		t.Errorf("the file and what was printed differ, %v; from the file:\n%s", err, again.String())
	}
}

// leavesNothing fails when a server, worker or fleet goes on after its bench was interrupted or killed: it would be the
// load of whatever is measured next.
func leavesNothing(t *testing.T, bin string, signal syscall.Signal) {
	folder := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "bench"), "-bin", bin, "-cells", "100x5x9", "-checked", "", "-trials", "0", "-saturated-trials", "0")
	cmd.Env = append(os.Environ(), "TMPDIR="+folder)
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The floor is done: what runs next is Sluice with all that it needs.
	lines := bufio.NewScanner(log)
	if !lines.Scan() || !strings.Contains(lines.Text(), "floor") {
		t.Fatalf("the bench says %q, %v", lines.Text(), lines.Err())
	}
	var children []string
	await(t, "a server, a fleet and a worker", func() bool {
		children = childrenOf(t, cmd.Process.Pid)
		return len(children) >= 3
	})
	if err := cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	var complaints []string
	for lines.Scan() {
		complaints = append(complaints, lines.Text())
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Fatalf("the bench ended with %v", err)
	}
	left := 1 // its folder: whoever is killed removes nothing
	if signal == syscall.SIGINT {
		left = 0
		if exit.ExitCode() != 1 || !strings.Contains(strings.Join(complaints, "\n"), "interrupted") {
			t.Errorf("exit %d, %q; want exit 1, and that it was interrupted", exit.ExitCode(), complaints)
		}
	}
	for _, child := range children {
		await(t, "the end of process "+child, func() bool { return !running(child) })
	}
	if found, err := os.ReadDir(folder); err != nil || len(found) != left {
		t.Errorf("the bench leaves %v, %v; want %d", found, err, left)
	}
}

// await looks until something is so.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(time.Minute); !is(); <-look.C {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within a minute", what)
		}
	}
}

// childrenOf lists the processes that a process has started, each with when: a number alone may be given again.
func childrenOf(t *testing.T, pid int) []string {
	t.Helper()
	places, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var children []string
	for _, place := range places {
		id, fields := status(place)
		if len(fields) > 19 && fields[1] == strconv.Itoa(pid) {
			children = append(children, id)
		}
	}
	return children
}

// running reports whether a process goes on; a zombie does not.
func running(id string) bool {
	now, fields := status("/proc/" + strings.Split(id, "@")[0] + "/stat")
	return now == id && fields[0] != "Z"
}

// status reads a process's number and start, and its fields behind the name; nothing, when it has gone.
func status(place string) (id string, fields []string) {
	data, err := os.ReadFile(place)
	if err != nil {
		return "", nil
	}
	fields = strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return "", nil
	}
	return fmt.Sprintf("%s@%s", filepath.Base(filepath.Dir(place)), fields[19]), fields
}
