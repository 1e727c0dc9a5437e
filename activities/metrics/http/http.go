// Package http measures by asking an HTTP endpoint: a health page, a status document, a probe.
//
// It reports the status and the body that it got. It must not judge them, follow a server to another host, or send a
// connection's credentials anywhere but to that connection.
package http

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
)

// Config is the metric's configuration.
type Config struct {
	// URL is an absolute http or https address, or with a connection a path under the connection's; required.
	URL string `json:"url"`
	// Method is GET, HEAD or POST; empty means GET.
	Method string `json:"method,omitempty"`
	// Headers are sent with the request. Credentials belong into a connection, so Authorization and Cookie are refused.
	Headers map[string]string `json:"headers,omitempty"`
	// Body is sent with a POST.
	Body string `json:"body,omitempty"`
}

const (
	// timeout bounds one measurement where the connection does not.
	timeout = 10 * time.Second
	// maxBody bounds the body that is read: measurements are kept, and nothing kept is above 256 KiB.
	maxBody = 256 << 10
	// maxRedirects is what browsers and net/http allow.
	maxRedirects = 10
)

// Kind is the entry in the list of providers.
func Kind() metrics.Kind {
	return metrics.Kind{
		Name:    "http",
		Example: "https://health.example.com",
		Decode: func(config json.RawMessage) error {
			_, err := decode(config)
			return err
		},
		Result: []string{"status", "body", "json", "durationSeconds"},
		Quote:  Quote,
		New:    func(c metrics.Connection) (metrics.Provider, error) { return New(c) },
	}
}

// decode checks a configuration, rendered or not: an address that starts with a template may be anything yet.
func decode(config json.RawMessage) (Config, error) {
	var c Config
	decoder := json.NewDecoder(bytes.NewReader(config))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		message := strings.TrimPrefix(err.Error(), "json: ")
		return Config{}, metrics.Faults{{Message: message + "; allowed are url, method, headers and body"}}
	}
	if _, err := decoder.Token(); err != io.EOF {
		return Config{}, metrics.Faults{{Message: "more than one value"}}
	}
	var faults metrics.Faults
	fault := func(path, format string, args ...any) {
		faults = append(faults, metrics.Fault{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case c.URL == "":
		fault("url", "is required")
	case strings.HasPrefix(c.URL, "{{"), isPath(c.URL):
	case !strings.HasPrefix(c.URL, "http://") && !strings.HasPrefix(c.URL, "https://"):
		fault("url", "%q is neither an absolute http or https address nor a path that starts with /", c.URL)
	case !strings.Contains(c.URL, "{{"):
		if u, err := url.Parse(c.URL); err != nil || u.Host == "" {
			fault("url", "%q is not an address", c.URL)
		} else if u.User != nil {
			fault("url", "holds credentials; they belong into a connection")
		}
	}
	switch c.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodPost:
	default:
		fault("method", "%q is not GET, HEAD or POST", c.Method)
	}
	if c.Body != "" && c.Method != http.MethodPost {
		fault("body", "needs method POST")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		switch http.CanonicalHeaderKey(name) {
		case "Authorization", "Cookie", "Proxy-Authorization":
			fault("headers."+name, "is a credential; it belongs into a connection")
		}
	}
	if len(faults) > 0 {
		return Config{}, faults
	}
	return c, nil
}

func isPath(address string) bool {
	return strings.HasPrefix(address, "/") && !strings.HasPrefix(address, "//")
}

// Quote makes a value safe as one segment of a path, in a query string and in a form: everything but letters, digits,
// "-", "_", "." and "~" is percent-encoded.
func Quote(value string) string {
	return strings.ReplaceAll(url.QueryEscape(value), "+", "%20")
}

// Provider measures, over one connection or over none.
type Provider struct {
	name    string
	base    *url.URL // nil without a connection
	token   string
	headers map[string]string
	client  *http.Client
}

var _ metrics.Provider = (*Provider)(nil)

// New returns a provider; for addresses in documents the connection may be zero.
func New(c metrics.Connection) (*Provider, error) {
	if c.Timeout == 0 {
		c.Timeout = timeout
	}
	p := &Provider{name: c.Name, token: c.Token, headers: c.Headers, client: &http.Client{
		Timeout: c.Timeout,
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if len(via) >= maxRedirects {
				return fmt.Errorf("more than %d redirects", maxRedirects)
			}
			if next.URL.Scheme != via[0].URL.Scheme || next.URL.Host != via[0].URL.Host {
				return http.ErrUseLastResponse // the measurement shows the redirect as it is
			}
			return nil
		},
	}}
	if c.URL == "" {
		if c.Token != "" || len(c.Headers) > 0 {
			return nil, fmt.Errorf("http: connection %s: has credentials or headers and no url to send them to", c.Name)
		}
		return p, nil
	}
	base, err := url.Parse(c.URL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.RawQuery != "" || base.Fragment != "" {
		return nil, fmt.Errorf("http: connection %s: its url is not an http or https address without query", c.Name)
	}
	p.base = base
	return p, nil
}

