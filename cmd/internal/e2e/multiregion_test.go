package e2e

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/config"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/load"
	"github.com/seed-a0a4f4e3/sluice/tests/fakes/datadog"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

const multiRegion = "../../../deploy/examples/multi-region"

// variations are the guide's base and its two variations, each with the order in which its clusters change, a cluster in
// the middle of it that turns out bad, and how long after the first each starts when nothing takes longer than its checks.
var variations = []struct {
	folder string
	order  []string
	bad    string
	after  func(position int) time.Duration
	// checks is how long the checks of one cluster take.
	checks func(cluster string) []time.Duration
}{
	{
		folder: "base",
		order: []string{"prod-us-east-1", "prod-us-west-2", "prod-eu-west-1", "prod-us-west-2-b", "prod-eu-west-1-b", "prod-us-east-1-b",
			"prod-us-west-2-a", "prod-us-east-1-a"},
		bad:    "prod-eu-west-1",
		after:  func(position int) time.Duration { return time.Duration(position) * 10 * time.Minute },
		checks: func(string) []time.Duration { return minutes(1, 2, 3, 4, 5) },
	},
	{
		folder: "by-region",
		order: []string{"prod-us-east-1", "prod-us-east-1-b", "prod-us-east-1-a", "prod-us-west-2", "prod-us-west-2-b", "prod-us-west-2-a",
			"prod-eu-west-1", "prod-eu-west-1-b"},
		bad:    "prod-us-west-2",
		after:  func(position int) time.Duration { return time.Duration(position) * 5 * time.Minute },
		checks: func(string) []time.Duration { return minutes(1, 2, 3, 4, 5) },
	},
	{
		folder: "canary",
		order: []string{"canary-cluster", "prod-us-east-1", "prod-us-west-2", "prod-eu-west-1", "prod-us-west-2-b", "prod-eu-west-1-b",
			"prod-us-east-1-b", "prod-us-east-1-a"},
		bad: "canary-cluster",
		after: func(position int) time.Duration {
			if position == 0 {
				return 0
			}
			return time.Hour + time.Duration(position-1)*5*time.Minute
		},
		checks: func(cluster string) []time.Duration {
			all := minutes(1, 2, 3, 4, 5)
			if cluster == "canary-cluster" {
				all = append(all, minutes(5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60)...)
			}
			return all
		},
	},
}

func minutes(all ...int) []time.Duration {
	var out []time.Duration
	for _, n := range all {
		out = append(out, time.Duration(n)*time.Minute)
	}
	return out
}

// guide reads the documents of a variation as they are, but for the address of the simulated fleet.
func guide(t *testing.T, folder, url string) []load.File {
	t.Helper()
	files, err := load.ReadDir(filepath.Join(multiRegion, folder))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for i, file := range files {
		files[i].Data = bytes.ReplaceAll(file.Data, []byte("http://127.0.0.1:7420"), []byte(url))
		found = found || !bytes.Equal(file.Data, files[i].Data)
	}
	if !found {
		t.Fatal("the documents do not name the simulated fleet's address")
	}
	return files
}

