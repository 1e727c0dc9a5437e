package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

// site is the outside world that a rollout changes. It knows by itself what it was asked and what runs on it.
type site interface {
	// documents are n targets c01, c02, …, of which the site has no fewer, under a policy's rules.
	documents(n int, rules string) string
	// asked counts the changes asked for, by direction and target: "apply c01".
	asked() map[string]int
	// runs maps each target to what runs on it.
	runs() map[string]string
}

// simSite is a simulated fleet in the test's process, which survives its workers.
type simSite struct {
	t        *testing.T
	url, log string
}

func newSimSite(t *testing.T, s fleet.Scenario) *simSite {
	t.Helper()
	url, log := fleetOf(t, s)
	return &simSite{t: t, url: url, log: log}
}

func (s *simSite) documents(n int, rules string) string { return simDocuments(s.url, n, rules) }

func (s *simSite) entries() []fleet.Entry {
	s.t.Helper()
	entries, err := fleet.ReadLog(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	return entries
}

// asked counts requests, not effects: the fleet would refuse to do one operation twice, and Sluice must not ask.
func (s *simSite) asked() map[string]int {
	s.t.Helper()
	asked := map[string]int{}
	for _, e := range s.entries() {
		if e.Kind == fleet.KindRequest {
			asked[string(towards(e.Version))+" "+e.Target]++
		}
	}
	return asked
}

// towards is the direction of a change to a version, where a rollout goes from v1 to v2.
func towards(version string) executors.Direction {
	if version == "v1" {
		return executors.Restore
	}
	return executors.Apply
}

func (s *simSite) runs() map[string]string {
	s.t.Helper()
	response, err := http.Get(s.url + "/targets")
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct {
		Targets []struct{ Name, Version string }
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		s.t.Fatal(err)
	}
	runs := map[string]string{}
	for _, target := range answer.Targets {
		runs[target.Name] = target.Version
	}
	return runs
}

// commandSite is a folder with a file for each target that holds its version, changed by a real script.
type commandSite struct {
	t   *testing.T
	dir string
	// data is the worker's data folder.
	data string
	// blind leaves the check out of the step.
	blind bool
}

// putScript says that it began, then changes the target; a file hang-DIRECTION-TARGET makes it wait before the change,
// late-DIRECTION-TARGET after it, as long as the file is there.
const putScript = `cd "$SITE" || exit 99
printf '%s %s %s\n' "$SLUICE_DIRECTION" "$SLUICE_TARGET" "$SLUICE_OPERATION_ID" >>effects
wait_while() { while [ -e "$1" ]; do : >"$1.reached"; sleep 0.02; done; }
wait_while "hang-$SLUICE_DIRECTION-$SLUICE_TARGET"
printf '%s' "$SLUICE_VERSION" >"$SLUICE_TARGET.next" && mv "$SLUICE_TARGET.next" "$SLUICE_TARGET.version"
wait_while "late-$SLUICE_DIRECTION-$SLUICE_TARGET"
`

const checkScript = `cat "$SITE/$SLUICE_TARGET.version"
`

func newCommandSite(t *testing.T, data string, n int) *commandSite {
	t.Helper()
	s := &commandSite{t: t, dir: t.TempDir(), data: data}
	s.write("put.sh", putScript)
	s.write("check.sh", checkScript)
	s.write("effects", "")
	for i := 1; i <= n; i++ {
		s.write(fmt.Sprintf("c%02d.version", i), "v1")
	}
	// A script that waits would outlive its test, and its runner with it.
	t.Cleanup(func() {
		waiting, _ := filepath.Glob(filepath.Join(s.dir, "[hl]a*-*.reached"))
		for _, reached := range waiting {
			_ = os.Remove(strings.TrimSuffix(reached, ".reached"))
		}
	})
	return s
}

func (s *commandSite) path(name string) string { return filepath.Join(s.dir, name) }

func (s *commandSite) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *commandSite) documents(n int, rules string) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "type: Resource\nname: c%02d\nkind: Host\n---\n", i)
	}
	check := fmt.Sprintf("check: [sh, '%s'], ", s.path("check.sh"))
	if s.blind {
		check = ""
	}
	fmt.Fprintf(&b, `type: Environment
name: Production
resourceSelector: 'true'
---
type: Deployment
name: web
steps:
  apply: [{name: put, command: {%sapply: [sh, '%s'], env: {SITE: '%s'}}}]
---
type: Policy
name: production
rules:
%s`, check, s.path("put.sh"), s.dir, rules)
	return b.String()
}

