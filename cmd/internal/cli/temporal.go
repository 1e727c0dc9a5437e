package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"go.temporal.io/sdk/converter"
	sdklog "go.temporal.io/sdk/log"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

const (
	// defaultAddress is where a development server listens. Not "localhost", which may resolve to an IPv6 address on
	// which nobody does.
	defaultAddress = "127.0.0.1:7233"
	// dialTimeout is how long a person waits to hear that Temporal is not there.
	dialTimeout = 5 * time.Second
	// callTimeout bounds one short call.
	callTimeout = 10 * time.Second
	// queryTimeout bounds a query. A worker that is there answers in milliseconds, after a restart in a second or two.
	queryTimeout = 5 * time.Second
	// workerPatience is how long a worker that has just been started may take to poll.
	workerPatience = 2 * time.Second
	// pollerAge is the age at which a poller counts as gone. A poll lasts up to 60 s and is renewed at its end.
	pollerAge = 70 * time.Second
)

// temporal is a connection to Temporal.
type temporal struct {
	client.Client
	address, namespace string
	now                func() time.Time
}

// clientOptions reads how to reach Temporal from the environment and Temporal's own configuration file.
func clientOptions() (client.Options, error) {
	options, err := envconfig.LoadDefaultClientOptions()
	if err != nil {
		return options, usagef("Temporal's configuration: %w", err)
	}
	options.HostPort = cmp.Or(options.HostPort, defaultAddress)
	options.Namespace = cmp.Or(options.Namespace, client.DefaultNamespace)
	return options, nil
}

// dial reaches Temporal, or says within dialTimeout that it cannot.
func dial(ctx context.Context, f *Factory) (*temporal, error) {
	options, err := clientOptions()
	if err != nil {
		return nil, err
	}
	options.Logger = sdklog.NewStructuredLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	if who, err := f.actor(""); err == nil {
		host, _ := os.Hostname()
		options.Identity = fmt.Sprintf("%s@%s (%s)", who, cmp.Or(host, "unknown"), f.Program)
	}
	return dialWith(ctx, options, f)
}

// dialWith is dial with its options given.
func dialWith(ctx context.Context, options client.Options, f *Factory) (*temporal, error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := client.DialContext(dialing, options)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, failf(exitUnavailable, "cannot reach Temporal at %s: %s\nSet TEMPORAL_ADDRESS to where it is, or start one on this machine with `sluice-dev up`.",
			options.HostPort, reachError(err))
	}
	return &temporal{Client: c, address: options.HostPort, namespace: options.Namespace, now: f.Now}, nil
}

// reachError is the last part of what the client library says, which is the part that names the cause.
func reachError(err error) string {
	// gRPC gives the deadline as text when what it connected to says nothing.
	if errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		return fmt.Sprintf("no answer within %s", dialTimeout)
	}
	text := strings.TrimPrefix(err.Error(), "failed reaching server: ")
	switch {
	case strings.Contains(text, "connection refused"):
		return "connection refused"
	case strings.Contains(text, "no children to pick from"), strings.Contains(text, "produced zero addresses"):
		return "the name cannot be resolved"
	}
	return text
}

