//go:build full

package chaos

// seeds are the rollouts that run with -tags full, beside one that is drawn anew each time.
var seeds = []uint64{1, 2, 3, 4, 5, 6, 7}

// fresh reports whether one more is drawn.
const fresh = true