func (s *commandSite) asked() map[string]int {
	s.t.Helper()
	data, err := os.ReadFile(s.path("effects"))
	if err != nil {
		s.t.Fatal(err)
	}
	asked := map[string]int{}
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		asked[words[0]+" "+words[1]]++
	}
	return asked
}

func (s *commandSite) runs() map[string]string {
	s.t.Helper()
	runs := map[string]string{}
	files, err := filepath.Glob(s.path("*.version"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			s.t.Fatal(err)
		}
		runs[strings.TrimSuffix(filepath.Base(file), ".version")] = string(data)
	}
	return runs
}

// hold makes the script of one change wait: how is "hang", before the change, or "late", after it.
func (s *commandSite) hold(how string, direction executors.Direction, target string) {
	s.t.Helper()
	s.write(how+"-"+string(direction)+"-"+target, "")
}

// held waits until that script waits.
func (s *commandSite) held(how string, direction executors.Direction, target string) {
	s.t.Helper()
	name := how + "-" + string(direction) + "-" + target
	eventually(s.t, "the script waits: "+name, func() bool {
		_, err := os.Stat(s.path(name + ".reached"))
		return err == nil
	}, func() string { return fmt.Sprint(s.asked()) })
}

// release lets that script go on.
func (s *commandSite) release(how string, direction executors.Direction, target string) {
	s.t.Helper()
	if err := os.Remove(s.path(how + "-" + string(direction) + "-" + target)); err != nil {
		s.t.Fatal(err)
	}
}

// killRunner kills the detached runner of a target's newest operation, and only that.
func (s *commandSite) killRunner(target string) {
	s.t.Helper()
	operations, err := filepath.Glob(filepath.Join(s.data, "operations", "*", "request.json"))
	if err != nil {
		s.t.Fatal(err)
	}
	killed := 0
	for _, file := range operations {
		var request struct {
			Target      string
			SubmittedAt time.Time
		}
		var started struct{ PID int }
		s.read(file, &request)
		folder := filepath.Dir(file)
		if _, err := os.Stat(filepath.Join(folder, "exit.json")); request.Target != target || err == nil {
			continue
		}
		s.read(filepath.Join(folder, "started"), &started)
		if err := syscall.Kill(started.PID, syscall.SIGKILL); err != nil {
			s.t.Fatalf("kill the runner of %s: %v", target, err)
		}
		killed++
	}
	if killed != 1 {
		s.t.Fatalf("killed %d runners of %s, want 1", killed, target)
	}
}

func (s *commandSite) read(file string, into any) {
	s.t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// wantSite compares what was asked, each change once, and what runs now.
func wantSite(t *testing.T, s site, asked []string, runs map[string]string) {
	t.Helper()
	want := map[string]int{}
	for _, change := range asked {
		want[change] = 1
	}
	if diff := cmp.Diff(want, s.asked()); diff != "" {
		t.Errorf("changes asked for (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(runs, s.runs()); diff != "" {
		t.Errorf("what runs (-want +got):\n%s", diff)
	}
}

// all gives each of the targets c01 to n the same version.
func all(n int, version string) map[string]string {
	runs := map[string]string{}
	for i := 1; i <= n; i++ {
		runs[fmt.Sprintf("c%02d", i)] = version
	}
	return runs
}

// changes are the changes of all of the targets, in each of the directions.
func changes(runs map[string]string, directions ...executors.Direction) []string {
	var out []string
	for name := range maps.Keys(runs) {
		for _, d := range directions {
			out = append(out, string(d)+" "+name)
		}
	}
	return out
}
