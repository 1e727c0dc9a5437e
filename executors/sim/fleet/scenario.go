package fleet

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/seed-a0a4f4e3/sluice/inventory"
)

// Scenario is everything a simulated fleet does: who is in it, how long things take, what goes wrong and when. The same
// scenario gives the same fleet, durations and metric values, always. Durations are written as "1.5s".
type Scenario struct {
	// Seed picks durations, metric spread and generated customer counts.
	Seed int64 `yaml:"seed"`
	// Version is the version that everything starts on; required.
	Version string `yaml:"version"`
	// Members are the targets, in order. Generate adds more behind them; one of the two must give at least one.
	Members  []Target  `yaml:"targets,omitempty"`
	Generate *Generate `yaml:"generate,omitempty"`
	// Duration is how long one operation takes; zero means that it ends at once.
	Duration Span `yaml:"duration,omitempty"`
	// Failures are operations that go wrong: the first rule that matches and has uses left decides.
	Failures []Failure `yaml:"failures,omitempty"`
	// Blocked are applies that are refused for a reason that passes; nothing starts.
	Blocked []Block `yaml:"blocked,omitempty"`
	// Unreachable are targets that can't be asked or changed for a while, and then have no metrics either.
	Unreachable []Outage `yaml:"unreachable,omitempty"`
	// LoseRequests close the connection before an apply is read: nothing starts.
	LoseRequests []Loss `yaml:"loseRequests,omitempty"`
	// LoseReplies log and carry out an apply, then close the connection without an answer.
	LoseReplies []Loss `yaml:"loseReplies,omitempty"`
	// DelayReplies pause between the log and the answer to an apply.
	DelayReplies []Delay `yaml:"delayReplies,omitempty"`
	// Metrics are gauges that every reachable target has.
	Metrics []Metric `yaml:"metrics,omitempty"`
	// Regressions make a metric worse on a version.
	Regressions []Regression `yaml:"regressions,omitempty"`
}

// Target is one member of the simulated fleet.
type Target struct {
	// Name is unique; "/" is allowed.
	Name string `yaml:"name"`
	// Region and Tier are labels of its metrics.
	Region string `yaml:"region,omitempty"`
	Tier   int    `yaml:"tier,omitempty"`
	// Customers is its load.
	Customers int `yaml:"customers,omitempty"`
	// Labels are carried into the target's metadata; nothing here reads them.
	Labels map[string]string `yaml:"labels,omitempty"`
	// Version is what it starts on, where that is not the scenario's.
	Version string `yaml:"version,omitempty"`
	// Bare means that it starts with nothing installed.
	Bare bool `yaml:"bare,omitempty"`
}

// Generate makes Count targets named cluster-<region>-<number>, the same number in each region give or take one, and in
// each region the tiers by their shares.
type Generate struct {
	Count   int      `yaml:"count"`
	Regions []string `yaml:"regions"`
	Tiers   []Tier   `yaml:"tiers"`
}

// Tier is one tier of generated targets.
type Tier struct {
	Tier int `yaml:"tier"`
	// Share is its weight against the other tiers' shares.
	Share int `yaml:"share"`
	// MinCustomers and MaxCustomers bound each target's load, both inclusive.
	MinCustomers int `yaml:"minCustomers"`
	MaxCustomers int `yaml:"maxCustomers"`
}

// Span is a range of durations, both ends inclusive.
type Span struct {
	Min time.Duration `yaml:"min"`
	Max time.Duration `yaml:"max"`
}

// Match selects targets: all keys that are given must hold; none given means every target.
type Match struct {
	Targets      []string `yaml:"targets,omitempty"`
	Region       string   `yaml:"region,omitempty"`
	Tier         *int     `yaml:"tier,omitempty"`
	MinCustomers int      `yaml:"minCustomers,omitempty"`
}

// Failure is an operation that goes wrong. Written with nothing else, it reports "failed" and leaves the version alone.
type Failure struct {
	Match Match `yaml:"select,omitempty"`
	// Version is the version being applied; empty means any.
	Version string `yaml:"version,omitempty"`
	// Times is how many operations on each target go wrong; 0 means all.
	Times int `yaml:"times,omitempty"`
	// Hang makes the operation run until the target is released; then it succeeds.
	Hang bool `yaml:"hang,omitempty"`
	// Reports is what the operation says of itself at its end: failed (the default), blocked, unknown or succeeded.
	Reports State `yaml:"reports,omitempty"`
	// Leaves is what runs on the target afterwards: previous (the default), version (the new one) or unreadable.
	Leaves Leaves `yaml:"leaves,omitempty"`
	// Message is the operation's message.
	Message string `yaml:"message,omitempty"`
}

// Leaves says what an operation that goes wrong leaves behind.
type Leaves string

