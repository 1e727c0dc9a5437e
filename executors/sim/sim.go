// Package sim changes targets of the simulated fleet, over its HTTP protocol: for demos, and for tests that kill things.
//
// It keeps every promise of the port with no more than a real adapter has: requests that get lost, answers that get
// lost, and a look-up by operation. It must not share code or memory with the fleet, which is a process of its own.
package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

// Config is a sim step's configuration.
type Config struct {
	// URL is where the fleet listens, e.g. "http://127.0.0.1:1234"; required.
	URL string `json:"url"`
	// PollInterval is how often Await asks; empty means 200ms.
	PollInterval string `json:"pollInterval,omitempty"`
}

const (
	// pollInterval keeps a demo lively; the fleet's operations take a second.
	pollInterval = 200 * time.Millisecond
	// minPollInterval keeps a typing error from flooding the fleet.
	minPollInterval = 10 * time.Millisecond
	// requestTimeout bounds one request: the fleet answers from memory and one fsync, so this is a stuck one.
	requestTimeout = 10 * time.Second
	// dialTimeout bounds the connect, within the request's time.
	dialTimeout = 3 * time.Second
	// maxAnswer bounds an answer about one target or operation.
	maxAnswer = 1 << 20
)

// Kind is the entry in the list of executors.
func Kind() executors.Kind {
	return executors.Kind{Name: "sim", Decode: func(config json.RawMessage) (executors.Traits, error) {
		if _, err := decode(config); err != nil {
			return executors.Traits{}, err
		}
		return executors.Traits{Observes: true, Restores: true}, nil
	}}
}

// settings is a configuration that was understood.
type settings struct {
	url  string
	poll time.Duration
}

// decode checks a configuration, rendered or not: a value that still holds a template is taken as it is.
func decode(config json.RawMessage) (settings, error) {
	var c Config
	decoder := json.NewDecoder(bytes.NewReader(config))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		message := strings.TrimPrefix(err.Error(), "json: ")
		return settings{}, executors.Faults{{Message: message + "; allowed are url and pollInterval"}}
	}
	if _, err := decoder.Token(); err != io.EOF {
		return settings{}, executors.Faults{{Message: "more than one value"}}
	}
	var faults executors.Faults
	s := settings{url: strings.TrimRight(c.URL, "/"), poll: pollInterval}
	if c.URL == "" {
		faults = append(faults, executors.Fault{Path: "url", Message: `is required, e.g. "http://127.0.0.1:1234"`})
	} else if !templated(c.URL) {
		u, err := url.Parse(c.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			faults = append(faults, executors.Fault{Path: "url", Message: fmt.Sprintf("%q is not the http or https address of a fleet", c.URL)})
		}
	}
	if c.PollInterval != "" && !templated(c.PollInterval) {
		d, err := time.ParseDuration(c.PollInterval)
		if err != nil || d < minPollInterval {
			faults = append(faults, executors.Fault{Path: "pollInterval",
				Message: fmt.Sprintf("%q is not a duration of %v or more, e.g. 200ms", c.PollInterval, minPollInterval)})
		}
		s.poll = d
	}
	if len(faults) > 0 {
		return settings{}, faults
	}
	return s, nil
}

func templated(value string) bool { return strings.Contains(value, "{{") }

// Options are what an Executor may be given; the zero value works.
type Options struct {
	// Timeout bounds one request; zero means 10 s.
	Timeout time.Duration
}

// Executor drives simulated fleets. It holds no state: every fact is read from the fleet.
type Executor struct {
	client  *http.Client
	timeout time.Duration
}

var _ executors.Executor = (*Executor)(nil)

