package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/config"
	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/command"
	"github.com/seed-a0a4f4e3/sluice/executors/sim"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/sqlite"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// RunCommand is the hidden subcommand under which this program is a command step's detached runner.
const RunCommand = "run-command"

// How much one worker does at once. Activities mostly wait for outside systems, so that their number is bounded by the
// connections that those bear, not by processors.
const (
	// targetActivities is how many steps of targets one worker follows at once; what is more than that in flight waits for
	// one of them, or for another worker.
	targetActivities = 2 * workflows.MaxBatchTargets
	// controlActivities are the ledger's, which take milliseconds, and one soak for each open wave.
	controlActivities = 200
	// workflowTasks are short and keep a processor busy.
	workflowTasks = 100
	// pollers is how many calls wait for tasks on a queue: one answers about 50 tasks a second on a near server.
	pollers = 8
	// stopTimeout is how long a worker that is told to stop gives its activities to note where they are. What it cuts off
	// is adopted by the next worker.
	stopTimeout = 10 * time.Second
	// attributesTimeout bounds looking up and adding search attributes.
	attributesTimeout = 10 * time.Second
)

// Options say how to assemble a worker.
type Options struct {
	// Config is the worker's configuration.
	Config config.Config
	// DataDir holds the ledger and the operations of command steps; it is made when missing, with mode 0700.
	DataDir string
	// Namespace is where search attributes are looked for; it must be the client's. Empty means "default".
	Namespace string
	// Logger takes the worker's own lines; nil means slog.Default().
	Logger *slog.Logger
	// Runner starts the detached runner of command steps, see command.Options; nil means this program's RunCommand.
	Runner []string
	// Environ is the environment that command steps take their few variables from; nil means the process's.
	Environ []string
	// TimeScale shortens what rollouts wait for, on a development machine; 0 is the real time.
	TimeScale policy.TimeScale
	// Now is the clock of activities; nil means time.Now.
	Now func() time.Time
	// At is called at named points of activities, see activities.Activities.
	At func(point, target string)
	// Wrap and WrapProvider, when not nil, may put something around each executor and each provider: a test's faults.
	Wrap         func(kind string, e executors.Executor) executors.Executor
	WrapProvider func(kind, connection string, p metrics.Provider) metrics.Provider
}

// Worker is a running worker: it polls both task queues until Stop.
type Worker struct {
	control, target worker.Worker
	ledger          *sqlite.Store
	stop            sync.Once
	failed          chan error
}

// NewWorker assembles a worker and starts it. The client stays the caller's, and must outlive the worker.
func NewWorker(ctx context.Context, c client.Client, o Options) (_ *Worker, err error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Namespace = cmp.Or(o.Namespace, client.DefaultNamespace)
	acts, err := Activities(o)
	if err != nil {
		return nil, err
	}
	if err := ensureAttributes(ctx, c, o.Namespace); err != nil {
		return nil, err
	}
	store, err := sqlite.Open(ctx, filepath.Join(o.DataDir, "ledger.db"))
	if err != nil {
		return nil, err
	}
	w := &Worker{ledger: store, failed: make(chan error, 2)}
	defer func() {
		if err != nil {
			w.Stop()
		}
	}()
	fatal := func(err error) {
		select {
		case w.failed <- err:
		default:
		}
	}
	w.control = worker.New(c, workflows.ControlQueue, worker.Options{
		MaxConcurrentActivityExecutionSize:     controlActivities,
		MaxConcurrentActivityTaskPollers:       pollers / 2,
		MaxConcurrentWorkflowTaskExecutionSize: workflowTasks,
		MaxConcurrentWorkflowTaskPollers:       pollers,
		WorkerStopTimeout:                      stopTimeout,
		OnFatalError:                           fatal,
	})
	w.target = worker.New(c, workflows.TargetQueue, worker.Options{
		MaxConcurrentActivityExecutionSize:     targetActivities,
		MaxConcurrentActivityTaskPollers:       pollers,
		MaxConcurrentWorkflowTaskExecutionSize: workflowTasks,
		MaxConcurrentWorkflowTaskPollers:       pollers,
		WorkerStopTimeout:                      stopTimeout,
		OnFatalError:                           fatal,
	})
	acts.Blobs, acts.Log = store, store
	workflows.Register(w.control, w.target, acts)
	for _, one := range []struct {
		queue  string
		worker worker.Worker
	}{{workflows.ControlQueue, w.control}, {workflows.TargetQueue, w.target}} {
		if err := one.worker.Start(); err != nil {
			return nil, fmt.Errorf("start polling %s: %w", one.queue, err)
		}
	}
	o.Logger.Info("worker started", "namespace", o.Namespace, "queues", []string{workflows.ControlQueue, workflows.TargetQueue}, "data", o.DataDir,
		"connections", len(o.Config.Connections))
	return w, nil
}

// Activities assembles what a worker does, without a ledger; NewWorker adds its own.
func Activities(o Options) (*activities.Activities, error) {
	connections, err := open(o)
	if err != nil {
		return nil, err
	}
	registry, err := executorsOf(o)
	if err != nil {
		return nil, err
	}
	return &activities.Activities{Executors: registry, Connections: connections, Plan: Plan, Evaluator: evaluator{}, TimeScale: o.TimeScale, Now: o.Now, At: o.At}, nil
}

