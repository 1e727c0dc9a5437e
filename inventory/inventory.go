// Package inventory holds what a fleet is made of: targets, and snapshots of them taken at one moment.
//
// It must not know policies, executors, documents or Temporal, and imports nothing but the standard library.
package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// Target is one member of a fleet: a cluster, node, device or site.
type Target struct {
	// Name is unique in a snapshot; at most 120 characters, "/" allowed.
	Name string `json:"name"`
	// Kind is the owner's own word for what the target is, e.g. "Cluster".
	Kind string `json:"kind,omitempty"`
	// Identifier and Version are carried for selectors; nothing here interprets them.
	Identifier string `json:"identifier,omitempty"`
	Version    string `json:"version,omitempty"`
	// Metadata holds labels and metadata in one map. Values are string, float64, bool, nil, and lists or maps of these,
	// as encoding/json decodes them.
	Metadata map[string]any `json:"metadata,omitempty"`
	// Config is what executors may read about the target, e.g. a server address. The same value types as Metadata.
	Config map[string]any `json:"config,omitempty"`
}

// Snapshot is the fleet as read at one moment, in document order for hand-written targets.
type Snapshot struct {
	Targets []Target `json:"targets"`
}

// Digest returns "sha256:" and the hex digest of the snapshot's canonical JSON: the same targets in the same order give
// the same digest, always. It fails only on metadata that JSON cannot hold.
func (s Snapshot) Digest() (string, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("inventory: digest of the snapshot: %w", err)
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Find returns the target of that name, or false.
func (s Snapshot) Find(name string) (Target, bool) {
	for _, t := range s.Targets {
		if t.Name == name {
			return t, true
		}
	}
	return Target{}, false
}
