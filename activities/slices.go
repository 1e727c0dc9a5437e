package activities

import "sync"

// slices keeps what was read from the ledger by digest, so that a wave of 500 targets reads its plan once.
// What is stored under a digest never changes, so nothing here goes stale.
type slices struct {
	mu    sync.Mutex
	plans map[string]*Planned
}
