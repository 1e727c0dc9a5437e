package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/temporal"

	"github.com/oklog/ulid/v2"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// StartOptions are what `start` is asked.
type StartOptions struct {
	Factory *Factory
	Request planRequest
	Wait    waitFlags
	As      string
	Reason  string
	DryRun  bool
	Format  *out.FormatFlag
}

// Started is the result of `start`, and of a `rollback` that starts a run of its own.
type Started struct {
	Rollout     string         `json:"rollout"`
	Mode        workflows.Mode `json:"mode"`
	Of          string         `json:"of,omitempty"`
	Deployment  string         `json:"deployment"`
	Environment string         `json:"environment"`
	// Target or Wave is what alone is taken back.
	Target       string         `json:"target,omitempty"`
	Wave         int            `json:"wave,omitempty"`
	Version      policy.Version `json:"version"`
	Targets      int            `json:"targets,omitempty"`
	PlanDigest   string         `json:"planDigest,omitempty"`
	BundleDigest string         `json:"bundleDigest,omitempty"`
	By           string         `json:"by"`
	Reason       string         `json:"reason,omitempty"`
	// Workflow and Run are Temporal's names for it; Run is empty after a dry run.
	Workflow string `json:"workflow"`
	Run      string `json:"run,omitempty"`
	DryRun   bool   `json:"dryRun,omitempty"`
}

// NewCmdStart returns the command; runF, when not nil, runs in place of it.
func NewCmdStart(f *Factory, runF func(*cobra.Command, *StartOptions) error) *cobra.Command {
	o := &StartOptions{Factory: f, Format: out.NewFormatFlag(out.Table, out.JSON, out.YAML, out.NDJSON)}
	cmd := &cobra.Command{
		Use:   "start DEPLOYMENT@VERSION -e ENVIRONMENT -f DIR",
		Short: "Start a rollout",
		Long: `Start a rollout: check the documents, plan, show what will be touched, hand the documents to a worker, and start. A lane (a
deployment in an environment) has one rollout at a time: while one runs, another is refused. So is a plan that the worker
cannot carry out, for want of a connection say: then nothing is started.`,
		Example: `  sluice start web@v1.2.3 -e Production -f deploy/ --artifact image=registry.example/web@sha256:…
  sluice start web@v1.2.3 -e Production -f deploy/ --wait --no-input   # in CI`,
		Args: versionArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.Request.parse(args[0]); err != nil {
				return err
			}
			if err := o.Wait.check(o.Format.Format()); err != nil {
				return err
			}
			if runF != nil {
				return runF(cmd, o)
			}
			return startRun(cmd.Context(), o)
		},
	}
	addPlanRequest(cmd, &o.Request)
	o.Wait.add(cmd)
	addPerson(cmd, &o.As, &o.Reason)
	addDryRun(cmd, &o.DryRun)
	addFormat(cmd, o.Format)
	return cmd
}

// addPerson adds who and why.
func addPerson(cmd *cobra.Command, as, reason *string) {
	cmd.Flags().StringVar(as, "as", "", "who does this (default $SLUICE_ACTOR, else the OS user); shown as claimed")
	cmd.Flags().StringVar(reason, "reason", "", "why, for the record")
}

// addDryRun adds --dry-run.
func addDryRun(cmd *cobra.Command, dryRun *bool) {
	cmd.Flags().BoolVar(dryRun, "dry-run", false, "show what would be touched and do nothing")
}

