package load

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/expr"
)

// defaultErrorLimit is how many measurement errors in a row a metric bears where the document does not say.
const defaultErrorLimit = 4

// metric is a Check or one use of a metric, as written: what is nil was not written.
type metric struct {
	node  *node
	place policy.Place
	path  string
	name  string
	check string // the Check that it names

	provider   string
	connection string
	config     json.RawMessage
	success    policy.Expression
	failure    policy.Expression
	// args are, of a Check, its defaults; of a use, what it gives. argPlace is where each stands.
	args     map[string]any
	argPlace map[string]policy.Place

	interval, initialDelay                         *policy.Duration
	count, failureLimit, inconclusiveLimit         *int
	consecutiveErrorLimit, consecutiveSuccessLimit *int
	dryRun                                         *bool
	onNoData                                       policy.OnNoData
	during                                         policy.During
	// broken: a fault has been reported; nothing is concluded from what is missing.
	broken bool
}

// verification is one policy's rule, its metrics not yet complete.
type verification struct {
	policy  int // index in the bundle
	name    string
	metrics []*metric
}

func (s *session) check(f *fields, name string) {
	m := s.metric(f, nil)
	m.name = name
	if m.provider == "" && !m.broken {
		s.fault(f.n.place, f.at("provider"), "is required: %s", s.providerHint())
	}
	if m.success == "" && m.failure == "" && !m.broken {
		s.fault(f.n.place, f.at("successCondition"), "is required, or failureCondition: CEL that judges a measurement")
	}
	if s.checks == nil {
		s.checks = map[string]*metric{}
	}
	if _, twice := s.checks[name]; !twice {
		s.checks[name] = m
	}
	complete := m.complete()
	complete.Place = f.n.place
	s.bundle.Checks = append(s.bundle.Checks, policy.Check{Name: name, Metric: complete, Place: f.n.place})
}

func (s *session) verification(n *node, path string, p *policy.Policy) {
	list, listPath := n, path
	if n.kind == mapKind {
		f := s.fields(n, path)
		list, listPath = f.need("metrics", "a list of metrics"), f.at("metrics")
		f.end()
	}
	v := &verification{policy: len(s.bundle.Policies), name: p.Name}
	for i, item := range s.list(list, listPath, "metrics") {
		f := s.fields(item, fmt.Sprintf("%s[%d]", listPath, i))
		if f == nil {
			continue
		}
		var check string
		if f.n.find("check") != nil {
			check = s.name(f.take("check"), f.at("check"))
		} else {
			f.asked = append(f.asked, "check")
		}
		before := s.found
		m := s.metric(f, &check)
		m.check = check
		if nameNode := f.take("name"); nameNode != nil {
			m.name = s.name(nameNode, f.at("name"))
		} else if m.name = check; check == "" && f.n.find("name") == nil && f.n.find("check") == nil {
			s.fault(item.place, f.at("name"), "is required: what operators call the metric, or `check:` with the name of a Check")
		}
		f.end()
		m.broken = m.broken || s.found > before
		v.metrics = append(v.metrics, m)
	}
	s.verified = append(s.verified, v)
}