// guideFleet is the example's own fleet, at once in all that it does.
func guideFleet(t *testing.T) (url, log string) {
	t.Helper()
	s, err := fleet.Load(filepath.Join(multiRegion, "laptop", "scenario.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.Duration = fleet.Span{}
	return fleetOf(t, s)
}

// errorsOf are each cluster's errors: none, but for one cluster.
func errorsOf(order []string, bad string) []datadog.Series {
	var all []datadog.Series
	for _, cluster := range order {
		value := 0.0
		if cluster == bad {
			value = 0.7
		}
		all = append(all, datadog.Series{Metric: "errors", Tags: map[string]string{"env": "prod", "cluster": cluster}, Every: time.Second,
			Points: func(time.Time) (float64, bool) { return value, true }})
	}
	return all
}

// guideConnection is the example's connection, to the fake Datadog.
func guideConnection(t *testing.T, d *datadog.Server) config.Config {
	t.Helper()
	c, err := config.Load(filepath.Join(multiRegion, "worker.yaml"), wire.ConnectionTypes(), func(name string) string {
		return map[string]string{"DD_API_KEY": "api", "DD_APP_KEY": "app"}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Connections[0].URL = d.URL
	return c
}

// requested are the changes that a fleet was asked for, in order: "apply c01 v2", "restore c01 v1".
func requested(t *testing.T, log, from string) []string {
	t.Helper()
	entries, err := fleet.ReadLog(log)
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	for _, e := range entries {
		if e.Kind == fleet.KindRequest {
			verb := "apply"
			if e.Version == from {
				verb = "restore"
			}
			asked = append(asked, verb+" "+e.Target)
		}
	}
	return asked
}

// inSubset are the variations that a run without the full tag goes through, since each takes about a minute.
func inSubset(folder, only string) bool { return full || folder == only }

// The guide's documents, on a real server and a Datadog that answers the vendor's client, six hundred times as fast.
func TestMultiRegionGuideRunsToItsEnd(t *testing.T) {
	for _, v := range variations {
		if !inSubset(v.folder, "by-region") {
			continue
		}
		t.Run(v.folder, func(t *testing.T) {
			t.Parallel()
			url, log := guideFleet(t)
			d := datadog.New(t, datadog.Options{APIKey: "api", AppKey: "app", Series: errorsOf(v.order, "")})
			l := newLane(t)
			l.options.Config, l.options.TimeScale = guideConnection(t, d), 600
			l.startWorker()
			l.launch(l.prepareFiles(guide(t, v.folder, url), "v1.2.3"))
			s := l.ended()
			if s.State != workflows.Succeeded {
				t.Fatalf("state = %s (%s)%s", s.State, s.Reason, timeline(s))
			}
			var want []string
			for _, cluster := range v.order {
				want = append(want, "apply "+cluster)
			}
			if diff := cmp.Diff(want, requested(t, log, "v1.2.2")); diff != "" {
				t.Errorf("the order in which the clusters changed (-want +got):\n%s", diff)
			}
			measured := map[string]int{}
			for _, r := range d.Requests() {
				for _, query := range r.Queries {
					measured[query]++
				}
			}
			for _, cluster := range v.order {
				query := fmt.Sprintf("sum:errors{env:prod,cluster:%s}", cluster)
				if got, want := measured[query], len(v.checks(cluster)); got != want {
					t.Errorf("%s was asked %d times, want %d", query, got, want)
				}
			}
		})
	}
}

// One bad series stops the spread at its cluster, which goes back; the rest stays on the old version until a person
// decides.
func TestMultiRegionGuideStopsAtABadCluster(t *testing.T) {
	for _, v := range variations {
		if !inSubset(v.folder, "canary") {
			continue
		}
		t.Run(v.folder, func(t *testing.T) {
			t.Parallel()
			url, log := guideFleet(t)
			d := datadog.New(t, datadog.Options{APIKey: "api", AppKey: "app", Series: errorsOf(v.order, v.bad)})
			l := newLane(t)
			l.options.Config, l.options.TimeScale = guideConnection(t, d), 600
			l.startWorker()
			l.launch(l.prepareFiles(guide(t, v.folder, url), "v1.2.4"))
			s := l.until("it holds", func(s workflows.RolloutStatus) bool {
				return s.State == workflows.Holding && s.Counts[policy.Failed] == 1
			})
			at := slices.Index(v.order, v.bad)
			var want, back []string
			for _, cluster := range v.order[:at+1] {
				want = append(want, "apply "+cluster)
			}
			for _, cluster := range v.order[:at] {
				back = append(back, "restore "+cluster)
			}
			want = append(want, "restore "+v.bad)
			if diff := cmp.Diff(want, requested(t, log, "v1.2.2")); diff != "" {
				t.Errorf("asked until it holds (-want +got):\n%s", diff)
			}
			if len(s.Attention) != 1 || s.Attention[0].Name != v.bad || !strings.Contains(s.Attention[0].Reason, "check error-rate: 1 failed, 0 allowed; last saw 0.7") {
				t.Errorf("attention: %+v", s.Attention)
			}
			l.signal(workflows.RollBack, workflows.Command{By: "ann", Reason: "errors"})
			s = l.ended()
			if s.State != workflows.RolledBack {
				t.Errorf("state = %s (%s), want %s", s.State, s.Reason, workflows.RolledBack)
			}
			if diff := cmp.Diff(append(want, back...), requested(t, log, "v1.2.2")); diff != "" {
				t.Errorf("asked until it was taken back (-want +got):\n%s", diff)
			}
		})
	}
}

// clockedExecutor notes the virtual time of each submit.
type clockedExecutor struct {
	executors.Executor
	w *virtualWorld
}

func (e *clockedExecutor) Submit(ctx context.Context, c executors.Change) (executors.Ticket, error) {
	e.w.mu.Lock()
	e.w.starts = append(e.w.starts, start{string(c.Direction) + " " + c.Target.Name, e.w.env.Now()})
	e.w.mu.Unlock()
	return e.Executor.Submit(ctx, c)
}

// clockedProvider notes the virtual time of each measurement that counts.
type clockedProvider struct {
	metrics.Provider
	w *virtualWorld
}

func (p *clockedProvider) Measure(ctx context.Context, q metrics.Query) (metrics.Sample, error) {
	sample, err := p.Provider.Measure(ctx, q)
	if err != nil || sample.NotBefore.IsZero() {
		p.w.mu.Lock()
		p.w.measured = append(p.w.measured, q.Now)
		p.w.mu.Unlock()
	}
	return sample, err
}

type start struct {
	what string
	at   time.Time
}

// recorded is what a virtual world saw.
type recorded struct {
	mu       sync.Mutex
	starts   []start
	measured []time.Time
}

// firstStart is when the first change was asked for; zero: not yet.
func (r *recorded) firstStart() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.starts) == 0 {
		return time.Time{}
	}
	return r.starts[0].at
}

// schedule lists the starts, each with the time since the first.
func (r *recorded) schedule() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, s := range r.starts {
		out = append(out, fmt.Sprintf("%s +%s", s.what, policy.Duration(s.at.Sub(r.starts[0].at).Round(time.Second))))
	}
	return out
}

// measurements are the times of the measurements, since the first start, in order.
func (r *recorded) measurements() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []time.Duration
	for _, at := range r.measured {
		out = append(out, at.Sub(r.starts[0].at).Round(time.Second))
	}
	slices.Sort(out)
	return out
}