// call bounds a short call, and turns its failure into what a person can act on.
func (t *temporal) call(ctx context.Context, doing string, do func(context.Context) error) error {
	calling, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := do(calling)
	var (
		space *serviceerror.NamespaceNotFound
		down  *serviceerror.Unavailable
		late  *serviceerror.DeadlineExceeded
	)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &space):
		return failf(exitUnavailable, "namespace %q does not exist on Temporal at %s; set TEMPORAL_NAMESPACE", t.namespace, t.address)
	case errors.As(err, &down), errors.As(err, &late), errors.Is(err, context.DeadlineExceeded):
		return failf(exitUnavailable, "%s: Temporal at %s does not answer: %w", doing, t.address, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// polled reports whether a worker polls a task queue. A worker that was killed is still reported for about a minute.
func (t *temporal) polled(ctx context.Context, queue string) (bool, error) {
	var found bool
	err := t.call(ctx, "look for a worker", func(ctx context.Context) error {
		for _, kind := range []enumspb.TaskQueueType{enumspb.TASK_QUEUE_TYPE_WORKFLOW, enumspb.TASK_QUEUE_TYPE_ACTIVITY} {
			answer, err := t.DescribeTaskQueue(ctx, queue, kind)
			if err != nil {
				return err
			}
			found = false
			for _, p := range answer.GetPollers() {
				if t.now().Sub(p.GetLastAccessTime().AsTime()) < pollerAge {
					found = true
				}
			}
			if !found {
				return nil
			}
		}
		return nil
	})
	return found, err
}

// needWorker is an error unless workers poll both queues. One that has just been started gets workerPatience to show up.
func (t *temporal) needWorker(ctx context.Context, program string) error {
	patience, cancel := context.WithTimeout(ctx, workerPatience)
	defer cancel()
	for _, queue := range []string{workflows.ControlQueue, workflows.TargetQueue} {
		for {
			found, err := t.polled(ctx, queue)
			if err != nil {
				return err
			}
			if found {
				break
			}
			if !sleep(patience, 100*time.Millisecond) {
				return failf(exitUnavailable, "no worker is polling %s in namespace %q of Temporal at %s; start one with `%s worker`",
					queue, t.namespace, t.address, program)
			}
		}
	}
	return nil
}

// run is one run of a lane, as Temporal lists it.
type run struct {
	lane lane
	// id is Temporal's own run id.
	id     string
	status enumspb.WorkflowExecutionStatus
	// rollout, version and state are search attributes; state is as of the last time that it was written.
	rollout, version, state string
	started, ended          time.Time
}

// open reports whether the run is going on.
func (r run) open() bool { return r.status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING }

// execution is the run as Temporal's API names it.
func (r run) execution() *commonpb.WorkflowExecution {
	return &commonpb.WorkflowExecution{WorkflowId: r.lane.id(), RunId: r.id}
}

// attribute reads a Keyword search attribute.
func attribute(attributes *commonpb.SearchAttributes, name string) string {
	var value string
	if payload := attributes.GetIndexedFields()[name]; payload != nil {
		if err := converter.GetDefaultDataConverter().FromPayload(payload, &value); err != nil {
			return ""
		}
	}
	return value
}

// latest finds the lane's open run, or its last one.
func (t *temporal) latest(ctx context.Context, l lane) (run, error) {
	r := run{lane: l}
	err := t.call(ctx, "look up "+l.String(), func(ctx context.Context) error {
		answer, err := t.DescribeWorkflowExecution(ctx, l.id(), "")
		if err != nil {
			return err
		}
		info := answer.GetWorkflowExecutionInfo()
		r.id, r.status = info.GetExecution().GetRunId(), info.GetStatus()
		r.rollout = attribute(info.GetSearchAttributes(), workflows.SluiceRollout)
		r.version = attribute(info.GetSearchAttributes(), workflows.SluiceVersion)
		r.state = attribute(info.GetSearchAttributes(), workflows.SluiceState)
		r.started, r.ended = info.GetStartTime().AsTime(), endOf(info.GetCloseTime())
		return nil
	})
	var missing *serviceerror.NotFound
	if errors.As(err, &missing) {
		return run{}, failf(exitNotFound, "there is no rollout of %s; `sluice list --all` shows what there is", l)
	}
	return r, err
}

// find finds the lane's run of a given rollout, or with an empty rollout its latest.
func (t *temporal) find(ctx context.Context, l lane, rollout string) (run, error) {
	last, err := t.latest(ctx, l)
	if err != nil || rollout == "" || last.rollout == rollout {
		return last, err
	}
	runs, err := t.list(ctx, fmt.Sprintf("WorkflowType = '%s' AND WorkflowId = '%s' AND %s = '%s'", workflows.RolloutType, l.id(),
		workflows.SluiceRollout, rollout), 1)
	if err != nil {
		return run{}, err
	}
	if len(runs) == 0 {
		return run{}, failf(exitNotFound, "there is no rollout %s of %s; the last one is %s", rollout, l, last.rollout)
	}
	return runs[0], nil
}

// list asks for runs of lanes, newest first, at most limit of them.
func (t *temporal) list(ctx context.Context, query string, limit int) ([]run, error) {
	var runs []run
	err := t.call(ctx, "list rollouts", func(ctx context.Context) error {
		var page []byte
		for {
			answer, err := t.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
				Namespace: t.namespace, Query: query, NextPageToken: page, PageSize: int32(min(limit-len(runs), 1000)), //nolint:gosec // at most 1000
			})
			if err != nil {
				return err
			}
			for _, info := range answer.GetExecutions() {
				attributes := info.GetSearchAttributes()
				runs = append(runs, run{
					lane:    lane{Deployment: attribute(attributes, workflows.SluiceDeployment), Environment: attribute(attributes, workflows.SluiceEnvironment)},
					id:      info.GetExecution().GetRunId(),
					status:  info.GetStatus(),
					rollout: attribute(attributes, workflows.SluiceRollout),
					version: attribute(attributes, workflows.SluiceVersion),
					state:   attribute(attributes, workflows.SluiceState),
					started: info.GetStartTime().AsTime(),
					ended:   endOf(info.GetCloseTime()),
				})
			}
			page = answer.GetNextPageToken()
			if len(page) == 0 || len(runs) >= limit {
				return nil
			}
		}
	})
	return runs, err
}

