package command

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory"
)

// TestMain lets the test binary stand in for the program: as the detached runner, and as a worker that can be killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "run-operation":
			os.Exit(Run(os.Args[2]))
		case "worker":
			os.Exit(runWorker(os.Args[2]))
		}
	}
	os.Exit(m.Run())
}

// patience bounds every wait for something that is bound to happen.
const patience = 20 * time.Second

// site is a machine with one target, which real scripts change: a folder that holds its version.
type site struct {
	t     *testing.T
	state string // the target
	dir   string // the operations folder
}

// applyScript changes the target as the files in its folder tell it to: how says in which way.
const applyScript = `#!/bin/sh
cd "$STATE" || exit 99
printf '%s\n' "$SLUICE_OPERATION_ID" >>effects
echo $$ >pid
how=$(cat how 2>/dev/null)
change() { printf '%s' "$SLUICE_VERSION" >next && mv next version; }
hang() { : >reached; while [ -e hanging ]; do sleep 0.01; done; }
case $how in
hang) hang; change ;;
change-and-hang) change; hang ;;
hang-and-do-nothing) hang ;;
exit-*) echo "as told"; exit "${how#exit-}" ;;
*) change ;;
esac
`

const checkScript = `#!/bin/sh
cat "$STATE/version" 2>/dev/null || true
`

func newSite(t *testing.T, version string) *site {
	t.Helper()
	root := t.TempDir()
	s := &site{t: t, state: filepath.Join(root, "target"), dir: filepath.Join(root, "operations")}
	if err := os.Mkdir(s.state, 0o700); err != nil {
		t.Fatal(err)
	}
	s.write("apply.sh", applyScript)
	s.write("check.sh", checkScript)
	if version != "" {
		s.write("version", version)
	}
	t.Cleanup(s.close)
	return s
}

// close lets hanging scripts end, and kills by id what does not.
func (s *site) close() {
	s.release()
	folders, _ := filepath.Glob(filepath.Join(s.dir, "*", lockFile))
	quiet := func() bool {
		for _, lock := range folders {
			file, free, err := folder(filepath.Dir(lock)).tryLock()
			if err != nil || !free {
				return false
			}
			unlock(file)
		}
		return true
	}
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline) && !quiet(); time.Sleep(5 * time.Millisecond) {
	}
	if quiet() {
		return
	}
	s.t.Error("something of an operation was still alive when its test ended")
	for _, lock := range folders {
		var m mark
		if there, err := folder(filepath.Dir(lock)).readJSON(startedFile, &m); there && err == nil {
			_ = syscall.Kill(m.PID, syscall.SIGKILL)
		}
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(s.read("pid"))); err == nil {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}

func (s *site) path(name string) string { return filepath.Join(s.state, name) }

func (s *site) write(name, content string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name)+"~", []byte(content), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(s.path(name)+"~", s.path(name)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) read(name string) string {
	data, _ := os.ReadFile(s.path(name))
	return string(data)
}

// hang makes changes wait, in one of the script's ways.
func (s *site) hang(how string) {
	s.write("how", how)
	s.write("hanging", "")
}

func (s *site) release() { _ = os.Remove(s.path("hanging")) }

// effects counts how often the operation's script began.
func (s *site) effects(operation string) int {
	return strings.Count("\n"+s.read("effects"), "\n"+operation+"\n")
}

// itself is this test binary under another role. A binary with the race detector sleeps for a second when it exits,
// unless told not to.
func (s *site) itself(role string) []string {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	return []string{"env", "GORACE=atexit_sleep_ms=0", self, role}
}

// options are those of a worker on this machine, with the test binary as the runner.
func (s *site) options() Options {
	s.t.Helper()
	return Options{
		Dir:     s.dir,
		Runner:  s.itself("run-operation"),
		Environ: []string{"PATH=" + os.Getenv("PATH"), "LANG=C", "TOKEN=hush"},
	}
}

func (s *site) worker() *Executor { return New(s.options()) }

// config is the step's configuration, some fields replaced; nil removes one.
func (s *site) config(replace map[string]any) json.RawMessage {
	s.t.Helper()
	fields := map[string]any{
		"check":     []string{"sh", s.path("check.sh")},
		"apply":     []string{"sh", s.path("apply.sh")},
		"rollback":  []string{"sh", "-c", `cd "$STATE"; echo "$SLUICE_OPERATION_ID" >>effects; if [ "$SLUICE_VERSION" ]; then printf %s "$SLUICE_VERSION" >version; else rm -f version; fi`},
		"exitCodes": map[string]string{"75": "blocked"},
		"env":       map[string]string{"STATE": s.state},
		"timeout":   "1m",
	}
	for name, value := range replace {
		if value == nil {
			delete(fields, name)
			continue
		}
		fields[name] = value
	}
	data, err := json.Marshal(fields)
	if err != nil {
		s.t.Fatal(err)
	}
	return data
}

// change is an apply of 2.0 over 1.0.
func (s *site) change(operation string, replace map[string]any) executors.Change {
	s.t.Helper()
	return executors.Change{
		Operation:   operation,
		Direction:   executors.Apply,
		Target:      inventory.Target{Name: "edge-1"},
		Deployment:  "web",
		Environment: "Production",
		Version:     "2.0",
		From:        "1.0",
		Config:      s.config(replace),
	}
}