// metric reads the fields that a Check and a metric have in common; check is nil in a Check document.
func (s *session) metric(f *fields, check *string) *metric {
	before := s.found
	m := &metric{node: f.n, place: f.n.place, path: f.path}
	if check == nil {
		f.asked = append(f.asked, "name")
		f.text("description")
	}
	m.interval = f.duration("interval", true)
	m.initialDelay = f.duration("initialDelay", false)
	const most = 1_000_000
	m.count = f.integer("count", 1, most)
	m.failureLimit = f.integer("failureLimit", 0, most)
	m.inconclusiveLimit = f.integer("inconclusiveLimit", 0, most)
	m.consecutiveErrorLimit = f.integer("consecutiveErrorLimit", 0, most)
	m.consecutiveSuccessLimit = f.integer("consecutiveSuccessLimit", 0, most)
	m.dryRun = f.boolean("dryRun")
	m.onNoData = policy.OnNoData(f.oneOf("onNoData", string(policy.NoDataInconclusive), string(policy.NoDataFails)))
	m.during = policy.During(f.oneOf("during", string(policy.DuringApply), string(policy.DuringSoak), string(policy.DuringBoth)))
	if scope := f.take("scope"); scope != nil {
		switch text := s.text(scope, f.at("scope")); text {
		case "", "target":
		case "wave":
			s.fault(scope.place, f.at("scope"), `"wave" is not supported yet; allowed is target, the default`)
		default:
			s.fault(scope.place, f.at("scope"), "%.60q is not a scope; allowed is target, the default", text)
		}
	}
	f.notYet("baseline")
	s.arguments(f, m)
	declared := argumentNames(m)
	if check != nil {
		declared = nil // whose arguments they are is known only when the Check is
	}
	m.success = f.expression("successCondition", expr.InCondition)
	m.failure = f.expression("failureCondition", expr.InCondition)
	s.provider(f, m, check, declared)
	if check == nil {
		for _, field := range []string{"successCondition", "failureCondition"} {
			if n := f.take(field); n != nil {
				s.conditionArguments(n.place, f.at(field), n.text, declared)
			}
		}
	}
	m.broken = s.found > before
	return m
}

func argumentNames(m *metric) []string {
	return slices.Sorted(maps.Keys(m.args))
}

func (s *session) arguments(f *fields, m *metric) {
	n := f.take("args")
	if n == nil {
		return
	}
	if n.kind != mapKind {
		s.fault(n.place, f.at("args"), "must be a mapping, not %s", n.is())
		return
	}
	m.args, m.argPlace = map[string]any{}, map[string]policy.Place{}
	for _, e := range n.entries {
		path := f.at("args") + "." + e.key
		switch {
		case e.value.kind == listKind || e.value.kind == mapKind:
			s.fault(e.value.place, path, "must be a text, a number or a bool, not %s", e.value.is())
			continue
		case !nameCharacters.MatchString(e.key) || len(e.key) > 63:
			s.fault(e.place, path, "the name %.70q is not allowed; allowed are a-z A-Z 0-9 - _ .", e.key)
			continue
		}
		m.args[e.key] = s.value(e.value, path)
		m.argPlace[e.key] = e.place
	}
}

// conditionArguments checks that a condition reads no argument that is not declared.
func (s *session) conditionArguments(place policy.Place, path, source string, declared []string) {
	for _, read := range expr.Reads(source) {
		name, ok := strings.CutPrefix(read, "args.")
		if ok && !slices.Contains(declared, name) {
			s.fault(place, path, "reads the argument %q, which is not declared%s", name, knownOr(suggest(name, declared), declared))
		}
	}
}

// metricTemplates are the variables that a query's templates may name.
var metricTemplates = []string{"target", "resource", "environment", "deployment", "version", "args"}

// metricFields are the fields of a metric, to tell them from those of a provider that is written flat.
var metricFields = []string{
	"type", "name", "description", "check", "args", "provider", "connection", "successCondition", "failureCondition",
	"interval", "initialDelay", "count", "failureLimit", "inconclusiveLimit", "consecutiveErrorLimit",
	"consecutiveSuccessLimit", "dryRun", "onNoData", "during", "scope", "baseline",
}

