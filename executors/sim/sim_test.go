package sim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/executortest"
	"github.com/seed-a0a4f4e3/sluice/executors/sim"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
	"github.com/seed-a0a4f4e3/sluice/inventory"
)

// world is a fleet of one target behind an address that stays while the scenario changes.
type world struct {
	t    *testing.T
	log  string
	url  string
	http *httptest.Server

	mu       sync.Mutex
	scenario fleet.Scenario
	fleet    *fleet.Fleet
	// hold keeps the next apply back: its body stays here, and its connection is closed.
	hold bool
	held []byte
}

const targetName = "eu/edge 1"

func newWorld(t *testing.T, from string) *world {
	w := &world{t: t, log: filepath.Join(t.TempDir(), "log"), scenario: fleet.Scenario{
		Version: "v0", Members: []fleet.Target{{Name: targetName, Version: from, Bare: from == ""}},
	}}
	w.become(func(*fleet.Scenario) {})
	w.http = httptest.NewServer(http.HandlerFunc(w.serve))
	w.url = w.http.URL
	t.Cleanup(func() {
		w.http.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		_ = w.fleet.Close()
	})
	return w
}

// become restarts the fleet on its log with another scenario.
func (w *world) become(change func(*fleet.Scenario)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fleet != nil {
		if err := w.fleet.Close(); err != nil {
			w.t.Fatal(err)
		}
	}
	change(&w.scenario)
	var err error
	if w.fleet, err = fleet.New(w.scenario, w.log); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	handler, hold := w.fleet.Handler(), w.hold && r.Method == http.MethodPost
	if hold {
		w.hold = false
		w.held, _ = io.ReadAll(r.Body)
	}
	w.mu.Unlock()
	if hold {
		panic(http.ErrAbortHandler)
	}
	handler.ServeHTTP(rw, r)
}

// post sends a request of its own and wants that status.
func (w *world) post(path, body string, want int) {
	w.t.Helper()
	response, err := http.Post(w.url+"/targets/eu%2Fedge%201/"+path, "application/json", strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != want {
		data, _ := io.ReadAll(response.Body)
		w.t.Fatalf("%s: %s: %s", path, response.Status, data)
	}
}

// put moves the target to a version from outside and waits for the end.
func (w *world) put(version string) {
	w.t.Helper()
	operation := fmt.Sprintf("outside-%d", time.Now().UnixNano())
	w.post("apply", fmt.Sprintf(`{"operation":%q,"version":%q}`, operation, version), http.StatusAccepted)
	w.ended(operation)
}

// ended waits until the fleet's log holds the end of the operation.
func (w *world) ended(operation string) {
	w.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if w.count(operation, fleet.KindFinished) > 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	w.t.Fatalf("operation %s does not end", operation)
}

func (w *world) count(operation string, kind fleet.Kind) int {
	w.t.Helper()
	entries, err := fleet.ReadLog(w.log)
	if err != nil {
		w.t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if e.Operation == operation && e.Kind == kind {
			n++
		}
	}
	return n
}

func (w *world) change(operation string, d executors.Direction, version, from string) executors.Change {
	config, err := json.Marshal(sim.Config{URL: w.url, PollInterval: "10ms"})
	if err != nil {
		w.t.Fatal(err)
	}
	return executors.Change{
		Operation: operation, Direction: d, Target: inventory.Target{Name: targetName}, Deployment: "web",
		Environment: "Production", Version: version, From: from, Config: config,
	}
}

func TestTheExecutorKeepsThePortsPromises(t *testing.T) {
	executortest.Run(t, executortest.Harness{
		Unsupported: map[executortest.Ability]string{
			executortest.Uninstall: "a simulated target always runs some version once it ran one",
		},
		Open: func(t *testing.T, from string) *executortest.System {
			w := newWorld(t, from)
			apply := ""
			return &executortest.System{
				Executor: sim.New(sim.Options{}),
				Another:  func(*testing.T) executors.Executor { return sim.New(sim.Options{}) },
				Change: func(operation string, d executors.Direction, version, from string) executors.Change {
					if apply == "" {
						apply = operation
					}
					return w.change(operation, d, version, from)
				},
				Effects: func(_ *testing.T, operation string) int { return w.count(operation, fleet.KindStarted) },
				Put:     func(_ *testing.T, version string) { w.put(version) },
				Fail: func(*testing.T) {
					w.become(func(s *fleet.Scenario) { s.Failures = []fleet.Failure{{}} })
				},
				Block: func(*testing.T) {
					w.become(func(s *fleet.Scenario) { s.Blocked = []fleet.Block{{}} })
				},
				Hang: func(*testing.T) func() {
					w.become(func(s *fleet.Scenario) { s.Failures = []fleet.Failure{{Hang: true}} })
					return func() { w.post("release", "", http.StatusOK) }
				},
				Unreachable: func(*testing.T) func() {
					w.become(func(s *fleet.Scenario) { s.Unreachable = []fleet.Outage{{UntilReleased: true}} })
					return func() { w.post("release", "", http.StatusOK) }
				},
				Blind: func(*testing.T) {
					w.become(func(s *fleet.Scenario) { s.Failures = []fleet.Failure{{Leaves: fleet.LeavesUnreadable}} })
					w.put("garbage")
				},
				LoseAnswer: func(*testing.T) {
					w.become(func(s *fleet.Scenario) { s.LoseReplies = []fleet.Loss{{Times: 1}} })
				},
				Delay: func(*testing.T) func() {
					w.mu.Lock()
					defer w.mu.Unlock()
					w.hold = true
					return func() { w.post("apply", string(w.held), http.StatusConflict) }
				},
				Crash: func(_ *testing.T, effect bool) func() {
					leaves := fleet.LeavesPrevious
					if effect {
						leaves = fleet.LeavesVersion
					}
					w.become(func(s *fleet.Scenario) {
						s.Failures = []fleet.Failure{{Reports: fleet.Unknown, Leaves: leaves, Message: "how it ended is lost"}}
					})
					return func() { w.ended(apply) }
				},
			}
		},
	})
}

func TestConfigurations(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{`{"url": "http://127.0.0.1:1"}`, ""},
		{`{"url": "https://fleet.example/sim/", "pollInterval": "1s"}`, ""},
		{`{"url": "{{.target.config.fleet}}", "pollInterval": "{{.target.metadata.poll}}"}`, ""},
		{`{}`, `url: is required, e.g. "http://127.0.0.1:1234"`},
		{`null`, `url: is required, e.g. "http://127.0.0.1:1234"`},
		{`{"url": "fleet:80", "pollInterval": "5"}`,
			`url: "fleet:80" is not the http or https address of a fleet` + "\n" + `pollInterval: "5" is not a duration of 10ms or more, e.g. 200ms`},
		{`{"url": "http://a?b=c"}`, `url: "http://a?b=c" is not the http or https address of a fleet`},
		{`{"url": "http://a", "pollInterval": "1ms"}`, `pollInterval: "1ms" is not a duration of 10ms or more, e.g. 200ms`},
		{`{"uri": "http://a"}`, `unknown field "uri"; allowed are url and pollInterval`},
		{`{"url": 1}`, "cannot unmarshal number into Go struct field Config.url of type string; allowed are url and pollInterval"},
		{`{"url": "http://a"} {}`, "more than one value"},
		{``, "EOF; allowed are url and pollInterval"},
	} {
		traits, err := sim.Kind().Decode(json.RawMessage(c.config))
		if c.want == "" {
			if err != nil || traits != (executors.Traits{Observes: true, Restores: true}) {
				t.Errorf("%s: %+v, %v", c.config, traits, err)
			}
			continue
		}
		var faults executors.Faults
		if !errors.As(err, &faults) || err.Error() != c.want {
			t.Errorf("%s: got  %v\nwant %s", c.config, err, c.want)
		}
	}
}

