package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
)

func provider(t *testing.T, c metrics.Connection) *Provider {
	t.Helper()
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func measure(t *testing.T, p *Provider, c Config) (metrics.Sample, error) {
	t.Helper()
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return p.Measure(t.Context(), metrics.Query{Config: data, Now: time.Now()})
}

func TestAnAnswerIsReportedAsItIs(t *testing.T) {
	for _, c := range []struct {
		name, contentType, body string
		status                  int
		want                    metrics.Sample
	}{
		{"text", "text/plain", "ok\n", 200, metrics.Sample{Result: map[string]any{"status": 200.0, "body": "ok\n"}}},
		{"an error page", "text/html", "<html>", 503, metrics.Sample{Result: map[string]any{"status": 503.0, "body": "<html>"}}},
		{"empty", "", "", 204, metrics.Sample{Result: map[string]any{"status": 204.0, "body": ""}}},
		{"JSON", "application/json; charset=utf-8", `{"ready":true,"n":3,"of":[1]}`, 200, metrics.Sample{Result: map[string]any{
			"status": 200.0, "body": `{"ready":true,"n":3,"of":[1]}`, "json": map[string]any{"ready": true, "n": 3.0, "of": []any{1.0}}}}},
		{"JSON of a kind", "application/health+json", `"pass"`, 200, metrics.Sample{Result: map[string]any{"status": 200.0, "body": `"pass"`, "json": "pass"}}},
		{"JSON that says nothing", "text/plain", ` [1]`, 200, metrics.Sample{Result: map[string]any{"status": 200.0, "body": ` [1]`, "json": []any{1.0}}}},
		{"JSON that is none", "application/json", `{"ready":`, 200, metrics.Sample{Result: map[string]any{"status": 200.0, "body": `{"ready":`}}},
		{"two JSON values", "application/json", `{} {}`, 200, metrics.Sample{Result: map[string]any{"status": 200.0, "body": `{} {}`}}},
		{"a number in text", "text/plain", `42`, 200, metrics.Sample{Result: map[string]any{"status": 200.0, "body": `42`}}},
		{"not text", "application/octet-stream", "a\xff", 200, metrics.Sample{Result: map[string]any{"status": 200.0, "body": "a\uFFFD"}}},
		{"as long as may be", "text/plain", strings.Repeat("x", maxBody), 200,
			metrics.Sample{Result: map[string]any{"status": 200.0, "body": strings.Repeat("x", maxBody)}}},
		{"too long", "text/plain", strings.Repeat("x", maxBody+1), 200,
			metrics.Sample{Result: map[string]any{"status": 200.0}, Problem: "the body is longer than 256 KiB"}},
		{"a redirect to another host", "", "", 302, metrics.Sample{Result: map[string]any{"status": 302.0, "body": ""}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.contentType)
				if c.status == 302 {
					w.Header().Set("Location", "http://127.0.0.1:1/")
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			defer s.Close()
			got, err := measure(t, provider(t, metrics.Connection{}), Config{URL: s.URL})
			if err != nil {
				t.Fatal(err)
			}
			if d, ok := got.Result["durationSeconds"].(float64); !ok || d < 0 || d > timeout.Seconds() {
				t.Errorf("durationSeconds: %v", got.Result["durationSeconds"])
			}
			delete(got.Result, "durationSeconds")
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// seen answers with what it was asked.
func seen(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	user, password, _ := r.BasicAuth()
	_, _ = fmt.Fprintf(w, "%s %s %s auth=%q user=%q x=%q cache=%q", r.Method, r.URL, body, r.Header.Get("Authorization"), user+password,
		r.Header.Get("X"), r.Header.Get("Cache-Control"))
}

func TestRequests(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(seen))
	defer s.Close()
	main := metrics.Connection{Name: "main", URL: s.URL + "/base/", Token: "secret", Headers: map[string]string{"X": "theirs"}}
	withUser := metrics.Connection{Name: "main", URL: strings.Replace(s.URL, "http://", "http://u:p@", 1)}
	for _, c := range []struct {
		name       string
		connection metrics.Connection
		config     Config
		want       string
	}{
		{"no connection", metrics.Connection{}, Config{URL: s.URL + "/a%2Fb?c=d%26"}, `GET /a%2Fb?c=d%26  auth="" user="" x="" cache="no-cache"`},
		{"a POST", metrics.Connection{}, Config{URL: s.URL, Method: "POST", Headers: map[string]string{"x": "mine"}, Body: "hello"},
			`POST / hello auth="" user="" x="mine" cache="no-cache"`},
		{"a path", main, Config{URL: "/a%2Fb?c=d", Headers: map[string]string{"X": "mine"}},
			`GET /base/a%2Fb?c=d  auth="Bearer secret" user="" x="theirs" cache="no-cache"`},
		{"an address under the connection", main, Config{URL: s.URL + "/base/a"}, `GET /base/a  auth="Bearer secret" user="" x="theirs" cache="no-cache"`},
		{"the connection's own address", main, Config{URL: s.URL + "/base"}, `GET /base  auth="Bearer secret" user="" x="theirs" cache="no-cache"`},
		{"a connection with a user", withUser, Config{URL: "/a"}, `GET /a  auth="Basic dTpw" user="up" x="" cache="no-cache"`},
		{"an address under one with a user", withUser, Config{URL: s.URL + "/a"}, `GET /a  auth="Basic dTpw" user="up" x="" cache="no-cache"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := measure(t, provider(t, c.connection), c.config)
			if err != nil {
				t.Fatal(err)
			}
			if got.Result["body"] != c.want {
				t.Errorf("got  %s\nwant %s", got.Result["body"], c.want)
			}
		})
	}
	got, err := measure(t, provider(t, metrics.Connection{}), Config{URL: s.URL, Method: "HEAD"})
	if err != nil || got.Result["status"] != 200.0 || got.Result["body"] != "" {
		t.Errorf("HEAD: %v, %v", got, err)
	}
}

// TestCredentialsGoNowhereElse fails when a document can send a connection's token to an address of its own.
func TestCredentialsGoNowhereElse(t *testing.T) {
	p := provider(t, metrics.Connection{Name: "main", URL: "https://a.example/base", Token: "secret"})
	for address, want := range map[string]string{
		"https://b.example/base/x":   `http: "https://b.example/base/x" is outside the connection main, whose credentials go nowhere else`,
		"http://a.example/base/x":    `http: "http://a.example/base/x" is outside the connection main, whose credentials go nowhere else`,
		"https://a.example/other":    `http: "https://a.example/other" is outside the connection main, whose credentials go nowhere else`,
		"https://a.example/basement": `http: "https://a.example/basement" is outside the connection main, whose credentials go nowhere else`,
		"https://a.example:8443/base": `http: "https://a.example:8443/base" is outside the connection main, whose credentials ` +
			`go nowhere else`,
		"/../other":                          `http: "/../other" climbs with . or .. segments`,
		"/%2e%2e/other":                      `http: "/%2e%2e/other" climbs with . or .. segments`,
		"/a%2F..%2F..%2Fother":               `http: "/a%2F..%2F..%2Fother" climbs with . or .. segments`,
		"https://a.example/base/../admin":    `http: "https://a.example/base/../admin" climbs with . or .. segments`,
		"//b.example/x":                      `http: url: "//b.example/x" is neither an absolute http or https address nor a path that starts with /`,
		"https://user:pw@a.example/base":     `http: url: holds credentials; they belong into a connection`,
		"https://a.example@b.example/base/x": `http: url: holds credentials; they belong into a connection`,
	} {
		got, err := measure(t, p, Config{URL: address})
		if err == nil || err.Error() != want {
			t.Errorf("%s: got  %v, %v\nwant %s", address, got, err, want)
		}
	}
	if _, err := New(metrics.Connection{Name: "main", Token: "secret"}); err == nil ||
		err.Error() != "http: connection main: has credentials or headers and no url to send them to" {
		t.Errorf("a token for anybody: %v", err)
	}
	for _, address := range []string{"a.example", "ftp://a.example", "https://", "https://a.example?b=c"} {
		if _, err := New(metrics.Connection{Name: "main", URL: address}); err == nil ||
			err.Error() != "http: connection main: its url is not an http or https address without query" {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestRedirectsStayOnTheirHost(t *testing.T) {
	var s *httptest.Server
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/here":
			http.Redirect(w, r, "/there", http.StatusFound)
		case "/away":
			http.Redirect(w, r, strings.Replace(s.URL, "127.0.0.1", "localhost", 1)+"/there", http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		default:
			seen(w, r)
		}
	}))
	defer s.Close()
	p := provider(t, metrics.Connection{Name: "main", URL: s.URL, Token: "secret"})
	if got, err := measure(t, p, Config{URL: "/here"}); err != nil || got.Result["status"] != 200.0 {
		t.Errorf("same host: %v, %v", got, err)
	}
	if got, err := measure(t, p, Config{URL: "/away"}); err != nil || got.Result["status"] != 302.0 {
		t.Errorf("another host: %v, %v", got, err)
	}
	if got, err := measure(t, p, Config{URL: "/round"}); err == nil || err.Error() != "http: more than 10 redirects" {
		t.Errorf("round and round: %v, %v", got, err)
	}
}

func TestNoAnswerIsAnError(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stuck":
			<-release
		case "/cut":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		default:
			panic(http.ErrAbortHandler)
		}
	}))
	defer s.Close()
	defer close(release)
	for _, c := range []struct {
		name, url, want string
		connection      metrics.Connection
	}{
		{"refused", "http://" + address + "/?token=secret", "http: dial tcp " + address + ": connect: connection refused", metrics.Connection{}},
		{"stuck", s.URL + "/stuck", "http: context deadline exceeded", metrics.Connection{Timeout: 20 * time.Millisecond}},
		{"closed", s.URL + "/closed", "http: EOF", metrics.Connection{}},
		{"cut short", s.URL + "/cut", "http: read the body: unexpected EOF", metrics.Connection{}},
		{"a path without a connection", "/health", `http: "/health" is a path, which needs a connection`, metrics.Connection{}},
		{"a template", "{{.target.x}}", `http: "{{.target.x}}" still holds a template`, metrics.Connection{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := measure(t, provider(t, c.connection), Config{URL: c.url})
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got  %v, %v\nwant %s", got, err, c.want)
			}
		})
	}
}

func TestConfigurations(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{`{"url": "https://a.example/{{.target.name}}", "method": "POST", "headers": {"X": "y"}, "body": "z"}`, ""},
		{`{"url": "{{.target.config.server}}/health"}`, ""},
		{`{"url": "/health/{{.target.name}}"}`, ""},
		{`{}`, "url: is required"},
		{`{"url": "a.example"}`, `url: "a.example" is neither an absolute http or https address nor a path that starts with /`},
		{`{"url": "file:///etc/passwd"}`, `url: "file:///etc/passwd" is neither an absolute http or https address nor a path that starts with /`},
		{`{"url": "http://", "method": "DELETE", "body": "x", "headers": {"cookie": "a", "authorization": "b"}}`,
			"url: \"http://\" is not an address\nmethod: \"DELETE\" is not GET, HEAD or POST\nbody: needs method POST\n" +
				"headers.authorization: is a credential; it belongs into a connection\nheaders.cookie: is a credential; it belongs into a connection"},
		{`{"url": "http://a", "method": "get"}`, `method: "get" is not GET, HEAD or POST`},
		{`{"url": "http://a", "expectStatus": 200}`, `unknown field "expectStatus"; allowed are url, method, headers and body`},
		{`{"url": "http://a"} 1`, "more than one value"},
	} {
		err := Kind().Decode(json.RawMessage(c.config))
		var faults metrics.Faults
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &faults) || err.Error() != c.want) {
			t.Errorf("%s: got  %v\nwant %s", c.config, err, c.want)
		}
	}
}

func TestQuotedValuesStayOneSegment(t *testing.T) {
	for value, want := range map[string]string{
		"edge-1.a_b~": "edge-1.a_b~", "a/b": "a%2Fb", "a b+c": "a%20b%2Bc", "?a=b&c#d": "%3Fa%3Db%26c%23d", "ü%": "%C3%BC%25", "../..": "..%2F..",
	} {
		if got := Quote(value); got != want {
			t.Errorf("%q: got %s, want %s", value, got, want)
		}
	}
}
