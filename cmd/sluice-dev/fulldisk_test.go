//go:build full

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestUpSaysThatItsFolderCannotBeWritten fails when `up` on a full or read-only disk hangs, dies halfway or does not say
// what to do, or when it does not start there once it can write.
func TestUpSaysThatItsFolderCannotBeWritten(t *testing.T) {
	folder := t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=16m,mode=0700"); err != nil {
		t.Fatalf("a file system of limited size cannot be mounted on %s: %v; test-full needs root, or CAP_SYS_ADMIN in a container", folder, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(folder, "data", "filler")
	if err := os.Mkdir(filepath.Dir(filler), 0o700); err != nil {
		t.Fatal(err)
	}
	fill := func() {
		file, err := os.Create(filler)
		for page := make([]byte, 4096); err == nil; {
			_, err = file.Write(page)
		}
		if closed := file.Close(); !errors.Is(err, syscall.ENOSPC) || closed != nil {
			t.Fatalf("fill the disk: %v, %v", err, closed)
		}
	}
	remount := func(flags uintptr) {
		if err := syscall.Mount("tmpfs", folder, "tmpfs", syscall.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	wantRefused := func(data, reason, advice string) {
		t.Helper()
		code, out, err := run(t, nil, "up", "--data", data, "--port", "0", "--ui-port", "0")
		if code != 1 || out != "" || !strings.Contains(err, data) || !strings.Contains(err, reason) || !strings.Contains(err, advice) || strings.Contains(err, "panic") {
			t.Errorf("up --data %s: exit %d, %q, %q; want exit 1, the folder, %q and %q", data, code, out, err, reason, advice)
		}
	}
	data := filepath.Dir(filler)
	fill()
	wantRefused(data, "no space left on device", "free some space, or choose another")
	remount(syscall.MS_RDONLY)
	wantRefused(data, "read-only file system", "or choose another")
	wantRefused(filepath.Join(folder, "new"), "read-only file system", "choose a folder that can be written")
	remount(0)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}

	// What it could not write has left nothing that keeps it from starting. Full again, it starts no more, and loses nothing.
	up := startUp(t, data)
	if err := up.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := up.wait(); code != 0 {
		t.Errorf("up with room: exit %d, %q", code, up.errors)
	}
	fill()
	wantRefused(data, "no space left on device", "free some space, or choose another")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	again := startUp(t, data)
	if err := again.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := again.wait(); code != 0 {
		t.Errorf("up with room again: exit %d, %q", code, again.errors)
	}
}
