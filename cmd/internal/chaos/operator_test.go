package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// people approve, in this order. Where an approval must be a stranger's, the author tries first, and does not count.
var people = []string{author, "bob", "cid", "dee"}

// answer does what a rollout waits for a person to do, one thing after the other.
func (r *run) answer(ctx context.Context) {
	o := operator{scenario: r.scenario, since: map[string]time.Time{}, approved: map[int]int{}}
	r.each(ctx, func() bool {
		r.mu.Lock()
		status := r.status
		r.mu.Unlock()
		name, command := o.next(status, time.Now())
		if name == "" {
			return false
		}
		receipt := r.send(ctx, name, command)
		o.answered(name, receipt)
		return false
	})
}

// operator is a person who keeps a rollout going.
type operator struct {
	scenario scenario
	// since is when a wait was first seen, approved how many have approved each wave.
	since    map[string]time.Time
	approved map[int]int
	// resumes are how many resumes were refused, answers how many answers were given to a breach.
	resumes, answers int
}

// next is what to send now, or nothing.
func (o *operator) next(s workflows.RolloutStatus, now time.Time) (string, workflows.Command) {
	seen := map[string]time.Time{}
	defer func() { o.since = seen }()
	for _, w := range s.Waits {
		key := fmt.Sprint(w.Rule, w.Wave)
		seen[key] = o.since[key]
		if seen[key].IsZero() {
			seen[key] = now
		}
	}
	for _, w := range s.Waits {
		waited := now.Sub(seen[fmt.Sprint(w.Rule, w.Wave)])
		switch w.Rule {
		case "approval":
			if n := o.approved[w.Wave]; n < len(people) && waited > o.scenario.pauseFor/2 {
				o.approved[w.Wave]++
				return workflows.Approve, workflows.Command{By: people[n], Wave: w.Wave}
			}
		case "pause":
			if waited > o.scenario.pauseFor {
				return workflows.Resume, workflows.Command{By: "bob"}
			}
		case "rollback":
			if s.State == workflows.Holding && waited > o.scenario.pauseFor && o.resumes < 3 {
				return workflows.Resume, workflows.Command{By: "bob"}
			}
			if o.resumes >= 3 {
				return o.decide()
			}
		case "waves", "verification":
			return workflows.Approve, workflows.Command{By: "bob", Wave: w.Wave}
		case "rollback.maxFailures":
			return workflows.Resume, workflows.Command{By: "bob"}
		default:
			if s.State == workflows.Holding && (w.Rule == "failureThreshold" || strings.HasPrefix(w.Rule, "rollback.")) && waited > o.scenario.pauseFor {
				return o.decide()
			}
		}
	}
	return "", workflows.Command{}
}

// decide ends a rollout that holds: as drawn, and if that makes it hold again, by a rollback.
func (o *operator) decide() (string, workflows.Command) {
	o.answers++
	if o.answers > 1 {
		return workflows.RollBack, workflows.Command{By: "bob"}
	}
	return o.scenario.answer, workflows.Command{By: "bob"}
}

// answered takes the receipt of what was sent.
func (o *operator) answered(name string, receipt workflows.Receipt) {
	if name == workflows.Resume && receipt.ID != "" && !receipt.Accepted {
		o.resumes++
	}
}
