package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// RollbackOptions are what `rollback` is asked.
type RollbackOptions struct {
	CommandOptions
	Wait waitFlags
}

// NewCmdRollback returns the command; runF, when not nil, runs in place of it.
func NewCmdRollback(f *Factory, runF func(*cobra.Command, *RollbackOptions) error) *cobra.Command {
	o := &RollbackOptions{CommandOptions: CommandOptions{Factory: f, Name: workflows.RollBack,
		Format: out.NewFormatFlag(out.Table, out.JSON, out.YAML, out.NDJSON)}}
	use := commandUse{target: "take back this target alone", wave: "take back this wave alone"}
	cmd := &cobra.Command{
		Use:   "rollback DEPLOYMENT -e ENVIRONMENT",
		Short: "Bring every target that was reached back to the version it had",
		Long: `Bring every target that the rollout reached back to the version that was read from it before the change. While the rollout
runs, nothing new starts from the moment that it hears of it; no window, approval, soak or freeze holds a rollback up. A
rollout that has ended is taken back by a run of its own in the same lane. Accepted also while no worker is running: it
begins when one comes.

With --target or --wave only that goes back. Nothing new starts either, a target in flight reaches a safe point first, and
then the rollout holds: resume goes on without what went back, retry tries a target again after that, and rollback, reject or
abort ends it. A target that failed to come back is listed, and counts as failed. --wait then waits until it is back.`,
		Example: `  sluice rollback web -e Production --reason "write latency"
  sluice rollback web -e Production --target cluster-eu-1 --reason "write latency"
  sluice rollback web -e Production --wave 2 --wait
  sluice rollback web -e Production --rollout 01JQ… --wait`,
		Args: laneArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(cmd, args, use); err != nil {
				return err
			}
			if o.Target != "" && cmd.Flags().Changed("wave") {
				return usagef("--target and --wave exclude each other: one target or one wave goes back")
			}
			if cmd.Flags().Changed("target") && o.Target == "" {
				return usagef("--target names no target; without it everything that was reached goes back")
			}
			if err := o.Wait.check(o.Format.Format()); err != nil {
				return err
			}
			if runF != nil {
				return runF(cmd, o)
			}
			return rollbackRun(cmd.Context(), o)
		},
	}
	addCommandFlags(cmd, &o.CommandOptions, use)
	cmd.Flag("rollout").Usage = "take back this rollout of the lane (default: the running one, else the last one that started anything)"
	o.Wait.add(cmd)
	return cmd
}

func rollbackRun(ctx context.Context, o *RollbackOptions) error {
	f := o.Factory
	t, err := f.Connect(ctx)
	if err != nil {
		return err
	}
	defer t.Close()
	r, err := t.latest(ctx, o.Lane)
	if err != nil {
		return err
	}
	if !r.open() {
		return rollbackEnded(ctx, o, t, r)
	}
	if o.Rollout != "" && o.Rollout != r.rollout {
		return rollbackEarlier(ctx, o, t, r)
	}
	sent, err := t.send(ctx, &o.CommandOptions, r)
	if err != nil {
		return err
	}
	refused := sent.Receipt != nil && !sent.Receipt.Accepted
	if !o.Wait.Wait || o.DryRun || refused {
		return writeSent(&o.CommandOptions, sent)
	}
	if sent.Receipt != nil {
		f.note("accepted: %s", sent.Receipt.Answer)
	}
	follows := followOptions{run: r, format: o.Format.Format(), wait: o.Wait, final: true, back: true}
	if o.limited() != "" {
		follows.byHand = sent.Payload.ID
	}
	return follow(ctx, f, t, follows)
}

// limited names what alone goes back; empty: everything.
func (o *RollbackOptions) limited() string {
	switch {
	case o.Target != "":
		return "target " + o.Target
	case o.Wave != 0:
		return fmt.Sprintf("wave %d", o.Wave)
	}
	return ""
}