// What an operation may leave behind.
const (
	LeavesPrevious   Leaves = "previous"
	LeavesVersion    Leaves = "version"
	LeavesUnreadable Leaves = "unreadable"
)

// Block refuses applies.
type Block struct {
	Match   Match  `yaml:"select,omitempty"`
	Version string `yaml:"version,omitempty"`
	// Times is how many applies to each target are refused; 0 means all.
	Times   int    `yaml:"times,omitempty"`
	Message string `yaml:"message,omitempty"`
}

// Outage makes targets unreachable. Exactly one of For, Requests and UntilReleased says how long.
type Outage struct {
	Match Match `yaml:"select,omitempty"`
	// AfterVersion starts the outage when the target first starts an operation towards that version; empty means: when
	// the fleet first starts.
	AfterVersion string `yaml:"afterVersion,omitempty"`
	// For is how long it lasts.
	For time.Duration `yaml:"for,omitempty"`
	// Requests is how many requests to each target it swallows, reads included.
	Requests int `yaml:"requests,omitempty"`
	// UntilReleased makes it last until the target is released.
	UntilReleased bool `yaml:"untilReleased,omitempty"`
}

// Loss drops the first Times applies to, or answers from, each target.
type Loss struct {
	Match   Match  `yaml:"select,omitempty"`
	Version string `yaml:"version,omitempty"`
	// Times is per target; 0 means all.
	Times int `yaml:"times,omitempty"`
}

// Delay holds back the answers to the first Times applies to each target.
type Delay struct {
	Match   Match         `yaml:"select,omitempty"`
	Version string        `yaml:"version,omitempty"`
	Times   int           `yaml:"times,omitempty"`
	Delay   time.Duration `yaml:"delay"`
}

// Metric is one gauge.
type Metric struct {
	Name string `yaml:"name"`
	Help string `yaml:"help,omitempty"`
	// Base is its value in the middle; each target's own is constant and up to Spread (a fraction, below 1) away.
	Base   float64 `yaml:"base"`
	Spread float64 `yaml:"spread,omitempty"`
}

// Regression multiplies a metric on targets that have run a version for a while and carry enough load.
type Regression struct {
	Match   Match  `yaml:"select,omitempty"`
	Version string `yaml:"version"`
	Metric  string `yaml:"metric"`
	// Factor multiplies the metric.
	Factor float64 `yaml:"factor"`
	// After is how long the target must have run the version; zero means at once.
	After time.Duration `yaml:"after,omitempty"`
	// MinCustomers is the load from which on it shows.
	MinCustomers int `yaml:"minCustomers,omitempty"`
}

// Load reads and validates a scenario file, YAML or JSON. Unknown fields and duplicate keys are errors.
func Load(path string) (Scenario, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Scenario{}, fmt.Errorf("fleet: read the scenario: %w", err)
	}
	s, err := Parse(data)
	if err != nil {
		return Scenario{}, fmt.Errorf("fleet: scenario %s: %w", path, err)
	}
	return s, nil
}

// Parse reads and validates one scenario.
func Parse(data []byte) (Scenario, error) {
	var s Scenario
	decoder := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := decoder.Decode(&s); err != nil {
		if errors.Is(err, io.EOF) {
			return Scenario{}, errors.New("is empty")
		}
		return Scenario{}, errors.New(yaml.FormatError(err, false, false))
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return Scenario{}, errors.New("holds more than one document; one scenario a file")
	}
	return s, s.Validate()
}

// Encode returns the scenario as a file that Load reads back the same.
func (s Scenario) Encode() ([]byte, error) {
	data, err := yaml.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("fleet: encode the scenario: %w", err)
	}
	return data, nil
}

