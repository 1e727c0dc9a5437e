package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

var update = flag.Bool("update", false, "write the golden files anew")

// testLoader knows two executors and three providers that check their configuration as the real ones do: strictly.
func testLoader() *Loader {
	strict := func(config json.RawMessage, allowed ...string) executors.Faults {
		var fields map[string]any
		if err := json.Unmarshal(config, &fields); err != nil {
			return executors.Faults{{Message: "must be a mapping"}}
		}
		var faults executors.Faults
		for name := range fields {
			if !slices.Contains(allowed, name) {
				faults = append(faults, executors.Fault{Path: name, Message: "unknown field; allowed are: " + strings.Join(allowed, ", ")})
			}
		}
		slices.SortFunc(faults, func(a, b executors.Fault) int { return strings.Compare(a.Path, b.Path) })
		return faults
	}
	command := executors.Kind{Name: "command", Decode: func(config json.RawMessage) (executors.Traits, error) {
		faults := strict(config, "check", "apply", "rollback", "timeout", "exitCodes", "env")
		var c struct {
			Check, Apply []string
			Timeout      string
			ExitCodes    map[string]string
		}
		if err := json.Unmarshal(config, &c); err != nil {
			return executors.Traits{}, errors.New("check and apply must be lists of texts")
		}
		if len(c.Apply) == 0 {
			faults = append(faults, executors.Fault{Path: "apply", Message: "is required: the program and its arguments"})
		} else if c.Apply[0] == "" {
			faults = append(faults, executors.Fault{Path: "apply[0]", Message: "must name a program"})
		}
		if what, ok := c.ExitCodes["75"]; ok && what != "blocked" {
			faults = append(faults, executors.Fault{Path: "exitCodes.75", Message: fmt.Sprintf("%q is not an outcome; allowed is blocked", what)})
		}
		if len(faults) > 0 {
			return executors.Traits{}, faults
		}
		if len(c.Check) == 0 {
			return executors.Traits{Reason: "no check: the running version cannot be read"}, nil
		}
		longest, _ := time.ParseDuration(c.Timeout)
		return executors.Traits{Observes: true, Restores: true, Longest: longest}, nil
	}}
	sim := executors.Kind{Name: "sim", Decode: func(config json.RawMessage) (executors.Traits, error) {
		if faults := strict(config, "url"); len(faults) > 0 {
			return executors.Traits{}, faults
		}
		return executors.Traits{Observes: true, Restores: true, Uninstalls: true}, nil
	}}
	provider := func(name string, fields ...string) ProviderKind {
		return ProviderKind{Name: name, Decode: func(config json.RawMessage) error {
			faults := strict(config, fields...)
			var c map[string]any
			if json.Unmarshal(config, &c) == nil && c[fields[0]] == nil {
				faults = append(faults, executors.Fault{Path: fields[0], Message: "is required"})
			}
			if len(faults) > 0 {
				return faults
			}
			return nil
		}}
	}
	return New(Registry{
		Executors: []executors.Kind{command, sim},
		Providers: []ProviderKind{provider("prometheus", "query"), provider("http", "url", "jsonPath"), provider("datadog", "query")},
	})
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// Fails if a fault is lost, moves, or stops saying what is allowed. Each *.bad.yml has its exact messages beside it.
func TestBadDocuments(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.*")
	if err != nil || len(files) == 0 {
		t.Fatal("no bad documents", err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, ".txt") {
			continue
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			bundle, err := testLoader().Files([]File{{Name: filepath.Base(name), Data: data}})
			var faults policy.Faults
			if !errors.As(err, &faults) {
				t.Fatalf("got %v, not faults", err)
			}
			if diff := cmp.Diff(policy.Bundle{}, bundle); diff != "" {
				t.Errorf("documents at fault gave a bundle:\n%s", diff)
			}
			golden(t, strings.TrimSuffix(name, filepath.Ext(name))+".txt", []byte(faults.Error()+"\n"))
		})
	}
}

