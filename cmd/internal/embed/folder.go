package embed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Files of a data folder.
const (
	lockFile     = "temporal.lock"
	databaseFile = "temporal.db"
	sidecarFile  = "temporal.schema.json"
)

// ErrInUse: another process runs a server on the data folder. Two would corrupt each other's task queues.
var ErrInUse = errors.New("data folder in use")

// prepareFolder makes sure that the data folder exists and that only its owner can read it: histories hold the names,
// versions and reasons of every change.
func prepareFolder(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create data folder: %w; choose a folder that can be written", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("open data folder: %w; choose another", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("data folder %s is a file; choose another", dir)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read data folder: %w", err)
	}
	// Closing a folder that holds somebody's files (a mistyped /tmp) would do harm, so only an empty one or ours is.
	if _, err := os.Stat(filepath.Join(dir, databaseFile)); err != nil && len(entries) > 0 {
		return fmt.Errorf("data folder %s can be read by others (mode %04o) and holds other files; run `chmod 700 %s` if it is meant, or choose another",
			dir, info.Mode().Perm(), dir)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("close data folder to others: %w", err)
	}
	return nil
}

// probeSize is a little more than an empty database with its write-ahead log, so that a start on a nearly full disk
// fails here, with a reason, and not halfway through the schema.
const probeSize = 1 << 20

// probeWrite reports a full or read-only disk in words that say what to do.
func probeWrite(dir string) (err error) {
	f, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return fmt.Errorf("data folder %s cannot be written: %w; free space or fix its permissions, or choose another", dir, err)
	}
	defer func() {
		err = errors.Join(err, os.Remove(f.Name()))
	}()
	_, err = f.Write(make([]byte, probeSize))
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("data folder %s cannot be written: %w; free some space, or choose another", dir, err)
	}
	return nil
}

// folderLock keeps other processes off a data folder. The kernel drops it when the process dies, however it dies, and
// nothing else does: it is a bare descriptor, because the collector closes an os.File that nobody refers to any more, and
// a caller may well forget a server that is to run until the end.
type folderLock struct {
	fd   int
	held bool
}

// lockFolder takes the lock of a data folder, or returns ErrInUse at once.
func lockFolder(dir string) (*folderLock, error) {
	path := filepath.Join(dir, lockFile)
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data folder %s: %w; free space or fix its permissions, or choose another", dir, &os.PathError{Op: "open", Path: path, Err: err})
	}
	l := &folderLock{fd: fd, held: true}
	err = syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(inUse(dir), l.release())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w; the folder must be on a local disk", path, err), l.release())
	}
	// The pid is for the message above only; the lock itself is the kernel's, so a stale pid locks nobody out.
	err = syscall.Ftruncate(fd, 0)
	if err == nil {
		_, err = syscall.Pwrite(fd, []byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data folder %s cannot be written: %w; free some space, or choose another", dir, err), l.release())
	}
	return l, nil
}

// inUse is the error that names whoever has the folder.
func inUse(dir string) error {
	holder := "another process"
	if data, err := os.ReadFile(filepath.Join(dir, lockFile)); err == nil && len(data) > 0 {
		holder = "process " + strings.TrimSpace(string(data))
	}
	return fmt.Errorf("%w: %s runs a server on %s; stop it, connect to it instead, or choose another folder", ErrInUse, holder, dir)
}

// checkFolder returns ErrInUse when another process has the lock of a data folder. It changes nothing.
func checkFolder(dir string) error {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return nil // nobody has ever locked it
	}
	defer func() { _ = f.Close() }()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return inUse(dir)
	}
	return nil
}

// release gives the folder back. Idempotent, and nothing to do for data in memory. The file stays: removing it would
// let two processes hold two files of the same name.
func (l *folderLock) release() error {
	if l == nil || !l.held {
		return nil
	}
	l.held = false
	if err := syscall.Close(l.fd); err != nil {
		return fmt.Errorf("unlock data folder: %w", err)
	}
	return nil
}