// rollbackEarlier takes back a rollout that has ended while another one is open. One that has started nothing yet yields
// the lane; any other refuses, and names itself.
func rollbackEarlier(ctx context.Context, o *RollbackOptions, t *temporal, open run) error {
	if _, err := t.find(ctx, o.Lane, o.Rollout); err != nil {
		return err
	}
	sent, err := t.send(ctx, &o.CommandOptions, open)
	if err != nil || o.DryRun {
		return errors.Join(err, writeSent(&o.CommandOptions, sent))
	}
	if sent.Receipt == nil || !sent.Receipt.Accepted {
		return writeSent(&o.CommandOptions, sent)
	}
	o.Factory.note("rollout %s of version %s had started nothing and yields the lane", open.rollout, open.version)
	if err := t.awaitClosed(ctx, open); err != nil {
		return err
	}
	return rollbackEnded(ctx, o, t, open)
}

// awaitClosed waits until a run that is ending has ended.
func (t *temporal) awaitClosed(ctx context.Context, r run) error {
	waiting, cancel := context.WithTimeout(ctx, receiptTimeout)
	defer cancel()
	err := t.GetWorkflow(waiting, r.lane.id(), r.id).Get(waiting, nil)
	if ctx.Err() == nil && waiting.Err() != nil {
		return failf(exitUnavailable, "rollout %s has not ended within %s; send the rollback again once it has", r.rollout, receiptTimeout)
	}
	return err
}

// rollbackEnded takes a rollout back that has ended, by a run of its own in the lane.
func rollbackEnded(ctx context.Context, o *RollbackOptions, t *temporal, last run) error {
	f := o.Factory
	by, err := f.actor(o.As)
	if err != nil {
		return err
	}
	r := last
	if o.Rollout == "" {
		if r, err = t.lastPlanned(ctx, f, last); err != nil {
			return err
		}
	} else {
		if r, err = t.find(ctx, o.Lane, o.Rollout); err != nil {
			return err
		}
		why, err := t.unplanned(ctx, r)
		if err != nil {
			return err
		}
		if why != "" {
			return failf(exitRefused, "nothing to take back: rollout %s started nothing: %s", r.rollout, out.Clean(why))
		}
	}
	input, err := t.input(ctx, r)
	if err != nil {
		return err
	}
	if input.Mode == workflows.ModeRollback {
		// The lane's last run took a rollout back; again means that rollout again: what is back already stays so.
		if r, err = t.find(ctx, o.Lane, input.Of); err != nil {
			return err
		}
		if input, err = t.input(ctx, r); err != nil {
			return err
		}
	}
	started := Started{Rollout: ulid.Make().String(), Mode: workflows.ModeRollback, Of: input.Rollout, Deployment: o.Lane.Deployment,
		Environment: o.Lane.Environment, Target: o.Target, Wave: o.Wave, Version: input.Version, PlanDigest: input.PlanDigest, BundleDigest: input.BundleDigest, By: by, Reason: o.Reason, Workflow: o.Lane.id(), DryRun: o.DryRun}
	if only := o.limited(); only != "" {
		f.note("%s: take back %s of rollout %s of version %s (ended as %s); what it reached of %s returns to the version it had, and nothing else is touched", o.Lane, only, started.Of, input.Version.Name, shownState(r), only)
	} else {
		f.note("%s: take back rollout %s of version %s (ended as %s); every target that it reached returns to the version it had", o.Lane, started.Of, input.Version.Name, shownState(r))
	}
	if o.DryRun {
		started.Rollout = ""
		return writeStarted(f, o.Format.Format(), started)
	}
	started.Run, err = t.start(ctx, o.Lane, workflows.RolloutInput{
		Rollout: started.Rollout, Mode: workflows.ModeRollback, Of: started.Of, Deployment: started.Deployment, Environment: started.Environment,
		Target: started.Target, Wave: started.Wave, Version: started.Version, BundleDigest: started.BundleDigest, By: by, Reason: o.Reason,
	}, f.Program)
	if err != nil {
		return err
	}
	r = run{lane: o.Lane, id: started.Run, rollout: started.Rollout, status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}
	if found, err := t.polled(ctx, workflows.ControlQueue); err == nil && !found {
		f.note("%s no worker is polling %s: the rollback is stored and begins when a worker comes (`%s worker`).", f.Notes.Warn("note:"), workflows.ControlQueue, f.Program)
	} else if err := t.awaitPlan(ctx, f, r); err != nil {
		return err
	}
	if !o.Wait.Wait {
		return writeStarted(f, o.Format.Format(), started)
	}
	return follow(ctx, f, t, followOptions{run: r, format: o.Format.Format(), wait: o.Wait, final: true, back: true})
}
