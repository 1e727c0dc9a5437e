package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

// ownPrefix heads the variables that tell a program what is asked of it.
const ownPrefix = "SLUICE_"

// passed lists the worker's variables that programs may see.
var passed = []string{"PATH", "HOME", "LANG", "TZ", "TMPDIR"}

const (
	// checkTimeout bounds one run of a check: it reads a version, it does not wait for one.
	checkTimeout = 30 * time.Second
	// checkDrain is how long the output of a check that ended may be held open by what it left behind.
	checkDrain = time.Second
	// versionLimit is in bytes; what is longer is not a version but a message.
	versionLimit = 256
)

// script is a program ready to run: nothing in it depends on the process that starts it.
type script struct {
	// Program is the absolute path; Argv[0] is the name it was called by.
	Program string   `json:"program"`
	Argv    []string `json:"argv"`
	Env     []string `json:"env"`
	// Dir is absolute, or empty for the working directory of the worker.
	Dir string `json:"dir,omitempty"`
}

// allowed returns the part of the worker's environment that is passed on.
func (e *Executor) allowed() []string {
	var env []string
	for _, entry := range e.options.Environ {
		if key, _, ok := strings.Cut(entry, "="); ok && slices.Contains(passed, key) {
			env = append(env, entry)
		}
	}
	return env
}

// script resolves what the change runs, against the worker's working directory and the program's own PATH.
func (e *Executor) script(c executors.Change, cfg config, argv []string) (script, error) {
	env := map[string]string{}
	for _, entry := range e.allowed() {
		key, value, _ := strings.Cut(entry, "=")
		env[key] = value
	}
	maps.Copy(env, cfg.env)
	maps.Copy(env, map[string]string{
		"SLUICE_OPERATION_ID": c.Operation,
		"SLUICE_TARGET":       c.Target.Name,
		"SLUICE_VERSION":      c.Version,
		"SLUICE_FROM":         c.From,
		"SLUICE_DIRECTION":    string(c.Direction),
		"SLUICE_DEPLOYMENT":   c.Deployment,
		"SLUICE_ENVIRONMENT":  c.Environment,
	})
	s := script{Argv: argv}
	for _, key := range slices.Sorted(maps.Keys(env)) {
		if strings.ContainsRune(env[key], 0) {
			return script{}, fmt.Errorf("%s can't be handed to a program, because it contains a NUL byte", key)
		}
		s.Env = append(s.Env, key+"="+env[key])
	}
	var err error
	if s.Program, err = find(argv[0], env["PATH"]); err != nil {
		return script{}, err
	}
	if cfg.dir != "" {
		if s.Dir, err = filepath.Abs(cfg.dir); err != nil {
			return script{}, err
		}
	}
	return s, nil
}

// find returns the absolute path of a program. Unlike exec.LookPath it takes the PATH that the program itself will see,
// and relative entries of it are passed over.
func find(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		abs, err := filepath.Abs(name)
		if err != nil {
			return "", err
		}
		if _, err := exec.LookPath(abs); err != nil {
			return "", fmt.Errorf("no program to run: %w", err)
		}
		return abs, nil
	}
	for _, dir := range filepath.SplitList(path) {
		if filepath.IsAbs(dir) {
			if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return found, nil
			}
		}
	}
	return "", fmt.Errorf("no program %q in PATH %q", name, path)
}

// command makes the process, in a group of its own so that all of it can be stopped at once; stdin is /dev/null.
func (s script) command() *exec.Cmd {
	return &exec.Cmd{
		Path:        s.Program,
		Args:        s.Argv,
		Env:         s.Env,
		Dir:         s.Dir,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
}

// runCheck runs the step's check, which must exist, to its end or to that of ctx.
func (e *Executor) runCheck(ctx context.Context, c executors.Change, cfg config) (executors.Reading, error) {
	reading, err := e.check(ctx, c, cfg)
	if err != nil {
		return executors.Reading{}, fmt.Errorf("command: check of %s: %w", c.Target.Name, err)
	}
	return reading, nil
}

func (e *Executor) check(ctx context.Context, c executors.Change, cfg config) (executors.Reading, error) {
	s, err := e.script(c, cfg, cfg.check)
	if err != nil {
		return executors.Reading{}, err
	}
	if err := ctx.Err(); err != nil {
		return executors.Reading{}, err
	}
	cmd := s.command()
	var stdout, stderr head
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return executors.Reading{}, err
	}
	group := cmd.Process.Pid
	cmd.WaitDelay = checkDrain
	timer := time.NewTimer(checkTimeout)
	defer timer.Stop()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = syscall.Kill(-group, syscall.SIGKILL)
		<-ended //nolint:errcheck // it was killed: how it ended says nothing
		return executors.Reading{}, ctx.Err()
	case <-timer.C:
		_ = syscall.Kill(-group, syscall.SIGKILL)
		<-ended //nolint:errcheck // it was killed: how it ended says nothing
		return executors.Reading{}, fmt.Errorf("it did not end within %s", plain(checkTimeout))
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		_ = syscall.Kill(-group, syscall.SIGKILL)
		return executors.Reading{}, errors.New("it left a process behind that holds its output")
	}
	if err != nil {
		if line := lastLine(stderr.String()); line != "" {
			return executors.Reading{}, fmt.Errorf("%w: %s", err, line)
		}
		return executors.Reading{}, err
	}
	version := strings.TrimSpace(stdout.String())
	if stdout.over || len(version) > versionLimit || strings.ContainsAny(version, "\n\r\x00") || !utf8.ValidString(version) {
		return executors.Reading{}, fmt.Errorf("it must print the running version alone, on one line of at most %d bytes", versionLimit)
	}
	return executors.Reading{Known: true, Version: version, Detail: "printed by the step's check"}, nil
}

// head keeps the first 4 KiB written to it and drops the rest. The buffer is not embedded, because its ReadFrom would
// take everything in past Write.
type head struct {
	kept bytes.Buffer
	over bool
}

func (h *head) Write(p []byte) (int, error) {
	room := outputLimit - h.kept.Len()
	if room < len(p) {
		h.over = true
	}
	h.kept.Write(p[:min(room, len(p))])
	return len(p), nil
}

func (h *head) String() string { return h.kept.String() }

// lastLine returns the last line with something on it, fit for a sentence.
func lastLine(output string) string {
	lines := strings.Split(strings.TrimSpace(printable([]byte(output))), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	if len(line) > versionLimit {
		line = printable([]byte(line[:versionLimit])) + "…"
	}
	return line
}

// printable makes text of bytes: what is not UTF-8, and NUL, which databases refuse, becomes "?", so that the length
// never grows.
func printable(b []byte) string {
	return strings.ReplaceAll(strings.ToValidUTF8(string(b), "?"), "\x00", "?")
}

// plain writes a duration without the zeros of Duration.String: 10m, not 10m0s.
func plain(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
