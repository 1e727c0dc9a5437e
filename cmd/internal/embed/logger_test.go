package embed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
)

// TestATaskWhosePollerHasGoneIsNoWarning fails when the stop of a worker shows as warnings of the server, wherever the
// server puts the reason, or when another failure no longer does.
func TestATaskWhosePollerHasGoneIsNoWarning(t *testing.T) {
	var text bytes.Buffer
	l := newLogger(slog.New(slog.NewTextHandler(&text, nil)))
	l.Warn("Fail to process task", tag.Error(context.Canceled))
	log.With(log.With(l, tag.Error(context.Canceled)), tag.ShardID(1)).Warn("Fail to process task")
	l.Error("Update workflow execution operation failed.", tag.Error(context.Canceled))
	if text.Len() > 0 {
		t.Errorf("it says %s", text.String())
	}
	l.With(tag.ShardID(1)).Warn("Fail to process task", tag.Error(errors.New("disk I/O error")))
	if text.Len() == 0 {
		t.Error("a failure that is news is not said")
	}
	said := text.Len()
	l.Error("Update workflow execution operation failed.", tag.Error(errors.New("disk I/O error")))
	if text.Len() == said {
		t.Error("an error that is news is not said")
	}
}

// The server's services start at once, and one may ask another too early. It asks again, which is no news.
func TestAServiceThatIsNotUpYetIsNoWarning(t *testing.T) {
	var text bytes.Buffer
	l := newLogger(slog.New(slog.NewTextHandler(&text, nil)))
	early := serviceerror.NewUnavailable("Frontend is not healthy yet")
	l.Error("service failures", tag.Operation("GetSystemInfo"), tag.Error(early))
	l.Warn("error creating sdk client", tag.Error(fmt.Errorf("failed reaching server: %w", early)))
	if text.Len() > 0 {
		t.Errorf("it says %s", text.String())
	}
	if l.Error("service failures", tag.Error(serviceerror.NewUnavailable("disk I/O error"))); text.Len() == 0 {
		t.Error("another service's failure is not said")
	}
}
