package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Kind says what an entry of the effect log records.
type Kind string

// The kinds of entries.
const (
	KindStart     Kind = "start"     // first line: Version, Count: the initial state of all targets
	KindRestarted Kind = "restarted" // a new process took up this log
	KindRequest   Kind = "request"   // an apply arrived; refused, repeated or started follows
	KindDropped   Kind = "dropped"   // an apply was lost on its way in, and nothing happened
	KindRefused   Kind = "refused"   // Result is the Code
	KindRepeated  Kind = "repeated"  // the operation was known already; no second effect
	KindStarted   Kind = "started"   // the effect begins
	KindFinished  Kind = "finished"  // the effect ended: Result is the State, Runs what runs now
	KindFenced    Kind = "fenced"    // an unknown operation was looked up: it can never start from here on
	KindReleased  Kind = "released"  // the target was released from hangs and outages
)

// Entry is one line of the effect log.
type Entry struct {
	Seq       int64     `json:"seq"` // 1, 2, 3, … without gaps
	Time      time.Time `json:"time"`
	Kind      Kind      `json:"kind"`
	Target    string    `json:"target,omitempty"`
	Operation string    `json:"operation,omitempty"`
	// Version is the version asked for, or in the start line the one everything starts on.
	Version string `json:"version,omitempty"`
	// From is what the caller believed to be running.
	From string `json:"from,omitempty"`
	// Previous is what really ran before.
	Previous string `json:"previous,omitempty"`
	// Runs is what runs after a finished operation; Unreadable says that it can't be told any more.
	Runs       string `json:"runs,omitempty"`
	Unreadable bool   `json:"unreadable,omitempty"`
	// Result is how it ended: a State, or the Code of a refusal.
	Result  string `json:"result,omitempty"`
	Message string `json:"message,omitempty"`
	// Reply is "lost" or "delayed" where the answer to this entry is not sent, or late, on purpose.
	Reply string `json:"reply,omitempty"`
	// Count is the number of targets, in the start line.
	Count int `json:"count,omitempty"`
}

// ReadLog reads an effect log, also while a fleet writes it: a torn last line is left out. Any other damage is an error.
func ReadLog(path string) ([]Entry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("fleet: read the effect log: %w", err)
	}
	entries, _, err := parseLog(data)
	if err != nil {
		return nil, fmt.Errorf("fleet: effect log %s: %w", path, err)
	}
	return entries, nil
}

// parseLog returns the entries and the length of the whole lines.
func parseLog(data []byte) ([]Entry, int, error) {
	var entries []Entry
	whole := 0
	for {
		end := bytes.IndexByte(data[whole:], '\n')
		if end < 0 {
			return entries, whole, nil
		}
		var e Entry
		if err := json.Unmarshal(data[whole:whole+end], &e); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", len(entries)+1, err)
		}
		if want := int64(len(entries)) + 1; e.Seq != want {
			return nil, 0, fmt.Errorf("line %d: has seq %d", want, e.Seq)
		}
		entries = append(entries, e)
		whole += end + 1
	}
}

// effectLog appends entries. Entries are taken in order and made durable in groups: add, then flush before anybody is
// told.
type effectLog struct {
	file *os.File

	mu      sync.Mutex // guards pending, added and failed
	pending bytes.Buffer
	added   int64 // seq of the last entry taken
	failed  error // the first write error; nothing is ever answered after it

	flushing sync.Mutex // held while writing; guards durable
	durable  int64      // seq of the last entry on disk
}

// openLog opens or makes the log, cuts off a torn last line, and returns what it holds.
func openLog(path string) (*effectLog, []Entry, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("fleet: open the effect log: %w", err)
	}
	entries, whole, err := parseLog(data)
	if err != nil {
		return nil, nil, fmt.Errorf("fleet: effect log %s: %w", path, err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("fleet: open the effect log: %w", err)
	}
	if err := file.Truncate(int64(whole)); err != nil {
		_ = file.Close()
		return nil, nil, fmt.Errorf("fleet: cut the torn last line off %s: %w", path, err)
	}
	n := int64(len(entries))
	return &effectLog{file: file, added: n, durable: n}, entries, nil
}

// add takes an entry, gives it its number, and returns it.
func (l *effectLog) add(e Entry) Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.added++
	e.Seq = l.added
	line, err := json.Marshal(e)
	if err != nil && l.failed == nil {
		l.failed = fmt.Errorf("fleet: encode an entry: %w", err)
	}
	l.pending.Write(append(line, '\n'))
	return e
}

// flush returns when every entry added before the call is on disk.
func (l *effectLog) flush() error {
	l.mu.Lock()
	want := l.added
	l.mu.Unlock()
	l.flushing.Lock()
	defer l.flushing.Unlock()
	l.mu.Lock()
	if l.failed != nil || l.durable >= want {
		defer l.mu.Unlock()
		return l.failed
	}
	data, last := bytes.Clone(l.pending.Bytes()), l.added
	l.pending.Reset()
	l.mu.Unlock()
	_, err := l.file.Write(data)
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		err = fmt.Errorf("fleet: write the effect log: %w", err)
		l.mu.Lock()
		l.failed = err
		l.mu.Unlock()
		return err
	}
	l.durable = last
	return nil
}

// close writes what is pending and closes the file.
func (l *effectLog) close() error {
	return errors.Join(l.flush(), l.file.Close())
}
