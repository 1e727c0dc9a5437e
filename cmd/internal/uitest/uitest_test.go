//go:build full

// Package uitest proves what an operator does in the stock Temporal UI, in a real browser: it types each command as a
// person would, and reads what the pages say. It needs Chromium and no network.
package uitest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/cli"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// server and browser are shared by the tests of the package; each has a namespace and a tab of its own.
var (
	server  *embed.Server
	browser context.Context
)

var namespaces atomic.Int64

// cliRole, as the first argument, makes this test binary the command line.
const cliRole = "sluice"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == cliRole {
		os.Args = os.Args[1:]
		os.Exit(cli.Main(cli.New()))
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// run runs the tests between the start and the end of what they share.
func run(m *testing.M) (int, error) {
	var err error
	server, err = embed.Start(context.Background(), embed.Options{FrontendAddr: "127.0.0.1:0", UIAddr: "127.0.0.1:0",
		Synchronous: embed.SynchronousNormal, Logger: quiet()})
	if err != nil {
		return 1, err
	}
	var closeBrowser func() error
	if browser, closeBrowser, err = openBrowser(); err != nil {
		return 1, fmt.Errorf("%w; Chromium is Debian's package chromium: %w", err, server.Stop())
	}
	code := m.Run()
	if err := closeBrowser(); err != nil {
		return 1, err
	}
	if err := server.Stop(); err != nil {
		return 1, err
	}
	return code, nil
}

// quiet drops what servers and workers say; SLUICE_TEST_LOG=1 shows it.
func quiet() *slog.Logger {
	to := io.Discard
	if os.Getenv("SLUICE_TEST_LOG") != "" {
		to = os.Stderr
	}
	return slog.New(slog.NewTextHandler(to, nil))
}

// site is one test's world: a namespace with a worker, a simulated fleet, and a tab of the browser.
type site struct {
	*page
	namespace string
	client    client.Client
	fleet     string // its address
	log       string // what it did, see fleet.ReadLog
}

// newSite starts a worker and a fleet, and a rollout of web@v2 to Production under the policy's rules.
func newSite(t *testing.T, s fleet.Scenario, rules string) *site {
	t.Helper()
	namespace := fmt.Sprintf("ui-%d", namespaces.Add(1))
	if err := server.CreateNamespace(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(client.Options{HostPort: server.HostPort(), Namespace: namespace, Logger: sdklog.NewStructuredLogger(quiet())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	w, err := wire.NewWorker(t.Context(), c, wire.Options{DataDir: t.TempDir(), Namespace: namespace, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	log := filepath.Join(t.TempDir(), "effects.ndjson")
	f, err := fleet.New(s, log)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(f.Handler())
	t.Cleanup(func() {
		web.Close()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	site := &site{page: newPage(t), namespace: namespace, client: c, fleet: web.URL, log: log}
	documents := filepath.Join(t.TempDir(), "all.yaml")
	if err := os.WriteFile(documents, []byte(site.documents(s, rules)), 0o600); err != nil {
		t.Fatal(err)
	}
	site.sluice("start", "web@v2", "-e", "Production", "-f", documents, "--as", "ann")
	return site
}

// documents are the scenario's targets, walked by the rules.
func (s *site) documents(scenario fleet.Scenario, rules string) string {
	var b strings.Builder
	for _, m := range scenario.Members {
		fmt.Fprintf(&b, "type: Resource\nname: %s\nkind: Cluster\n---\n", m.Name)
	}
	fmt.Fprintf(&b, `type: Environment
name: Production
resourceSelector: 'true'
---
type: Deployment
name: web
steps:
  apply: [{name: put, sim: {url: '%s'}}]
---
type: Policy
name: production
rules:
%s`, s.fleet, rules)
	return b.String()
}

// sluice runs a command line, and wants it to succeed.
func (s *site) sluice(args ...string) {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	command := exec.CommandContext(s.t.Context(), self, append([]string{cliRole}, args...)...)
	command.Env = []string{"TEMPORAL_ADDRESS=" + server.HostPort(), "TEMPORAL_NAMESPACE=" + s.namespace, "HOME=" + s.t.TempDir()}
	if said, err := command.CombinedOutput(); err != nil {
		s.t.Fatalf("sluice %s: %v\n%s", strings.Join(args, " "), err, said)
	}
}

// scenario is a fleet of n clusters on v1, with what goes wrong there.
func scenario(n int, failures ...fleet.Failure) fleet.Scenario {
	s := fleet.Scenario{Seed: 1, Version: "v1", Failures: failures}
	for i := 1; i <= n; i++ {
		s.Members = append(s.Members, fleet.Target{Name: fmt.Sprintf("c%02d", i)})
	}
	return s
}

// release lets a hanging target of the fleet go on.
func (s *site) release(target string) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.fleet+"/targets/"+target+"/release", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		s.t.Fatalf("release %s: %s", target, response.Status)
	}
}

// asked reports whether the fleet has begun to change a target.
func (s *site) asked(target string) bool {
	entries, err := fleet.ReadLog(s.log)
	return err == nil && slices.ContainsFunc(entries, func(e fleet.Entry) bool { return e.Kind == fleet.KindStarted && e.Target == target })
}

// until waits for a condition on the rollout's status.
func (s *site) until(what string, holds func(workflows.RolloutStatus) bool) workflows.RolloutStatus {
	s.t.Helper()
	var last workflows.RolloutStatus
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		status, err := s.status()
		if err == nil {
			if last = status; holds(status) {
				return status
			}
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			s.t.Fatalf("timed out waiting until %s; last: %s (%s), counts %v, commands %+v, error %v", what, last.State, last.Reason, last.Counts, last.Commands, err)
		case <-s.t.Context().Done():
			s.t.Fatalf("gave up waiting until %s", what)
		}
	}
}

// untilState waits for the rollout's state.
func (s *site) untilState(want workflows.Phase) workflows.RolloutStatus {
	s.t.Helper()
	return s.until("it is "+string(want), func(status workflows.RolloutStatus) bool { return status.State == want })
}

func (s *site) status() (status workflows.RolloutStatus, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second) // a query that a busy worker missed is asked again
	defer cancel()
	answer, err := s.client.QueryWorkflow(ctx, workflows.RolloutID("Production", "web"), "", workflows.StatusQuery)
	if err != nil {
		return status, err
	}
	return status, answer.Get(&status)
}

// workflow is the address of a workflow's page. An id has slashes, which are part of one segment of the path.
func (s *site) workflow(id string) string {
	return server.UIURL() + "/namespaces/" + s.namespace + "/workflows/" + url.PathEscape(id)
}

// rollout is the address of the rollout's page.
func (s *site) rollout() string { return s.workflow(workflows.RolloutID("Production", "web")) }
