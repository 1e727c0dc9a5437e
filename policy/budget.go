package policy

// Of resolves the amount to a concurrency or a size: a percentage of size is rounded down, and at least 1; a number
// above size is size. An empty size gives 0.
func (a Amount) Of(size int) int {
	if size <= 0 {
		return 0
	}
	if a.Percent {
		return max(1, min(size, size*a.Value/100))
	}
	return max(1, min(size, a.Value))
}

// Budget is how many targets of a scope may fail, and how many may be out of reach, before nothing new starts.
type Budget struct {
	MaxFailures    Amount `json:"maxFailures"`
	MaxUnreachable Amount `json:"maxUnreachable"`
	// Size is the number of planned targets in the scope; skipped ones leave it.
	Size int `json:"size"`
	// Bounded keeps at most budget + 1 - failures in flight.
	Bounded bool `json:"bounded,omitempty"`
	// From names the policy, or says that it is the default.
	From string `json:"from,omitempty"`
}

// Failures returns how many targets may fail when skipped ones have left the scope: a percentage is rounded down and
// may be 0.
func (b Budget) Failures(skipped int) int { return share(b.MaxFailures, b.Size-skipped) }

// Unreachable returns how many targets may be out of reach when skipped ones have left the scope.
func (b Budget) Unreachable(skipped int) int { return share(b.MaxUnreachable, b.Size-skipped) }

// share is an amount that may be 0, of a scope.
func share(a Amount, size int) int {
	if !a.Percent {
		return a.Value
	}
	return max(0, size) * a.Value / 100
}

// strictest combines the budgets that several policies put on one scope: the lower of each figure.
func strictest(a, b Budget) Budget {
	from := a.From
	if b.Failures(0) < a.Failures(0) || (b.Failures(0) == a.Failures(0) && a.From == "") {
		from = b.From
	}
	out := Budget{MaxFailures: a.MaxFailures, MaxUnreachable: a.MaxUnreachable, Size: a.Size, Bounded: a.Bounded || b.Bounded, From: from}
	if b.Failures(0) < a.Failures(0) {
		out.MaxFailures = b.MaxFailures
	}
	if b.Unreachable(0) < a.Unreachable(0) {
		out.MaxUnreachable = b.MaxUnreachable
	}
	return out
}

// SlotQuery is what Slots needs to know of a wave, or of the part of a wave that asks.
type SlotQuery struct {
	// Concurrency is how many targets may be in flight, InFlight how many are.
	Concurrency, InFlight int
	// Pending is how many could still start.
	Pending int
	// Bounds are, for each bounded budget, how many may fail in its scope less how many have: negative when breached.
	Bounds []int
}

// Slots returns how many more targets may start now. With a bounded budget, budget + 1 - failures targets at most are
// in flight, so that failures never exceed budget + 1.
func Slots(q SlotQuery) int {
	limit := q.Concurrency
	for _, left := range q.Bounds {
		limit = min(limit, left+1)
	}
	return max(0, min(limit-q.InFlight, q.Pending))
}
