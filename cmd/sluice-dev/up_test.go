package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/cli"
)

// programVar makes the test binary sluice-dev.
const programVar = "SLUICE_DEV_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVar) != "" {
		os.Exit(cli.Main(newRoot()))
	}
	os.Exit(m.Run())
}

// program returns sluice-dev with these arguments, not started, with no environment but what is given and where to find
// things on this machine.
func program(t *testing.T, environ []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(environ, programVar+"=1", "PATH="+os.Getenv("PATH"), "HOME="+t.TempDir(), "SLUICE_ACTOR=ann", "TMPDIR="+os.TempDir())
	return cmd
}

// run runs sluice-dev to its end and returns its exit code and what it wrote.
func run(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := program(t, environ, args...)
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	failed := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatalf("sluice-dev %v: %v", args, failed)
	}
	return cmd.ProcessState.ExitCode(), out.String(), err.String()
}

// upped is a running `up`.
type upped struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan error
	// said is what it wrote on stdout before it began to wait.
	said    string
	errors  *bytes.Buffer
	address string
	ui      string
}

// startUp starts `up` on free ports and reads where everything is.
func startUp(t *testing.T, data string, more ...string) *upped {
	t.Helper()
	args := append([]string{"up", "--data", data, "--port", "0", "--ui-port", "0"}, more...)
	u := &upped{t: t, cmd: program(t, nil, args...), done: make(chan error, 1), errors: &bytes.Buffer{}}
	u.cmd.Stderr = u.errors
	stdout, err := u.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := u.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	for !strings.Contains(u.said, " list ") {
		line, err := lines.ReadString('\n')
		u.said += line
		if err != nil {
			_ = u.cmd.Process.Kill()
			_ = u.cmd.Wait()
			t.Fatalf("up ended early, after %q, and wrote %q", u.said, u.errors)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		u.done <- u.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = u.cmd.Process.Kill()
		u.wait()
	})
	find := func(pattern string) string {
		found := regexp.MustCompile(pattern).FindStringSubmatch(u.said)
		if found == nil {
			t.Fatalf("up does not say %s: %q", pattern, u.said)
		}
		return found[1]
	}
	u.address, u.ui = find(`export TEMPORAL_ADDRESS=(\S+)`), find(`UI +(http://\S+)`)
	if folder := find(`data folder +(\S+)`); folder != data {
		t.Errorf("up says that its data folder is %s, want %s", folder, data)
	}
	return u
}

// environ is how another command finds it.
func (u *upped) environ() []string { return []string{"TEMPORAL_ADDRESS=" + u.address} }

// wait waits for its end and returns its exit code; -1 after a kill.
func (u *upped) wait() int {
	u.t.Helper()
	select {
	case err := <-u.done:
		u.done <- err
	case <-time.After(time.Minute):
		u.t.Fatal("up did not end within a minute")
	}
	return u.cmd.ProcessState.ExitCode()
}

// documents have a rollout wait for a person before anything is touched, so that it is open for as long as a test needs.
const documents = `
- {type: Resource, name: one, kind: Cluster}
- {type: Environment, name: Production, resourceSelector: "true"}
- type: Deployment
  name: web
  steps: {apply: [{name: put, sim: {url: "http://127.0.0.1:9"}}]}
- type: Policy
  name: careful
  rules:
    - waves: [{name: all, select: "true", approval: {min: 1}}]
`

