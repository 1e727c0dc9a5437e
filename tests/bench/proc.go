package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor time in /proc: USER_HZ, which is 100 wherever Go runs on Linux, see proc(5).
const tick = 10 * time.Millisecond

// usage is what a process has used since it began.
type usage struct {
	cpu  time.Duration
	peak int64 // bytes of memory
}

// readUsage reads a process's figures.
func readUsage(pid int) (u usage, err error) {
	place := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(place + "/stat")
	if err != nil {
		return u, err
	}
	if u.cpu, err = parseStat(stat); err != nil {
		return u, fmt.Errorf("%s/stat: %w", place, err)
	}
	status, err := os.ReadFile(place + "/status")
	if err != nil {
		return u, err
	}
	if u.peak, err = parseKilobytes(status, "VmHWM"); err != nil {
		return u, fmt.Errorf("%s/status: %w", place, err)
	}
	return u, nil
}

// parseStat returns the processor time of /proc/PID/stat: fields 14 and 15, user and system.
func parseStat(data []byte) (time.Duration, error) {
	// The second field is the program's name in brackets, which may hold anything.
	end := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[end+1:]))
	if end < 0 || len(fields) < 13 {
		return 0, fmt.Errorf("%.80q is no process's status", data)
	}
	total := time.Duration(0)
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(n) * tick
	}
	return total, nil
}

// parseKilobytes returns a line such as "VmHWM:   1234 kB" in bytes.
func parseKilobytes(data []byte, name string) (int64, error) {
	for line := range strings.Lines(string(data)) {
		rest, found := strings.CutPrefix(line, name+":")
		if !found {
			continue
		}
		number, found := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		if !found {
			return 0, fmt.Errorf("%s is not in kB: %q", name, strings.TrimSpace(line))
		}
		n, err := strconv.ParseInt(number, 10, 64)
		return n * 1024, err
	}
	return 0, fmt.Errorf("there is no %s", name)
}

// load is what all processors have done since the machine began, in ticks.
type load struct {
	busy, all int64
}

// readLoad reads the machine's figures.
func readLoad() (load, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return load{}, err
	}
	return parseLoad(data)
}

// parseLoad reads the first line of /proc/stat. Idle and waiting for the disk is not busy; what the hypervisor took away
// is, because nobody here could have it.
func parseLoad(data []byte) (l load, err error) {
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return l, fmt.Errorf("/proc/stat: %.80q is not the sum of all processors", line)
	}
	for i, field := range fields[1:9] { // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return l, fmt.Errorf("/proc/stat: %w", err)
		}
		l.all += n
		if i != 3 && i != 4 {
			l.busy += n
		}
	}
	return l, nil
}

// since is the busy share between two readings; 0 when no time has passed.
func (l load) since(before load) float64 {
	if l.all <= before.all {
		return 0
	}
	return float64(l.busy-before.busy) / float64(l.all-before.all)
}

// describeMachine says what this runs on.
func describeMachine() (Machine, error) {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Go: runtime.Version(), Cores: runtime.NumCPU()}
	data, err := os.ReadFile("/proc/meminfo")
	if err == nil {
		m.MemoryBytes, err = parseKilobytes(data, "MemTotal")
	}
	if err != nil {
		return m, fmt.Errorf("describe the machine: %w; bench measures on Linux", err)
	}
	return m, nil
}