var metricName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// Validate reports every fault of the scenario by field path.
func (s Scenario) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if s.Version == "" {
		fault("version: is required: the version that everything starts on")
	}
	if g := s.Generate; g != nil {
		if g.Count < 1 {
			fault("generate.count: must be at least 1, is %d", g.Count)
		}
		if len(g.Regions) == 0 || slices.Contains(g.Regions, "") {
			fault("generate.regions: at least one region is required, and none may be empty")
		}
		if len(g.Tiers) == 0 {
			fault("generate.tiers: at least one tier is required")
		}
		for i, t := range g.Tiers {
			if t.Share < 1 {
				fault("generate.tiers[%d].share: must be at least 1, is %d", i, t.Share)
			}
			if t.MinCustomers < 0 || t.MaxCustomers < t.MinCustomers {
				fault("generate.tiers[%d]: customers from %d to %d is not a range", i, t.MinCustomers, t.MaxCustomers)
			}
		}
	}
	for i, t := range s.Members {
		if t.Name == "" {
			fault("targets[%d].name: is required", i)
		}
		if t.Customers < 0 {
			fault("targets[%d].customers: must not be negative, is %d", i, t.Customers)
		}
		if t.Bare && t.Version != "" {
			fault("targets[%d]: is bare and has version %s; one of the two", i, t.Version)
		}
		for _, reserved := range []string{"region", "tier", "customers"} {
			if _, ok := t.Labels[reserved]; ok {
				fault("targets[%d].labels.%s: has a field of its own", i, reserved)
			}
		}
	}
	if len(s.Members) == 0 && s.Generate == nil {
		fault("targets: at least one target is required, here or from generate")
	}
	names := map[string]bool{}
	if len(faults) == 0 {
		for _, t := range s.members() {
			if names[t.Name] {
				fault("targets: %q stands twice", t.Name)
			}
			names[t.Name] = true
		}
	}
	match := func(path string, m Match) {
		for i, name := range m.Targets {
			if len(names) > 0 && !names[name] {
				fault("%s.select.targets[%d]: no target %q", path, i, name)
			}
		}
	}
	times := func(path string, n int) {
		if n < 0 {
			fault("%s.times: must not be negative, is %d", path, n)
		}
	}
	if s.Duration.Min < 0 || s.Duration.Max < s.Duration.Min {
		fault("duration: from %v to %v is not a range", s.Duration.Min, s.Duration.Max)
	}
	for i, f := range s.Failures {
		path := fmt.Sprintf("failures[%d]", i)
		match(path, f.Match)
		times(path, f.Times)
		if !slices.Contains([]State{"", Failed, Blocked, Unknown, Succeeded}, f.Reports) {
			fault("%s.reports: %q is not failed, blocked, unknown or succeeded", path, f.Reports)
		}
		if !slices.Contains([]Leaves{"", LeavesPrevious, LeavesVersion, LeavesUnreadable}, f.Leaves) {
			fault("%s.leaves: %q is not previous, version or unreadable", path, f.Leaves)
		}
		switch {
		case f.Hang && (f.Reports != "" || f.Leaves != ""):
			fault("%s.hang: ends well when released, so it goes with neither reports nor leaves", path)
		case f.Reports == Succeeded && f.Leaves == LeavesVersion:
			fault("%s: reports succeeded and leaves the version: that is no failure", path)
		case f.Reports == Blocked && f.Leaves != "" && f.Leaves != LeavesPrevious:
			fault("%s: reports blocked, which changes nothing, so it leaves previous", path)
		}
	}
	for i, b := range s.Blocked {
		path := fmt.Sprintf("blocked[%d]", i)
		match(path, b.Match)
		times(path, b.Times)
	}
	for i, o := range s.Unreachable {
		path := fmt.Sprintf("unreachable[%d]", i)
		match(path, o.Match)
		if o.For < 0 || o.Requests < 0 {
			fault("%s: for and requests must not be negative", path)
		}
		given := 0
		for _, set := range []bool{o.For != 0, o.Requests != 0, o.UntilReleased} {
			if set {
				given++
			}
		}
		if given != 1 {
			fault("%s: exactly one of for, requests and untilReleased says how long", path)
		}
	}
	for i, l := range s.LoseRequests {
		path := fmt.Sprintf("loseRequests[%d]", i)
		match(path, l.Match)
		times(path, l.Times)
	}
	for i, l := range s.LoseReplies {
		path := fmt.Sprintf("loseReplies[%d]", i)
		match(path, l.Match)
		times(path, l.Times)
	}
	for i, d := range s.DelayReplies {
		path := fmt.Sprintf("delayReplies[%d]", i)
		match(path, d.Match)
		times(path, d.Times)
		if d.Delay <= 0 {
			fault("%s.delay: must be positive, is %v", path, d.Delay)
		}
	}
	metrics := map[string]bool{}
	for i, m := range s.Metrics {
		path := fmt.Sprintf("metrics[%d]", i)
		if !metricName.MatchString(m.Name) {
			fault("%s.name: %q is not a metric name", path, m.Name)
		}
		if metrics[m.Name] {
			fault("%s.name: %q stands twice", path, m.Name)
		}
		metrics[m.Name] = true
		if math.IsNaN(m.Base) || math.IsInf(m.Base, 0) {
			fault("%s.base: must be a finite number", path)
		}
		if !(m.Spread >= 0 && m.Spread < 1) { // put this way, NaN is refused too
			fault("%s.spread: must be a fraction from 0 to below 1, is %v", path, m.Spread)
		}
	}
	for i, r := range s.Regressions {
		path := fmt.Sprintf("regressions[%d]", i)
		match(path, r.Match)
		if r.Version == "" {
			fault("%s.version: is required", path)
		}
		if !metrics[r.Metric] {
			fault("%s.metric: no metric %q", path, r.Metric)
		}
		if !(r.Factor > 0) || math.IsInf(r.Factor, 0) {
			fault("%s.factor: must be a positive number, is %v", path, r.Factor)
		}
		if r.After < 0 || r.MinCustomers < 0 {
			fault("%s: after and minCustomers must not be negative", path)
		}
	}
	return errors.Join(faults...)
}

