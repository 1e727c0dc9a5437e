package embed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// childFolder is set in the environment of a copy of this test binary that runs a server on that folder until killed.
const childFolder = "SLUICE_EMBED_TEST_FOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childFolder); dir != "" {
		runChild(dir)
		return
	}
	os.Exit(m.Run())
}

const queue = "embed-test"

// greet waits for a name and returns a greeting.
func greet(ctx workflow.Context) (string, error) {
	var name string
	workflow.GetSignalChannel(ctx, "name").Receive(ctx, &name)
	return "hello " + name, nil
}

// runChild starts a server and a workflow, says so on stdout, and waits for its end.
func runChild(dir string) {
	s, err := Start(context.Background(), Options{DataDir: dir, FrontendAddr: ":0"})
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	c, err := client.Dial(client.Options{HostPort: s.HostPort()})
	if err == nil {
		_, err = c.ExecuteWorkflow(context.Background(), client.StartWorkflowOptions{ID: "survivor", TaskQueue: queue}, greet)
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	// Nothing refers to the server any more. The collector must not take the lock away with it.
	for range 5 {
		runtime.GC()
	}
	fmt.Println("ready")
	select {}
}

// start starts a server that the test stops.
func start(t *testing.T, o Options) *Server {
	t.Helper()
	if o.FrontendAddr == "" {
		o.FrontendAddr = ":0"
	}
	if o.Synchronous == "" {
		o.Synchronous = SynchronousNormal
	}
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func dial(t *testing.T, s *Server, namespace string) client.Client {
	t.Helper()
	c, err := client.Dial(client.Options{
		HostPort:  s.HostPort(),
		Namespace: namespace,
		Logger:    sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// answer runs a worker until the workflow has greeted.
func answer(t *testing.T, c client.Client, id string) {
	t.Helper()
	w := worker.New(c, queue, worker.Options{})
	w.RegisterWorkflow(greet)
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := c.SignalWorkflow(t.Context(), id, "", "name", "operator"); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := c.GetWorkflow(t.Context(), id, "").Get(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	if want := "hello operator"; got != want {
		t.Errorf("workflow result: got %q, want %q", got, want)
	}
}

// logRecorder keeps what a server logged at warning level and above.
type logRecorder struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *logRecorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *logRecorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

func TestWorkflowsSurviveAStopAndAreServedAgain(t *testing.T) {
	var log logRecorder
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	// A name that would be misread if it were pasted into a URI unescaped.
	dir := filepath.Join(t.TempDir(), "data 100%20?#")

	first := start(t, Options{DataDir: dir, Logger: logger, Synchronous: SynchronousFull})
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o700 {
		t.Errorf("mode of the data folder: got %04o, want 0700", got)
	}
	for _, name := range []string{first.DBPath(), first.DBPath() + "-wal", filepath.Join(dir, sidecarFile), filepath.Join(dir, lockFile)} {
		info, err := os.Stat(name)
		if err != nil {
			t.Error(err)
		} else if got := info.Mode().Perm(); got != 0o600 {
			t.Errorf("mode of %s: got %04o, want 0600", name, got)
		}
	}
	c := dial(t, first, "")
	if _, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "closed", TaskQueue: queue}, greet); err != nil {
		t.Fatal(err)
	}
	answer(t, c, "closed")
	if _, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "open", TaskQueue: queue}, greet); err != nil {
		t.Fatal(err)
	}

	// A second start on the folder is refused while the first runs, and says by whom it is held, even where it would
	// fail on a port of that server as well.
	for _, address := range []string{":0", first.HostPort()} {
		_, err = Start(t.Context(), Options{DataDir: dir, FrontendAddr: address})
		if !errors.Is(err, ErrInUse) {
			t.Fatalf("second start on the same folder at %s: got %v, want ErrInUse", address, err)
		}
		for _, want := range []string{dir, "process " + strconv.Itoa(os.Getpid())} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("second start at %s: %q does not name %q", address, err, want)
			}
		}
	}

	c.Close()
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Errorf("second Stop: %v", err)
	}

	second := start(t, Options{DataDir: dir, Logger: logger, Synchronous: SynchronousFull})
	c = dial(t, second, "")
	var got string
	if err := c.GetWorkflow(t.Context(), "closed", "").Get(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	if want := "hello operator"; got != want {
		t.Errorf("result of a workflow that closed before the stop: got %q, want %q", got, want)
	}
	answer(t, c, "open")
	c.Close()
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := log.String(); got != "" {
		t.Errorf("an uneventful life logged warnings or errors:\n%s", got)
	}
}

func TestWorkflowsSurviveKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childFolder+"="+dir)
	child.Stderr = os.Stderr
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("child: got %q (%v), want ready", line, err)
	}

	_, err = Start(t.Context(), Options{DataDir: dir, FrontendAddr: ":0"})
	if !errors.Is(err, ErrInUse) {
		t.Fatalf("start on the folder of a running process: got %v, want ErrInUse", err)
	}
	if want := "process " + strconv.Itoa(child.Process.Pid); !strings.Contains(err.Error(), want) {
		t.Errorf("%q does not name %q", err, want)
	}

	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	answer(t, dial(t, start(t, Options{DataDir: dir}), ""), "survivor")
}

// One server in memory answers for everything that does not need a server of its own.
func TestServer(t *testing.T) {
	s := start(t, Options{UIAddr: "127.0.0.1:0"})

	t.Run("namespace keeps histories for 90 days and has the search attributes", func(t *testing.T) {
		c := dial(t, s, "")
		if err := s.CreateNamespace(t.Context(), "alone"); err != nil {
			t.Fatal(err)
		}
		if err := s.CreateNamespace(t.Context(), "alone"); err != nil {
			t.Errorf("CreateNamespace is not idempotent: %v", err)
		}
		for _, namespace := range []string{DefaultNamespace, "alone"} {
			described, err := c.WorkflowService().DescribeNamespace(t.Context(), &workflowservice.DescribeNamespaceRequest{Namespace: namespace})
			if err != nil {
				t.Fatal(err)
			}
			if got := described.Config.WorkflowExecutionRetentionTtl.AsDuration(); got != 90*24*time.Hour {
				t.Errorf("retention of %s: got %s, want 90 days", namespace, got)
			}
			listed, err := c.OperatorService().ListSearchAttributes(t.Context(), &operatorservice.ListSearchAttributesRequest{Namespace: namespace})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range SearchAttributes() {
				if got := listed.CustomAttributes[name]; got != enumspb.INDEXED_VALUE_TYPE_KEYWORD {
					t.Errorf("search attribute %s of %s: got %s, want Keyword", name, namespace, got)
				}
			}
		}
	})

	t.Run("workflows in a new namespace can set search attributes at once", func(t *testing.T) {
		if err := s.CreateNamespace(t.Context(), "fresh"); err != nil {
			t.Fatal(err)
		}
		c := dial(t, s, "fresh")
		_, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
			ID: "tagged", TaskQueue: queue,
			TypedSearchAttributes: temporal.NewSearchAttributes(
				temporal.NewSearchAttributeKeyKeyword("SluiceTarget").ValueSet("gpu-01")),
		}, greet)
		if err != nil {
			t.Fatal(err)
		}
		answer(t, c, "tagged")
		found, err := c.CountWorkflow(t.Context(), &workflowservice.CountWorkflowExecutionsRequest{Query: `SluiceTarget = "gpu-01"`})
		if err != nil {
			t.Fatal(err)
		}
		if found.Count != 1 {
			t.Errorf("workflows with SluiceTarget = gpu-01: got %d, want 1", found.Count)
		}
	})

	t.Run("a cancelled activity without heartbeats hears of it at once", func(t *testing.T) {
		c := dial(t, s, "")
		started, cancelled := make(chan struct{}), make(chan struct{})
		w := worker.New(c, "cancel", worker.Options{})
		w.RegisterActivityWithOptions(func(ctx context.Context) error {
			close(started)
			<-ctx.Done()
			close(cancelled)
			return ctx.Err()
		}, activity.RegisterOptions{Name: "wait"})
		w.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
			ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Hour, WaitForCancellation: true})
			return workflow.ExecuteActivity(ctx, "wait").Get(ctx, nil)
		}, workflow.RegisterOptions{Name: "waiter"})
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "waiter", TaskQueue: "cancel"}, "waiter")
		if err != nil {
			t.Fatal(err)
		}
		<-started
		if err := c.CancelWorkflow(t.Context(), run.GetID(), ""); err != nil {
			t.Fatal(err)
		}
		// Without the push it would be never; the bound is only for a busy machine.
		select {
		case <-cancelled:
		case <-time.After(10 * time.Second):
			t.Error("the activity was not told within 10 s")
		}
	})

	t.Run("UI answers on the loopback only", func(t *testing.T) {
		for _, path := range []string{"/", "/api/v1/namespaces/default"} {
			if got := get(t, s.UIURL()+path, ""); got != http.StatusOK {
				t.Errorf("GET %s: got %d, want 200", path, got)
			}
		}
		if got := get(t, s.UIURL()+"/api/v1/namespaces/default", "evil.example"); got != http.StatusForbidden {
			t.Errorf("API call under a foreign host name: got %d, want 403", got)
		}
		// 127.0.0.2 is this machine as well, so it would answer if any address but 127.0.0.1 were bound.
		for _, addr := range []string{s.HostPort(), strings.TrimPrefix(s.UIURL(), "http://")} {
			_, port, _ := net.SplitHostPort(addr)
			other := net.JoinHostPort("127.0.0.2", port)
			if conn, err := net.DialTimeout("tcp", other, 2*time.Second); err == nil {
				_ = conn.Close()
				t.Errorf("%s answers", other)
			}
		}
	})

	t.Run("taken ports are named before anything starts", func(t *testing.T) {
		uiAddr := strings.TrimPrefix(s.UIURL(), "http://")
		for _, tt := range []struct {
			name    string
			options Options
			taken   string
		}{
			{"frontend", Options{FrontendAddr: s.HostPort()}, s.HostPort()},
			{"UI", Options{FrontendAddr: ":0", UIAddr: uiAddr}, uiAddr},
		} {
			tt.options.DataDir = filepath.Join(t.TempDir(), "data")
			_, err := Start(t.Context(), tt.options)
			if !errors.Is(err, ErrPortInUse) {
				t.Errorf("%s: got %v, want ErrPortInUse", tt.name, err)
				continue
			}
			_, port, _ := net.SplitHostPort(tt.taken)
			if !strings.Contains(err.Error(), "port "+port) || !strings.Contains(err.Error(), "choose another port") {
				t.Errorf("%s: %q does not name port %s and the way out", tt.name, err, port)
			}
			if _, err := os.Stat(tt.options.DataDir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: the data folder was created nevertheless", tt.name)
			}
		}
	})
}

