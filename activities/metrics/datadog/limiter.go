package datadog

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// unknownReset is waited when a limit does not say when it ends: a usual period of Datadog's.
	unknownReset = 10 * time.Second
	// maxReset bounds what is believed; periods are at most an hour.
	maxReset = time.Hour
	// leastWait is waited at least, since a reset of 0 s is the rest of a second.
	leastWait = time.Second
	// jitter spreads the workers that share the limit, as a part of the wait.
	jitter = 0.1
)

// limiter is what is known about one organisation's rate limit:
// https://docs.datadoghq.com/api/latest/rate-limits/. All measurements of a connection share it.
type limiter struct {
	mu    sync.Mutex
	until time.Time
}

// wait is how long nothing may be asked.
func (l *limiter) wait(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, l.until.Sub(now))
}

// learn reads an answer's headers. It returns a text about the limit if the answer was refused because of it.
func (l *limiter) learn(answer *http.Response, now time.Time) string {
	header := func(name string) string { return answer.Header.Get("X-RateLimit-" + name) }
	refused := answer.StatusCode == http.StatusTooManyRequests
	if !refused && header("Remaining") != "0" {
		return ""
	}
	reset := unknownReset
	if seconds, err := strconv.ParseFloat(header("Reset"), 64); err == nil && seconds >= 0 {
		reset = time.Duration(min(seconds, maxReset.Seconds()) * float64(time.Second))
	}
	reset = max(reset, leastWait)
	reset += time.Duration(rand.Float64() * jitter * float64(reset))
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := now.Add(reset); until.After(l.until) {
		l.until = until
	}
	if !refused {
		return ""
	}
	said := func(name string) string {
		if text := header(name); text != "" {
			return text
		}
		return "?"
	}
	return fmt.Sprintf("limit %s of %s requests in %s s, %s left, reset in %s s", said("Name"), said("Limit"), said("Period"), said("Remaining"), said("Reset"))
}
