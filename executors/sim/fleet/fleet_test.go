package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// ask sends one request to the fleet and returns the status and the decoded body; status 0 is a connection closed
// without an answer.
func ask(t *testing.T, f *Fleet, method, path, body string) (status int, answer map[string]any) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler {
				panic(p)
			}
			status, answer = 0, nil
		}
	}()
	w := httptest.NewRecorder()
	f.Handler().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, w.Body)
	}
	return w.Code, answer
}

func apply(t *testing.T, f *Fleet, target, operation, version string) (int, map[string]any) {
	t.Helper()
	body, _ := json.Marshal(applyJSON{Operation: operation, Version: version})
	return ask(t, f, "POST", "/targets/"+target+"/apply", string(body))
}

// open parses a scenario and opens a fleet on a log, closed with the test.
func open(t *testing.T, scenario, log string) *Fleet {
	t.Helper()
	s, err := Parse([]byte(scenario))
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(s, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// kinds lists kind and result of each entry but the first, e.g. "finished succeeded".
func kinds(t *testing.T, log string) []string {
	t.Helper()
	entries, err := ReadLog(log)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries[1:] {
		list = append(list, strings.Join(strings.Fields(string(e.Kind)+" "+e.Result+" "+e.Reply), " "))
	}
	return list
}

const two = `
version: v1
targets:
  - {name: eu/one, region: eu, tier: 3, customers: 10}
  - {name: two, region: us, tier: 1, customers: 500, version: v0}
duration: {min: 10s, max: 10s}
`

func TestAnApplyTakesItsTimeAndHappensOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := filepath.Join(t.TempDir(), "log")
		f := open(t, two, log)
		status, got := apply(t, f, "eu%2Fone", "a/b", "v2")
		if status != 202 || got["operation"] != "a/b" || got["state"] != "running" {
			t.Fatalf("apply: %d %v", status, got)
		}
		if status, got = apply(t, f, "eu%2Fone", "a/b", "v2"); status != 200 || got["state"] != "running" {
			t.Errorf("the same operation again: %d %v", status, got)
		}
		if status, got = apply(t, f, "eu%2Fone", "other", "v3"); status != 409 || got["code"] != "busy" {
			t.Errorf("another operation meanwhile: %d %v", status, got)
		}
		if status, got = apply(t, f, "two", "a/b", "v2"); status != 409 || got["code"] != "conflict" {
			t.Errorf("the same operation on another target: %d %v", status, got)
		}
		_, got = ask(t, f, "GET", "/targets/eu%2Fone", "")
		if got["version"] != "v1" || got["operation"] != "a/b" {
			t.Errorf("target in flight: %v", got)
		}
		time.Sleep(10*time.Second - time.Nanosecond)
		synctest.Wait()
		if _, got = ask(t, f, "GET", "/operations/a%2Fb", ""); got["state"] != "running" {
			t.Errorf("operation before its end: %v", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if _, got = ask(t, f, "GET", "/operations/a%2Fb", ""); got["state"] != "succeeded" || got["previous"] != "v1" {
			t.Errorf("operation at its end: %v", got)
		}
		_, got = ask(t, f, "GET", "/targets/eu%2Fone", "")
		if got["version"] != "v2" || got["operation"] != nil || got["known"] != true {
			t.Errorf("target afterwards: %v", got)
		}
		if _, got = ask(t, f, "GET", "/targets/two", ""); got["version"] != "v0" {
			t.Errorf("a target with a version of its own: %v", got)
		}
		want := []string{"request", "started", "request", "repeated running", "request", "refused busy", "request", "refused conflict",
			"finished succeeded"}
		if diff := cmp.Diff(want, kinds(t, log)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAnUnknownOperationNeverStartsOnceItWasLookedUp(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	f := open(t, two, log)
	for range 2 {
		if status, got := ask(t, f, "GET", "/operations/late", ""); status != 404 || got["code"] != "not_found" {
			t.Fatalf("look-up: %d %v", status, got)
		}
	}
	if status, got := apply(t, f, "two", "late", "v2"); status != 409 || got["code"] != "fenced" {
		t.Errorf("late apply: %d %v", status, got)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = open(t, two, log)
	if status, got := apply(t, f, "two", "late", "v2"); status != 409 || got["code"] != "fenced" {
		t.Errorf("late apply after a restart: %d %v", status, got)
	}
	want := []string{"fenced", "request", "refused fenced", "restarted", "request", "refused fenced"}
	if diff := cmp.Diff(want, kinds(t, log)); diff != "" {
		t.Error(diff)
	}
}

func TestRequestsThatMakeNoSenseStartNothing(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	f := open(t, two, log)
	for _, c := range []struct {
		method, path, body string
		status             int
		code               Code
		message            string
	}{
		{"POST", "/targets/two/apply", `{"operation":"o"}`, 400, CodeInvalid, "apply: operation and version are required"},
		{"POST", "/targets/two/apply", `{"operation":"o","version":"v2","force":true}`, 400, CodeInvalid, `apply: json: unknown field "force"`},
		{"POST", "/targets/two/apply", `{"operation":"o","version":"v2"} {}`, 400, CodeInvalid, "apply: more than one value in the body"},
		{"POST", "/targets/two/apply", ``, 400, CodeInvalid, "apply: EOF"},
		{"POST", "/targets/three/apply", `{"operation":"o","version":"v2"}`, 404, CodeNotFound, `no target "three"`},
		{"POST", "/targets/three/release", ``, 404, CodeNotFound, `no target "three"`},
		{"GET", "/targets/three", ``, 404, CodeNotFound, `no target "three"`},
	} {
		status, got := ask(t, f, c.method, c.path, c.body)
		if status != c.status || got["code"] != string(c.code) || got["message"] != c.message {
			t.Errorf("%s %s %s: got %d %v", c.method, c.path, c.body, status, got)
		}
	}
	if slices.Contains(kinds(t, log), "started") {
		t.Error("something started")
	}
}

func TestOperationsGoWrongAsTheScenarioSays(t *testing.T) {
	for _, c := range []struct {
		name, rule string
		state      State
		message    any
		version    string
		known      bool
	}{
		{"by default", `{version: v2}`, Failed, "two did not take v2", "v0", true},
		{"with words", `{message: image not found}`, Failed, "image not found", "v0", true},
		{"after the change", `{leaves: version}`, Failed, "two did not take v2", "v2", true},
		{"so that nothing can be read", `{leaves: unreadable}`, Failed, "two did not take v2", "", false},
		{"and say they did not", `{reports: succeeded}`, Succeeded, nil, "v0", true},
		{"and nobody can tell", `{reports: unknown, leaves: version, message: lost}`, Unknown, "lost", "v2", true},
		{"blocked", `{reports: blocked, message: busy}`, Blocked, "busy", "v0", true},
		{"elsewhere", `{select: {tier: 3}}`, Succeeded, nil, "v2", true},
		{"on another version", `{version: v3}`, Succeeded, nil, "v2", true},
		{"in another region", `{select: {region: eu}}`, Succeeded, nil, "v2", true},
		{"under more load", `{select: {minCustomers: 501}}`, Succeeded, nil, "v2", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := open(t, two+"failures: ["+c.rule+"]\n", filepath.Join(t.TempDir(), "log"))
				apply(t, f, "two", "o", "v2")
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if _, got := ask(t, f, "GET", "/operations/o", ""); got["state"] != string(c.state) || got["message"] != c.message {
					t.Errorf("operation: %v", got)
				}
				if _, got := ask(t, f, "GET", "/targets/two", ""); got["version"] != c.version || got["known"] != c.known {
					t.Errorf("target: %v", got)
				}
			})
		})
	}
}

func TestFailuresRunOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := filepath.Join(t.TempDir(), "log")
		scenario := two + "failures: [{times: 2}]\nblocked: [{times: 1, version: v2, message: not now}]\n"
		f := open(t, scenario, log)
		if status, got := apply(t, f, "two", "o", "v2"); status != 409 || got["code"] != "blocked" || got["message"] != "not now" {
			t.Fatalf("blocked apply: %d %v", status, got)
		}
		for i, want := range []State{Failed, Failed, Succeeded} {
			// What was used up stays used up over a restart.
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			f = open(t, scenario, log)
			id := string(rune('a' + i))
			if status, got := apply(t, f, "two", id, "v2"); status != 202 {
				t.Fatalf("apply %s: %d %v", id, status, got)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if _, got := ask(t, f, "GET", "/operations/"+id, ""); got["state"] != string(want) {
				t.Errorf("operation %s: %v, want %s", id, got, want)
			}
		}
		if status, got := apply(t, f, "eu%2Fone", "z", "v2"); status != 409 || got["code"] != "blocked" {
			t.Errorf("the rule counts for each target alone: %d %v", status, got)
		}
	})
}

func TestAHangEndsWhenReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := filepath.Join(t.TempDir(), "log")
		scenario := two + "failures: [{hang: true}]\n"
		f := open(t, scenario, log)
		apply(t, f, "two", "o", "v2")
		time.Sleep(24 * time.Hour)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		f = open(t, scenario, log)
		synctest.Wait()
		if _, got := ask(t, f, "GET", "/operations/o", ""); got["state"] != "running" {
			t.Errorf("operation that hangs: %v", got)
		}
		if status, _ := ask(t, f, "POST", "/targets/two/release", ""); status != 200 {
			t.Errorf("release: %d", status)
		}
		synctest.Wait()
		if _, got := ask(t, f, "GET", "/operations/o", ""); got["state"] != "succeeded" {
			t.Errorf("operation after the release: %v", got)
		}
	})
}