// New returns an executor.
func New(o Options) *Executor {
	if o.Timeout == 0 {
		o.Timeout = requestTimeout
	}
	return &Executor{timeout: o.Timeout, client: &http.Client{
		// No proxy: through one, a refused connection would not prove that nothing was sent.
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
			// A wave asks one fleet about many targets at once.
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     30 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// target is the fleet's word on a target.
type target struct {
	Known     bool   `json:"known"`
	Version   string `json:"version"`
	Operation string `json:"operation"`
}

// operation is the fleet's word on an operation.
type operation struct {
	Operation string    `json:"operation"`
	State     string    `json:"state"`
	Message   string    `json:"message"`
	Started   time.Time `json:"started"`
}

// refusal is the fleet's answer when it does not do what was asked.
type refusal struct {
	status  int
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (r *refusal) Error() string { return fmt.Sprintf("HTTP %d %s: %s", r.status, r.Code, r.Message) }

// Observe reads the running version. A target that the fleet does not have is ErrRejected.
func (e *Executor) Observe(ctx context.Context, c executors.Change) (executors.Reading, error) {
	reading, _, err := e.read(ctx, c)
	if err != nil {
		return executors.Reading{}, fmt.Errorf("sim: observe %s: %w", c.Target.Name, err)
	}
	return reading, nil
}

// Submit asks for the change.
func (e *Executor) Submit(ctx context.Context, c executors.Change) (executors.Ticket, error) {
	fail := func(sentinel, err error) (executors.Ticket, error) {
		if sentinel != nil {
			err = fmt.Errorf("%w: %w", sentinel, err)
		}
		return executors.Ticket{}, fmt.Errorf("sim: submit %s to %s: %w", named(c.Version), c.Target.Name, err)
	}
	s, err := decode(c.Config)
	if err != nil {
		return fail(executors.ErrRejected, err)
	}
	if c.Version == "" {
		return fail(executors.ErrRejected, errors.New("a simulated target can't be uninstalled"))
	}
	ask := map[string]string{"operation": c.Operation, "version": c.Version, "from": c.From}
	var o operation
	err = e.do(ctx, http.MethodPost, s.url+"/targets/"+segment(c.Target.Name)+"/apply", ask, &o)
	var refused *refusal
	switch {
	case err == nil:
		return executors.Ticket{Handle: o.Operation, SubmittedAt: o.Started}, nil
	case errors.As(err, &refused):
		switch {
		case refused.status == http.StatusServiceUnavailable && refused.Code == "unreachable":
			return fail(executors.ErrUnreachable, err)
		case refused.status == http.StatusConflict && (refused.Code == "busy" || refused.Code == "blocked"):
			return fail(executors.ErrBlocked, err)
		case refused.status >= 400 && refused.status < 500:
			return fail(executors.ErrRejected, err)
		}
		return fail(nil, err)
	case notSent(ctx, err):
		return fail(executors.ErrUnreachable, err)
	}
	return fail(nil, fmt.Errorf("the answer was lost: %w", err))
}

// Await polls the operation until it ends. The fleet fences an operation that it does not know, which makes
// ErrNotSubmitted decisive.
func (e *Executor) Await(ctx context.Context, c executors.Change, _ executors.Ticket) (executors.Result, error) {
	s, err := decode(c.Config)
	if err != nil {
		return executors.Result{}, fmt.Errorf("sim: await %s: %w", c.Operation, err)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return executors.Result{}, fmt.Errorf("sim: await %s: %w", c.Operation, executors.ErrRunning)
		case <-timer.C:
		}
		var o operation
		err := e.do(ctx, http.MethodGet, s.url+"/operations/"+segment(c.Operation), nil, &o)
		if err != nil {
			var refused *refusal
			switch {
			case ctx.Err() != nil:
				err = executors.ErrRunning
			case errors.As(err, &refused) && refused.status == http.StatusNotFound && refused.Code == "not_found":
				err = fmt.Errorf("%w: %w", executors.ErrNotSubmitted, err)
			case notSent(ctx, err):
				err = fmt.Errorf("%w: %w", executors.ErrUnreachable, err)
			}
			return executors.Result{}, fmt.Errorf("sim: await %s: %w", c.Operation, err)
		}
		if result, ended := outcome(c, o); ended {
			return result, nil
		}
		timer.Reset(s.poll)
	}
}

// outcome translates the state of an operation, and reports whether it has ended.
func outcome(c executors.Change, o operation) (executors.Result, bool) {
	reason := o.Message
	if reason == "" {
		reason = fmt.Sprintf("the fleet says %s of the change of %s to %s", o.State, c.Target.Name, c.Version)
	}
	switch o.State {
	case "running":
		return executors.Result{}, false
	case "succeeded":
		return executors.Result{Outcome: executors.Succeeded}, true
	case "failed":
		// The fleet's operations end for good, so another one meets nothing of this one.
		return executors.Result{Outcome: executors.Failed, Reason: reason, Retryable: true}, true
	case "blocked":
		return executors.Result{Outcome: executors.Blocked, Reason: reason}, true
	}
	return executors.Result{Outcome: executors.Indeterminate, Reason: reason}, true
}

// Verify reads the target back. While this very operation is in flight there is nothing to verify, which is an error.
func (e *Executor) Verify(ctx context.Context, c executors.Change) (executors.Result, error) {
	reading, inFlight, err := e.read(ctx, c)
	if err == nil && c.Operation != "" && inFlight == c.Operation {
		err = errors.New("the operation has not ended")
	}
	if err != nil {
		return executors.Result{}, fmt.Errorf("sim: verify %s: %w", c.Target.Name, err)
	}
	result := executors.Result{Reading: reading}
	switch {
	case !reading.Known:
		result.Outcome, result.Reason = executors.Indeterminate, fmt.Sprintf("the version running on %s can't be read", c.Target.Name)
	case reading.Version == c.Version:
		result.Outcome = executors.Succeeded
	default:
		result.Outcome = executors.Failed
		result.Reason = fmt.Sprintf("%s runs %s, not %s", c.Target.Name, named(reading.Version), named(c.Version))
	}
	return result, nil
}

// named puts a word to the empty version.
func named(version string) string {
	if version == "" {
		return "nothing"
	}
	return version
}

// read returns the target's reading and the operation in flight on it.
func (e *Executor) read(ctx context.Context, c executors.Change) (executors.Reading, string, error) {
	s, err := decode(c.Config)
	if err != nil {
		return executors.Reading{}, "", fmt.Errorf("%w: %w", executors.ErrRejected, err)
	}
	var t target
	err = e.do(ctx, http.MethodGet, s.url+"/targets/"+segment(c.Target.Name), nil, &t)
	var refused *refusal
	switch {
	case err == nil:
	case errors.As(err, &refused) && refused.status == http.StatusServiceUnavailable && refused.Code == "unreachable", notSent(ctx, err):
		return executors.Reading{}, "", fmt.Errorf("%w: %w", executors.ErrUnreachable, err)
	case errors.As(err, &refused) && refused.status == http.StatusNotFound && refused.Code == "not_found":
		return executors.Reading{}, "", fmt.Errorf("%w: %w", executors.ErrRejected, err)
	default:
		return executors.Reading{}, "", err
	}
	if !t.Known {
		return executors.Reading{Detail: "the simulated target does not tell its version"}, t.Operation, nil
	}
	return executors.Reading{Known: true, Version: t.Version, Detail: "read from the simulated target"}, t.Operation, nil
}

// do sends one request and decodes the answer; whatever is not 2xx is a *refusal.
func (e *Executor) do(ctx context.Context, method, address string, ask, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	var body io.Reader
	if ask != nil {
		data, err := json.Marshal(ask)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return err
	}
	if ask != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := e.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if len(data) > maxAnswer {
		return fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		refused := &refusal{}
		if json.Unmarshal(data, refused) != nil || refused.Code == "" {
			refused = &refusal{Code: "unknown", Message: "the answer is not a fleet's"}
		}
		refused.status = response.StatusCode
		return refused
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("understand the answer: %w", err)
	}
	return nil
}

// notSent reports whether the request failed before a byte of it was sent: no connection came about. It is false when
// the caller gave up, which says nothing of the fleet.
func notSent(ctx context.Context, err error) bool {
	var op *net.OpError
	return ctx.Err() == nil && errors.As(err, &op) && op.Op == "dial"
}

// segment escapes a name as one segment of a path.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E") // else they are path steps
	}
	return url.PathEscape(name)
}