// get returns the status of a GET under a host name; "" is the URL's own.
func get(t *testing.T, url, host string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

func TestSearchAttributesAreAddedToAnOlderDatabase(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	older := Options{DataDir: dir, SearchAttributes: []string{"SluiceSite", "OperatorsOwn"}, Synchronous: SynchronousNormal}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := openDatabase(t.Context(), older)
	if err != nil {
		t.Fatal(err)
	}
	if err := ensureNamespace(t.Context(), cfg, DefaultNamespace, older.SearchAttributes); err != nil {
		t.Fatal(err)
	}

	s := start(t, Options{DataDir: dir})
	listed, err := dial(t, s, "").OperatorService().ListSearchAttributes(t.Context(), &operatorservice.ListSearchAttributesRequest{Namespace: DefaultNamespace})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(SearchAttributes(), older.SearchAttributes) {
		if got := listed.CustomAttributes[name]; got != enumspb.INDEXED_VALUE_TYPE_KEYWORD {
			t.Errorf("search attribute %s: got %s, want Keyword", name, got)
		}
	}

	tooMany := slices.Concat(SearchAttributes(), []string{"A", "B", "C"})
	err = ensureNamespace(t.Context(), s.database, DefaultNamespace, tooMany)
	if err == nil || !strings.Contains(err.Error(), "room for ten") {
		t.Errorf("an eleventh attribute: got %v, want an error that says there is room for ten", err)
	}
}

func TestUnusableAddressesAreRefused(t *testing.T) {
	for _, tt := range []struct{ frontend, ui, want string }{
		{"0.0.0.0:7233", "", "only 127.0.0.1 is allowed"},
		{"localhost:7233", "", "want 127.0.0.1:7233"},
		{"[::1]:7233", "", "only 127.0.0.1 is allowed"},
		{"7233", "", "want 127.0.0.1:PORT"},
		{":http", "", `port "http" is not a number`},
		{":70000", "", "between 0 and 65535"},
		{":0", "192.0.2.1:8233", "only 127.0.0.1 is allowed"},
	} {
		_, err := Start(t.Context(), Options{FrontendAddr: tt.frontend, UIAddr: tt.ui})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("frontend %q, UI %q: got %v, want an error with %q", tt.frontend, tt.ui, err, tt.want)
		}
	}
	if _, err := Start(t.Context(), Options{Synchronous: "OFF"}); err == nil {
		t.Error("synchronous OFF was accepted")
	}
}

