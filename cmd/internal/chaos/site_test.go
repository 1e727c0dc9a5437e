package chaos

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/sim/fleet"
)

// what an effect is.
const (
	asked    = "asked"    // a change arrived; not every site can tell
	started  = "started"  // it begins
	finished = "finished" // it ended
	refused  = "refused"  // nothing of it begins
)

// Why nothing begins, although all is as it must be.
const (
	dropped = "dropped"        // the request was lost
	fenced  = "refused fenced" // it came after its worker's death, and too late
)

// effect is one line of an effect log, whoever wrote it.
type effect struct {
	what      string
	operation string
	target    string
	version   string
	at        time.Time
	// failed and runs are of what has finished; why is of a refusal.
	failed bool
	runs   string
	why    string
}

// site is the outside world that a rollout changes. It outlives whatever is killed.
type site interface {
	// step is the deployment's step, as a document writes it.
	step() string
	// log is everything that was done to the site so far, in order.
	log() []effect
	// runs maps each target to what runs on it.
	runs() map[string]string
}

// newSite makes the site of a scenario.
func newSite(t *testing.T, s scenario) site {
	if s.executor == "command" {
		return newCommandSite(t, s)
	}
	return newSimSite(t, s)
}

// simSite is a simulated fleet in the test's process.
type simSite struct {
	t         *testing.T
	url, path string
}