// TestUpServesSurvivesAKillAndStopsCleanly fails when the newcomer's server does not say where it is, lets another one on
// its data, loses rollouts with its process, or does not end when it is told to.
func TestUpServesSurvivesAKillAndStopsCleanly(t *testing.T) {
	data, folder := filepath.Join(t.TempDir(), "data"), t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "all.yaml"), []byte(documents), 0o600); err != nil {
		t.Fatal(err)
	}
	first := startUp(t, data)
	if status, err := http.Get(first.ui + "/healthz"); err != nil {
		t.Errorf("the UI at %s does not answer: %v", first.ui, err)
	} else if _ = status.Body.Close(); status.StatusCode != http.StatusOK {
		t.Errorf("the UI at %s answers %s", first.ui, status.Status)
	}

	_, port, _ := net.SplitHostPort(first.address)
	for _, ports := range [][]string{{"--port", "0", "--ui-port", "0"}, {"--port", port, "--ui-port", "0"}} {
		code, out, err := run(t, nil, append([]string{"up", "--data", data}, ports...)...)
		if pid := strconv.Itoa(first.cmd.Process.Pid); code != 1 || out != "" || !strings.Contains(err, data) || !strings.Contains(err, pid) {
			t.Errorf("a second up on the folder with %v: exit %d, %q, %q; want exit 1 and the folder and process %s named", ports, code, out, err, pid)
		}
	}
	if code, _, err := run(t, nil, "up", "--data", filepath.Join(t.TempDir(), "other"), "--port", port, "--ui-port", "0"); code != 1 || !strings.Contains(err, "port "+port) {
		t.Errorf("up on a taken port: exit %d, %q; want exit 1 and port %s named", code, err, port)
	}

	if code, out, err := run(t, first.environ(), "start", "web@v2", "-e", "Production", "-f", folder); code != 0 {
		t.Fatalf("start: exit %d, %q, %q", code, out, err)
	}
	if err := first.cmd.Process.Kill(); err != nil { // SIGKILL
		t.Fatal(err)
	}
	first.wait()

	second := startUp(t, data)
	code, out, stderr := run(t, second.environ(), "list", "-o", "json")
	var listed any
	if err := json.Unmarshal([]byte(out), &listed); code != 0 || err != nil || !strings.Contains(out, `"web"`) || !strings.Contains(out, `"v2"`) {
		t.Errorf("list after a kill: exit %d, %q, %q; want the rollout that was started before", code, out, stderr)
	}
	// It does not only show: it hears.
	if code, out, err := run(t, second.environ(), "abort", "web", "-e", "Production"); code != 0 {
		t.Errorf("abort after a kill: exit %d, %q, %q", code, out, err)
	}
	if err := second.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := second.wait(); code != 0 {
		t.Errorf("up after SIGINT: exit %d, want 0; it wrote %q", code, second.errors)
	}
	if strings.Contains(second.errors.String(), "level=ERROR") || strings.Contains(second.errors.String(), "level=WARN") {
		t.Errorf("a clean stop complains: %s", second.errors)
	}
}

// TestUpLeavesTheWorkToOthers fails when `up --worker=false` runs a worker after all, does not say that it runs none, or
// serves no worker of somebody else; or when it takes what only a worker could obey.
func TestUpLeavesTheWorkToOthers(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "all.yaml"), []byte(documents), 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, value := range map[string]string{"--config": "worker.yaml", "--time-scale": "60"} {
		code, out, err := run(t, nil, "up", "--worker=false", "--data", filepath.Join(t.TempDir(), "none"), "--port", "0", "--ui-port", "0", flag, value)
		if code == 0 || out != "" || !strings.Contains(err, flag+" is for the worker") {
			t.Errorf("up --worker=false %s: exit %d, %q, %q; want it refused", flag, code, out, err)
		}
	}

	up := startUp(t, filepath.Join(t.TempDir(), "data"), "--worker=false")
	if !strings.Contains(up.said, "without a worker") || !strings.Contains(up.said, "sluice-dev worker --data") {
		t.Errorf("up --worker=false says %q; want that there is no worker, and how to run one", up.said)
	}
	start := []string{"start", "web@v2", "-e", "Production", "-f", folder}
	if code, out, err := run(t, up.environ(), start...); code != 7 || !strings.Contains(err, "worker") {
		t.Errorf("start without a worker: exit %d, %q, %q; want exit 7", code, out, err)
	}

	worker := program(t, up.environ(), "worker", "--data", filepath.Join(t.TempDir(), "worker"))
	log, err := worker.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = worker.Wait() })
	t.Cleanup(func() { _ = worker.Process.Signal(syscall.SIGTERM) })
	lines := bufio.NewScanner(log)
	for started := false; !started; started = strings.Contains(lines.Text(), "worker started") {
		if !lines.Scan() {
			t.Fatalf("the worker ended early: %v", lines.Err())
		}
	}
	go func() { _, _ = io.Copy(io.Discard, log) }()
	if code, out, err := run(t, up.environ(), start...); code != 0 {
		t.Errorf("start with a worker of its own: exit %d, %q, %q", code, out, err)
	}
}