func TestOutages(t *testing.T) {
	reachable := func(t *testing.T, f *Fleet) bool {
		status, got := ask(t, f, "GET", "/targets/two", "")
		if status == 503 && got["code"] != "unreachable" {
			t.Errorf("unreachable target: %v", got)
		}
		return status == 200
	}
	t.Run("for a while", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := open(t, two+"unreachable: [{select: {targets: [two]}, for: 1m}]\n", filepath.Join(t.TempDir(), "log"))
			time.Sleep(time.Minute - 1)
			if status, got := apply(t, f, "two", "o", "v2"); status != 503 || got["code"] != "unreachable" {
				t.Errorf("apply: %d %v", status, got)
			}
			if reachable(t, f) {
				t.Error("reachable before the end")
			}
			if status, _ := ask(t, f, "GET", "/targets/eu%2Fone", ""); status != 200 {
				t.Errorf("another target: %d", status)
			}
			time.Sleep(time.Nanosecond)
			if !reachable(t, f) {
				t.Error("unreachable at the end")
			}
			if status, _ := ask(t, f, "GET", "/operations/o", ""); status != 404 {
				t.Errorf("the refused operation: %d", status)
			}
		})
	})
	t.Run("for some requests", func(t *testing.T) {
		log := filepath.Join(t.TempDir(), "log")
		scenario := two + "unreachable: [{requests: 2}]\n"
		f := open(t, scenario, log)
		got := []bool{reachable(t, f)}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		f = open(t, scenario, log)
		got = append(got, reachable(t, f), reachable(t, f))
		if diff := cmp.Diff([]bool{false, false, true}, got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("until released, once a version was started", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := open(t, two+"unreachable: [{afterVersion: v2, untilReleased: true}]\n", filepath.Join(t.TempDir(), "log"))
			ask(t, f, "POST", "/targets/two/release", "") // too early to matter
			if !reachable(t, f) {
				t.Error("unreachable before")
			}
			time.Sleep(time.Nanosecond)
			apply(t, f, "two", "o", "v2")
			time.Sleep(24 * time.Hour)
			synctest.Wait()
			if reachable(t, f) {
				t.Error("reachable before the release")
			}
			if _, got := ask(t, f, "GET", "/operations/o", ""); got["state"] != "succeeded" {
				t.Errorf("the operation ends all the same: %v", got)
			}
			ask(t, f, "POST", "/targets/two/release", "")
			if !reachable(t, f) {
				t.Error("unreachable after the release")
			}
		})
	})
}

func TestLostAndLateAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := filepath.Join(t.TempDir(), "log")
		f := open(t, two+`
loseRequests: [{select: {targets: [two]}, times: 1}]
loseReplies: [{select: {targets: [two]}, times: 1}]
delayReplies: [{select: {targets: [two]}, times: 1, delay: 3s}]
`, log)
		if status, _ := apply(t, f, "two", "o", "v2"); status != 0 {
			t.Errorf("lost request: answered %d", status)
		}
		if status, _ := apply(t, f, "two", "o", "v2"); status != 0 {
			t.Errorf("lost reply: answered %d", status)
		}
		began := time.Now()
		if status, _ := apply(t, f, "two", "o", "v2"); status != 200 || time.Since(began) != 3*time.Second {
			t.Errorf("late reply: %d after %v", status, time.Since(began))
		}
		if status, _ := apply(t, f, "two", "o", "v2"); status != 200 || time.Since(began) != 3*time.Second {
			t.Errorf("the next one: %d after %v", status, time.Since(began))
		}
		want := []string{"dropped", "request", "started lost", "request", "repeated running delayed", "request", "repeated running"}
		if diff := cmp.Diff(want, kinds(t, log)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAKilledFleetGoesOnWhereItsLogLeavesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := filepath.Join(t.TempDir(), "log")
		f := open(t, two, log)
		apply(t, f, "two", "first", "v2")
		time.Sleep(6 * time.Second)
		apply(t, f, "eu%2Fone", "second", "v2")
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		// A line that the kill tore.
		file, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString(`{"seq":6,"time":"20`); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second) // the first would have ended two seconds ago, the second has four left
		f = open(t, two, log)
		synctest.Wait()
		if _, got := ask(t, f, "GET", "/operations/first", ""); got["state"] != "succeeded" {
			t.Errorf("first: %v", got)
		}
		if _, got := ask(t, f, "GET", "/operations/second", ""); got["state"] != "running" {
			t.Errorf("second: %v", got)
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if _, got := ask(t, f, "GET", "/operations/second", ""); got["state"] != "succeeded" {
			t.Errorf("second at its end: %v", got)
		}
		want := []string{"request", "started", "request", "started", "restarted", "finished succeeded", "finished succeeded"}
		if diff := cmp.Diff(want, kinds(t, log)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestALogOfAnotherFleetIsRefused(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	if err := open(t, two, log).Close(); err != nil {
		t.Fatal(err)
	}
	s, err := Parse([]byte("version: v1\ntargets: [{name: alone}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(s, log)
	want := "fleet: take up " + log + ": it was written by a fleet of 2 targets on v1, the scenario has 1 on v1"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	for name, c := range map[string]struct{ data, want string }{
		"a damaged line":   {"{\n", "line 1: unexpected end of JSON input"},
		"a missing line":   {`{"seq":2,"time":"2026-01-01T00:00:00Z","kind":"start"}` + "\n", "line 1: has seq 2"},
		"only a torn line": {`{"seq":1`, ""},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.data), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadLog(path)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || err.Error() != "fleet: effect log "+path+": "+c.want):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEveryEntryIsOnDiskBeforeTheAnswer(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	f := open(t, "version: v1\ngenerate: {count: 64, regions: [r], tiers: [{tier: 1, share: 1}]}\nduration: {min: 1h, max: 1h}\n", log)
	var wg sync.WaitGroup
	for _, target := range f.order {
		wg.Go(func() {
			if status, got := apply(t, f, target.Name, "op-"+target.Name, "v2"); status != 202 {
				t.Errorf("%s: %d %v", target.Name, status, got)
			}
			entries, err := ReadLog(log)
			if err != nil {
				t.Error(err)
			}
			if !slices.ContainsFunc(entries, func(e Entry) bool { return e.Kind == KindStarted && e.Target == target.Name }) {
				t.Errorf("%s was answered before its effect was logged", target.Name)
			}
		})
	}
	wg.Wait()
}

func TestAFleetThatCannotLogTellsNothing(t *testing.T) {
	f := open(t, two, filepath.Join(t.TempDir(), "log"))
	if err := f.log.file.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if status, got := apply(t, f, "two", "o", "v2"); status != 500 || got["code"] != "internal" {
			t.Errorf("apply: %d %v", status, got)
		}
	}
	if status, _ := ask(t, f, "GET", "/healthz", ""); status != 500 {
		t.Errorf("healthz: %d", status)
	}
}

func TestRunPrintsItsAddressAndServesUntilStopped(t *testing.T) {
	dir := t.TempDir()
	scenario := filepath.Join(dir, "scenario.yaml")
	if err := os.WriteFile(scenario, []byte(two), 0o600); err != nil {
		t.Fatal(err)
	}
	out, in := io.Pipe()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		done <- Run(ctx, Options{Scenario: scenario, Log: filepath.Join(dir, "log")}, in)
		_ = in.Close()
	}()
	var line struct{ URL string }
	if err := json.NewDecoder(out).Decode(&line); err != nil {
		t.Fatal(errors.Join(err, <-done))
	}
	response, err := http.Get(line.URL + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != 200 {
		t.Errorf("healthz: %s", response.Status)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("stopped: %v", err)
	}
}
