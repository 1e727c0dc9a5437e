package cli

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// TestAPlanThatTheWorkerRefusesIsNoStart fails when `start` reports a rollout that the worker has refused and ended.
func TestAPlanThatTheWorkerRefusesIsNoStart(t *testing.T) {
	s := newSite(t)
	s.startWorker()
	const rule = `  - verification: {metrics: [{name: errors, provider: {type: prometheus, connection: main, query: up}, successCondition: result.value > 0}]}
`
	s.edit("  - waves:", rule+"  - waves:")
	for _, args := range [][]string{nil, {"-o", "json"}, {"--wait"}, {"--wait", "--no-input"}} {
		stdout, stderr := s.run(exitRefused, append([]string{"start", "web@v1", "-e", "Production", "-f", s.documents}, args...)...)
		wants(t, stderr, `web@v1 in Production: refused, nothing was started: policy "production" metric "errors": this worker has no connection "main" of type prometheus`)
		if stdout != "" {
			t.Errorf("start %v wrote %q", args, stdout)
		}
	}
	if got := s.status(); got.State != workflows.Failed || len(got.Waves) > 0 {
		t.Errorf("the refused rollout is %s with %d waves, want Failed without any", got.State, len(got.Waves))
	}
	if got := s.applied("eu-1"); len(got) > 0 {
		t.Errorf("eu-1 was changed: %v", got)
	}
	// The lane is free, and the mended documents start.
	s.edit(rule, "")
	stdout, _ := s.run(exitOK, "start", "web@v1", "-e", "Production", "-f", s.documents)
	wants(t, stdout, "started web@v1 in Production as rollout ")
}

// TestASecondStartInABusyLaneTouchesNothing fails when a start in a busy lane disturbs the rollout that runs there,
// leaves documents behind, or does not say who has the lane.
func TestASecondStartInABusyLaneTouchesNothing(t *testing.T) {
	s := newSite(t)
	s.startWorker()
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	before := s.status()

	s.edit("tier: canary", "tier: canary, more: yes")
	stdout, _ := s.run(exitOK, "validate", "-f", s.documents, "-o", "json")
	digest := decode[Validity](t, stdout).Digest
	for _, args := range [][]string{nil, {"--wait"}} {
		stdout, stderr := s.run(exitRefused, append([]string{"start", "web@v2", "-e", "Production", "-f", s.documents}, args...)...)
		wants(t, stderr, "web in Production is busy: rollout "+before.Rollout+" of version v1 is AwaitingApproval since", "wait for it (`sluice watch", "`sluice abort", "`sluice rollback")
		if stdout != "" {
			t.Errorf("start %v wrote %q", args, stdout)
		}
	}
	if _, err := s.client.DescribeWorkflowExecution(t.Context(), workflows.BundleID(digest), ""); !isNotFound(err) {
		t.Errorf("the refused start handed over its documents: %v", err)
	}

	// Of two that both saw a free lane one gets it, and the other hears of the first.
	temporal := s.dial()
	_, err := temporal.start(t.Context(), lane{Deployment: "web", Environment: "Production"}, workflows.RolloutInput{Rollout: "01JOTHER"}, "sluice")
	if exitCode(err) != exitRefused || !strings.Contains(err.Error(), before.Rollout) {
		t.Errorf("the slower of two: %v", err)
	}
	if got := s.status(); got.Rollout != before.Rollout || got.State != workflows.AwaitingApproval || len(got.Commands) > 0 {
		t.Errorf("the running rollout is %s, %s, and heard %v", got.Rollout, got.State, got.Commands)
	}
}

func isNotFound(err error) bool {
	_, missing := err.(*serviceerror.NotFound)
	return missing
}

// dial connects as a command does.
func (s *site) dial() *temporal {
	s.t.Helper()
	f, _, _ := testFactory(s.t)
	f.Now = time.Now
	t, err := dialWith(s.t.Context(), s.options, f)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(t.Close)
	return t
}

// TestAWorkerThatHasJustDiedStartsNothing fails when a start counts on a worker that Temporal still lists, or leaves
// something behind that keeps the next start from working.
func TestAWorkerThatHasJustDiedStartsNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.startWorker()
	s.stopWorker()
	stdout, stderr := s.run(exitUnavailable, "start", "web@v1", "-e", "Production", "-f", s.documents)
	wants(t, stderr, "no worker ", "start one with `sluice worker`")
	if stdout != "" {
		t.Errorf("start wrote %q", stdout)
	}
	s.wantUntouched()
	s.startWorker()
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
}

