package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// processVar makes the test binary a fleet: scenario and log stand in its arguments.
const processVar = "FLEET_TEST_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(processVar) == "" {
		os.Exit(m.Run())
	}
	o := Options{Scenario: os.Args[len(os.Args)-2], Log: os.Args[len(os.Args)-1]}
	// The test holds the other end of stdin: if it dies, so does this.
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := Run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// process starts a fleet of its own process and returns its address and how to kill it.
func process(t *testing.T, scenario, log string) (url string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], scenario, log)
	cmd.Env = append(os.Environ(), processVar+"=1")
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // SIGKILL
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	var line struct{ URL string }
	if err := json.NewDecoder(stdout).Decode(&line); err != nil {
		t.Fatalf("the fleet did not start: %v", err)
	}
	return line.URL, kill
}

// TestAnEffectSurvivesSIGKILLAndHappensOnce fails when a killed fleet forgets or repeats what it was asked.
func TestAnEffectSurvivesSIGKILLAndHappensOnce(t *testing.T) {
	const targets = 40
	dir := t.TempDir()
	scenario, log := filepath.Join(dir, "scenario.yaml"), filepath.Join(dir, "log")
	text := fmt.Sprintf("version: v1\ngenerate: {count: %d, regions: [r], tiers: [{tier: 1, share: 1}]}\nduration: {min: 1ms, max: 300ms}\n", targets)
	if err := os.WriteFile(scenario, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	url, kill := process(t, scenario, log)
	// Callers ask until they are answered, over any number of deaths; the address is read anew each time.
	var mu sync.Mutex
	address := func() string {
		mu.Lock()
		defer mu.Unlock()
		return url
	}
	deadline := time.Now().Add(time.Minute)
	var callers sync.WaitGroup
	for i := range targets {
		callers.Go(func() {
			name := fmt.Sprintf("cluster-r-%03d", i+1)
			body, _ := json.Marshal(applyJSON{Operation: "op-" + strconv.Itoa(i), Version: "v2", From: "v1"})
			for time.Now().Before(deadline) {
				response, err := http.Post(address()+"/targets/"+name+"/apply", "application/json", bytes.NewReader(body))
				if err == nil {
					_ = response.Body.Close()
					if response.StatusCode == http.StatusAccepted || response.StatusCode == http.StatusOK {
						return
					}
				}
			}
			t.Errorf("%s was never accepted", name)
		})
	}
	// Killed three times, each time once some more effects have begun.
	count := func(kind Kind) int {
		entries, err := ReadLog(log)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, e := range entries {
			if e.Kind == kind {
				n++
			}
		}
		return n
	}
	until := func(kind Kind, n int) {
		for count(kind) < n {
			if time.Now().After(deadline) {
				t.Fatalf("%d entries %s, want %d", count(kind), kind, n)
			}
			time.Sleep(time.Millisecond)
		}
	}
	for round := range 3 {
		until(KindStarted, (round+1)*targets/4)
		kill()
		var next string
		next, kill = process(t, scenario, log)
		mu.Lock()
		url = next
		mu.Unlock()
	}
	callers.Wait()
	until(KindFinished, targets)
	entries, err := ReadLog(log)
	if err != nil {
		t.Fatal(err)
	}
	started, finished, want := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range targets {
		want["op-"+strconv.Itoa(i)] = 1
	}
	for _, e := range entries {
		switch {
		case e.Kind == KindStarted:
			started[e.Operation]++
		case e.Kind == KindFinished && e.Runs == "v2":
			finished[e.Operation]++
		}
	}
	if diff := cmp.Diff(want, started); diff != "" {
		t.Error("started: ", diff)
	}
	if diff := cmp.Diff(want, finished); diff != "" {
		t.Error("finished: ", diff)
	}
	if n := count(KindRestarted); n != 3 {
		t.Errorf("restarted %d times, want 3", n)
	}
}
