package demo

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

// SimCommand and UntilStdinCloses are the hidden command, and its flag, under which this program is the fleet.
const (
	SimCommand       = "sim"
	UntilStdinCloses = "until-stdin-closes"
)

const (
	// startTimeout is how long the fleet may take to listen; it takes 200 ms, most of them to load the program.
	startTimeout = 30 * time.Second
	// stopTimeout is how long a process may take to end after it was told to, before it is killed.
	stopTimeout = 5 * time.Second
)

// Simulate runs a simulated fleet until ctx is done. With a stdin it ends when that closes too, so that nothing is left
// of a demo that was killed.
func Simulate(ctx context.Context, o fleet.Options, stdin io.Reader, stdout io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if stdin != nil {
		go func() {
			_, _ = io.Copy(io.Discard, stdin)
			cancel()
		}()
	}
	return fleet.Run(ctx, o, stdout)
}

// fleetProcess is the fleet: a process of its own, so that the demo shares no memory with what it judges by.
type fleetProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
	url   string
	end   sync.Once
}

// startFleet starts the fleet and returns when it listens.
func startFleet(ctx context.Context, s *show) (*fleetProcess, error) {
	data, err := s.setting.scenario.Encode()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(s.path(scenarioFile), data, 0o600); err != nil {
		return nil, fmt.Errorf("write the fleet's scenario: %w", err)
	}
	args := slices.Concat(s.Program[1:], []string{SimCommand, "--scenario", s.path(scenarioFile), "--log", s.path(effectLog), "--" + UntilStdinCloses})
	cmd := exec.Command(s.Program[0], args...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	// A group of its own: Ctrl-C is for the demo, which ends the fleet when nobody needs it any more.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the fleet: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the fleet: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the fleet: %w", err)
	}
	f := &fleetProcess{cmd: cmd, stdin: stdin}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// Its end closes the pipe, so that the read below does too.
	late := context.AfterFunc(starting, f.stop)
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if !late() {
		f.stop()
		return nil, fmt.Errorf("start the fleet: %w", starting.Err())
	}
	var place struct{ URL string }
	if err == nil {
		err = decode(line, &place)
	}
	if err != nil || place.URL == "" {
		f.stop()
		return nil, fmt.Errorf("start the fleet: it does not say where it listens: %w; it wrote %q", cmp.Or(err, errors.New("no address")), complaints.String())
	}
	f.url = place.URL
	return f, nil
}

// pid is its process id.
func (f *fleetProcess) pid() int { return f.cmd.Process.Pid }

// stop ends it and waits until it has ended. It may be called more than once.
func (f *fleetProcess) stop() {
	f.end.Do(func() {
		_ = f.cmd.Process.Signal(syscall.SIGTERM)
		_ = f.stdin.Close()
		kill := time.AfterFunc(stopTimeout, func() { _ = f.cmd.Process.Kill() })
		defer kill.Stop()
		_ = f.cmd.Wait() // how it ended says nothing: every line of its log is on disk
	})
}

// program runs commands of this program as a person would type them.
type program struct {
	*show
	environ []string
}

// environ is the environment of those commands: whatever the person has set for a Temporal of their own is left out, so
// that nothing can be sent anywhere but to the demo's.
func (s *show) environ(server *embed.Server) []string {
	environ := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TEMPORAL_") })
	return append(environ, "TEMPORAL_ADDRESS="+server.HostPort(), "TEMPORAL_NAMESPACE="+s.namespace,
		"TEMPORAL_CONFIG_FILE="+s.path("no-temporal.toml"), "SLUICE_ACTOR="+actor())
}

// actor is who starts the rollout: whoever runs the demo, if they have a name.
func actor() string {
	name := os.Getenv("SLUICE_ACTOR")
	if u, err := user.Current(); err == nil {
		name = cmp.Or(name, u.Username)
	}
	return cmp.Or(name, "you")
}

// run runs a command and shows what it writes. Exit codes other than 0 and those that are fine are errors.
func (p program) run(ctx context.Context, fine []int, args ...string) error {
	p.prompt(args)
	return p.exec(ctx, fine, p.Out, args)
}

// read runs a command and reads the JSON that it writes.
func (p program) read(ctx context.Context, into any, args ...string) error {
	var answer bytes.Buffer
	if err := p.exec(ctx, nil, &answer, append(args, "-o", "json")); err != nil {
		return err
	}
	if err := decode(answer.Bytes(), into); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}

// prompt shows what a person would type.
func (p program) prompt(args []string) {
	shown := slices.Clone(args)
	for i, arg := range shown {
		if strings.Contains(arg, " ") {
			shown[i] = "'" + arg + "'"
		}
	}
	p.say("\n%s", p.style.Dim("$ sluice-dev "+strings.Join(shown, " ")))
}

// exec runs a command to its end, or until ctx is done. None of them holds anything that would be lost.
func (p program) exec(ctx context.Context, fine []int, stdout io.Writer, args []string) error {
	cmd := exec.CommandContext(ctx, p.Program[0], slices.Concat(p.Program[1:], args)...)
	// A group of its own, as the fleet: on Ctrl-C the demo ends it, and it need not say that the rollout goes on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = stopTimeout
	cmd.Env, cmd.Stdout, cmd.Stderr = p.environ, stdout, p.Err
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && slices.Contains(fine, exit.ExitCode()) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", filepath.Base(p.Program[0]), args[0], err)
	}
	return nil
}