func TestUnusableDataFoldersAreRefused(t *testing.T) {
	write := func(t *testing.T, name, content string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	created := func(t *testing.T, dir string) {
		t.Helper()
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, _, err := openDatabase(t.Context(), Options{DataDir: dir}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, dir string)
		is      error
		want    string
	}{
		{"a file", func(t *testing.T, dir string) { write(t, dir, "") }, nil, "is a file"},
		{"database is a folder", func(t *testing.T, dir string) {
			if err := os.MkdirAll(filepath.Join(dir, databaseFile), 0o700); err != nil {
				t.Fatal(err)
			}
		}, nil, "open database"},
		{"not a database", func(t *testing.T, dir string) {
			created(t, dir)
			write(t, filepath.Join(dir, databaseFile), strings.Repeat("not a database", 100))
		}, nil, "open database"},
		{"somebody's folder", func(t *testing.T, dir string) {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "thesis.tex"), "")
		}, nil, "can be read by others"},
		{"another schema", func(t *testing.T, dir string) {
			created(t, dir)
			write(t, filepath.Join(dir, sidecarFile), `{"schema": "sha256:0000", "server": "1.99.0"}`)
		}, ErrSchema, "created by Temporal server 1.99.0"},
		{"no schema digest", func(t *testing.T, dir string) {
			created(t, dir)
			if err := os.Remove(filepath.Join(dir, sidecarFile)); err != nil {
				t.Fatal(err)
			}
		}, ErrSchema, "schema is not known"},
		{"damaged schema digest", func(t *testing.T, dir string) {
			created(t, dir)
			write(t, filepath.Join(dir, sidecarFile), `{`)
		}, ErrSchema, "cannot be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			tt.prepare(t, dir)
			s, err := Start(t.Context(), Options{DataDir: dir, FrontendAddr: ":0"})
			if err == nil {
				_ = s.Stop()
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %q, want an error with %q and %q", err, tt.want, dir)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %v", err, tt.is)
			}
		})
	}
	t.Run("not writable", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			dir = "/proc/sluice" // nothing else stops root
		}
		if s, err := Start(t.Context(), Options{DataDir: dir, FrontendAddr: ":0"}); err == nil {
			_ = s.Stop()
			t.Error("started")
		} else if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "choose") {
			t.Errorf("got %q, want an error that names %s and the way out", err, dir)
		}
	})
}

func TestAnEmptySharedFolderIsClosedToOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := prepareFolder(dir); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o700 {
		t.Errorf("mode: got %04o, want 0700", got)
	}
}

func TestACrashWhileTablesAreCreatedIsRepaired(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeSidecar(dir, sidecar{Schema: "sha256:0000", Server: "0"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, _, err := openDatabase(t.Context(), Options{DataDir: dir}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFatalLogLinesBecomeErrors(t *testing.T) {
	l := newLogger(slog.New(slog.DiscardHandler))
	err := catchFatal(func() error { l.Fatal("no listener"); return nil })
	if err == nil || err.Error() != "no listener" {
		t.Errorf("got %v, want the log line", err)
	}
}