// provider reads `provider: {type, connection, …}`, or `provider: type` with the rest beside it.
func (s *session) provider(f *fields, m *metric, check *string, declared []string) {
	n := f.take("provider")
	if n == nil {
		return
	}
	kinds := s.providerNames()
	config := &node{kind: mapKind, place: n.place}
	path := f.at("provider")
	var typeNode, connection *node
	switch n.kind {
	case mapKind:
		inner := s.fields(n, path)
		typeNode, connection = inner.need("type", "one of "+strings.Join(kinds, ", ")), inner.take("connection")
		if typeNode == nil {
			return
		}
		for _, e := range n.entries {
			if e.key != "type" && e.key != "connection" {
				config.entries = append(config.entries, e)
			}
		}
	case textKind:
		typeNode, connection, path = n, f.take("connection"), f.path
		for _, e := range f.n.entries {
			// What is no field of a metric is the provider's, unless it looks like a misspelt one.
			if !slices.Contains(f.asked, e.key) && !slices.Contains(metricFields, e.key) && suggest(e.key, metricFields) == "" {
				config.entries = append(config.entries, e)
				f.asked = append(f.asked, e.key)
			}
		}
	case nullKind, boolKind, numberKind, listKind, brokenKind:
		s.fault(n.place, path, "must be a mapping with `type`, or a type; types are: %s", strings.Join(kinds, ", "))
		return
	}
	typeName := s.text(typeNode, path)
	if typeName == "" {
		return
	}
	i := slices.Index(kinds, typeName)
	if i < 0 {
		s.fault(typeNode.place, f.at("provider"), "unknown provider type %.60q%s", typeName, didYouMean(typeName, kinds, "one of "+strings.Join(kinds, ", ")))
		return
	}
	m.provider = typeName
	kind := s.loader.providers[i]
	if connection != nil {
		m.connection = s.name(connection, f.at("connection"))
	}
	before := s.found
	m.config = s.json(config, path)
	if s.found > before {
		return
	}
	// Both are said: a field that has no place here may hold a template that has no value either.
	if check == nil {
		s.templates(config, path, metricTemplates, declared)
	} else if *check == "" {
		s.templates(config, path, metricTemplates, argumentNames(m))
	} else {
		s.fault(n.place, f.at("provider"), "a metric has one provider: `check: %s` brings its own; leave one of them out", *check)
		return
	}
	if err := kind.Decode(m.config); err != nil {
		s.configFaults(err, config, path)
	}
}

func (s *session) providerNames() []string {
	names := make([]string, len(s.loader.providers))
	for i, k := range s.loader.providers {
		names[i] = k.Name
	}
	return names
}

func (s *session) providerHint() string {
	return "a mapping with `type`, one of " + strings.Join(s.providerNames(), ", ")
}

// resolveMetrics completes each metric from the Check or the metric that it stands on, and checks it whole.
func (s *session) resolveMetrics() {
	for _, v := range s.verified {
		seen := map[string]policy.Place{}
		for _, m := range v.metrics {
			if first, twice := seen[m.name]; twice && m.name != "" {
				s.fault(m.place, m.path, "there are two metrics %q in the policy; the first is at %s", m.name, first)
			}
			seen[m.name] = m.place
			whole := s.resolve(m, v)
			if whole == nil {
				continue
			}
			complete := whole.complete()
			s.bundle.Policies[v.policy].Verification = append(s.bundle.Policies[v.policy].Verification, complete)
		}
	}
}

// resolve returns the metric with what it takes from elsewhere; nil after a fault.
func (s *session) resolve(m *metric, in *verification) *metric {
	base := s.base(m, in)
	if base == nil && (m.broken || m.check != "" || m.provider == "") {
		return nil
	}
	whole := *m
	if base != nil {
		whole = m.over(base)
		if !s.fillArguments(&whole, m, base) {
			return nil
		}
	} else if len(m.args) > 0 {
		for _, name := range argumentNames(m) {
			s.fault(m.argPlace[name], m.path+".args."+name, "only a Check has arguments; write `check:`, or put the value where it is used")
		}
		return nil
	}
	if whole.broken {
		return nil
	}
	if whole.success == "" && whole.failure == "" {
		s.fault(m.place, m.path, "has no condition; write successCondition or failureCondition")
		return nil
	}
	declared := argumentNames(&whole)
	s.conditionArguments(keyPlace(m.node, "successCondition"), m.path+".successCondition", string(m.success), declared)
	s.conditionArguments(keyPlace(m.node, "failureCondition"), m.path+".failureCondition", string(m.failure), declared)
	if !s.resultFields(&whole) || !s.limitsFit(&whole) {
		return nil
	}
	return &whole
}

