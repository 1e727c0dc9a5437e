package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

// effects follows a fleet's effect log while the fleet writes it, and reads each line once: a log of many thousand
// lines that is read as a whole again and again would be the load that is measured.
type effects struct {
	file *os.File
	read *bufio.Reader
	torn []byte // a line that is not whole yet
}

// openEffects opens a log at its beginning.
func openEffects(path string) (*effects, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the effect log: %w", err)
	}
	return &effects{file: file, read: bufio.NewReader(file)}, nil
}

// more returns the entries that were written since the last call.
func (e *effects) more() ([]fleet.Entry, error) {
	var entries []fleet.Entry
	for {
		part, err := e.read.ReadBytes('\n')
		e.torn = append(e.torn, part...)
		switch {
		case errors.Is(err, io.EOF):
			return entries, nil
		case err != nil:
			return nil, fmt.Errorf("read the effect log: %w", err)
		}
		var entry fleet.Entry
		if err := json.Unmarshal(e.torn, &entry); err != nil {
			return nil, fmt.Errorf("read the effect log: %w", err)
		}
		e.torn = e.torn[:0]
		entries = append(entries, entry)
	}
}

// close closes the file, of which everything that matters has been read.
func (e *effects) close() { _ = e.file.Close() }

// starts are when changes to a version began.
func starts(entries []fleet.Entry, version string) []time.Time {
	var at []time.Time
	for _, e := range entries {
		if e.Kind == fleet.KindStarted && e.Version == version {
			at = append(at, e.Time)
		}
	}
	return at
}

// lastAfter is how long after a moment the last of these was; 0 when none was after it.
func lastAfter(at []time.Time, moment time.Time) time.Duration {
	last := time.Duration(0)
	for _, one := range at {
		last = max(last, one.Sub(moment))
	}
	return last
}
