package datadog

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/activities/metrics"
	fake "github.com/seed-a0a4f4e3/sluice/tests/fakes/datadog"
)

// TestALimitIsKept fails when Datadog is asked although it said that it would not answer.
func TestALimitIsKept(t *testing.T) {
	b := newBench(t, fake.Options{Series: []fake.Series{constant("errors", 1, nil)}}, nil)
	ask := func() (metrics.Sample, error) { return b.measure(t, `{"query": "sum:errors{*}"}`) }
	// Others that share the limit have used it up.
	b.server.SetLimit(fake.Limit{Requests: 0, Period: time.Minute})
	began := noon.Add(2*time.Minute + 20*time.Second)
	b.at(began)
	_, err := ask()
	if want := "datadog: query main at " + b.host() + ": HTTP 429: rate limited: limit query_timeseries_data of 0 requests in 60 s, 0 left, reset in 40 s; " +
		"nothing is asked until then. Lengthen the interval of checks, or have Datadog raise the limit"; err == nil || err.Error() != want {
		t.Fatalf("got %v\nwant %s", err, want)
	}
	b.server.SetLimit(fake.Limit{Requests: 2, Period: time.Minute})
	for _, after := range []time.Duration{0, 10 * time.Second, 39 * time.Second} {
		b.at(began.Add(after))
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				got, err := ask()
				if wait := got.NotBefore.Sub(began); err != nil || got.Result != nil || got.Problem != "" || got.NoData || wait < 40*time.Second || wait > 44*time.Second {
					t.Errorf("after %s: %+v, %v; want not before 40 s", after, got, err)
				}
			})
		}
		all.Wait()
	}
	if n := len(b.server.Requests()); n != 1 {
		t.Fatalf("asked %d times within the limit's time", n)
	}
	// It recovers; the second of two answers leaves none, and the third is not asked for.
	b.at(began.Add(45 * time.Second))
	for range 2 {
		if got, err := ask(); err != nil || got.Result["value"] != 1.0 {
			t.Errorf("after the limit: %+v, %v", got, err)
		}
	}
	if got, err := ask(); err != nil || got.NotBefore.Sub(b.Now()) < 55*time.Second || got.NotBefore.Sub(b.Now()) > 61*time.Second {
		t.Errorf("none left: %+v, %v; want not before the next period", got, err)
	}
	if n := len(b.server.Requests()); n != 3 {
		t.Errorf("asked %d times, want 3", n)
	}
	// For ever: each time it is asked it is an error.
	b.server.Set(fake.Limited)
	errs := 0
	for range 5 {
		b.at(b.Now().Add(2 * time.Minute))
		if _, err := ask(); err != nil {
			errs++
		}
		if got, err := ask(); err != nil || got.NotBefore.IsZero() {
			t.Errorf("right after: %+v, %v", got, err)
		}
	}
	if errs != 5 {
		t.Errorf("%d errors of 5", errs)
	}
}

func TestOddLimits(t *testing.T) {
	for _, c := range []struct {
		status           int
		remaining, reset string
		least            time.Duration // 0: none
	}{
		{429, "", "", 10 * time.Second},
		{429, "0", "7", 7 * time.Second},
		{429, "0", "-3", 10 * time.Second},
		{429, "0", "soon", 10 * time.Second},
		{429, "0", "NaN", 10 * time.Second},
		{429, "0", "0", time.Second},
		{429, "0", "1.5", 1500 * time.Millisecond},
		{429, "0", "86400", time.Hour},
		{429, "0", "1e300", time.Hour},
		{200, "0", "7", 7 * time.Second},
		{200, "0", "", 10 * time.Second},
		{200, "1", "7", 0},
		{200, "", "", 0},
		{503, "0", "7", 7 * time.Second},
	} {
		var l limiter
		h := http.Header{}
		h.Set("X-RateLimit-Remaining", c.remaining)
		h.Set("X-RateLimit-Reset", c.reset)
		text := l.learn(&http.Response{StatusCode: c.status, Header: h}, noon)
		if wait := l.wait(noon); wait < c.least || wait > c.least+c.least/10 || (text != "") != (c.status == 429) {
			t.Errorf("%+v: wait %s, %q", c, wait, text)
		}
		// A later answer, sent before, does not shorten it.
		h.Set("X-RateLimit-Reset", "0")
		l.learn(&http.Response{StatusCode: c.status, Header: h}, noon)
		if wait := l.wait(noon); wait < c.least {
			t.Errorf("%+v: shortened to %s", c, wait)
		}
	}
}
