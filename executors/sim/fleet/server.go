package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// targetJSON is a target as the protocol shows it.
type targetJSON struct {
	Name      string            `json:"name"`
	Region    string            `json:"region,omitempty"`
	Tier      int               `json:"tier"`
	Customers int               `json:"customers"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Known reports whether the running version could be read; Version is empty if not, or if nothing is installed.
	Known   bool   `json:"known"`
	Version string `json:"version"`
	// Operation is the one in flight; empty if none.
	Operation string `json:"operation,omitempty"`
}

// operationJSON is an operation as the protocol shows it.
type operationJSON struct {
	Operation string    `json:"operation"`
	Target    string    `json:"target"`
	Version   string    `json:"version"`
	From      string    `json:"from,omitempty"`
	Previous  string    `json:"previous,omitempty"`
	State     State     `json:"state"`
	Message   string    `json:"message,omitempty"`
	Started   time.Time `json:"started"`
	Finished  time.Time `json:"finished,omitzero"`
}

// refusalJSON is the body of every answer from 400 up.
type refusalJSON struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// applyJSON is the body of an apply.
type applyJSON struct {
	Operation string `json:"operation"`
	Version   string `json:"version"`
	From      string `json:"from"`
}

// maxBody bounds an apply's body; names and versions are short.
const maxBody = 64 << 10

// Handler serves the protocol. Names and operations in paths are escaped, "/" as %2F.
//
//	GET  /targets                 every target as it really stands, unreachable ones too
//	GET  /targets/{name}          one target: name, known, version, operation in flight
//	POST /targets/{name}/apply    {operation, version, from} → 202, or 200 if that operation is known already
//	POST /targets/{name}/release  ends a hang and every outage of the target
//	GET  /operations/{operation}  state and message; 404 fences an unknown one for good
//	GET  /metrics                 the Prometheus text format
//	GET, POST /api/v1/query       the Prometheus query API, for exact selectors only
//	GET  /healthz                 200 as long as the effect log can be written
func (f *Fleet) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /targets", f.serveTargets)
	mux.HandleFunc("GET /targets/{name}", f.serveTarget)
	mux.HandleFunc("POST /targets/{name}/apply", f.serveApply)
	mux.HandleFunc("POST /targets/{name}/release", f.serveRelease)
	mux.HandleFunc("GET /operations/{operation}", f.serveOperation)
	mux.HandleFunc("GET /metrics", f.serveMetrics)
	mux.HandleFunc("GET /api/v1/query", f.serveQuery)
	mux.HandleFunc("POST /api/v1/query", f.serveQuery)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		f.reply(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	return mux
}

// reply answers once everything that the answer may tell of is on disk.
func (f *Fleet) reply(w http.ResponseWriter, status int, body any) {
	if err := f.log.flush(); err != nil {
		status, body = http.StatusInternalServerError, refusalJSON{CodeInternal, err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a caller that has gone needs no answer
}

func (f *Fleet) serveTargets(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	list := make([]targetJSON, len(f.order))
	for i, t := range f.order {
		list[i] = t.json()
	}
	f.mu.Unlock()
	f.reply(w, http.StatusOK, map[string]any{"targets": list})
}

func (f *Fleet) serveTarget(w http.ResponseWriter, r *http.Request) {
	status, body := f.read(r.PathValue("name"))
	f.reply(w, status, body)
}

func (f *Fleet) read(name string) (int, any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.targets[name]
	if t == nil {
		return http.StatusNotFound, refusalJSON{CodeNotFound, fmt.Sprintf("no target %q", name)}
	}
	if i := f.outage(t, time.Now()); i >= 0 {
		// A read counts against an outage that is measured in requests; of the others a log full of polls says nothing.
		if f.scenario.Unreachable[i].Requests > 0 {
			f.record(Entry{Kind: KindRefused, Target: name, Result: string(CodeUnreachable)})
		}
		return http.StatusServiceUnavailable, refusalJSON{CodeUnreachable, fmt.Sprintf("%s can't be reached", name)}
	}
	return http.StatusOK, t.json()
}

func (f *Fleet) serveApply(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	var ask applyJSON
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&ask)
	if err == nil && decoder.Decode(new(any)) != io.EOF {
		err = errors.New("more than one value in the body")
	}
	if err == nil && (ask.Operation == "" || ask.Version == "") {
		err = errors.New("operation and version are required")
	}
	if err != nil {
		f.reply(w, http.StatusBadRequest, refusalJSON{CodeInvalid, "apply: " + err.Error()})
		return
	}
	status, body, lost, delay := f.admit(name, ask)
	if lost {
		_ = f.log.flush()           // no answer either way
		panic(http.ErrAbortHandler) // closes the connection without a byte
	}
	if delay > 0 {
		if f.log.flush() == nil {
			select {
			case <-time.After(delay):
			case <-r.Context().Done():
			}
		}
	}
	f.reply(w, status, body)
}

// admit decides an apply and starts it.
func (f *Fleet) admit(name string, ask applyJSON) (status int, body any, lost bool, delay time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.targets[name]
	e := Entry{Target: name, Operation: ask.Operation, Version: ask.Version, From: ask.From}
	if f.pick("loseRequests", f.lossRules(f.scenario.LoseRequests), t, ask.Version) >= 0 {
		e.Kind = KindDropped
		f.record(e)
		return 0, nil, true, 0
	}
	e.Kind = KindRequest
	f.record(e)
	if f.pick("loseReplies", f.lossRules(f.scenario.LoseReplies), t, ask.Version) >= 0 {
		e.Reply, lost = "lost", true
	} else if i := f.pick("delayReplies", f.delayRules(), t, ask.Version); i >= 0 {
		e.Reply, delay = "delayed", f.scenario.DelayReplies[i].Delay
	}
	refuse := func(status int, code Code, format string, args ...any) (int, any, bool, time.Duration) {
		e.Kind, e.Result, e.Message = KindRefused, string(code), fmt.Sprintf(format, args...)
		f.record(e)
		return status, refusalJSON{code, e.Message}, lost, delay
	}
	if t == nil {
		return refuse(http.StatusNotFound, CodeNotFound, "no target %q", name)
	}
	if o := f.operations[ask.Operation]; o != nil {
		if o.target != name || o.version != ask.Version {
			return refuse(http.StatusConflict, CodeConflict, "operation %q is %s to %s", o.id, o.target, o.version)
		}
		e.Kind, e.Result = KindRepeated, string(o.state)
		f.record(e)
		return http.StatusOK, o.json(), lost, delay
	}
	if f.fenced[ask.Operation] {
		return refuse(http.StatusConflict, CodeFenced, "operation %q was looked up before it arrived and will never start", ask.Operation)
	}
	if f.outage(t, time.Now()) >= 0 {
		return refuse(http.StatusServiceUnavailable, CodeUnreachable, "%s can't be reached", name)
	}
	if t.operation != "" {
		return refuse(http.StatusConflict, CodeBusy, "operation %q is in flight on %s", t.operation, name)
	}
	if i := f.pick("blocked", f.blockRules(), t, ask.Version); i >= 0 {
		message := f.scenario.Blocked[i].Message
		if message == "" {
			message = name + " takes no changes now"
		}
		return refuse(http.StatusConflict, CodeBlocked, "%s", message)
	}
	e.Kind, e.Previous = KindStarted, t.Version
	f.record(e)
	o := f.operations[ask.Operation]
	f.schedule(o)
	return http.StatusAccepted, o.json(), lost, delay
}

func (f *Fleet) serveRelease(w http.ResponseWriter, r *http.Request) {
	status, body := f.release(r.PathValue("name"))
	f.reply(w, status, body)
}

func (f *Fleet) release(name string) (int, any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.targets[name]
	if t == nil {
		return http.StatusNotFound, refusalJSON{CodeNotFound, fmt.Sprintf("no target %q", name)}
	}
	f.record(Entry{Kind: KindReleased, Target: name, Operation: t.operation})
	if o := f.operations[t.operation]; o != nil && o.timer == nil {
		f.schedule(o)
	}
	return http.StatusOK, t.json()
}

func (f *Fleet) serveOperation(w http.ResponseWriter, r *http.Request) {
	status, body := f.lookUp(r.PathValue("operation"))
	f.reply(w, status, body)
}

func (f *Fleet) lookUp(id string) (int, any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.operations[id]; o != nil {
		return http.StatusOK, o.json()
	}
	if !f.fenced[id] {
		f.record(Entry{Kind: KindFenced, Operation: id})
	}
	return http.StatusNotFound, refusalJSON{CodeNotFound, fmt.Sprintf("no operation %q, and it will never start", id)}
}

func (t *target) json() targetJSON {
	return targetJSON{
		Name: t.Name, Region: t.Region, Tier: t.Tier, Customers: t.Customers, Labels: t.Labels,
		Known: t.readable, Version: t.Version, Operation: t.operation,
	}
}

func (o *operation) json() operationJSON {
	return operationJSON{
		Operation: o.id, Target: o.target, Version: o.version, From: o.from, Previous: o.previous,
		State: o.state, Message: o.message, Started: o.started, Finished: o.finished,
	}
}