// operation returns the folder of an operation.
func (s *site) operation(name string) folder { return home{path: s.dir}.at(name) }

// until polls a condition that is bound to come true.
func (s *site) until(what string, condition func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return
		}
	}
	s.t.Fatalf("never happened within %s: %s", patience, what)
}

// reached waits until the operation's script hangs.
func (s *site) reached() {
	s.t.Helper()
	s.until("the script hangs", func() bool { _, err := os.Stat(s.path("reached")); return err == nil })
}

// killRunner kills the operation's runner, and only that, once it has started the script.
func (s *site) killRunner(operation string) {
	s.t.Helper()
	s.reached()
	var m mark
	if there, err := s.operation(operation).readJSON(startedFile, &m); err != nil || !there {
		s.t.Fatalf("started mark: there %t, %v", there, err)
	}
	kill(s.t, m.PID)
}

// killScript kills the process group of the script that hangs.
func (s *site) killScript() {
	s.t.Helper()
	s.reached()
	pid, err := strconv.Atoi(strings.TrimSpace(s.read("pid")))
	if err != nil {
		s.t.Fatal(err)
	}
	kill(s.t, -pid)
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

// order is what a worker process is told to do.
type order struct {
	Options Options
	Change  executors.Change
	Await   bool
}

// runWorker is a worker process: it says that it is ready, waits for the word, submits, and perhaps awaits.
func runWorker(text string) int {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	var word string
	if _, err := fmt.Scanln(&word); err != nil {
		return 1
	}
	return o.carryOut()
}

func (o order) carryOut() int {
	e := New(o.Options)
	ticket, err := e.Submit(context.Background(), o.Change)
	fmt.Println("submitted", err)
	if err != nil || !o.Await {
		return 0
	}
	result, err := e.Await(context.Background(), o.Change, ticket)
	fmt.Println("awaited", result.Outcome, err)
	return 0
}

// workerProcess is a worker in a process group of its own.
type workerProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	word io.WriteCloser
	says *bufio.Scanner
}

// startWorker starts a worker process, which waits for begin.
func (s *site) startWorker(o order) *workerProcess {
	s.t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		s.t.Fatal(err)
	}
	w := &workerProcess{t: s.t, cmd: exec.Command("env", append(s.itself("worker")[1:], string(text))...)}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	w.cmd.Stderr = os.Stderr
	if w.word, err = w.cmd.StdinPipe(); err != nil {
		s.t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	w.says = bufio.NewScanner(out)
	if err := w.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(w.kill)
	w.wantLine("ready")
	return w
}

func (w *workerProcess) begin() {
	w.t.Helper()
	if _, err := io.WriteString(w.word, "go\n"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *workerProcess) wantLine(want string) {
	w.t.Helper()
	if !w.says.Scan() || w.says.Text() != want {
		w.t.Fatalf("the worker said %q, want %q", w.says.Text(), want)
	}
}

// kill kills everything in the worker's process group, as a supervisor does in the end.
func (w *workerProcess) kill() {
	if w.cmd.ProcessState == nil {
		_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
		_ = w.cmd.Wait()
	}
}

// submit hands the change over and wants it accepted.
func (s *site) submit(c executors.Change) executors.Ticket {
	s.t.Helper()
	ticket, err := s.worker().Submit(context.Background(), c)
	if err != nil {
		s.t.Fatalf("Submit: %v", err)
	}
	return ticket
}

// await follows the operation, as a worker that knows nothing, to its end.
func (s *site) await(c executors.Change) executors.Result {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	result, err := s.worker().Await(ctx, c, executors.Ticket{})
	if err != nil {
		s.t.Fatalf("Await: %v", err)
	}
	return result
}

// wantRunning wants the operation to be still running.
func (s *site) wantRunning(c executors.Change) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 120*time.Millisecond)
	defer cancel()
	if result, err := s.worker().Await(ctx, c, executors.Ticket{}); !errors.Is(err, executors.ErrRunning) {
		s.t.Fatalf("Await: %+v, %v; want ErrRunning", result, err)
	}
}

// wantFenced wants the operation to be given up, its script never begun, now and after a late Submit.
func (s *site) wantFenced(c executors.Change) {
	s.t.Helper()
	for range 2 {
		if result, err := s.worker().Await(context.Background(), c, executors.Ticket{}); !errors.Is(err, executors.ErrNotSubmitted) {
			s.t.Fatalf("Await: %+v, %v; want ErrNotSubmitted", result, err)
		}
		if _, err := s.worker().Submit(context.Background(), c); !errors.Is(err, executors.ErrRejected) {
			s.t.Fatalf("Submit of a fenced operation: %v, want ErrRejected", err)
		}
	}
	s.wantEffects(c.Operation, 0)
}

func (s *site) wantEffects(operation string, want int) {
	s.t.Helper()
	if got := s.effects(operation); got != want {
		s.t.Errorf("the script of %q began %d times, want %d", operation, got, want)
	}
}

// wantResult compares all that a result says but its output.
func (s *site) wantResult(got executors.Result, want executors.Result) {
	s.t.Helper()
	got.Output = ""
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("result (-want +got):\n%s", diff)
	}
}
