package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/seed-a0a4f4e3/sluice/inventory"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// keptPlans is how many plans a worker keeps in memory; each is a few hundred bytes a target.
const keptPlans = 16

// planCache keeps what was read from the ledger by digest, so that a wave of 500 targets reads its plan once.
// What is stored under a digest never changes, so nothing here goes stale.
type planCache struct {
	mu    sync.Mutex
	plans map[string]*planned
	order []string
}

// planned is a plan with its fleet, indexed.
type planned struct {
	plan    policy.Plan
	targets map[string]plannedTarget
}

type plannedTarget struct {
	target inventory.Target
	wave   int
	// metrics are indices into the plan's metrics.
	metrics []int
}

func index(p Planned) *planned {
	out := &planned{plan: p.Plan, targets: map[string]plannedTarget{}}
	byName := make(map[string]inventory.Target, len(p.Snapshot.Targets))
	for _, t := range p.Snapshot.Targets {
		byName[t.Name] = t
	}
	for _, w := range p.Plan.Waves {
		for _, t := range w.Targets {
			out.targets[t.Name] = plannedTarget{target: byName[t.Name], wave: w.Number, metrics: t.Metrics}
		}
	}
	return out
}

// keep remembers a plan, and forgets the oldest when there are too many.
func (s *planCache) keep(digest string, p *planned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plans == nil {
		s.plans = map[string]*planned{}
	}
	if _, known := s.plans[digest]; known {
		return
	}
	if len(s.order) == keptPlans {
		delete(s.plans, s.order[0])
		s.order = s.order[1:]
	}
	s.plans[digest], s.order = p, append(s.order, digest)
}

func (s *planCache) get(digest string) *planned {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plans[digest]
}

// planned returns a plan by its digest, from memory or from the ledger.
func (a *Activities) planned(ctx context.Context, digest string) (*planned, error) {
	if p := a.plans.get(digest); p != nil {
		return p, nil
	}
	var p Planned
	if err := a.read(ctx, ledger.Plan, digest, &p.Plan); err != nil {
		return nil, err
	}
	if err := a.read(ctx, ledger.Snapshot, p.Plan.SnapshotDigest, &p.Snapshot); err != nil {
		return nil, err
	}
	indexed := index(p)
	a.plans.keep(digest, indexed)
	return indexed, nil
}

func (a *Activities) read(ctx context.Context, kind, key string, into any) error {
	data, err := a.Blobs.Blob(ctx, kind, key)
	if err != nil {
		return fmt.Errorf("activities: read %s %s: %w", kind, key, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("activities: read %s %s: %w", kind, key, err)
	}
	return nil
}