// TestDocumentsThatNobodyTakesStartNothing fails when a worker that was killed, and is still listed, keeps a start
// waiting or lets it go on.
func TestDocumentsThatNobodyTakesStartNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	err := s.dial().upload(t.Context(), []byte("documents"), "sha256:0", "sluice")
	if exitCode(err) != exitUnavailable {
		t.Errorf("got %v, want exit code %d", err, exitUnavailable)
	}
	wants(t, fmt.Sprint(err), "no worker stored the documents within 20s; nothing was started", "`sluice worker`")
	s.wantUntouched()
}

// TestAStartThatNobodyPlansIsToldAsWaiting fails when a worker that dies between taking the documents and planning turns
// a start into an error, or keeps the command for ever, or when the rollout is lost.
func TestAStartThatNobodyPlansIsToldAsWaiting(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	// A worker that was there for the documents only.
	s.startWorker()
	f, _, stderr := testFactory(t)
	made, err := makePlan(t.Context(), f, planRequest{Lane: lane{Deployment: "web", Environment: "Production"}, Version: "v1", Files: []string{s.documents}})
	if err != nil {
		t.Fatal(err)
	}
	temporal := s.dial()
	if err := temporal.upload(t.Context(), made.packed, made.digest, "sluice"); err != nil {
		t.Fatal(err)
	}
	s.stopWorker()
	r := run{lane: lane{Deployment: "web", Environment: "Production"}, rollout: "01JROLLOUT"}
	r.id, err = temporal.start(t.Context(), r.lane, workflows.RolloutInput{Rollout: r.rollout, Mode: workflows.ModeRollout, Deployment: "web", Environment: "Production",
		Version: made.plan.Version, BundleDigest: made.digest, PlanDigest: made.plan.Digest, By: "alice"}, "sluice")
	if err != nil {
		t.Fatal(err)
	}
	if err := temporal.awaitPlan(t.Context(), f, r); err != nil {
		t.Errorf("a start that nobody has planned yet: %v", err)
	}
	wants(t, stderr.String(), "note: rollout 01JROLLOUT has no plan yet, and goes on when it has: no worker has said anything")
	s.startWorker()
	s.until("it goes on", func(got workflows.RolloutStatus) bool { return got.State == workflows.AwaitingApproval })
}

// TestATemporalThatNeverAnswersIsNotWaitedFor fails when a command hangs on something that takes connections and says
// nothing.
func TestATemporalThatNeverAnswersIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	silence, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silence.Close() }()
	s := &site{t: t, options: client.Options{HostPort: silence.Addr().String(), Namespace: "default"}}
	stdout, stderr := s.run(exitUnavailable, "list")
	wants(t, stderr, "cannot reach Temporal at "+silence.Addr().String()+": no answer within 5s", "TEMPORAL_ADDRESS", "sluice-dev up")
	if stdout != "" {
		t.Errorf("list wrote %q", stdout)
	}
}

// TestATemporalThatGoesAwayIsSaid fails when a command that follows a rollout takes the end of the server for the end of
// the rollout.
func TestATemporalThatGoesAwayIsSaid(t *testing.T) {
	t.Parallel()
	going, err := embed.Start(t.Context(), embed.Options{FrontendAddr: "127.0.0.1:0", Synchronous: embed.SynchronousNormal, Logger: silent()})
	if err != nil {
		t.Fatal(err)
	}
	stop := func() { _ = going.Stop() } // idempotent
	defer stop()
	s := newSite(t)
	s.client.Close()
	s.options.HostPort, s.options.Namespace = going.HostPort(), going.Namespace()
	if s.client, err = client.Dial(s.options); err != nil {
		t.Fatal(err)
	}
	s.startWorker()
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	f, stdout, stderr := testFactory(t)
	f.Now = time.Now
	f.Connect = func(ctx context.Context) (*temporal, error) {
		// Everything after the first call finds nobody.
		connected, err := dialWith(ctx, s.options, f)
		if err == nil {
			s.stopWorker()
			stop()
		}
		return connected, err
	}
	if code := exec(t, f, "watch", "web", "-e", "Production"); code != exitUnavailable {
		t.Errorf("watch ended with %d, want %d\n%s\n%s", code, exitUnavailable, stdout, stderr)
	}
	wants(t, stderr.String(), "Temporal at "+s.options.HostPort+" does not answer")
}
