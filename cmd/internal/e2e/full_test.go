//go:build full

package e2e

// full reports whether the whole kill matrix runs.
const full = true
