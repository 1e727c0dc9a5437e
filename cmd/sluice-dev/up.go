package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/config"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/embed"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// dialTimeout bounds the first call to a server of this very process, which has just answered.
const dialTimeout = 10 * time.Second

// scale is the flag of a time scale.
type scale policy.TimeScale

// maxScale is a year in half a minute: beyond it everything takes its least time anyway.
const maxScale = 1_000_000

func (s *scale) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n >= 1 && n <= maxScale) { // NaN is neither
		return fmt.Errorf("it must be a number from 1 to %d", maxScale)
	}
	*s = scale(n)
	return nil
}

func (s *scale) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*s), 'g', -1, 64)
}

func (s *scale) Type() string { return "number" }

// upOptions are what `up` is asked.
type upOptions struct {
	data, config string
	port, uiPort uint16
	timeScale    scale
	worker       bool
	synchronous  string
	stdout       io.Writer
	logger       *slog.Logger
	// program is what the person called.
	program string
}

// newUp returns `up`.
func newUp() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run Temporal, its UI and a worker on this machine",
		Long: `Run everything that rollouts need on this machine: a Temporal server with its UI, and a worker. It listens on 127.0.0.1
only. What has happened is kept in the data folder, so that rollouts go on where they were after a stop, a crash or a
restart. Ctrl-C stops it.

With --worker=false it runs the server and its UI only: for workers of your own, "sluice worker", that may be stopped,
replaced and looked at without touching the server.`,
		Example: `  sluice-dev up
  sluice-dev up --data ./state --config worker.yaml --port 0 --ui-port 0
  sluice-dev up --worker=false`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"config", "time-scale"} {
				if !o.worker && cmd.Flags().Changed(name) {
					return fmt.Errorf("--%s is for the worker, and --worker=false runs none; give it to the worker", name)
				}
			}
			o.stdout, o.program = cmd.OutOrStdout(), cmd.Root().Name()
			o.logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return up(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.data, "data", "", "the data folder (default: dev in the worker's, which is the configuration's, $SLUICE_DATA, else sluice in the state folder)")
	cmd.Flags().StringVar(&o.config, "config", "", "the worker's configuration file (default: no connections)")
	cmd.Flags().Uint16Var(&o.port, "port", 7233, "where Temporal listens; 0 takes a free one")
	cmd.Flags().Var(&o.timeScale, "time-scale", "how many times as fast intervals, delays and soaks pass, none below 1s; 60 shows an hour's rollout in a minute (default 1)")
	cmd.Flags().Uint16Var(&o.uiPort, "ui-port", 8233, "where its UI listens; 0 takes a free one")
	cmd.Flags().BoolVar(&o.worker, "worker", true, "run a worker too; --worker=false leaves that to others")
	cmd.Flags().StringVar(&o.synchronous, "synchronous", embed.SynchronousFull, "FULL: each commit is on disk before it counts; NORMAL: the last ones may be lost with the power")
	// For measurements, which say what they were made with. A rollout that forgets with the power is no choice to offer.
	if err := cmd.Flags().MarkHidden("synchronous"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}

// up runs until ctx is done or the worker fails.
func up(ctx context.Context, o upOptions) (err error) {
	var file config.Config
	if o.config != "" {
		if file, err = config.Load(o.config, wire.ConnectionTypes(), os.Getenv); err != nil {
			return err
		}
	}
	data, err := dataFolder(o.data, file.Data)
	if err != nil {
		return err
	}
	server, err := embed.Start(ctx, embed.Options{
		DataDir: data, FrontendAddr: fmt.Sprintf(":%d", o.port), UIAddr: fmt.Sprintf(":%d", o.uiPort),
		Synchronous: o.synchronous, Logger: o.logger,
	})
	if err != nil {
		return err
	}
	// The order of the ends is that of the deferred calls backwards: the worker hands over what it is doing while its
	// client can still say so, and the server goes last.
	defer func() { err = errors.Join(err, server.Stop()) }()
	var failed <-chan error // never, without a worker
	if o.worker {
		stop, ended, err := work(ctx, o, server, file, data)
		if err != nil {
			return err
		}
		defer stop()
		failed = ended
	}
	if err := writePlaces(o, server, data); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		o.logger.Info("stopping; rollouts go on when this is started again", "data", data)
		return nil
	case err := <-failed:
		return fmt.Errorf("the worker ended: %w", err)
	}
}

// work starts a worker on the server; stop ends it and its client.
func work(ctx context.Context, o upOptions, server *embed.Server, file config.Config, data string) (stop func(), failed <-chan error, err error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := client.DialContext(dialing, client.Options{
		HostPort: server.HostPort(), Namespace: server.Namespace(),
		// What the client says below a warning is about its own polling.
		Logger: sdklog.NewStructuredLogger(slog.New(quiet{o.logger.Handler()})),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the server that was started at %s: %w", server.HostPort(), err)
	}
	worker, err := wire.NewWorker(ctx, c, wire.Options{Config: file, DataDir: data, Namespace: server.Namespace(), Logger: o.logger, TimeScale: policy.TimeScale(o.timeScale)})
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return func() {
		worker.Stop()
		c.Close()
	}, worker.Failed(), nil
}

// dataFolder is where everything is kept: as asked for, else dev in the worker's folder.
func dataFolder(asked, configured string) (string, error) {
	if asked != "" {
		return filepath.Abs(asked)
	}
	data, err := config.DataDir(configured, os.Getenv)
	if err != nil {
		return "", err
	}
	return filepath.Join(data, "dev"), nil
}

// writePlaces says where everything is and what to do next.
func writePlaces(o upOptions, server *embed.Server, data string) error {
	first := "Sluice is up. Ctrl-C stops it; rollouts go on when it is started again."
	file := o.config
	if file == "" {
		file = "none; --config FILE names one, for the connections that checks measure over"
	}
	work := ""
	if !o.worker {
		first = "Temporal is up, without a worker. Ctrl-C stops it; rollouts go on when it is started again."
		file = "that of your worker"
		work = fmt.Sprintf("\n  %s worker --data DIR --config FILE                       run a worker", o.program)
	}
	pace := ""
	if o.timeScale > 1 {
		pace = fmt.Sprintf("\n  time scale     %s: intervals, delays and soaks pass that many times as fast as the documents say", &o.timeScale)
	}
	_, err := fmt.Fprintf(o.stdout, `%s

  Temporal       %s, namespace %s
  UI             %s
  data folder    %s
  configuration  %s%s

In another terminal:

  export TEMPORAL_ADDRESS=%s TEMPORAL_NAMESPACE=%s%s
  %s validate -f DIR                                        check documents
  %s start DEPLOYMENT@VERSION -e ENVIRONMENT -f DIR --wait  start a rollout and follow it
  %s list                                                   what runs and what ran
`, first, server.HostPort(), server.Namespace(), server.UIURL(), data, file, pace, server.HostPort(), server.Namespace(), work, o.program, o.program, o.program)
	return err
}

// quiet drops what is below a warning.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && q.Handler.Enabled(ctx, level)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
