package main

import (
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/demo"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/tests/fakes/datadog"
)

// newSim returns the hidden `sim`: a simulated fleet as a process of its own.
func newSim() *cobra.Command {
	var (
		o               fleet.Options
		parent, datadog bool
	)
	cmd := &cobra.Command{
		Use:    demo.SimCommand + " --scenario FILE --log FILE",
		Short:  "Simulate a fleet until told to stop",
		Hidden: true,
		Long: `Simulate a fleet until told to stop. The first line on stdout is JSON and says where it listens; everything that it was
asked and did stands in the log, as lines of JSON. With --datadog it answers Datadog's query API about its metrics too, for
any keys: each target's have the tags env:prod and cluster:NAME, and a point a second.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var stdin io.Reader
			if parent {
				stdin = cmd.InOrStdin()
			}
			if datadog {
				o.Beside = besideDatadog
			}
			return demo.Simulate(cmd.Context(), o, stdin, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&o.Scenario, "scenario", "", "the scenario file")
	cmd.Flags().StringVar(&o.Log, "log", "", "the effect log; one that is there is taken up")
	cmd.Flags().StringVar(&o.Listen, "listen", "127.0.0.1:0", "the address to listen on; port 0 takes a free one")
	cmd.Flags().BoolVar(&datadog, "datadog", false, "answer Datadog's query API as well")
	cmd.Flags().BoolVar(&parent, demo.UntilStdinCloses, false, "end when standard input closes, so that nothing is left of a parent that was killed")
	return cmd
}

// besideDatadog puts a Datadog that knows the fleet's metrics beside the fleet's own protocol.
func besideDatadog(f *fleet.Fleet, protocol http.Handler) http.Handler {
	var series []datadog.Series
	for _, metric := range f.Metrics() {
		for _, name := range f.Names() {
			series = append(series, datadog.Series{Metric: metric, Tags: map[string]string{"env": "prod", "cluster": name}, Every: time.Second,
				Points: func(at time.Time) (float64, bool) { return f.Gauge(metric, name, at) }})
		}
	}
	server := datadog.Serve(datadog.Options{Series: series})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Version 1 of the API has the path of Prometheus's.
		if strings.HasPrefix(r.URL.Path, "/api/v2/") {
			server.ServeHTTP(w, r)
			return
		}
		protocol.ServeHTTP(w, r)
	})
}
