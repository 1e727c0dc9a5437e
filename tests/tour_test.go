package tests

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tourTimeout is far above what the tour takes; it ends one that hangs.
const tourTimeout = 5 * time.Minute

// step is one block of the tour with what the README shows of its output.
type step struct {
	script string
	// want are lines that must come in this order; others may stand between them.
	want []string
}

// TestTourWorksAsWritten walks the README's tour in one shell, in a copy of the tree, and wants the output that the
// README shows. If it fails, a newcomer's first five minutes fail.
func TestTourWorksAsWritten(t *testing.T) {
	if testing.Short() {
		t.Skip("builds both programs and runs rollouts")
	}
	dir := copyTree(t)
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	steps := tourSteps(t, string(readme), "tour")
	if len(steps) < 8 {
		t.Fatalf("the tour has %d steps; its section or its fences were not understood", len(steps))
	}
	walk(t, dir, steps)

	// Which folders were changed is the sites' own word: a line for the seed, one for each change.
	for site, want := range map[string][]string{
		"eu-1": {"seed nothing -> v1", "apply v1 -> v2", "apply v2 -> v3", "restore v3 -> v2"},
		"ap-1": {"seed nothing -> v1", "apply v1 -> v2", "apply v2 -> v3", "restore v3 -> v2"},
		"ap-2": {"seed nothing -> v1", "apply v1 -> v2", "apply v2 -> v3", "restore v3 -> v2"},
		"us-1": {"seed nothing -> v1", "apply v1 -> v2", "apply v2 -> v3", "restore v3 -> v2"},
		"eu-2": {"seed nothing -> v1", "apply v1 -> v2"},
		"us-2": {"seed nothing -> v1", "apply v1 -> v2"},
		"eu-3": {"seed nothing -> v1", "apply v1 -> v2"},
		"ap-3": {"seed nothing -> v1", "apply v1 -> v2"},
	} {
		data, err := os.ReadFile(filepath.Join(dir, ".data", "sites", site, "changes"))
		if err != nil {
			t.Error(err)
			continue
		}
		var got []string
		for line := range strings.Lines(string(data)) {
			_, change, _ := strings.Cut(strings.TrimSpace(line), " "+site+" ")
			got = append(got, change)
		}
		if !slices.Equal(got, want) {
			t.Errorf("changes of %s: got %q, want %q", site, got, want)
		}
	}
}

// ports are the numbers that the tour and its example use. The test puts free ones in their place, here and nowhere
// else, so that it runs beside whatever the machine runs.
var ports = regexp.MustCompile(`\b(7233|8233|8480|7420)\b`)

// copyTree copies the sources, without what git and builds have left there, and gives the tour free ports.
func copyTree(t *testing.T) string {
	t.Helper()
	free := map[string]string{}
	for _, port := range []string{"7233", "8233", "8480", "7420"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }() // held until all are known, so that they differ
		_, free[port], _ = net.SplitHostPort(l.Addr().String())
	}
	dir := t.TempDir()
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel("..", path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		switch {
		case entry.IsDir() && slices.Contains([]string{".git", "bin", ".data"}, name):
			return filepath.SkipDir
		case entry.IsDir():
			return os.MkdirAll(to, 0o755)
		case !entry.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if name == "README.md" || strings.HasPrefix(name, "deploy/examples/") {
			data = ports.ReplaceAllFunc(data, func(port []byte) []byte { return []byte(free[string(port)]) })
		}
		return os.WriteFile(to, data, info.Mode().Perm())
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// tourSteps reads the section whose heading has a word: each sh block is a step, and the text block after it is what it prints, with … for
// what is left out.
func tourSteps(t *testing.T, readme, section string) []step {
	t.Helper()
	var (
		steps  []step
		inTour bool
		fence  string // the language of the open block; empty: none is open
		lines  []string
	)
	for line := range strings.Lines(readme) {
		line = strings.TrimRight(line, "\n")
		switch {
		case fence == "" && strings.HasPrefix(line, "## "):
			inTour = strings.Contains(strings.ToLower(line), section)
		case !inTour:
		case fence == "" && strings.HasPrefix(line, "```"):
			if fence = strings.TrimPrefix(line, "```"); fence != "sh" && fence != "text" {
				t.Fatalf("the tour has a block of %q; write sh for what is typed and text for what is printed", fence)
			}
			lines = nil
		case fence != "" && line == "```":
			switch {
			case fence == "sh":
				steps = append(steps, step{script: strings.Join(lines, "\n")})
			case len(steps) == 0:
				t.Fatal("the tour shows output before anything was typed")
			default:
				last := &steps[len(steps)-1]
				last.want = append(last.want, lines...)
			}
			fence = ""
		case fence != "":
			lines = append(lines, line)
		}
	}
	return steps
}

// walk feeds the steps to one shell, checks each as it ends, and leaves no process behind.
func walk(t *testing.T, dir string, steps []step) {
	t.Helper()
	var script strings.Builder
	script.WriteString("set -e\n")
	for i, s := range steps {
		fmt.Fprintf(&script, "echo '@@ begin %d'\n%s\necho '@@ end %d'\n", i, s.script, i)
	}
	file := filepath.Join(dir, "tour.sh")
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), tourTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "tour.sh")
	cmd.Dir, cmd.Env = dir, tourEnviron()
	// A group of its own: what the tour leaves running is found by it and by nothing broader.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = read.Close() }()
	cmd.Stdout, cmd.Stderr = write, write
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		t.Fatal(err)
	}
	group := cmd.Process.Pid
	end := func() { _ = syscall.Kill(-group, syscall.SIGKILL) }
	cmd.Cancel = func() error { end(); return nil }
	defer end()

	done := follow(t, read, steps)
	if done < len(steps) {
		end()
	}
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		t.Fatalf("the tour did not end within %s; it got to step %d of %d", tourTimeout, done+1, len(steps))
	case done < len(steps):
		for _, log := range []string{"up.log", "server.log"} {
			if data, err := os.ReadFile(filepath.Join(dir, ".data", log)); err == nil {
				t.Logf("%s:\n%s", log, data)
			}
		}
		t.FailNow()
	case err != nil:
		t.Fatalf("the tour's shell: %v", err)
	}
	if err := syscall.Kill(-group, 0); !errors.Is(err, syscall.ESRCH) {
		t.Error("the tour's last step leaves processes running")
	}
}