func newSimSite(t *testing.T, s scenario) *simSite {
	t.Helper()
	world := fleet.Scenario{Seed: int64(s.seed), Version: before, Duration: fleet.Span{Min: s.shortest, Max: s.longest}} //nolint:gosec // any number will do
	for _, target := range s.targets {
		member := fleet.Target{Name: target.name}
		if target.there {
			member.Version = after
		}
		world.Members = append(world.Members, member)
		only := fleet.Match{Targets: []string{target.name}}
		if target.fails != 0 {
			f := fleet.Failure{Match: only, Version: after, Times: max(0, target.fails)}
			if target.leaves {
				f.Leaves = fleet.LeavesVersion
			}
			world.Failures = append(world.Failures, f)
		}
		if target.stuck {
			world.Failures = append(world.Failures, fleet.Failure{Match: only, Version: before})
		}
		for _, version := range []string{before, after} {
			switch {
			case target.slow > 0:
				world.DelayReplies = append(world.DelayReplies, fleet.Delay{Match: only, Version: version, Times: 1, Delay: target.slow})
			case target.lost:
				world.LoseReplies = append(world.LoseReplies, fleet.Loss{Match: only, Version: version, Times: 1})
			case target.dropped:
				world.LoseRequests = append(world.LoseRequests, fleet.Loss{Match: only, Version: version, Times: 1})
			}
		}
	}
	path := filepath.Join(t.TempDir(), "effects.ndjson")
	f, err := fleet.New(world, path)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(f.Handler())
	t.Cleanup(func() {
		server.Close()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return &simSite{t: t, url: server.URL, path: path}
}

func (s *simSite) step() string { return fmt.Sprintf("sim: {url: '%s', pollInterval: 50ms}", s.url) }

func (s *simSite) log() []effect {
	entries, err := fleet.ReadLog(s.path)
	if err != nil {
		s.t.Error(err)
	}
	var log []effect
	for _, e := range entries {
		one := effect{operation: e.Operation, target: e.Target, version: e.Version, at: e.Time}
		switch e.Kind {
		case fleet.KindRequest:
			one.what = asked
		case fleet.KindStarted:
			one.what = started
		case fleet.KindFinished:
			one.what, one.failed, one.runs = finished, e.Result != string(fleet.Succeeded), e.Runs
		case fleet.KindRefused, fleet.KindRepeated:
			one.what, one.why = refused, string(e.Kind)+" "+e.Result
		case fleet.KindDropped:
			one.what, one.why = refused, dropped
		case fleet.KindStart, fleet.KindRestarted, fleet.KindFenced, fleet.KindReleased:
			continue
		}
		log = append(log, one)
	}
	return log
}

func (s *simSite) runs() map[string]string {
	response, err := http.Get(s.url + "/targets")
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // it was read to its end
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

// commandSite is a folder with a file for each target that holds its version, changed by real scripts. They write the
// effect log themselves, a line at the beginning and one at the end.
type commandSite struct {
	t   *testing.T
	dir string
}

// changeScript is what both directions do. Whether a change fails, and what it then leaves, is in files that are there
// or not.
const changeScript = `cd "$SITE" || exit 99
now() { date +%s%N; }
printf 'started %s %s %s %s\n' "$SLUICE_OPERATION_ID" "$SLUICE_TARGET" "$SLUICE_VERSION" "$(now)" >>effects
sleep "$(cat "$SLUICE_TARGET.takes")"
failed=
for how in once always; do
	fault="fail-$SLUICE_VERSION-$SLUICE_TARGET-$how"
	if [ -e "$fault" ]; then
		failed=1
		[ "$how" = always ] || rm "$fault"
		break
	fi
done
if [ -z "$failed" ] || [ -e "leaves-$SLUICE_TARGET" ]; then
	printf '%s' "$SLUICE_VERSION" >"$SLUICE_TARGET.next" && mv "$SLUICE_TARGET.next" "$SLUICE_TARGET.version"
fi
printf 'finished %s %s %s %s %s %s\n' "$SLUICE_OPERATION_ID" "$SLUICE_TARGET" "$SLUICE_VERSION" "$(now)" "${failed:-0}" "$(cat "$SLUICE_TARGET.version")" >>effects
[ -z "$failed" ]
`

func newCommandSite(t *testing.T, s scenario) *commandSite {
	t.Helper()
	site := &commandSite{t: t, dir: t.TempDir()}
	site.write("change.sh", changeScript)
	site.write("check.sh", `cat "$SITE/$SLUICE_TARGET.version"`)
	site.write("effects", "")
	for i, target := range s.targets {
		version := before
		if target.there {
			version = after
		}
		site.write(target.name+".version", version)
		// Spread evenly over the range, in no order.
		takes := s.shortest + (s.longest-s.shortest)*time.Duration(i*7%len(s.targets))/time.Duration(len(s.targets))
		site.write(target.name+".takes", fmt.Sprintf("%.3f", takes.Seconds()))
		switch {
		case target.fails > 0:
			site.write("fail-"+after+"-"+target.name+"-once", "")
		case target.fails < 0:
			site.write("fail-"+after+"-"+target.name+"-always", "")
		case target.stuck:
			site.write("fail-"+before+"-"+target.name+"-always", "")
		}
		if target.leaves {
			site.write("leaves-"+target.name, "")
		}
	}
	return site
}

func (s *commandSite) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *commandSite) read(name string) string {
	data, err := os.ReadFile(filepath.Join(s.dir, name)) //nolint:gosec // a file of the test's own
	if err != nil {
		s.t.Error(err)
	}
	return string(data)
}

func (s *commandSite) step() string {
	change := fmt.Sprintf("[sh, '%s']", filepath.Join(s.dir, "change.sh"))
	return fmt.Sprintf("command: {check: [sh, '%s'], apply: %s, rollback: %s, env: {SITE: '%s'}}", filepath.Join(s.dir, "check.sh"), change, change, s.dir)
}

func (s *commandSite) log() []effect {
	var log []effect
	for line := range strings.Lines(s.read("effects")) {
		words := strings.Fields(line)
		if !strings.HasSuffix(line, "\n") || len(words) < 5 {
			break // being written
		}
		ns, err := strconv.ParseInt(words[4], 10, 64)
		if err != nil {
			s.t.Errorf("effect log: %q: %v", line, err)
		}
		one := effect{what: words[0], operation: words[1], target: words[2], version: words[3], at: time.Unix(0, ns)}
		if one.what == finished {
			if len(words) != 7 {
				s.t.Errorf("effect log: %q has not 7 words", line)
				continue
			}
			one.failed, one.runs = words[5] != "0", words[6]
		}
		log = append(log, one)
	}
	return log
}

func (s *commandSite) runs() map[string]string {
	runs := map[string]string{}
	files, err := filepath.Glob(filepath.Join(s.dir, "*.version"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, file := range files {
		runs[strings.TrimSuffix(filepath.Base(file), ".version")] = s.read(filepath.Base(file))
	}
	return runs
}

// direction is where a change to a version goes.
func direction(version string) executors.Direction {
	if version == before {
		return executors.Restore
	}
	return executors.Apply
}