// Fails if a document that people may write is refused, or read as something else.
func TestGoodDocuments(t *testing.T) {
	files, err := filepath.Glob("testdata/*.good.*")
	if err != nil || len(files) == 0 {
		t.Fatal("no good documents", err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, ".golden") {
			continue
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			bundle, err := testLoader().Files([]File{{Name: filepath.Base(name), Data: data}})
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(bundle, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".golden", append(got, '\n'))
			// Windows writes the same documents with other line ends.
			again, err := testLoader().Files([]File{{Name: filepath.Base(name), Data: bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n"))}})
			if diff := cmp.Diff(bundle, again); err != nil || diff != "" {
				t.Errorf("with CRLF: %v\n%s", err, diff)
			}
		})
	}
}

func faultsOf(t *testing.T, files ...File) string {
	t.Helper()
	_, err := testLoader().Files(files)
	if err == nil {
		return ""
	}
	return err.Error()
}

// Fails if faults in several files come in another order than the documents, or a name is compared within one file only.
func TestFaultsOfSeveralFiles(t *testing.T) {
	got := faultsOf(t,
		File{"b.yml", []byte("type: Environment\nname: Prod\nselector: \"true\"\n---\ntype: Deployment\nname: web\nenvironments: [Prd]\nsteps: {apply: [{name: x, sim: {}}]}\n")},
		File{"a.yml", []byte("type: Environment\nname: Prod\nselector: nope\n")},
	)
	want := `b.yml:7:16: Deployment "web" environments[0]: no Environment of the name "Prd"; did you mean "Prod"?
a.yml:2:7: Environment "Prod" name: there are two of this name; the first is at b.yml:2:7
a.yml:3:11: Environment "Prod" selector: not a CEL expression for this place: column 1: unknown name 'nope'; known here: target, resource, environment, deployment, version`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Fails if nothing at all, or something enormous or endless, is read as documents.
func TestBounds(t *testing.T) {
	laughs := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), i-1)
	}
	big := []byte("# " + strings.Repeat("x", 4<<20))
	for name, c := range map[string]struct {
		files []File
		want  string
	}{
		"nothing":          {nil, "no documents found; each begins with `type:` and `name:`"},
		"only remarks":     {[]File{{"a.yml", []byte("# nothing\n---\n---\nnull\n")}}, "no documents found; each begins with `type:` and `name:`"},
		"huge":             {[]File{{"a.yml", big}}, "a.yml: the file has 4194306 bytes; at most 4194304 (4 MiB) are allowed"},
		"many":             {slices.Repeat([]File{{"a.yml", big[:4<<20]}}, 5), "a.yml: all files up to this one have 20971520 bytes; at most 16777216 (16 MiB) are allowed"},
		"billion laughs":   {[]File{{"a.yml", []byte("type: Resource\nname: a\nmetadata:\n  " + strings.ReplaceAll(laughs, "\n", "\n  "))}}, "more than 1000000 values with aliases written out"},
		"alias of itself":  {[]File{{"a.yml", []byte("type: Resource\nname: a\nmetadata: &m\n  x: *m\n")}}, "a.yml:4:6: the alias *m holds itself"},
		"deep lists":       {[]File{{"a.yml", []byte(strings.Repeat("[", 1<<20))}}, "a.yml:1:1: not YAML: exceeded max depth of 10000"},
		"deep but allowed": {[]File{{"a.yml", []byte("type: Resource\nname: a\nmetadata: {x: " + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}\n")}}, "nested more than 100 deep"},
		"deep dashes":      {[]File{{"a.yml", []byte(strings.Repeat("- ", 1<<20))}}, "not YAML: exceeded max depth"},
		"many keys":        {[]File{{"a.yml", manyKeys(300_000)}}, "a.yml:1:1: type: is required: one of Resource, Environment, Deployment, Policy, Check"},
		"many documents":   {[]File{{"a.yml", []byte(strings.Repeat("--- a\n", 100_000))}}, "a.yml:1:5: the text \"a\" is not a document"},
		"many faults":      {[]File{{"a.yml", []byte(strings.Repeat("--- a\n", 2_000))}}, "is not a document; a document is a mapping that begins with `type:` and `name:`\n1000 more faults are not listed; mend these first"},
	} {
		start := time.Now()
		got := faultsOf(t, c.files...)
		if !strings.Contains(got, c.want) {
			t.Errorf("%s:\n got %.300s\nwant %s", name, got, c.want)
		}
		// What is quadratic takes hours here; the bound leaves room for a busy machine and the race detector.
		if spent := time.Since(start); spent > time.Minute {
			t.Errorf("%s took %v", name, spent)
		}
	}
}

func manyKeys(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	return b.Bytes()
}

// Fails if a file of the folder is left out, or one is read that should not be.
func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"b.yaml": "b", "a.yml": "a", "c.json": "c", "d.txt": "d", ".e.yml": "e", "sub/f.yml": "f", ".git/g.yml": "g",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"link.yml": "a.yml", "loop.yml": "."} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Skip("no symbolic links here:", err)
		}
	}
	files, err := ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, f := range files {
		rel, _ := filepath.Rel(dir, f.Name)
		got += rel + "=" + string(f.Data) + " "
	}
	if want := "a.yml=a b.yaml=b c.json=c link.yml=a sub/f.yml=f "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if files, err := ReadDir(filepath.Join(dir, "d.txt")); err != nil || len(files) != 1 || string(files[0].Data) != "d" {
		t.Errorf("a file that is named is read whatever its name: %v, %v", files, err)
	}
	empty := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(empty, "there")); err != nil {
		t.Fatal(err)
	}
	if files, err := ReadDir(filepath.Join(empty, "there")); err != nil || len(files) != 5 || !strings.HasSuffix(files[0].Name, "/there/a.yml") {
		t.Errorf("a folder that is named by a link: %v, %v", files, err)
	}
	if _, err := ReadDir(empty); err == nil || !strings.Contains(err.Error(), "the folder holds no *.yaml, *.yml or *.json file") {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := ReadDir(filepath.Join(empty, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent folder: %v", err)
	}
	if err := os.Symlink("absent.txt", filepath.Join(empty, "dead.yml")); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadDir(empty); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dead link must not be skipped: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "big.yml"), make([]byte, maxFileBytes+1), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadDir(dir); err == nil || !strings.Contains(err.Error(), "at most 4194304 (4 MiB) are allowed") {
		t.Errorf("a huge file: %v", err)
	}
}