// sentinel names the sentinel that an error wraps.
func sentinel(err error) string {
	for name, s := range map[string]error{
		"unreachable": executors.ErrUnreachable, "rejected": executors.ErrRejected, "blocked": executors.ErrBlocked,
		"not submitted": executors.ErrNotSubmitted, "running": executors.ErrRunning,
	} {
		if errors.Is(err, s) {
			return name
		}
	}
	if err == nil {
		return "none"
	}
	return "plain"
}

// TestAnswersBecomeTheRightSentinels fails when the executor vouches for something that an answer does not prove.
func TestAnswersBecomeTheRightSentinels(t *testing.T) {
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for _, c := range []struct {
		name                   string
		handler                http.HandlerFunc
		submit, await, observe string
	}{
		{"lost", abort, "plain", "plain", "plain"},
		{"busy", answer(409, `{"code":"busy"}`), "blocked", "plain", "plain"},
		{"blocked", answer(409, `{"code":"blocked"}`), "blocked", "plain", "plain"},
		{"fenced", answer(409, `{"code":"fenced"}`), "rejected", "plain", "plain"},
		{"conflict", answer(409, `{"code":"conflict"}`), "rejected", "plain", "plain"},
		{"invalid", answer(400, `{"code":"invalid"}`), "rejected", "plain", "plain"},
		{"not found", answer(404, `{"code":"not_found"}`), "rejected", "not submitted", "rejected"},
		{"some other server's 404", answer(404, "404 page not found"), "rejected", "plain", "plain"},
		{"unreachable", answer(503, `{"code":"unreachable"}`), "unreachable", "plain", "unreachable"},
		{"some other server's 503", answer(503, "busy"), "plain", "plain", "plain"},
		{"internal", answer(500, `{"code":"internal"}`), "plain", "plain", "plain"},
		{"redirect", answer(307, ``), "plain", "plain", "plain"},
		{"not JSON", answer(200, `<html>`), "plain", "plain", "plain"},
		{"too long", answer(200, `{"state":"`+strings.Repeat("x", 1<<20)+`"}`), "plain", "plain", "plain"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var posts int
			var mu sync.Mutex
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					mu.Lock()
					posts++
					mu.Unlock()
				}
				c.handler(w, r)
			}))
			defer server.Close()
			e, change := sim.New(sim.Options{}), executors.Change{
				Operation: "o", Version: "v2", Target: inventory.Target{Name: "a"},
				Config: json.RawMessage(`{"url":"` + server.URL + `"}`),
			}
			_, submit := e.Submit(t.Context(), change)
			_, await := e.Await(t.Context(), change, executors.Ticket{})
			_, observe := e.Observe(t.Context(), change)
			_, verify := e.Verify(t.Context(), change)
			want := []string{c.submit, c.await, c.observe, c.observe}
			got := []string{sentinel(submit), sentinel(await), sentinel(observe), sentinel(verify)}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("submit, await, observe, verify: %s\n%v\n%v\n%v", diff, submit, await, observe)
			}
			mu.Lock()
			defer mu.Unlock()
			if posts != 1 {
				t.Errorf("%d POSTs, want 1", posts)
			}
		})
	}
}