// resultFields refuses conditions that read what the provider never gives: they would fail at each measurement, when the
// first target has been changed already.
func (s *session) resultFields(m *metric) bool {
	i := slices.Index(s.providerNames(), m.provider)
	if i < 0 || len(s.loader.providers[i].Result) == 0 {
		return true
	}
	fields, fine := s.loader.providers[i].Result, true
	for _, c := range []struct {
		name   string
		source policy.Expression
	}{{"successCondition", m.success}, {"failureCondition", m.failure}} {
		for _, read := range expr.Reads(string(c.source)) {
			variable, field, _ := strings.Cut(read, ".")
			if variable != "result" && variable != "baseline" || field == "" || slices.Contains(fields, field) {
				continue
			}
			s.fault(keyPlace(m.node, c.name), m.path+"."+c.name, "%s has no field %q%s", variable, field, didYouMean(field, fields, "one of "+strings.Join(fields, ", ")+", which "+m.provider+" gives"))
			fine = false
		}
	}
	return fine
}

// base returns the Check or the other metric that m takes from; nil if it stands on its own, and after a fault.
func (s *session) base(m *metric, in *verification) *metric {
	if m.check != "" {
		base, ok := s.checks[m.check]
		if !ok {
			names := slices.Sorted(maps.Keys(s.checks))
			s.fault(keyPlace(m.node, "check"), m.path+".check", "no Check of the name %q%s", m.check, knownOr(suggest(m.check, names), names))
		}
		return base
	}
	if m.provider != "" && (m.success != "" || m.failure != "") || m.name == "" || m.broken {
		return nil
	}
	var bases []*metric
	if check, ok := s.checks[m.name]; ok {
		bases = append(bases, check)
	}
	for _, other := range s.verified {
		for _, candidate := range other.metrics {
			// One that itself stands on the Check of this name is that Check over again.
			own := candidate.provider != "" || candidate.check != "" && candidate.check != m.name
			if other != in && candidate.name == m.name && own {
				bases = append(bases, candidate)
			}
		}
	}
	lacks := "provider"
	if m.provider != "" {
		lacks = "condition"
	}
	switch {
	case len(bases) == 1 && bases[0].check != "":
		base, ok := s.checks[bases[0].check]
		if !ok {
			return nil // reported where it stands
		}
		merged := bases[0].over(base)
		merged.args = maps.Clone(base.args)
		maps.Copy(merged.args, bases[0].args)
		return &merged
	case len(bases) == 1:
		return bases[0]
	case len(bases) == 0:
		s.fault(m.place, m.path, "has no %s, and there is no Check %q and no metric %q in another policy to take one from", lacks, m.name, m.name)
	default:
		places := make([]string, len(bases))
		for i, base := range bases {
			places[i] = base.place.String()
		}
		s.fault(m.place, m.path, "has no %s, and there are several %q to take one from, at %s; write `check:` or the fields themselves", lacks, m.name, strings.Join(places, " and "))
	}
	m.broken = true
	return nil
}

// over returns m with base's fields where m has none.
func (m *metric) over(base *metric) metric {
	whole := *m
	if whole.provider == "" {
		whole.provider, whole.connection, whole.config = base.provider, base.connection, base.config
	}
	whole.success, whole.failure = or(whole.success, base.success), or(whole.failure, base.failure)
	whole.interval, whole.initialDelay = or(whole.interval, base.interval), or(whole.initialDelay, base.initialDelay)
	whole.count = or(whole.count, base.count)
	whole.failureLimit = or(whole.failureLimit, base.failureLimit)
	whole.inconclusiveLimit = or(whole.inconclusiveLimit, base.inconclusiveLimit)
	whole.consecutiveErrorLimit = or(whole.consecutiveErrorLimit, base.consecutiveErrorLimit)
	whole.consecutiveSuccessLimit = or(whole.consecutiveSuccessLimit, base.consecutiveSuccessLimit)
	whole.dryRun = or(whole.dryRun, base.dryRun)
	whole.onNoData, whole.during = or(whole.onNoData, base.onNoData), or(whole.during, base.during)
	whole.broken = whole.broken || base.broken
	return whole
}

func or[T comparable](a, b T) T {
	var zero T
	if a != zero {
		return a
	}
	return b
}

