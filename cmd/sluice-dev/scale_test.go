package main

import "testing"

// A time scale that is no number, or would slow time down, must not be taken for one.
func TestTimeScaleFlag(t *testing.T) {
	for text, want := range map[string]scale{"1": 1, "60": 60, "1.5": 1.5, "1e6": 1e6} {
		var s scale
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%s: got %v and %v, want %v", text, s, err, want)
		}
	}
	for _, text := range []string{"", "0", "0.5", "-60", "NaN", "Inf", "1e9", "fast"} {
		var s scale
		if err := s.Set(text); err == nil || s != 0 {
			t.Errorf("%q: got %v and no error", text, s)
		}
	}
}