// follow reads what the shell prints and returns how many steps ended as they should. The first one that does not is
// reported, and the rest is left.
func follow(t *testing.T, output io.Reader, steps []step) (done int) {
	t.Helper()
	var lines []string
	began := time.Now()
	scanner := bufio.NewScanner(output)
	for scanner.Scan() {
		line := scanner.Text()
		switch line {
		case fmt.Sprintf("@@ begin %d", done):
			lines, began = nil, time.Now()
		case fmt.Sprintf("@@ end %d", done):
			t.Logf("step %d, %s:\n%s\n\n%s", done+1, time.Since(began).Round(100*time.Millisecond), steps[done].script, strings.Join(lines, "\n"))
			if missing := firstMissing(steps[done].want, lines); missing != "" {
				t.Errorf("step %d does not print, in its place:\n%s", done+1, missing)
				return done
			}
			done++
		default:
			lines = append(lines, line)
		}
	}
	if done < len(steps) {
		t.Errorf("step %d failed:\n%s\n\n%s", done+1, steps[done].script, strings.Join(lines, "\n"))
	}
	return done
}

// firstMissing returns the first wanted line that does not come after those before it.
func firstMissing(want, got []string) string {
	next := 0
	for _, line := range want {
		plain := withoutChance(line)
		if plain == "" || plain == "…" {
			continue
		}
		at := slices.IndexFunc(got[next:], func(g string) bool { return withoutChance(g) == plain })
		if at < 0 {
			return line
		}
		next += at + 1
	}
	return ""
}

// chance is what differs from one run to the next.
var chance = []struct {
	what *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`sha256:[0-9a-f]{64}`), "DIGEST"},
	{regexp.MustCompile(`\b[0-9A-HJKMNP-TV-Z]{26}\b`), "ULID"},
	{regexp.MustCompile(`(\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(Z| UTC)?`), "TIME"},
	{regexp.MustCompile(`\((in )?[0-9hms]+( ago)?\)`), "(NEAR)"},
	{regexp.MustCompile(`after [0-9hms]+$`), "after A WHILE"},
	{regexp.MustCompile(`"durationSeconds":[0-9.e-]+`), `"durationSeconds":0`},
	{regexp.MustCompile(`\s+`), " "},
}

// withoutChance returns a line without what differs from one run to the next.
func withoutChance(line string) string {
	for _, c := range chance {
		line = c.what.ReplaceAllString(line, c.as)
	}
	return strings.TrimSpace(line)
}

// tourEnviron is the machine's environment without what would make the tour another one: other Temporals, other names,
// and what a make above has told its commands.
func tourEnviron() []string {
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return strings.HasPrefix(name, "TEMPORAL_") || strings.HasPrefix(name, "SLUICE_") ||
			slices.Contains([]string{"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CGO_ENABLED", "ENV", "BASH_ENV"}, name)
	})
	return append(env, "TZ=UTC", "TERM=dumb")
}