// errNoAnswer: no worker answered a query.
var errNoAnswer = errors.New("no worker answers")

// query asks a workflow something. Only a worker can answer; errNoAnswer when none does.
func (t *temporal) query(ctx context.Context, workflow, runID, name string, answer any, args ...any) error {
	asking, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	for {
		value, err := t.QueryWorkflow(asking, workflow, runID, name, args...)
		var (
			failed  *serviceerror.QueryFailed
			missing *serviceerror.NotFound
			early   *serviceerror.WorkflowNotReady
			space   *serviceerror.NamespaceNotFound
		)
		switch {
		case err == nil:
			return value.Get(answer)
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &missing), errors.As(err, &space):
			return err
		case errors.As(err, &failed):
			return fmt.Errorf("ask %s for its %s: %w", workflow, name, err)
		case errors.As(err, &early):
			// Its first task has not been done yet.
			if sleep(asking, 100*time.Millisecond) {
				continue
			}
		}
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
}

// status asks a run for its status. Without a worker it says what Temporal itself knows, and remark says so.
func (t *temporal) status(ctx context.Context, r run) (status workflows.RolloutStatus, remark string, err error) {
	err = t.query(ctx, r.lane.id(), r.id, workflows.StatusQuery, &status)
	if err == nil {
		return t.endedOutside(r, status), "", nil
	}
	if ctx.Err() != nil {
		return status, "", ctx.Err()
	}
	cause := err
	status, err = t.known(ctx, r)
	if err != nil {
		return status, "", err
	}
	remark = "no worker answered, so this is only what Temporal itself knows"
	if !errors.Is(cause, errNoAnswer) {
		remark = fmt.Sprintf("the rollout cannot tell its status, so this is only what Temporal itself knows: %s", oneLine(cause.Error()))
	} else if found, err := t.polled(ctx, workflows.ControlQueue); err == nil && !found {
		remark = fmt.Sprintf("no worker is polling %s, so this is only what Temporal itself knows", workflows.ControlQueue)
	}
	return status, remark, nil
}

// endedOutside corrects the status of a run that was ended from outside: the workflow had no say in it.
func (t *temporal) endedOutside(r run, status workflows.RolloutStatus) workflows.RolloutStatus {
	if r.open() || status.State.Ended() || r.status == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW {
		return status
	}
	status.Reason = fmt.Sprintf("its workflow was ended in Temporal (%s) while it was %s; targets stay where they are", strings.ToLower(r.status.String()), status.State)
	status.State, status.Glance, status.Waits, status.EndedAt = workflows.Failed, "", nil, r.ended
	return status
}