func startRun(ctx context.Context, o *StartOptions) error {
	f := o.Factory
	by, err := f.actor(o.As)
	if err != nil {
		return err
	}
	made, err := makePlan(ctx, f, o.Request)
	if err != nil {
		return err
	}
	if err := writePlan(f.Err, f.Notes, made.plan, false); err != nil {
		return err
	}
	started := Started{
		Rollout: ulid.Make().String(), Mode: workflows.ModeRollout, Deployment: o.Request.Lane.Deployment, Environment: o.Request.Lane.Environment,
		Version: made.plan.Version, Targets: made.plan.Targets, PlanDigest: made.plan.Digest, BundleDigest: made.digest, By: by, Reason: o.Reason,
		Workflow: o.Request.Lane.id(), DryRun: o.DryRun,
	}
	if o.DryRun {
		started.Rollout = ""
		return writeStarted(f, o.Format.Format(), started)
	}
	t, err := f.Connect(ctx)
	if err != nil {
		return err
	}
	defer t.Close()
	// Everything that can refuse comes before anything is written: a lane that is busy, a worker that is not there.
	if err := t.needWorker(ctx, f.Program); err != nil {
		return err
	}
	if err := t.needFreeLane(ctx, o.Request.Lane); err != nil {
		return err
	}
	if err := t.upload(ctx, made.packed, made.digest, f.Program); err != nil {
		return err
	}
	started.Run, err = t.start(ctx, o.Request.Lane, workflows.RolloutInput{
		Rollout: started.Rollout, Mode: started.Mode, Deployment: started.Deployment, Environment: started.Environment, Version: started.Version,
		BundleDigest: started.BundleDigest, PlanDigest: started.PlanDigest, Unguarded: o.Request.Unguarded, By: by, Reason: o.Reason,
	}, f.Program)
	if err != nil {
		return err
	}
	r := run{lane: o.Request.Lane, id: started.Run, rollout: started.Rollout, status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}
	if err := t.awaitPlan(ctx, f, r); err != nil {
		return err
	}
	if !o.Wait.Wait {
		return writeStarted(f, o.Format.Format(), started)
	}
	f.note("%s started as rollout %s", o.Request.Lane, started.Rollout)
	return follow(ctx, f, t, followOptions{run: r, format: o.Format.Format(), wait: o.Wait, final: true})
}

// planTimeout is how long to wait for a worker's word on the plan. It takes a fraction of a second, and seconds for
// thousands of targets.
const planTimeout = 5 * time.Second

// awaitPlan waits until a run that was just started has its plan. Its error is the worker's refusal, after which the run
// has ended with nothing started; a plan that takes longer is only noted.
func (t *temporal) awaitPlan(ctx context.Context, f *Factory, r run) error {
	waiting, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, lookEvery) {
		var status workflows.RolloutStatus
		err := t.query(waiting, r.lane.id(), r.id, workflows.StatusQuery, &status)
		switch {
		case err == nil && status.PlanDigest != "":
			return nil
		case err == nil && status.State.Ended():
			return failf(exitRefused, "%s@%s in %s: %s", r.lane.Deployment, status.Version.Name, r.lane.Environment, status.Reason)
		}
		if !sleep(waiting, pause) {
			break
		}
	}
	if ctx.Err() != nil {
		return nil // what was started is still to be told
	}
	why := t.trouble(ctx, r.lane.id(), r.id)
	if why == "" {
		why = "no worker has said anything"
	}
	f.note("%s rollout %s has no plan yet, and goes on when it has: %s", f.Notes.Warn("note:"), r.rollout, why)
	return nil
}

// writeStarted writes the result of a start.
func writeStarted(f *Factory, format out.Format, s Started) error {
	if format != out.Table {
		return out.Write(f.Out, format, s)
	}
	l := lane{Deployment: s.Deployment, Environment: s.Environment}
	what := fmt.Sprintf("%s@%s in %s", s.Deployment, s.Version.Name, s.Environment)
	if s.Mode == workflows.ModeRollback {
		what = fmt.Sprintf("rollback of rollout %s (%s)", s.Of, what)
		switch {
		case s.Target != "":
			what = fmt.Sprintf("rollback of target %s of rollout %s (%s@%s in %s)", s.Target, s.Of, s.Deployment, s.Version.Name, s.Environment)
		case s.Wave != 0:
			what = fmt.Sprintf("rollback of wave %d of rollout %s (%s@%s in %s)", s.Wave, s.Of, s.Deployment, s.Version.Name, s.Environment)
		}
	}
	if s.DryRun {
		return f.result("would start %s; nothing was started (--dry-run)", what)
	}
	if err := f.result("%s %s as rollout %s", f.Style.Good("started"), what, s.Rollout); err != nil {
		return err
	}
	f.note("Follow it with `%s watch %s`; why it waits with `%s explain %s`.", f.Program, l.args(), f.Program, l.args())
	return nil
}