func TestAFleetThatIsNotThereIsUnreachable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	e, c := sim.New(sim.Options{}), executors.Change{
		Operation: "o", Version: "v2", Target: inventory.Target{Name: "a"}, Config: json.RawMessage(`{"url":"http://` + address + `"}`),
	}
	_, submit := e.Submit(t.Context(), c)
	_, await := e.Await(t.Context(), c, executors.Ticket{})
	_, observe := e.Observe(t.Context(), c)
	want := []string{"unreachable", "unreachable", "unreachable"}
	if diff := cmp.Diff(want, []string{sentinel(submit), sentinel(await), sentinel(observe)}); diff != "" {
		t.Error(diff)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Submit(over, c); sentinel(err) != "plain" {
		t.Errorf("Submit given up by the caller: %v", err)
	}
}

// TestAStuckFleetHoldsNobodyLonger fails when a request without an answer is not given up.
func TestAStuckFleetHoldsNobodyLonger(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	e, c := sim.New(sim.Options{Timeout: 20 * time.Millisecond}), executors.Change{
		Operation: "o", Version: "v2", Target: inventory.Target{Name: "a"}, Config: json.RawMessage(`{"url":"` + server.URL + `"}`),
	}
	if _, err := e.Submit(t.Context(), c); sentinel(err) != "plain" {
		t.Errorf("Submit: %v", err)
	}
	if _, err := e.Await(t.Context(), c, executors.Ticket{}); sentinel(err) != "plain" {
		t.Errorf("Await: %v", err)
	}
	if _, err := e.Observe(t.Context(), c); sentinel(err) != "plain" {
		t.Errorf("Observe: %v", err)
	}
}

func TestWhatCannotBeAskedIsRejectedUnsent(t *testing.T) {
	w := newWorld(t, "v1")
	e := sim.New(sim.Options{})
	_, err := e.Submit(t.Context(), w.change("o", executors.Restore, "", "v1"))
	want := "sim: submit nothing to eu/edge 1: rejected: a simulated target can't be uninstalled"
	if sentinel(err) != "rejected" || err.Error() != want {
		t.Errorf("uninstall: got %v\nwant %s", err, want)
	}
	c := w.change("o", executors.Apply, "v2", "v1")
	c.Config = json.RawMessage(`{"url": ""}`)
	if _, err := e.Submit(t.Context(), c); sentinel(err) != "rejected" {
		t.Errorf("no url: %v", err)
	}
	data, err := fleet.ReadLog(w.log)
	if err != nil || len(data) != 1 {
		t.Errorf("the fleet was asked: %v, %v", data, err)
	}
}

func TestVerifyWaitsForItsOwnOperation(t *testing.T) {
	w := newWorld(t, "v1")
	w.become(func(s *fleet.Scenario) { s.Failures = []fleet.Failure{{Hang: true}} })
	e, c := sim.New(sim.Options{}), w.change("o", executors.Apply, "v2", "v1")
	if _, err := e.Submit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if result, err := e.Verify(t.Context(), c); err == nil || err.Error() != "sim: verify eu/edge 1: the operation has not ended" {
		t.Errorf("%+v, %v", result, err)
	}
	other := w.change("before", executors.Apply, "v1", "v1")
	if result, err := e.Verify(t.Context(), other); err != nil || result.Outcome != executors.Succeeded {
		t.Errorf("an earlier operation: %+v, %v", result, err)
	}
}

func TestAStateThatIsNotKnownIsIndeterminate(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, bytes.NewReader([]byte(`{"operation":"o","state":"melted"}`)))
	}))
	defer server.Close()
	c := executors.Change{
		Operation: "o", Version: "v2", Target: inventory.Target{Name: "a"}, Config: json.RawMessage(`{"url":"` + server.URL + `"}`),
	}
	got, err := sim.New(sim.Options{}).Await(t.Context(), c, executors.Ticket{})
	want := executors.Result{Outcome: executors.Indeterminate, Reason: "the fleet says melted of the change of a to v2"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}