// Targets returns the fleet as an inventory holds it: metadata region (text), tier and customers (numbers), and the
// labels. It does not carry the running version: that is read from the target.
func (s Scenario) Targets() []inventory.Target {
	members := s.members()
	targets := make([]inventory.Target, len(members))
	for i, t := range members {
		metadata := map[string]any{"region": t.Region, "tier": float64(t.Tier), "customers": float64(t.Customers)}
		for key, value := range t.Labels {
			metadata[key] = value
		}
		targets[i] = inventory.Target{Name: t.Name, Kind: "Cluster", Metadata: metadata}
	}
	return targets
}

// members lists the written targets and behind them the generated ones.
func (s Scenario) members() []Target {
	members := slices.Clone(s.Members)
	if g := s.Generate; g != nil {
		total := 0
		for _, t := range g.Tiers {
			total += t.Share
		}
		for i := range g.Count {
			region, number := g.Regions[i%len(g.Regions)], i/len(g.Regions)
			inRegion := (g.Count - i%len(g.Regions) + len(g.Regions) - 1) / len(g.Regions)
			// The place of the target in its region, on the scale of the shares, falls into exactly one tier.
			place, tier := number*total/inRegion, g.Tiers[len(g.Tiers)-1]
			for _, t := range g.Tiers {
				if place < t.Share {
					tier = t
					break
				}
				place -= t.Share
			}
			name := fmt.Sprintf("cluster-%s-%03d", region, number+1)
			spread := float64(tier.MaxCustomers - tier.MinCustomers + 1)
			members = append(members, Target{
				Name: name, Region: region, Tier: tier.Tier,
				Customers: tier.MinCustomers + int(s.draw("customers", name)*spread),
			})
		}
	}
	for i := range members {
		if members[i].Version == "" && !members[i].Bare {
			members[i].Version = s.Version
		}
	}
	return members
}

// draw returns a number from 0 to below 1 that depends on nothing but the seed and the words.
func (s Scenario) draw(words ...string) float64 {
	text := strconv.FormatInt(s.Seed, 10) + "\x00" + strings.Join(words, "\x00")
	sum := sha256.Sum256([]byte(text))
	return float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
}

// duration returns how long that operation takes on that target.
func (s Scenario) duration(target, operation string) time.Duration {
	span := s.Duration.Max - s.Duration.Min
	return s.Duration.Min + time.Duration(s.draw("duration", target, operation)*float64(span))
}

// matches reports whether the target is selected.
func (m Match) matches(t Target) bool {
	return (len(m.Targets) == 0 || slices.Contains(m.Targets, t.Name)) &&
		(m.Region == "" || m.Region == t.Region) &&
		(m.Tier == nil || *m.Tier == t.Tier) &&
		t.Customers >= m.MinCustomers
}

// Demo is the scenario of the demo: 400 clusters in 6 regions, tier 3 with few customers each to tier 1 with most, all
// on v1. On v2 the write latency rises fivefold under load: not on tier 3, which is too small to show it, but on every
// cluster of tiers 2 and 1.
func Demo(seed int64) Scenario {
	return Scenario{
		Seed: seed, Version: "v1",
		Generate: &Generate{
			Count:   400,
			Regions: []string{"us-east", "us-west", "eu-west", "eu-north", "ap-south", "ap-east"},
			Tiers: []Tier{
				{Tier: 3, Share: 5, MinCustomers: 1, MaxCustomers: 40},
				{Tier: 2, Share: 3, MinCustomers: 100, MaxCustomers: 600},
				{Tier: 1, Share: 2, MinCustomers: 1000, MaxCustomers: 6000},
			},
		},
		Duration: Span{Min: 200 * time.Millisecond, Max: 900 * time.Millisecond},
		Metrics: []Metric{
			{Name: "write_latency_ms", Help: "Time to commit one write, in milliseconds.", Base: 12, Spread: 0.15},
			{Name: "read_latency_ms", Help: "Time to serve one read, in milliseconds.", Base: 4, Spread: 0.15},
			{Name: "error_rate", Help: "Share of requests that fail.", Base: 0.001, Spread: 0.2},
		},
		Regressions: []Regression{
			{Version: "v2", Metric: "write_latency_ms", Factor: 5, After: 2 * time.Second, MinCustomers: 100},
		},
	}
}
