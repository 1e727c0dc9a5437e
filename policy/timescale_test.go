package policy

import (
	"testing"
	"time"
)

// A scaled time that fell below a second would measure the engine, and an unscaled one must be what was written.
func TestTimeScale(t *testing.T) {
	for _, tt := range []struct {
		scale TimeScale
		d     time.Duration
		want  time.Duration
	}{
		{0, time.Hour, time.Hour},
		{1, time.Hour, time.Hour},
		{0.5, time.Hour, time.Hour},
		{-3, time.Hour, time.Hour},
		{60, time.Hour, time.Minute},
		{60, 10 * time.Minute, 10 * time.Second},
		{60, 75 * time.Second, 1250 * time.Millisecond},
		{60, 30 * time.Second, time.Second},
		{60, 500 * time.Millisecond, 500 * time.Millisecond},
		{60, 0, 0},
		{1e300, time.Hour, time.Second},
	} {
		if got := tt.scale.Of(tt.d); got != tt.want {
			t.Errorf("scale %v of %s: got %s, want %s", tt.scale, tt.d, got, tt.want)
		}
	}
}