// known is what Temporal itself knows of a run: its input, its search attributes and, when it has ended, its result.
func (t *temporal) known(ctx context.Context, r run) (workflows.RolloutStatus, error) {
	status := workflows.RolloutStatus{Rollout: r.rollout, Deployment: r.lane.Deployment, Environment: r.lane.Environment,
		State: workflows.Phase(cmp.Or(r.state, string(workflows.Planned))), StartedAt: r.started, EndedAt: r.ended}
	status.Version.Name = r.version
	input, err := t.input(ctx, r)
	if err != nil {
		return status, err
	}
	status.Rollout, status.Mode, status.Of, status.Version = input.Rollout, input.Mode, input.Of, input.Version
	status.By, status.PlanDigest, status.BundleDigest = input.By, input.PlanDigest, input.BundleDigest
	if r.status == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED {
		result, err := t.result(ctx, r)
		if err != nil {
			return status, err
		}
		status.State, status.Reason = result.State, result.Reason
	}
	return t.endedOutside(r, status), nil
}

// result reads how a run ended that has completed.
func (t *temporal) result(ctx context.Context, r run) (result workflows.RolloutResult, err error) {
	err = t.call(ctx, "read the result", func(ctx context.Context) error { return t.GetWorkflow(ctx, r.lane.id(), r.id).Get(ctx, &result) })
	return result, err
}

// unplanned says why a run ended before it had a plan, with nothing started and nothing on record; empty: it had one.
func (t *temporal) unplanned(ctx context.Context, r run) (string, error) {
	if r.status != enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED {
		return "", nil
	}
	result, err := t.result(ctx, r)
	if err != nil || !result.Unplanned {
		return "", err
	}
	return cmp.Or(oneLine(result.Reason), "it had no plan"), nil
}

// maxPassedOver is how many runs are looked through for one that has started something: each costs a call.
const maxPassedOver = 200

// lastPlanned finds the lane's last run that had a plan. Any other has started nothing, and there is nothing of it to
// take back.
func (t *temporal) lastPlanned(ctx context.Context, f *Factory, last run) (run, error) {
	why, err := t.unplanned(ctx, last)
	if err != nil || why == "" {
		return last, err
	}
	runs, err := t.list(ctx, fmt.Sprintf("WorkflowType = '%s' AND WorkflowId = '%s'", workflows.RolloutType, last.lane.id()), maxPassedOver)
	if err != nil {
		return run{}, err
	}
	slices.SortStableFunc(runs, func(a, b run) int { return b.started.Compare(a.started) })
	passed := 1
	for _, r := range runs {
		if r.id == last.id || r.started.After(last.started) {
			continue
		}
		one, err := t.unplanned(ctx, r)
		switch {
		case err != nil:
			return run{}, err
		case one != "":
			passed++
			continue
		case passed == 1:
			f.note("%s rollout %s of version %s is passed over, it started nothing: %s", f.Notes.Warn("note:"), last.rollout, last.version, out.Clean(why))
		default:
			f.note("%s the last %d rollouts of %s are passed over, they started nothing; the last of them, %s of version %s: %s", f.Notes.Warn("note:"),
				passed, last.lane, last.rollout, last.version, out.Clean(why))
		}
		return r, nil
	}
	return run{}, failf(exitNotFound, "nothing to take back: no rollout of %s has started anything; the last one, %s: %s", last.lane, last.rollout, out.Clean(why))
}

// input reads what a run was started with from its first event.
func (t *temporal) input(ctx context.Context, r run) (workflows.RolloutInput, error) {
	var input workflows.RolloutInput
	err := t.call(ctx, "read how the rollout was started", func(ctx context.Context) error {
		events := t.GetWorkflowHistory(ctx, r.lane.id(), r.id, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		if !events.HasNext() {
			return errors.New("its history is empty")
		}
		event, err := events.Next()
		if err != nil {
			return err
		}
		return decodeInput(event, &input)
	})
	return input, err
}

// decodeInput reads a workflow's first argument.
func decodeInput(event *historypb.HistoryEvent, input any) error {
	return converter.GetDefaultDataConverter().FromPayloads(event.GetWorkflowExecutionStartedEventAttributes().GetInput(), input)
}

// sleep waits, and reports whether the time has passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// oneLine keeps the first line of an error's text.
func oneLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// endOf is a close time; zero while there is none.
func endOf(at interface{ AsTime() time.Time }) time.Time {
	if t := at.AsTime(); t.Unix() > 0 {
		return t
	}
	return time.Time{}
}
