//go:build full

package prometheus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

// patience bounds the wait for a server to come up and for a scrape to arrive.
const patience = time.Minute

// TestRealServersAreReadAlike fails when Prometheus, VictoriaMetrics or the simulated fleet's own query API would give
// one and the same metric another meaning. Both servers come from Debian's packages of their names.
func TestRealServersAreReadAlike(t *testing.T) {
	s := fleet.Scenario{
		Version: "v1", Seed: 3,
		Members: []fleet.Target{
			{Name: "eu/one", Region: "eu", Tier: 3, Customers: 10},
			{Name: `odd "name" \'` + "`", Region: "us", Tier: 1, Customers: 500},
		},
		Metrics:     []fleet.Metric{{Name: "write_latency_ms", Help: "Latency.", Base: 12, Spread: 0.5}},
		Regressions: []fleet.Regression{{Version: "v2", Metric: "write_latency_ms", Factor: 5, MinCustomers: 500}},
	}
	f, err := fleet.New(s, filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	sim := httptest.NewServer(f.Handler())
	t.Cleanup(func() {
		sim.Close()
		_ = f.Close()
	})
	scrape := filepath.Join(t.TempDir(), "scrape.yaml")
	err = os.WriteFile(scrape, fmt.Appendf(nil, `scrape_configs:
  - {job_name: sim, scrape_interval: 1s, scrape_timeout: 1s, static_configs: [{targets: [%q]}]}
`, strings.TrimPrefix(sim.URL, "http://")), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	servers := map[string]string{"sim": sim.URL}
	servers["prometheus"] = start(t, "/-/ready", "prometheus", func(address, dir string) []string {
		return []string{"--config.file=" + scrape, "--storage.tsdb.path=" + dir, "--web.listen-address=" + address}
	})
	servers["victoria-metrics"] = start(t, "/health", "victoria-metrics", func(address, dir string) []string {
		return []string{"-promscrape.config=" + scrape, "-storageDataPath=" + dir, "-httpListenAddr=" + address, "-retentionPeriod=1d", "-loggerLevel=WARN"}
	})
	providers := map[string]*Provider{}
	for name, address := range servers {
		if providers[name], err = New(metrics.Connection{Name: name, URL: address}); err != nil {
			t.Fatal(err)
		}
	}
	measure := func(server, query string, since time.Time) (metrics.Sample, error) {
		return providers[server].Measure(t.Context(), metrics.Query{Config: config(query), Now: time.Now(), Since: since})
	}
	// settled measures until nothing is missing any more, and returns that sample.
	settled := func(server, query string, since time.Time) metrics.Sample {
		t.Helper()
		var sample metrics.Sample
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			var err error
			if sample, err = measure(server, query, since); err != nil {
				t.Fatal(err)
			}
			if sample.Problem == "" {
				return sample
			}
		}
		t.Fatalf("%s: %s stays without a value: %s", server, query, sample.Problem)
		return sample
	}
	start := time.Now()
	for _, target := range s.Targets() {
		query := `write_latency_ms{target="` + Quote(target.Name) + `"}`
		want := settled("sim", query, start)
		for name := range servers {
			if diff := cmp.Diff(want, settled(name, query, start)); diff != "" {
				t.Errorf("%s: %s: %s", name, query, diff)
			}
		}
	}

	// A change: the value of before is never taken for the new version's, and soon the new one is there. VictoriaMetrics
	// would hide it for 30 s if it were not asked for the time given.
	apply, err := json.Marshal(map[string]string{"operation": "o", "version": "v2"})
	if err != nil {
		t.Fatal(err)
	}
	odd := s.Members[1].Name
	old := settled("sim", `write_latency_ms{target="`+Quote(odd)+`"}`, time.Time{}).Result["value"].(float64)
	response, err := http.Post(sim.URL+"/targets/"+url.PathEscape(odd)+"/apply", "application/json", bytes.NewReader(apply))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusAccepted {
		t.Fatalf("apply: %s", response.Status)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if sample := settled("sim", `write_latency_ms{target="`+Quote(odd)+`"}`, time.Time{}); sample.Result["value"] != old {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the change does not end")
		}
	}
	changed := time.Now()
	for name := range servers {
		sample := settled(name, `write_latency_ms{target="`+Quote(odd)+`",version="v2"}`, changed)
		if got := sample.Result["value"].(float64); math.Abs(got/old-5) > 1e-5 {
			t.Errorf("%s: %v after the change, want %v", name, got, old*5)
		}
		if took := time.Since(changed); took > 15*time.Second {
			t.Errorf("%s: the new value was hidden for %v", name, took)
		}
		// What was sampled before a change that ends just now is told apart.
		later := time.Now().Add(time.Minute)
		sample, err := measure(name, `write_latency_ms{target="`+Quote(odd)+`",version="v2"}`, later)
		if err != nil || !strings.HasPrefix(sample.Problem, "older than the change: ") {
			t.Errorf("%s: data from before the change: %+v, %v", name, sample, err)
		}
	}

	// What no server may let pass.
	for name := range servers {
		sample, err := measure(name, `write_latency_ms{target="gone"}`, start)
		if err != nil || !sample.NoData || sample.Problem != "no data: the query returned nothing" {
			t.Errorf("%s: no series: %+v, %v", name, sample, err)
		}
		sample, err = measure(name, `write_latency_ms{version=""}`, start)
		if err != nil || !sample.NoData {
			t.Errorf("%s: no label: %+v, %v", name, sample, err)
		}
		if sample, err := measure(name, `write_latency_ms{`, start); err == nil || !strings.Contains(err.Error(), "HTTP 4") {
			t.Errorf("%s: a query with a mistake: %+v, %v", name, sample, err)
		}
		if name == "sim" {
			continue
		}
		for query, want := range map[string]string{
			`max(write_latency_ms) * 0 + 1`: "", `scalar(max(write_latency_ms)) * 0 + 1`: "",
			`write_latency_ms{target=~".*"}`: " series instead of one: aggregate them, e.g. with max()",
		} {
			if sample, err := measure(name, query, start); err != nil || !strings.HasSuffix(sample.Problem, want) || want == "" && sample.Result["value"] != 1.0 {
				t.Errorf("%s: %s: %+v, %v", name, query, sample, err)
			}
		}
		// 0/0: NaN to the one, nothing to the other, and a measurement to neither.
		if sample, err := measure(name, `max(write_latency_ms * 0) / 0`, start); err != nil || sample.Problem == "" {
			t.Errorf("%s: 0/0: %+v, %v", name, sample, err)
		}
	}
}

// start runs a server on a free port until the test ends, and returns its address once it is ready.
func start(t *testing.T, ready, binary string, args func(address, dir string) []string) string {
	t.Helper()
	path, err := exec.LookPath(binary)
	if err != nil {
		t.Fatalf("%v: install Debian's package %s; the full tests leave no peer out", err, binary)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), binary+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args(address, t.TempDir())...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		_ = log.Close()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("%s said:\n%s", binary, said)
		}
	})
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		response, err := http.Get("http://" + address + ready)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return "http://" + address
			}
		}
		select {
		case err := <-exited:
			exited <- err
			said, _ := os.ReadFile(log.Name())
			t.Fatalf("%s ended: %v\n%s", binary, err, said)
		default:
		}
	}
	t.Fatalf("%s does not become ready", binary)
	return ""
}
