package load

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/inventory"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/expr"
)

// defaultDeadline bounds a step on one target where the document does not.
const defaultDeadline = policy.Duration(time.Hour)

// documentType is one entry of the visible list of types.
type documentType struct {
	name string
	read func(*session, *fields, string) // nil: not supported yet
}

func documentTypes() []documentType {
	return []documentType{
		{"Resource", (*session).resource},
		{"Environment", (*session).environmentDocument},
		{"Deployment", (*session).deployment},
		{"Policy", (*session).policyDocument},
		{"Check", (*session).check},
		{"ResourceProvider", nil},
		{"Stack", nil},
		{"Freeze", nil},
		{"Team", nil},
	}
}

// document reads one document into the bundle.
func (s *session) document(n *node) {
	s.documents++
	f := s.fields(n, "")
	if f == nil {
		return
	}
	var typeName string
	if n.find("type") == nil && n.find("rules") != nil {
		typeName = "Policy"
	} else if typeName = f.s.text(f.need("type", typeHint()), "type"); typeName == "" {
		return
	}
	if len(f.asked) == 0 {
		f.asked = []string{"type"}
	}
	types := documentTypes()
	i := slices.IndexFunc(types, func(t documentType) bool { return t.name == typeName })
	if i < 0 {
		s.fault(n.find("type").place, "type", "unknown type %.60q%s", typeName, didYouMean(typeName, supportedTypes(), typeHint()))
		return
	}
	f.path = typeName
	if name := n.find("name"); name != nil && (name.kind == textKind || name.kind == numberKind || name.kind == boolKind) {
		f.path = fmt.Sprintf("%s %.130q", typeName, name.text)
	}
	if types[i].read == nil {
		s.fault(n.place, f.path, "the type %s is not supported yet; supported are: %s", typeName, strings.Join(supportedTypes(), ", "))
		return
	}
	nameNode := f.need("name", "the name by which other documents and commands know it")
	nameOf := s.name
	if typeName == "Resource" {
		nameOf = s.targetName
	}
	name := nameOf(nameNode, f.at("name"))
	if name != "" {
		if s.seen == nil {
			s.seen = map[string]policy.Place{}
		}
		key := typeName + " " + name
		if first, twice := s.seen[key]; twice {
			s.fault(nameNode.place, f.at("name"), "there are two of this name; the first is at %s", first)
		} else {
			s.seen[key] = nameNode.place
		}
	}
	types[i].read(s, f, name)
	f.end()
}

func supportedTypes() []string {
	var names []string
	for _, t := range documentTypes() {
		if t.read != nil {
			names = append(names, t.name)
		}
	}
	return names
}

func typeHint() string { return "one of " + strings.Join(supportedTypes(), ", ") }

// didYouMean is the end of a message about an unknown name.
func didYouMean(name string, known []string, allowed string) string {
	if suggestion := suggest(name, known); suggestion != "" {
		return fmt.Sprintf("; did you mean %q?", suggestion)
	}
	return "; allowed is " + allowed
}

func (s *session) resource(f *fields, name string) {
	target := inventory.Target{
		Name: name, Kind: f.text("kind"), Identifier: f.text("identifier"), Version: f.text("version"),
	}
	target.Metadata = s.object(f.take("metadata"), f.at("metadata"))
	labels := f.take("labels")
	for key, value := range s.object(labels, f.at("labels")) {
		if have, twice := target.Metadata[key]; twice && !reflect.DeepEqual(have, value) {
			s.fault(keyPlace(labels, key), f.at("labels")+"."+key, "metadata has the same key with another value; labels and metadata are one map")
			continue
		}
		if target.Metadata == nil {
			target.Metadata = map[string]any{}
		}
		target.Metadata[key] = value
	}
	target.Config = s.object(f.take("config"), f.at("config"))
	s.bundle.Snapshot.Targets = append(s.bundle.Snapshot.Targets, target)
}

func keyPlace(n *node, key string) policy.Place {
	for _, e := range n.entries {
		if e.key == key {
			return e.place
		}
	}
	return n.place
}