// Measure asks once. Result is {"status": number, "body": text, "durationSeconds": number} and "json" where the body is
// JSON. Any status is a measurement; no answer is an error. A body above 256 KiB is a Problem, and is left out.
func (p *Provider) Measure(ctx context.Context, q metrics.Query) (metrics.Sample, error) {
	sample, err := p.measure(ctx, q)
	if err != nil {
		var e *url.Error
		if errors.As(err, &e) { // names the address, which may hold credentials
			err = e.Err
		}
		return metrics.Sample{}, fmt.Errorf("http: %w", err)
	}
	return sample, nil
}

func (p *Provider) measure(ctx context.Context, q metrics.Query) (metrics.Sample, error) {
	c, err := decode(q.Config)
	if err != nil {
		return metrics.Sample{}, err
	}
	address, err := p.resolve(c.URL)
	if err != nil {
		return metrics.Sample{}, err
	}
	if c.Method == "" {
		c.Method = http.MethodGet
	}
	request, err := http.NewRequestWithContext(ctx, c.Method, address, strings.NewReader(c.Body))
	if err != nil {
		return metrics.Sample{}, err
	}
	// What a cache kept may be older than the change.
	request.Header.Set("Cache-Control", "no-cache")
	for name, value := range c.Headers {
		request.Header.Set(name, value)
	}
	for name, value := range p.headers {
		request.Header.Set(name, value)
	}
	if p.token != "" {
		request.Header.Set("Authorization", "Bearer "+p.token)
	}
	began := time.Now()
	reply, err := p.client.Do(request)
	if err != nil {
		return metrics.Sample{}, err
	}
	defer func() { _ = reply.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(reply.Body, maxBody+1))
	if err != nil {
		return metrics.Sample{}, fmt.Errorf("read the body: %w", err)
	}
	result := map[string]any{"status": float64(reply.StatusCode), "durationSeconds": time.Since(began).Seconds()}
	if len(data) > maxBody {
		return metrics.Sample{Result: result, Problem: fmt.Sprintf("the body is longer than %d KiB", maxBody>>10)}, nil
	}
	result["body"] = strings.ToValidUTF8(string(data), "\uFFFD")
	if isJSON(reply.Header.Get("Content-Type"), data) {
		var value any
		if json.Unmarshal(data, &value) == nil {
			result["json"] = value
		}
	}
	return metrics.Sample{Result: result}, nil
}

// resolve returns the address to ask. With a connection it never leaves the connection's host and path.
func (p *Provider) resolve(address string) (string, error) {
	if p.base == nil {
		if isPath(address) {
			return "", fmt.Errorf("%q is a path, which needs a connection", address)
		}
		if strings.Contains(address, "{{") {
			return "", fmt.Errorf("%q still holds a template", address)
		}
		return address, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(strings.Split(u.Path, "/"), func(s string) bool { return s == "." || s == ".." }) {
		return "", fmt.Errorf("%q climbs with . or .. segments", address)
	}
	prefix := strings.TrimRight(p.base.EscapedPath(), "/")
	if isPath(address) {
		return p.base.Scheme + "://" + userinfo(p.base) + p.base.Host + prefix + address, nil
	}
	if u.Scheme != p.base.Scheme || u.Host != p.base.Host || u.EscapedPath() != prefix && !strings.HasPrefix(u.EscapedPath(), prefix+"/") {
		return "", fmt.Errorf("%q is outside the connection %s, whose credentials go nowhere else", address, p.name)
	}
	u.User = p.base.User
	return u.String(), nil
}

// userinfo is what stands before the host.
func userinfo(u *url.URL) string {
	if u.User == nil {
		return ""
	}
	return u.User.String() + "@"
}

// isJSON reports whether the body calls itself JSON, or looks like an object or a list.
func isJSON(contentType string, data []byte) bool {
	media, _, _ := mime.ParseMediaType(contentType)
	if media == "application/json" || strings.HasSuffix(media, "+json") {
		return true
	}
	text := bytes.TrimLeft(data, " \t\r\n")
	return len(text) > 0 && (text[0] == '{' || text[0] == '[')
}
