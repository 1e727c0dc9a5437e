package embed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
)

// logger gives the server's log to slog. It is one level quieter than the server means it: the server's news is that
// a shard was acquired, ours is that a rollout waits for a person.
type logger struct {
	out *slog.Logger
	// stopping is set while the server stops. Its services then complain about each other going away, which is no news.
	stopping *atomic.Bool
	// expected reports that the tags of every line say that it is no news, see expected.
	expected bool
}

var (
	_ log.Logger      = (*logger)(nil)
	_ log.WithLogger  = (*logger)(nil)
	_ log.SLogWrapper = (*logger)(nil)
)

func newLogger(out *slog.Logger) *logger {
	return &logger{out: out.With("component", "temporal"), stopping: new(atomic.Bool)}
}

// fatal is what the server wanted to end the process for.
type fatal struct{ err error }

// catchFatal runs f and returns the reason if the server gives up within it on the same goroutine.
func catchFatal(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case fatal:
			err = r.err
		default:
			panic(r)
		}
	}()
	return f()
}

func (l *logger) Debug(msg string, tags ...tag.Tag) { l.log(slog.LevelDebug-4, msg, tags) }
func (l *logger) Info(msg string, tags ...tag.Tag)  { l.log(slog.LevelDebug, msg, tags) }
func (l *logger) Warn(msg string, tags ...tag.Tag)  { l.log(slog.LevelWarn, msg, tags) }
func (l *logger) Error(msg string, tags ...tag.Tag) { l.log(slog.LevelError, msg, tags) }

// DPanic logs an error: the server uses it for "should never happen", and goes on.
func (l *logger) DPanic(msg string, tags ...tag.Tag) { l.log(slog.LevelError, msg, tags) }

// Panic logs an error and panics, as the server's own logger does.
func (l *logger) Panic(msg string, tags ...tag.Tag) {
	l.log(slog.LevelError, msg, tags)
	panic(msg)
}

// Fatal logs an error and panics. The caller does not expect Fatal to return and would go on with what it failed to
// make; os.Exit, which it does expect, would leave Start no chance to say why.
func (l *logger) Fatal(msg string, tags ...tag.Tag) {
	l.log(slog.LevelError, msg, tags)
	err := errors.New(msg)
	for _, t := range tags {
		err = fmt.Errorf("%w; %s: %v", err, t.Key(), t.Value())
	}
	panic(fatal{err})
}

// With returns a logger that adds tags to each line.
func (l *logger) With(tags ...tag.Tag) log.Logger {
	return &logger{out: slog.New(l.out.Handler().WithAttrs(attributes(tags))), stopping: l.stopping, expected: l.expected || expected("", tags)}
}

// SLog gives the server's SDK workers the same log.
func (l *logger) SLog() *slog.Logger {
	return slog.New(&quietHandler{Handler: l.out.Handler(), stopping: l.stopping})
}

func (l *logger) log(level slog.Level, msg string, tags []tag.Tag) {
	ctx := context.Background()
	// What fails only because whoever asked has gone is logged as an error too, and is none.
	if level == slog.LevelWarn && l.stopping.Load() || level >= slog.LevelWarn && (l.expected || expected(msg, tags)) {
		level = slog.LevelDebug
	}
	if l.out.Enabled(ctx, level) {
		l.out.LogAttrs(ctx, level, msg, attributes(tags)...)
	}
}

// expected reports whether a warning or an error is about something that this server does on purpose or that ends well.
func expected(msg string, tags []tag.Tag) bool {
	// Nobody calls Nexus endpoints over HTTP here, and the frontend's HTTP API would be one more open port.
	if strings.HasPrefix(msg, "HTTP API port has not been set") {
		return true
	}
	// A queue task is given up and tried again when its poller has gone, as after every stop of a worker. The server's own
	// worker may ask the frontend before that is up, and asks again; one that never comes up fails the start. Errors arrive
	// here as text.
	for _, t := range tags {
		switch t.Key() {
		case "error", "error-type":
			v := fmt.Sprint(t.Value())
			if v == context.Canceled.Error() || v == "serviceerror.Canceled" || strings.HasSuffix(v, "Frontend is not healthy yet") {
				return true
			}
		}
	}
	return false
}

func attributes(tags []tag.Tag) []slog.Attr {
	attrs := make([]slog.Attr, len(tags))
	for i, t := range tags {
		attrs[i] = slog.Any(t.Key(), t.Value())
	}
	return attrs
}

// quietHandler shifts levels as logger does.
type quietHandler struct {
	slog.Handler
	stopping *atomic.Bool
}

func (h *quietHandler) level(level slog.Level) slog.Level {
	if level < slog.LevelWarn {
		return level - 4
	}
	if level == slog.LevelWarn && h.stopping.Load() {
		return slog.LevelDebug
	}
	return level
}

func (h *quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.Handler.Enabled(ctx, h.level(level))
}

func (h *quietHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = h.level(r.Level)
	return h.Handler.Handle(ctx, r)
}

func (h *quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &quietHandler{Handler: h.Handler.WithAttrs(attrs), stopping: h.stopping}
}

func (h *quietHandler) WithGroup(name string) slog.Handler {
	return &quietHandler{Handler: h.Handler.WithGroup(name), stopping: h.stopping}
}
