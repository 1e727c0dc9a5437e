package command

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The files of one operation, in the order in which they come to be.
const (
	lockFile      = "lock"         // flocked while anything of the operation lives
	requestFile   = "request.json" // what to run; its existence means: submitted
	fencedFile    = "fenced"       // given up unstarted; never together with started
	runnerLogFile = "runner.log"   // what the runner itself had to say
	startedFile   = "started"      // the program may have run from here on
	outputFile    = "output"       // what the program prints, cut down while it runs
	exitFile      = "exit.json"    // how the program ended
)

// identityFile tells one operations folder from another.
const identityFile = "id"

// request is everything that the runner needs to know. It holds no secret that the step's configuration did not hold.
type request struct {
	Operation string `json:"operation"`
	Target    string `json:"target"`
	script
	Timeout     time.Duration `json:"timeoutNanos"`
	Grace       time.Duration `json:"graceNanos"`
	SubmittedAt time.Time     `json:"submittedAt"`
}

// exit is how the program ended.
type exit struct {
	// Code is the exit code; -1 if a signal ended it.
	Code int `json:"code"`
	// Signal names the signal that ended it.
	Signal string `json:"signal,omitempty"`
	// TimedOut reports whether the runner stopped it.
	TimedOut bool `json:"timedOut,omitempty"`
	// Unstarted says why it could not be run at all.
	Unstarted string    `json:"unstarted,omitempty"`
	EndedAt   time.Time `json:"endedAt"`
	// Output is the tail of what it printed.
	Output string `json:"output,omitempty"`
}

// home is an operations folder.
type home struct {
	path string
	id   string
}

// openHome makes the folder if need be and reads who it is.
func openHome(path string) (home, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return home{}, err
	}
	file := filepath.Join(path, identityFile)
	id, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if err = nameHome(path, file); err == nil {
			id, err = os.ReadFile(file)
		}
	}
	if err != nil {
		return home{}, fmt.Errorf("identity of the operations folder: %w", err)
	}
	return home{path: path, id: strings.TrimSpace(string(id))}, nil
}

// nameHome gives the folder its identity; of many who try at once the first wins.
func nameHome(path, file string) error {
	tmp, err := os.CreateTemp(path, identityFile+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // a left-over name does no harm
	_, err = tmp.WriteString(rand.Text() + "\n")
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(syncDir(path), syncDir(filepath.Dir(path)))
}

// handle names the operation for a ticket: where it lives and which one it is.
func (h home) handle(op folder) string { return h.id + "/" + filepath.Base(string(op)) }

// at returns the operation's folder, which need not exist.
func (h home) at(operation string) folder {
	sum := sha256.Sum256([]byte(operation))
	return folder(filepath.Join(h.path, hex.EncodeToString(sum[:])))
}

// make returns the operation's folder, made to last.
func (h home) make(operation string) (folder, error) {
	op := h.at(operation)
	if err := os.Mkdir(string(op), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	// Also if it was there: the one who made it may not have got as far.
	return op, syncDir(h.path)
}

// folder is the path of one operation's folder.
type folder string

func (f folder) file(name string) string { return filepath.Join(string(f), name) }

// has reports whether the file is there. A file that can't be looked for counts as there: of the two mistakes, starting
// twice is the worse one. (For started and request that reads as "may have run"; for fenced as "must not run".)
func (f folder) has(name string) bool {
	_, err := os.Lstat(f.file(name))
	return !errors.Is(err, fs.ErrNotExist)
}

// tryLock takes the operation's lock if nothing of the operation, and nobody who decides about it, holds it.
func (f folder) tryLock() (lock *os.File, free bool, err error) {
	lock, err = os.OpenFile(f.file(lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, err
	}
	if err := flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return lock, true, nil
}

// unlock gives the lock up for all holders of this descriptor: a process forked a moment ago, and not yet turned into
// another program, may still have a copy.
func unlock(lock *os.File) {
	_ = flock(lock, syscall.LOCK_UN)
	_ = lock.Close()
}

func flock(file *os.File, how int) error {
	for {
		if err := syscall.Flock(int(file.Fd()), how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// writeJSON writes the file so that it is there whole or not at all, whatever happens, and has survived a loss of power
// once writeJSON returns. Only the holder of the lock writes.
func (f folder) writeJSON(name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	tmp := f.file(name + ".tmp")
	file, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(data, '\n'))
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		_ = os.Remove(tmp) // half a file is of no use, and the disk may be full
		return err
	}
	if err := os.Rename(tmp, f.file(name)); err != nil {
		return err
	}
	return syncDir(string(f))
}

// readJSON reads a file that writeJSON wrote; there reports whether it exists.
func (f folder) readJSON(name string, value any) (there bool, err error) {
	data, err := os.ReadFile(f.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return false, fmt.Errorf("read %s: %w", f.file(name), err)
	}
	return true, nil
}

// remove takes a file away for good.
func (f folder) remove(name string) error {
	return errors.Join(os.Remove(f.file(name)), syncDir(string(f)))
}

// mark is the content of the files whose existence alone matters; it is there for the person who looks.
type mark struct {
	At  time.Time `json:"at"`
	PID int       `json:"pid"`
}

// put writes a mark.
func (f folder) put(name string) error {
	return f.writeJSON(name, mark{At: time.Now().UTC(), PID: os.Getpid()})
}

// syncDir makes the folder's entries survive a loss of power.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