// Fails if a misspelt name is no longer recognised, or an unrelated one is suggested.
func TestSuggest(t *testing.T) {
	known := []string{"maxFailures", "maxUnreachable", "select", "soak", "name", "limit"}
	for name, want := range map[string]string{
		"maxFailure": "maxFailures", "max_failures": "maxFailures", "MAXFAILURES": "maxFailures", "selcet": "select", "selector": "select",
		"soka": "soak", "nam": "name", "size": "", "x": "", "wibble": "", strings.Repeat("n", 50): "",
	} {
		if got := suggest(name, known); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func FuzzFiles(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.*.yml")
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, seed := range []string{"- - - -", "? ? a", "a: &a [*a]", "<<: *a", "!!set {a}", "%YAML 1.2\n---\n", "\xff\xfe", "a: !!int x", "a: 1e999", "---\n...\n---", "{{.a}}", "a: |\n\tb"} {
		f.Add([]byte(seed))
	}
	loader := testLoader()
	f.Fuzz(func(t *testing.T, data []byte) {
		timer := time.AfterFunc(20*time.Second, func() { panic(fmt.Sprintf("hangs: %q", data)) })
		defer timer.Stop()
		bundle, err := loader.Files([]File{{Name: "fuzz.yml", Data: data}})
		if err != nil {
			var faults policy.Faults
			if !errors.As(err, &faults) || len(faults) == 0 {
				t.Fatalf("got %v, which is no list of faults", err)
			}
			for _, fault := range faults {
				if fault.Message == "" || strings.Contains(fault.String(), "\n") {
					t.Fatalf("the fault %q is not one line", fault.String())
				}
			}
			return
		}
		if _, err := json.Marshal(bundle); err != nil {
			t.Fatalf("a bundle that cannot be stored: %v", err)
		}
	})
}