// fillArguments gives a use the Check's defaults, and refuses what the Check does not declare or still lacks.
func (s *session) fillArguments(whole, use, base *metric) bool {
	declared := argumentNames(base)
	whole.args = maps.Clone(base.args)
	fine := true
	for _, name := range argumentNames(use) {
		if !slices.Contains(declared, name) {
			s.fault(use.argPlace[name], use.path+".args."+name, "unknown argument%s", knownOr(suggest(name, declared), declared))
			fine = false
			continue
		}
		whole.args[name] = use.args[name]
	}
	for _, name := range declared {
		if whole.args[name] == nil {
			s.fault(keyPlace(use.node, "args"), use.path+".args", "the argument %q is required: the Check has no default for it", name)
			fine = false
		}
	}
	return fine
}

// limitsFit refuses limits that its count can never meet, and a metric that would repeat without an interval.
func (s *session) limitsFit(m *metric) bool {
	before := s.found
	count := value(m.count, 1)
	if count > 1 && m.interval == nil {
		s.fault(keyPlace(m.node, "count"), m.path+".interval", "is required: count is %d, so the metric is measured again", count)
	} else if m.interval == nil && (m.during == policy.DuringSoak || m.during == policy.DuringBoth) {
		s.fault(keyPlace(m.node, "during"), m.path+".interval", "is required: during is %s, and a soak is measured again until it ends", m.during)
	}
	failures, successes := value(m.failureLimit, 0), value(m.consecutiveSuccessLimit, 0)
	switch {
	case failures >= count:
		if failures > 0 {
			s.fault(keyPlace(m.node, "failureLimit"), m.path+".failureLimit", "%d can never be exceeded within a count of %d; write at most %d, or raise count", failures, count, count-1)
		}
	case successes > 0 && failures+successes > count && successes <= count:
		s.fault(keyPlace(m.node, "consecutiveSuccessLimit"), m.path+".consecutiveSuccessLimit", "%d cannot be met within a count of %d after %d failures; raise count", successes, count, failures)
	}
	if inconclusive := value(m.inconclusiveLimit, 0); inconclusive > 0 && inconclusive >= count {
		s.fault(keyPlace(m.node, "inconclusiveLimit"), m.path+".inconclusiveLimit", "%d can never be exceeded within a count of %d; write at most %d, or raise count", inconclusive, count, count-1)
	}
	if successes > count {
		s.fault(keyPlace(m.node, "consecutiveSuccessLimit"), m.path+".consecutiveSuccessLimit", "%d cannot be met within a count of %d; write at most %d, or raise count", successes, count, count)
	}
	return s.found == before
}

func value[T any](written *T, otherwise T) T {
	if written != nil {
		return *written
	}
	return otherwise
}

// complete fills in the defaults.
func (m *metric) complete() policy.Metric {
	interval := value(m.interval, 0)
	complete := policy.Metric{
		Name: m.name, Provider: m.provider, Connection: m.connection, Config: m.config,
		Success: m.success, Failure: m.failure,
		Interval: interval, InitialDelay: value(m.initialDelay, interval),
		Count:                   value(m.count, 1),
		FailureLimit:            value(m.failureLimit, 0),
		InconclusiveLimit:       value(m.inconclusiveLimit, 0),
		ConsecutiveErrorLimit:   value(m.consecutiveErrorLimit, defaultErrorLimit),
		ConsecutiveSuccessLimit: value(m.consecutiveSuccessLimit, 0),
		DryRun:                  value(m.dryRun, false),
		OnNoData:                or(m.onNoData, policy.NoDataInconclusive),
		During:                  or(m.during, policy.DuringApply),
		Place:                   m.place,
	}
	if len(m.args) > 0 {
		complete.Args = m.args
	}
	for _, source := range []policy.Expression{m.success, m.failure} {
		for _, read := range expr.Reads(string(source)) {
			if read == "baseline" || strings.HasPrefix(read, "baseline.") {
				complete.UsesBaseline = true
			}
		}
	}
	return complete
}
