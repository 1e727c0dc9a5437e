package demo

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/cli"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

// programVar makes the test binary the program that the demo runs for its fleet and its commands.
const programVar = "SLUICE_DEMO_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVar) != "" {
		os.Exit(runProgram())
	}
	_ = os.Setenv(programVar, "1")
	os.Exit(m.Run())
}

// runProgram is sluice-dev as far as the demo needs it.
func runProgram() int {
	if len(os.Args) < 2 || os.Args[1] != SimCommand {
		return cli.Main(cli.New())
	}
	var o fleet.Options
	flags := flag.NewFlagSet(SimCommand, flag.ExitOnError)
	flags.StringVar(&o.Scenario, "scenario", "", "")
	flags.StringVar(&o.Log, "log", "", "")
	until := flags.Bool(UntilStdinCloses, false, "")
	_ = flags.Parse(os.Args[2:])
	if !*until {
		fmt.Fprintln(os.Stderr, "the fleet would outlive a demo that is killed")
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := Simulate(ctx, o, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// small is the story on fewer clusters and at a faster pace.
func small() *setting {
	s := story(1)
	s.scenario.Generate.Count = 42
	s.scenario.Generate.Regions = s.scenario.Generate.Regions[:3]
	s.scenario.Duration = fleet.Span{Min: 100 * time.Millisecond, Max: 300 * time.Millisecond}
	s.scenario.Regressions[0].After = 400 * time.Millisecond
	s.waves = []waveSetting{
		{name: "pilot", tier: 3, limit: 3, concurrency: 2},
		{name: "tier-3", tier: 3, concurrency: 8},
		{name: "tier-2", tier: 2, concurrency: 4},
		{name: "tier-1", tier: 1, concurrency: 4},
	}
	s.maxFailures, s.backConcurrency = 1, 6
	s.soak, s.interval, s.count = time.Second, 500*time.Millisecond, 2
	return &s
}

// page is what a demo writes, which its commands write too.
type page struct {
	mu   sync.Mutex
	text bytes.Buffer
	// when, when not nil, is told everything that has been written so far.
	when func(text string)
}

func (p *page) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.text.Write(data)
	if p.when != nil {
		p.when(p.text.String())
	}
	return n, err
}

func (p *page) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// tampered is an executor with a fault in it.
type tampered struct {
	executors.Executor
	// submit, await and verify do something else and report that they did, or leave it to the executor.
	submit func(executors.Change) (executors.Ticket, bool)
	await  func(executors.Change) (executors.Result, bool)
	verify func(executors.Change) (executors.Result, bool)
}

func (t tampered) Submit(ctx context.Context, c executors.Change) (executors.Ticket, error) {
	if ticket, done := t.submit(c); done {
		return ticket, nil
	}
	return t.Executor.Submit(ctx, c)
}

func (t tampered) Await(ctx context.Context, c executors.Change, ticket executors.Ticket) (executors.Result, error) {
	if t.await != nil {
		if result, done := t.await(c); done {
			return result, nil
		}
	}
	return t.Executor.Await(ctx, c, ticket)
}

func (t tampered) Verify(ctx context.Context, c executors.Change) (executors.Result, error) {
	if t.verify != nil {
		if result, done := t.verify(c); done {
			return result, nil
		}
	}
	return t.Executor.Verify(ctx, c)
}

// muted is a provider that always says what one wants to hear.
type muted struct{}

func (muted) Measure(context.Context, metrics.Query) (metrics.Sample, error) {
	return metrics.Sample{Result: map[string]any{"value": 1.0}}, nil
}

// only wraps the simulated fleet's executor alone.
func only(wrap func(executors.Executor) executors.Executor) func(string, executors.Executor) executors.Executor {
	return func(kind string, e executors.Executor) executors.Executor {
		if kind != "sim" {
			return e
		}
		return wrap(e)
	}
}

// TestDemo fails when the demo does not end well by itself, and when it ends well although something was done to the
// clusters that must not be, or was not done that must.
func TestDemo(t *testing.T) {
	server, err := embed.Start(t.Context(), embed.Options{
		DataDir: filepath.Join(t.TempDir(), "temporal"), FrontendAddr: ":0", Synchronous: embed.SynchronousNormal, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	outsider := small().expectation().Waves[3].Clusters[2]
	var lost, touched, silenced atomic.Int32
	var victim atomic.Value
	isVictim := func(c executors.Change) bool {
		name, _ := victim.Load().(string)
		return c.Direction == executors.Restore && c.Target.Name == name
	}
	tests := []struct {
		name   string
		tamper func(*Options)
		// did counts how often the fault was put in.
		did *atomic.Int32
		// want are what the verdict must say; none means that all is well.
		want []string
	}{
		{name: "as promised"},
		{name: "a restore is lost", did: &lost, want: []string{"was reached by v2 and never asked to go back", "runs v2 at the end, not v1"},
			tamper: func(o *Options) {
				o.wrap = only(func(e executors.Executor) executors.Executor {
					return tampered{Executor: e,
						submit: func(c executors.Change) (executors.Ticket, bool) {
							if c.Direction == executors.Restore && victim.CompareAndSwap(nil, c.Target.Name) {
								lost.Add(1)
							}
							return executors.Ticket{Handle: c.Operation}, isVictim(c)
						},
						await: func(c executors.Change) (executors.Result, bool) {
							return executors.Result{Outcome: executors.Succeeded}, isVictim(c)
						},
						verify: func(c executors.Change) (executors.Result, bool) {
							return executors.Result{Outcome: executors.Succeeded, Reading: executors.Reading{Known: true, Version: c.Version}}, isVictim(c)
						},
					}
				})
			}},
		{name: "an outsider is touched", did: &touched, want: []string{outsider + ": was reached by v2 and never asked to go back", outsider + ": runs v2 at the end, not v1"},
			tamper: func(o *Options) {
				o.wrap = only(func(e executors.Executor) executors.Executor {
					return tampered{Executor: e, submit: func(c executors.Change) (executors.Ticket, bool) {
						if c.Direction == executors.Restore && touched.CompareAndSwap(0, 1) {
							c.Target.Name, c.Operation, c.Direction, c.Version, c.From = outsider, "stray", executors.Apply, after, before
							if _, err := e.Submit(context.Background(), c); err != nil {
								t.Errorf("touch the outsider: %v", err)
							}
						}
						return executors.Ticket{}, false
					}}
				})
			}},
		{name: "the check is muted", did: &silenced, want: []string{"all 42 clusters were reached by v2: nothing stopped it", "was reached by v2 and never asked to go back"},
			tamper: func(o *Options) {
				o.wrapProvider = func(kind, _ string, p metrics.Provider) metrics.Provider {
					if kind != "prometheus" {
						return p
					}
					silenced.Add(1)
					return muted{}
				}
			}},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var shown, notes page
			o := Options{Out: &shown, Err: &notes, setting: small(), server: server, namespace: fmt.Sprintf("demo-%d", i)}
			if tt.tamper != nil {
				tt.tamper(&o)
			}
			err := Run(t.Context(), o)
			defer func() {
				if t.Failed() {
					t.Logf("it showed:\n%s\nand noted:\n%s", &shown, &notes)
				}
			}()
			if tt.did != nil && tt.did.Load() != 1 {
				t.Fatalf("the fault was put in %d times, want once", tt.did.Load())
			}
			if len(tt.want) == 0 {
				if err != nil {
					t.Errorf("got %v, want nil", err)
				}
				for _, want := range []string{"Timeline", "budget", "rollback begins", "42 on v1", "OK every cluster"} {
					if !strings.Contains(shown.String(), want) {
						t.Errorf("it does not show %q", want)
					}
				}
				return
			}
			if !errors.Is(err, errVerdict) {
				t.Errorf("got %v, want a verdict", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(shown.String(), want) {
					t.Errorf("it does not say %q", want)
				}
			}
		})
	}
}

// TestAnInterruptedDemoLeavesNothingBehind fails when Ctrl-C leaves the fleet, the server or the folder.
func TestAnInterruptedDemoLeavesNothingBehind(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var notes page
	shown := page{when: func(text string) {
		if strings.Contains(text, "wave 2 (tier-3) opened") {
			interrupt()
		}
	}}
	err := Run(ctx, Options{Out: &shown, Err: &notes, setting: small()})
	if err == nil || !strings.Contains(err.Error(), "interrupted") || strings.Contains(shown.String(), "Verdict") {
		t.Errorf("got %v, want that it was interrupted, and no verdict", err)
	}
	text := shown.String()
	found := regexp.MustCompile(`a process of its own \((\d+)\)(?s:.*)Temporal +(\S+)\n +documents +(\S+)`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("it does not say what it started: %q, %q", text, notes.String())
	}
	if pid, _ := strconv.Atoi(found[1]); !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		t.Errorf("the fleet, process %d, lives on", pid)
	}
	if _, err := os.Stat(filepath.Dir(found[3])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of %s is still there: %v", found[3], err)
	}
	if !strings.Contains(text, "In Temporal, while this runs: http://127.0.0.1:") {
		t.Errorf("it does not say where the rollout is in Temporal's UI: %q", text)
	}
}
