package command

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

// sh makes an argument vector of a shell line.
func sh(line string) []string { return []string{"sh", "-c", line} }

// TestEndings fails when the end of a script is read as something that it does not mean.
func TestEndings(t *testing.T) {
	codes := map[string]string{"75": "blocked", "2": "retry", "3": "succeeded", "4": "failed"}
	for name, test := range map[string]struct {
		apply []string
		want  executors.Result
	}{
		"0":                 {sh("echo fine"), executors.Result{Outcome: executors.Succeeded, Output: "fine\n"}},
		"mapped: blocked":   {sh("echo busy >&2; exit 75"), executors.Result{Outcome: executors.Blocked, Output: "busy\n", Reason: "apply on edge-1 exited with code 75, which the step counts as blocked"}},
		"mapped: retry":     {sh("exit 2"), executors.Result{Outcome: executors.Failed, Retryable: true, Reason: "apply on edge-1 exited with code 2, which the step counts as safe to retry"}},
		"mapped: succeeded": {sh("exit 3"), executors.Result{Outcome: executors.Succeeded, Reason: "apply on edge-1 exited with code 3, which the step counts as succeeded"}},
		"mapped: failed":    {sh("exit 4"), executors.Result{Outcome: executors.Failed, Reason: "apply on edge-1 exited with code 4"}},
		"not mapped":        {sh("echo out; echo err >&2; exit 1"), executors.Result{Outcome: executors.Failed, Output: "out\nerr\n", Reason: "apply on edge-1 exited with code 1"}},
		"no UTF-8, and NUL": {sh(`printf 'a\377\000b'; exit 1`), executors.Result{Outcome: executors.Failed, Output: "a??b", Reason: "apply on edge-1 exited with code 1"}},
		"reads no stdin":    {sh("cat; echo done"), executors.Result{Outcome: executors.Succeeded, Output: "done\n"}},
		"a script's process that stays in the background": {sh("(while [ -e \"$STATE/hanging\" ]; do sleep 0.01; done) & echo left"), executors.Result{Outcome: executors.Succeeded, Output: "left\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "1.0")
			s.write("hanging", "")
			c := s.change("op", map[string]any{"apply": test.apply, "exitCodes": codes})
			s.submit(c)
			if diff := cmp.Diff(test.want, s.await(c)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

// TestProgramThatCannotBeRun fails when a program that the kernel refuses to run leaves the change in doubt.
func TestProgramThatCannotBeRun(t *testing.T) {
	s := newSite(t, "1.0")
	s.write("program", "#!/no/such/interpreter\n")
	c := s.change("op", map[string]any{"apply": []string{s.path("program")}})
	s.submit(c)
	s.wantResult(s.await(c), executors.Result{
		Outcome: executors.Failed, Retryable: true,
		Reason: "apply on edge-1 could not be started: fork/exec " + s.path("program") + ": no such file or directory",
	})
}

// TestTimeout fails when something that ignores SIGTERM outlives the grace, or the stop is taken for a clean end.
func TestTimeout(t *testing.T) {
	// Neither the script nor its child heeds SIGTERM; each would go on until the test's end.
	const stubborn = `trap '' TERM; (trap '' TERM; : >"$STATE/child"; while [ -e "$STATE/hanging" ]; do sleep 0.01; done) &
		: >"$STATE/reached"; %while [ -e "$STATE/hanging" ]; do sleep 0.01; done`
	const stopped = "apply on edge-1 timed out after 300ms and was stopped"
	for name, test := range map[string]struct {
		first   string
		replace map[string]any
		want    executors.Result
	}{
		"before its effect": {"", nil, executors.Result{Outcome: executors.Failed, Retryable: true, Reason: stopped + " before it took effect; the target still runs 1.0"}},
		"after its effect":  {`printf 2.0 >"$STATE/version"; `, nil, executors.Result{Outcome: executors.Succeeded, Reason: stopped + "; the check decided: the target runs 2.0"}},
		"without a check":   {"", map[string]any{"check": nil}, executors.Result{Outcome: executors.Indeterminate, Reason: stopped + "; what it did is unknown, because the step has no check"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "1.0")
			s.write("hanging", "")
			replace := map[string]any{"apply": sh(strings.Replace(stubborn, "%", test.first, 1)), "timeout": "300ms", "grace": "100ms"}
			for k, v := range test.replace {
				replace[k] = v
			}
			c := s.change("op", replace)
			s.submit(c)
			got := s.await(c)
			got.Reading = executors.Reading{}
			s.wantResult(got, test.want)
			// Await answers only once the lock that both inherited is free, so both are gone although nobody released them.
			if lock, free, err := s.operation("op").tryLock(); !free || err != nil {
				t.Errorf("lock free: %t, %v; want nothing alive", free, err)
			} else {
				unlock(lock)
			}
			if s.read("child") != "" || s.read("hanging") != "" {
				t.Error("the script did not get as far as the test needs")
			}
		})
	}
}

// TestTimeoutHeeded fails when a script that tidies up on SIGTERM is killed before its grace is over.
func TestTimeoutHeeded(t *testing.T) {
	s := newSite(t, "1.0")
	s.write("hanging", "")
	c := s.change("op", map[string]any{
		"apply":   sh(`trap 'echo tidied up; exit 0' TERM; while [ -e "$STATE/hanging" ]; do sleep 0.01; done`),
		"timeout": "300ms", "grace": "1m",
	})
	s.submit(c)
	got := s.await(c)
	if got.Outcome != executors.Failed || !strings.HasSuffix(got.Output, "tidied up\n") {
		t.Errorf("got %+v, want failed, with what the script printed on SIGTERM", got)
	}
}

// TestTimeoutEscaped fails when a change counts as over while a process that left the group may still make it.
func TestTimeoutEscaped(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("needs setsid(1)")
	}
	s := newSite(t, "1.0")
	s.write("hanging", "")
	c := s.change("op", map[string]any{
		"apply":   sh(`setsid sh -c ': >"$STATE/reached"; while [ -e "$STATE/hanging" ]; do sleep 0.01; done; printf 2.0 >"$STATE/version"' & while :; do sleep 0.01; done`),
		"timeout": "300ms", "grace": "100ms",
	})
	s.submit(c)
	s.reached()
	s.until("the script is stopped", func() bool { return s.operation("op").has(exitFile) })
	s.wantRunning(c)
	s.release()
	if got := s.await(c); got.Outcome != executors.Succeeded {
		t.Errorf("got %+v, want succeeded, because the target says so", got)
	}
}

// TestOutputIsBounded fails when a chatty script fills the history or the disk.
func TestOutputIsBounded(t *testing.T) {
	s := newSite(t, "1.0")
	c := s.change("op", map[string]any{"apply": sh(`head -c 5000000 /dev/zero | tr '\0' x; echo; echo the end; exit 1`)})
	s.submit(c)
	got := s.await(c)
	if len(got.Output) != outputLimit || !strings.HasSuffix(got.Output, "xxx\nthe end\n") {
		t.Errorf("output of %d bytes, ending in %q; want the last %d", len(got.Output), got.Output[max(0, len(got.Output)-20):], outputLimit)
	}
	s.until("the output on disk is dropped", func() bool {
		info, err := os.Stat(s.operation("op").file(outputFile))
		return err == nil && info.Size() == 0
	})
}

// TestSpoolCut fails when cutting the output down loses its tail, or does nothing.
func TestSpoolCut(t *testing.T) {
	s, err := openSpool(folder(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer s.file.Close()
	write := func(text string) {
		t.Helper()
		if _, err := s.file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	size := func() int64 {
		info, err := s.file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	write("small\n")
	s.cut()
	if size() == 0 {
		t.Error("a small output was cut")
	}
	write(strings.Repeat("é", spoolLimit) + "before")
	s.cut()
	if size() != 0 {
		t.Errorf("%d bytes left on disk after the cut", size())
	}
	write(" and after")
	got := s.tail()
	if !strings.HasSuffix(got, "éé"+"before and after") || len(got) != outputLimit || !utf8.ValidString(got) {
		t.Errorf("tail of %d bytes, ending in %q", len(got), got[max(0, len(got)-20):])
	}
}

// TestEnvironment fails when a script sees more of the worker than it may, or less of the change than it should.
func TestEnvironment(t *testing.T) {
	s := newSite(t, "1.0")
	dir := t.TempDir()
	c := s.change("op/1", map[string]any{
		"apply": sh("env | sort | grep -v -e '^PWD=' -e '^OLDPWD=' -e '^_=' -e '^SHLVL='; pwd"),
		"env":   map[string]string{"STATE": s.state, "LANG": "de_DE.UTF-8", "COLOUR": "a b=c"},
		"dir":   dir,
	})
	s.submit(c)
	want := strings.Join([]string{
		"COLOUR=a b=c", "LANG=de_DE.UTF-8", "PATH=" + os.Getenv("PATH"),
		"SLUICE_DEPLOYMENT=web", "SLUICE_DIRECTION=apply", "SLUICE_ENVIRONMENT=Production", "SLUICE_FROM=1.0",
		"SLUICE_OPERATION_ID=op/1", "SLUICE_TARGET=edge-1", "SLUICE_VERSION=2.0", "STATE=" + s.state, dir, "",
	}, "\n")
	if diff := cmp.Diff(want, s.await(c).Output); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

// TestFilesArePrivate fails when others on the machine can read an operation, or a worker's secret reaches the disk.
func TestFilesArePrivate(t *testing.T) {
	s := newSite(t, "1.0")
	c := s.change("op", nil)
	s.submit(c)
	s.await(c)
	err := filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if entry.IsDir() {
			want = fs.ModeDir | 0o700
		} else if data, err := os.ReadFile(path); err != nil || strings.Contains(string(data), "hush") {
			t.Errorf("%s holds a variable of the worker that is not passed on (%v)", path, err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSubmitRefuses fails when a change that can't be made leaves any doubt that nothing was started.
func TestSubmitRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		replace map[string]any
		alter   func(*executors.Change)
		want    string
	}{
		"configuration": {map[string]any{"grace": "0s"}, nil, `command: configuration of "op" for edge-1: grace: must be a duration above zero such as "90s", "10m" or "1h30m", not "0s": rejected`},
		"no program":    {map[string]any{"apply": []string{"no-such-program"}, "env": map[string]string{"PATH": "/bin:relative"}}, nil, `command: submit "op": no program "no-such-program" in PATH "/bin:relative": rejected`},
		"not a program": {map[string]any{"apply": []string{"/etc"}}, nil, `command: submit "op": no program to run: exec: "/etc": is a directory: rejected`},
		"operation":     {nil, func(c *executors.Change) { c.Operation = "" }, `command: submit "": the change names no operation: rejected`},
		"NUL":           {nil, func(c *executors.Change) { c.Version = "2\x000" }, `command: submit "op": SLUICE_VERSION can't be handed to a program, because it contains a NUL byte: rejected`},
		"direction":     {nil, func(c *executors.Change) { c.Direction = "sideways" }, `command: submit "op": direction "sideways" is neither "apply" nor "restore": rejected`},
		"restore without check": {map[string]any{"check": nil}, func(c *executors.Change) { c.Direction = executors.Restore },
			`command: submit "op": the step has no check, so the version to go back to is never read: rejected`},
		"uninstall without rollback": {map[string]any{"rollback": nil}, func(c *executors.Change) { c.Direction, c.Version = executors.Restore, "" },
			`command: submit "op": the step has no rollback, so a first install can't be taken back: rejected`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "1.0")
			c := s.change("op", test.replace)
			if test.alter != nil {
				test.alter(&c)
			}
			_, err := s.worker().Submit(context.Background(), c)
			if !errors.Is(err, executors.ErrRejected) || err.Error() != test.want {
				t.Errorf("Submit: %v\nwant    %s", err, test.want)
			}
		})
	}
}

// TestRestoreByApply fails when a step without a rollback does not go back by applying the former version.
func TestRestoreByApply(t *testing.T) {
	s := newSite(t, "2.0")
	c := s.change("op", map[string]any{"rollback": nil})
	c.Direction, c.Version, c.From = executors.Restore, "1.0", "2.0"
	s.submit(c)
	s.wantResult(s.await(c), executors.Result{Outcome: executors.Succeeded})
	if got := s.read("version"); got != "1.0" {
		t.Errorf("the target runs %q, want 1.0", got)
	}
}

// TestCheck fails when anything but a version counts as one, or a check outlives its call.
func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		check []string
		want  executors.Reading
		err   string
	}{
		"version":                {sh("echo; echo ' 1.0 '; echo noise >&2"), executors.Reading{Known: true, Version: "1.0", Detail: "printed by the step's check"}, ""},
		"not installed":          {sh("exit 0"), executors.Reading{Known: true, Detail: "printed by the step's check"}, ""},
		"failure":                {sh("echo trying >&2; echo no route to host >&2; exit 7"), executors.Reading{}, "command: check of edge-1: exit status 7: no route to host"},
		"failure with a version": {sh("echo 1.0; exit 1"), executors.Reading{}, "command: check of edge-1: exit status 1"},
		"two lines":              {sh("echo 1.0; echo 2.0"), executors.Reading{}, "command: check of edge-1: it must print the running version alone, on one line of at most 256 bytes"},
		"a flood":                {sh("head -c 9999 /dev/zero | tr '\\0' ' '"), executors.Reading{}, "command: check of edge-1: it must print the running version alone, on one line of at most 256 bytes"},
		"no program":             {[]string{"no-such-program"}, executors.Reading{}, `command: check of edge-1: no program "no-such-program" in PATH "` + os.Getenv("PATH") + `"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "1.0")
			got, err := s.worker().Observe(context.Background(), s.change("op", map[string]any{"check": test.check}))
			text := ""
			if err != nil {
				text = err.Error()
			}
			if got != test.want || text != test.err {
				t.Errorf("got  %+v, %q\nwant %+v, %q", got, text, test.want, test.err)
			}
		})
	}
}

// TestCheckIsStopped fails when a check, or what it started, lives on after the call's context.
func TestCheckIsStopped(t *testing.T) {
	s := newSite(t, "1.0")
	s.write("hanging", "")
	// Both hold the lock that the check takes, so that it is free only once both are gone.
	c := s.change("op", map[string]any{"check": sh(`exec 9<>"$STATE/lock"; flock 9; : >"$STATE/reached"; (while [ -e "$STATE/hanging" ]; do sleep 0.01; done) & wait`)})
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("needs flock(1)")
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := s.worker().Observe(ctx, c)
		done <- err
	}()
	s.reached()
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Observe: %v, want the context's error", err)
		}
	case <-time.After(patience):
		t.Fatal("Observe did not return after its context was over")
	}
	s.until("the check and its child are gone", func() bool {
		lock, free, err := folder(s.state).tryLock()
		if free {
			unlock(lock)
		}
		return free && err == nil
	})
}

// TestVerifyWithoutCheck fails when a change that nobody looked at is reported as verified.
func TestVerifyWithoutCheck(t *testing.T) {
	s := newSite(t, "1.0")
	got, err := s.worker().Verify(context.Background(), s.change("op", map[string]any{"check": nil}))
	if err != nil {
		t.Fatal(err)
	}
	s.wantResult(got, executors.Result{
		Outcome: executors.Succeeded, Reason: "not verified: the step has no check", Reading: executors.Reading{Detail: "the step has no check"},
	})
}

// TestVerifyWithCheck fails when the difference between what runs and what was wanted is not told.
func TestVerifyWithCheck(t *testing.T) {
	s := newSite(t, "1.0")
	got, err := s.worker().Verify(context.Background(), s.change("op", nil))
	if err != nil {
		t.Fatal(err)
	}
	s.wantResult(got, executors.Result{
		Outcome: executors.Failed, Reason: "edge-1 runs 1.0, wanted 2.0",
		Reading: executors.Reading{Known: true, Version: "1.0", Detail: "printed by the step's check"},
	})
}

// TestAFullDiskBlocksUnlessARequestIsThere fails when a change that found no room counts as refused for good or in doubt,
// or when nothing is vouched for although a request may have been read.
func TestAFullDiskBlocksUnlessARequestIsThere(t *testing.T) {
	s := newSite(t, "1.0")
	op := s.operation("op")
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		full := &fs.PathError{Op: "write", Path: "request.json.tmp", Err: errno}
		if err := op.noRoom(full); !errors.Is(err, executors.ErrBlocked) || !strings.Contains(err.Error(), "the worker's disk is full") {
			t.Errorf("%v: got %v, want blocked", errno, err)
		}
		if err := refusal(full); !errors.Is(err, executors.ErrBlocked) {
			t.Errorf("%v when the runner starts: got %v, want blocked", errno, err)
		}
	}
	if err := op.noRoom(syscall.EIO); errors.Is(err, executors.ErrBlocked) {
		t.Errorf("a broken disk: got %v, want it in doubt", err)
	}
	s.submit(s.change("op", nil))
	if err := op.noRoom(syscall.ENOSPC); errors.Is(err, executors.ErrBlocked) {
		t.Errorf("with a request there: got %v, want it in doubt", err)
	}
}