// Failed gives the error that ends a worker by itself, e.g. a namespace that is gone. Stop must be called then too.
func (w *Worker) Failed() <-chan error { return w.failed }

// Stop stops polling, gives running activities up to 10 s, and closes the ledger. It may be called more than once.
func (w *Worker) Stop() {
	w.stop.Do(func() {
		// Both at once: each waits for its own tasks.
		var both sync.WaitGroup
		for _, one := range []worker.Worker{w.control, w.target} {
			if one != nil {
				both.Go(one.Stop)
			}
		}
		both.Wait()
		_ = w.ledger.Close() // each write was on disk before its activity ended
	})
}

// executorsOf opens the executors.
func executorsOf(o Options) (executors.Registry, error) {
	runner := o.Runner
	if runner == nil {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program, for the runner of command steps: %w", err)
		}
		runner = []string{self, RunCommand}
	}
	environ := o.Environ
	if environ == nil {
		environ = os.Environ()
	}
	registry := executors.Registry{
		command.Kind().Name: command.New(command.Options{Dir: filepath.Join(o.DataDir, "operations"), Runner: runner, Environ: environ}),
		sim.Kind().Name:     sim.New(sim.Options{}),
	}
	if o.Wrap != nil {
		for kind, e := range registry {
			registry[kind] = o.Wrap(kind, e)
		}
	}
	return registry, nil
}

// open opens a provider over each connection, and one without a connection for each kind that needs none.
func open(o Options) (activities.Connections, error) {
	connections := activities.Connections{Kinds: providerKinds(), Open: map[string]map[string]metrics.Provider{}}
	add := func(kind metrics.Kind, c metrics.Connection) error {
		provider, err := kind.New(c)
		if err != nil {
			return fmt.Errorf("open connection %q of type %s: %w", c.Name, kind.Name, err)
		}
		if o.WrapProvider != nil {
			provider = o.WrapProvider(kind.Name, c.Name, provider)
		}
		if connections.Open[kind.Name] == nil {
			connections.Open[kind.Name] = map[string]metrics.Provider{}
		}
		connections.Open[kind.Name][c.Name] = provider
		return nil
	}
	for _, kind := range connections.Kinds {
		if !kind.NeedsConnection {
			if err := add(kind, metrics.Connection{Type: kind.Name}); err != nil {
				return connections, err
			}
		}
	}
	for _, c := range o.Config.Connections {
		at := slices.IndexFunc(connections.Kinds, func(k metrics.Kind) bool { return k.Name == c.Type })
		if at < 0 {
			return connections, fmt.Errorf("connection %q: type %q is not known", c.Name, c.Type)
		}
		headers := make(map[string]string, len(c.Headers))
		for name, value := range c.Headers {
			headers[name] = value.Reveal()
		}
		err := add(connections.Kinds[at], metrics.Connection{Name: c.Name, Type: c.Type, URL: c.URL, Token: c.Token.Reveal(), APIKey: c.APIKey.Reveal(),
			AppKey: c.AppKey.Reveal(), Headers: headers, Timeout: c.Timeout, TimeScale: float64(o.TimeScale)})
		if err != nil {
			return connections, err
		}
	}
	return connections, nil
}

// attributes lists the search attributes that rollouts carry.
func attributes() []string {
	return []string{workflows.SluiceEnvironment, workflows.SluiceDeployment, workflows.SluiceVersion, workflows.SluiceRollout, workflows.SluiceState,
		workflows.SluiceTarget, workflows.SluiceSite}
}

// ensureAttributes adds the search attributes that the namespace lacks. Where that is not permitted, as in Temporal
// Cloud, the error says what somebody else must do.
func ensureAttributes(ctx context.Context, c client.Client, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, attributesTimeout)
	defer cancel()
	present, err := c.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: namespace})
	if err != nil {
		return fmt.Errorf("list the search attributes of namespace %q: %w", namespace, err)
	}
	missing := map[string]enumspb.IndexedValueType{}
	var names []string
	for _, name := range attributes() {
		kind, found := present.GetCustomAttributes()[name]
		if found && kind != enumspb.INDEXED_VALUE_TYPE_KEYWORD {
			return fmt.Errorf("search attribute %s of namespace %q is of type %s; it must be Keyword", name, namespace, kind)
		}
		if !found {
			missing[name] = enumspb.INDEXED_VALUE_TYPE_KEYWORD
			names = append(names, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	_, err = c.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{Namespace: namespace, SearchAttributes: missing})
	var (
		there  *serviceerror.AlreadyExists
		denied *serviceerror.PermissionDenied
		absent *serviceerror.Unimplemented
	)
	switch {
	case err == nil, errors.As(err, &there): // another worker was faster
		return nil
	case errors.As(err, &denied), errors.As(err, &absent):
		return fmt.Errorf("namespace %q lacks the search attributes %v, and this worker may not add them (%w); have them added as Keyword, "+
			"e.g. `temporal operator search-attribute create --namespace %s --name %s --type Keyword`, then start the worker again", namespace, names, err, namespace, names[0])
	}
	return fmt.Errorf("add the search attributes %v to namespace %q: %w", names, namespace, err)
}

// RunOperation is what RunCommand does: it runs one operation of a command step to its end and returns the exit code.
func RunOperation(dir string) int { return command.Run(dir) }
