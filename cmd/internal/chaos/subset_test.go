//go:build !full

package chaos

// seeds are the rollouts that run without -tags full.
var seeds = []uint64{214}

// fresh reports whether one more is drawn.
const fresh = false
