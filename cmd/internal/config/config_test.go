package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// types are those of the tests; the real ones come from the assembly.
var types = []Type{{Name: "datadog", Keys: true, Example: "https://api.datadoghq.com or https://api.datadoghq.eu"}, {Name: "http"}, {Name: "prometheus", Example: "http://prometheus:9090"}}

// env is a fixed environment.
func env(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

func TestLoadReadsEveryField(t *testing.T) {
	got, err := Load("testdata/full.yaml", types, env(map[string]string{"PROM_TOKEN": " s3cret\n", "DD_API_KEY": "k3y"}))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Data: filepath.Join("testdata", "state"),
		Connections: []Connection{
			{Name: "main", Type: "prometheus", URL: "https://prometheus.example:9090/base", Token: "s3cret", Timeout: 5 * time.Second,
				Headers: map[string]Secret{"X-Scope-Orgid": "tenant"}},
			{Name: "probe", Type: "http", URL: "http://probe.example", Token: "from-file"},
			{Name: "dd", Type: "datadog", URL: "https://api.datadoghq.eu", APIKey: "k3y", AppKey: "from-file"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func TestLoadReportsEveryFaultByFieldPath(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no bad files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := Load(file, types, env(nil))
			var faults Faults
			if !errors.As(err, &faults) {
				t.Fatalf("got %v, want faults", err)
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), faults.Error()+"\n"); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoSecretPrintsItself(t *testing.T) {
	c := Connection{Name: "main", Token: "s3cret", APIKey: "s3cret", AppKey: "s3cret", Headers: map[string]Secret{"Authorization": "s3cret"}}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("opened", "connection", c, "token", c.Token)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("opened", "connection", c, "token", c.Token)
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%s %v %+v %#v %q %x %d %s %#v", c.Token, c, c, c, c.Token, c.Token, c.Token, asJSON, c.Token) + log.String()
	for _, leak := range []string{"s3cret", fmt.Sprintf("%x", "s3cret")} {
		if strings.Contains(text, leak) {
			t.Errorf("%q leaks in %s", leak, text)
		}
	}
	if !strings.Contains(text, redacted) {
		t.Errorf("nothing says that there is a secret: %s", text)
	}
	if c.Token.Reveal() != "s3cret" {
		t.Error("Reveal lost the secret")
	}
}

func TestDataDirOrder(t *testing.T) {
	for _, test := range []struct {
		name, configured string
		env              map[string]string
		want             string
	}{
		{"the file wins", "/srv/a", map[string]string{"SLUICE_DATA": "/srv/b"}, "/srv/a"},
		{"then SLUICE_DATA", "", map[string]string{"SLUICE_DATA": "/srv/b", "XDG_STATE_HOME": "/srv/c"}, "/srv/b"},
		{"then the state folder", "", map[string]string{"XDG_STATE_HOME": "/srv/c", "HOME": "/home/x"}, "/srv/c/sluice"},
		{"a relative state folder is ignored", "", map[string]string{"XDG_STATE_HOME": "c", "HOME": "/home/x"}, "/home/x/.local/state/sluice"},
	} {
		got, err := DataDir(test.configured, env(test.env))
		if err != nil || got != test.want {
			t.Errorf("%s: got %q and %v, want %q", test.name, got, err, test.want)
		}
	}
}