// object reads a mapping of free values; nil if not written or empty.
func (s *session) object(n *node, path string) map[string]any {
	if n == nil {
		return nil
	}
	if n.kind != mapKind {
		s.fault(n.place, path, "must be a mapping, not %s", n.is())
		return nil
	}
	m, _ := s.value(n, path).(map[string]any)
	if len(m) == 0 {
		return nil
	}
	return m
}

func (s *session) environmentDocument(f *fields, name string) {
	e := policy.Environment{Name: name, Description: f.text("description"), Place: f.n.place}
	field := "resourceSelector"
	if f.n.find(field) == nil && f.n.find("selector") != nil {
		field = "selector"
	}
	e.Selector = s.expression(f.need(field, `CEL that is true for its targets, e.g. target.metadata.env == "prod"`), f.at(field), expr.InSelector)
	if other := f.n.find("selector"); other != nil && field != "selector" {
		f.asked = append(f.asked, "selector")
		s.fault(other.place, f.at("selector"), "says again what resourceSelector says; write one of them")
	}
	if s.environment == nil {
		s.environment = map[string]bool{}
	}
	s.environment[name] = true
	s.bundle.Environments = append(s.bundle.Environments, e)
}

func (s *session) deployment(f *fields, name string) {
	d := policy.Deployment{Name: name, Description: f.text("description"), Rollback: policy.RollbackPrevious, Place: f.n.place}
	for i, item := range f.list("environments", "names of Environments") {
		path := fmt.Sprintf("%s[%d]", f.at("environments"), i)
		environment := s.text(item, path)
		if environment == "" {
			continue
		}
		if slices.Contains(d.Environments, environment) {
			s.fault(item.place, path, "names %q twice", environment)
			continue
		}
		d.Environments = append(d.Environments, environment)
		s.boundTo = append(s.boundTo, reference{item.place, path, environment})
	}
	if kindNode := f.take("kind"); kindNode != nil {
		switch text := s.text(kindNode, f.at("kind")); text {
		case "", "service":
		case "task":
			s.fault(kindNode.place, f.at("kind"), `"task" is not supported yet; allowed is service, the default`)
		default:
			s.fault(kindNode.place, f.at("kind"), "%q is not a kind; allowed is service, the default", text)
		}
	}
	if exclusive := f.boolean("exclusive"); exclusive != nil && *exclusive {
		s.fault(f.n.find("exclusive").place, f.at("exclusive"), "true is not supported yet; allowed is false, the default")
	}
	s.steps(s.fields(f.need("steps", "apply, with the one step that changes a target"), f.at("steps")), &d)
	f.notYet("owner", "site", "observe", "retry", "schedule")
	s.bundle.Deployments = append(s.bundle.Deployments, d)
}

func (s *session) steps(f *fields, d *policy.Deployment) {
	if f == nil {
		return
	}
	apply := f.need("apply", "a list of the one step that changes a target")
	steps := s.list(apply, f.at("apply"), "one step")
	for i, step := range steps {
		if i == 1 {
			s.fault(step.place, fmt.Sprintf("%s[%d]", f.at("apply"), i), "more than one step is not supported yet; write exactly one")
			break
		}
		d.Apply = s.step(step, fmt.Sprintf("%s[%d]", f.at("apply"), i))
	}
	if rollback := f.take("rollback"); rollback != nil {
		switch {
		case rollback.kind == listKind:
			s.fault(rollback.place, f.at("rollback"), "a list of steps is not supported yet; allowed are previous, the default, and none")
		case rollback.kind != textKind:
			s.fault(rollback.place, f.at("rollback"), "must be previous or none, not %s", rollback.is())
		case rollback.text == string(policy.RollbackPrevious), rollback.text == string(policy.RollbackNone):
			d.Rollback = policy.RollbackKind(rollback.text)
		default:
			s.fault(rollback.place, f.at("rollback"), "%.60q is not one of previous, none", rollback.text)
		}
	}
	f.notYet("prepare", "restore")
	f.end()
}

