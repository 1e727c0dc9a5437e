//go:build full

package chaos

// seeds are the rollouts that run with -tags full, beside one that is drawn anew each time.
var seeds = []uint64{103, 105, 127, 138, 218, 223}

// fresh reports whether one more is drawn.
const fresh = true