// needFreeLane is an error that names the lane's open rollout.
func (t *temporal) needFreeLane(ctx context.Context, l lane) error {
	r, err := t.latest(ctx, l)
	switch {
	case err != nil && exitCode(err) == exitNotFound:
		return nil
	case err != nil:
		return err
	case r.open():
		return t.busy(ctx, r)
	}
	return nil
}

// busy says which rollout has the lane, and what may keep it from ending.
func (t *temporal) busy(ctx context.Context, r run) error {
	why := t.trouble(ctx, r.lane.id(), r.id)
	if why != "" {
		why = "; a step fails and is tried again: " + why
	}
	return failf(exitRefused, "%s is busy: rollout %s of version %s is %s since %s%s; wait for it (`sluice watch %s`) or end it (`sluice abort %s`, `sluice rollback %s`)",
		r.lane, r.rollout, r.version, orUnknown(r.state), r.started.UTC().Format("2006-01-02 15:04 MST"), why, r.lane.args(), r.lane.args(), r.lane.args())
}

func orUnknown(state string) string {
	if state == "" {
		return "running"
	}
	return state
}

// start starts a run of a lane and returns Temporal's run id.
func (t *temporal) start(ctx context.Context, l lane, input workflows.RolloutInput, program string) (string, error) {
	summary := fmt.Sprintf("%s@%s to %s, by %s", l.Deployment, input.Version.Name, l.Environment, input.By)
	details := fmt.Sprintf("Rollout `%s`. Signals take JSON, e.g. `{\"by\":\"you\",\"reason\":\"…\"}`; in a terminal: `%s status %s`.", input.Rollout, program, l.args())
	if input.Mode == workflows.ModeRollback {
		summary = fmt.Sprintf("Roll %s back in %s, by %s", l.Deployment, l.Environment, input.By)
		details = fmt.Sprintf("Takes rollout `%s` back. ", input.Of) + details
	}
	options := client.StartWorkflowOptions{
		ID:        l.id(),
		TaskQueue: workflows.ControlQueue,
		// FAIL, never TERMINATE_EXISTING: the children of a terminated rollout would live on.
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowIDReusePolicy:                    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		TypedSearchAttributes: sdk.NewSearchAttributes(
			sdk.NewSearchAttributeKeyKeyword(workflows.SluiceEnvironment).ValueSet(l.Environment),
			sdk.NewSearchAttributeKeyKeyword(workflows.SluiceDeployment).ValueSet(l.Deployment),
			sdk.NewSearchAttributeKeyKeyword(workflows.SluiceVersion).ValueSet(input.Version.Name),
			sdk.NewSearchAttributeKeyKeyword(workflows.SluiceRollout).ValueSet(input.Rollout),
			sdk.NewSearchAttributeKeyKeyword(workflows.SluiceState).ValueSet(string(workflows.Planned)),
		),
		StaticSummary: clip(summary, 400),
		StaticDetails: details,
	}
	var started client.WorkflowRun
	err := t.call(ctx, "start the rollout", func(ctx context.Context) (err error) {
		started, err = t.ExecuteWorkflow(ctx, options, workflows.RolloutType, input)
		return err
	})
	var taken *serviceerror.WorkflowExecutionAlreadyStarted
	if errors.As(err, &taken) {
		// Somebody was faster between the look and the start.
		r, err := t.latest(ctx, l)
		if err != nil {
			return "", err
		}
		return "", t.busy(ctx, r)
	}
	if err != nil {
		return "", err
	}
	return started.GetRunID(), nil
}

// clip shortens text to at most n bytes; Temporal takes 400 for a summary.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	cut := n - len("…")
	for cut > 0 && text[cut]&0xc0 == 0x80 {
		cut--
	}
	return text[:cut] + "…"
}
