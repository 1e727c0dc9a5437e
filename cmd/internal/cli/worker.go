package cli

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/spf13/cobra"
	sdklog "go.temporal.io/sdk/log"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/config"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
)

// WorkerOptions are what `worker` is asked.
type WorkerOptions struct {
	Factory *Factory
	Config  string
	Data    string
	Verbose bool
}

// NewCmdWorker returns the command; runF, when not nil, runs in place of it.
func NewCmdWorker(f *Factory, runF func(*cobra.Command, *WorkerOptions) error) *cobra.Command {
	o := &WorkerOptions{Factory: f}
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run a worker: it does what rollouts ask for",
		Long: `Run a worker until SIGINT or SIGTERM. It walks rollouts, changes targets and measures. A worker may be stopped and started
at any time: what it was doing is adopted by the next one. All workers that run command steps must share the data folder.

The configuration file says where the outside systems are:

  connections:
    main: {type: prometheus, url: "https://prometheus.example:9090", tokenFrom: {env: PROMETHEUS_TOKEN}, timeout: 10s}
    dd: {type: datadog, url: "https://api.datadoghq.eu", apiKeyFrom: {env: DD_API_KEY}, appKeyFrom: {file: app.key}}
  data: /var/lib/sluice`,
		Example: `  sluice worker --config /etc/sluice/worker.yaml`,
		Args:    exactArgs(0, "worker takes flags only"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if runF != nil {
				return runF(cmd, o)
			}
			return workerRun(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.Config, "config", "", "the configuration file (default: no connections)")
	cmd.Flags().StringVar(&o.Data, "data", "", "the data folder (default: the configuration's, $SLUICE_DATA, else sluice in the state folder)")
	cmd.Flags().BoolVar(&o.Verbose, "verbose", false, "log what the Temporal client does too")
	return cmd
}

func workerRun(ctx context.Context, o *WorkerOptions) error {
	f := o.Factory
	var file config.Config
	if o.Config != "" {
		var err error
		if file, err = config.Load(o.Config, wire.ConnectionTypes(), f.Getenv); err != nil {
			return err
		}
	}
	data, err := config.DataDir(cmp.Or(o.Data, file.Data), f.Getenv)
	if err != nil {
		return usagef("%w", err)
	}
	logger := slog.New(slog.NewTextHandler(f.Err, nil))
	options, err := clientOptions()
	if err != nil {
		return err
	}
	level := slog.LevelWarn
	if o.Verbose {
		level = slog.LevelDebug
	}
	options.Logger = sdklog.NewStructuredLogger(slog.New(slog.NewTextHandler(f.Err, &slog.HandlerOptions{Level: level})))
	t, err := dialWith(ctx, options, f)
	if err != nil {
		return err
	}
	defer t.Close()
	w, err := wire.NewWorker(ctx, t.Client, wire.Options{Config: file, DataDir: data, Namespace: t.namespace, Logger: logger})
	if err != nil {
		return err
	}
	defer w.Stop()
	select {
	case <-ctx.Done():
		logger.Info("worker stops; what it was doing is adopted by the next one")
		return nil
	case err := <-w.Failed():
		return err
	}
}