func (s *session) step(n *node, path string) policy.Step {
	f := s.fields(n, path)
	if f == nil {
		return policy.Step{}
	}
	step := policy.Step{Deadline: defaultDeadline}
	step.Name = s.name(f.need("name", "what operators call the step"), f.at("name"))
	if deadline := f.duration("deadline", true); deadline != nil {
		step.Deadline = *deadline
	}
	kinds := make([]string, len(s.loader.executors))
	for i, k := range s.loader.executors {
		kinds[i] = k.Name
	}
	for _, e := range n.entries {
		i := slices.Index(kinds, e.key)
		if i < 0 {
			continue
		}
		if step.Kind != "" {
			s.fault(e.place, f.at(e.key), "the step has two executors, %s and %s; write one", step.Kind, e.key)
			continue
		}
		step.Kind = e.key
		s.stepConfig(&step, s.loader.executors[i], e, f.at(e.key))
	}
	f.asked = append(f.asked, kinds...)
	faults := s.found
	f.end()
	if step.Kind == "" && s.found == faults {
		s.fault(n.place, path, "names no executor; write one of: %s", strings.Join(kinds, ", "))
	}
	return step
}

// stepTemplates are the variables that a step's templates may name.
var stepTemplates = []string{"target", "resource", "environment", "deployment", "version"}

func (s *session) stepConfig(step *policy.Step, kind executors.Kind, e entry, path string) {
	if e.value.kind == brokenKind {
		return
	}
	if e.value.kind == nullKind {
		s.fault(e.place, path, "has no value; write the executor's configuration")
		return
	}
	before := s.found
	step.Config = s.json(e.value, path)
	s.templates(e.value, path, stepTemplates, nil)
	if s.found > before {
		return
	}
	traits, err := kind.Decode(step.Config)
	if err != nil {
		s.configFaults(err, e.value, path)
		return
	}
	if longest := policy.Duration(traits.Longest); longest > step.Deadline {
		s.fault(e.place, path, "may be at work for %s (timeout and grace), and the step's deadline is %s: its end would not be awaited; "+
			"shorten the timeout or write a longer deadline", longest, step.Deadline)
	}
	step.Observes, step.Restores, step.Uninstalls, step.Reason = traits.Observes, traits.Restores, traits.Uninstalls, traits.Reason
}

// configFaults reports what a decoder found, each where it stands.
func (s *session) configFaults(err error, config *node, path string) {
	for _, fault := range providerFaults(err) {
		at := path
		if fault.Path != "" {
			at = join(path, fault.Path)
		}
		s.fault(locate(config, fault.Path), at, "%s", fault.Message)
	}
}

// locate follows a path such as `exitCodes.75` or `apply[0]` as far as it leads.
func locate(n *node, path string) policy.Place {
	place := n.place
	for path != "" {
		path = strings.TrimPrefix(path, ".")
		if rest, ok := strings.CutPrefix(path, "["); ok && n.kind == listKind {
			digits, after, _ := strings.Cut(rest, "]")
			i, err := strconv.Atoi(digits)
			if err != nil || i < 0 || i >= len(n.items) {
				return place
			}
			n, path, place = n.items[i], after, n.items[i].place
			continue
		}
		// A key may hold dots itself, so the longest key that the path begins with is followed.
		var next *entry
		for i, e := range n.entries {
			rest, ok := strings.CutPrefix(path, e.key)
			if ok && (rest == "" || rest[0] == '.' || rest[0] == '[') && (next == nil || len(e.key) > len(next.key)) {
				next = &n.entries[i]
			}
		}
		if next == nil {
			return place
		}
		place, path = next.place, path[len(next.key):]
		n = next.value
	}
	return place
}

// templates checks every text under a node. args, where it is not nil, lists the arguments that may be named.
func (s *session) templates(n *node, path string, roots []string, args []string) {
	switch n.kind {
	case textKind:
		if err := expr.CheckTemplate(n.text, roots...); err != nil {
			s.fault(n.place, path, "%v", err)
			return
		}
		for _, read := range expr.TemplateReads(n.text) {
			if read[0] == "args" && !slices.Contains(args, read[1]) {
				s.fault(n.place, path, "names the argument %q%s", read[1], knownOr(suggest(read[1], args), args))
			}
		}
	case listKind:
		for i, item := range n.items {
			s.templates(item, fmt.Sprintf("%s[%d]", path, i), roots, args)
		}
	case mapKind:
		for _, e := range n.entries {
			s.templates(e.value, join(path, e.key), roots, args)
		}
	case nullKind, boolKind, numberKind, brokenKind: // hold no text
	}
}
