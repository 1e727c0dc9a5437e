package load

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/expr"
)

// fields reads one mapping, field by field. A field that nobody asked for is a fault, so what is asked for is the
// grammar, and the list of what is allowed.
type fields struct {
	s     *session
	n     *node
	path  string
	asked []string
	later []string // known, and nothing acts on them yet
}

// fields begins to read a mapping; nil after a fault.
func (s *session) fields(n *node, path string) *fields {
	if n == nil || n.kind == brokenKind {
		return nil
	}
	if n.kind != mapKind {
		s.fault(n.place, path, "must be a mapping, not %s", n.is())
		return nil
	}
	return &fields{s: s, n: n, path: path}
}

// at is the path of a field.
func (f *fields) at(name string) string { return join(f.path, name) }

// join is the path of what stands under path: `Policy "production" rules`, `Policy "production" rules[0].waves`.
func join(path, name string) string {
	switch {
	case path == "":
		return name
	case strings.HasPrefix(name, "["):
		return path + name
	case strings.HasSuffix(path, `"`) || !strings.Contains(path, " "):
		return path + " " + name
	default:
		return path + "." + name
	}
}

// take returns a field's value, or nil if it is not written. A field that is written without a value is a fault.
func (f *fields) take(name string) *node {
	if !slices.Contains(f.asked, name) {
		f.asked = append(f.asked, name)
	}
	n := f.n.find(name)
	switch {
	case n == nil || n.kind == brokenKind:
		return nil
	case n.kind == nullKind:
		f.s.fault(n.place, f.at(name), "has no value; write one, or leave the field out")
		return nil
	}
	return n
}

// need is take for a field that must be there; hint says what is to be written.
func (f *fields) need(name, hint string) *node {
	n := f.take(name)
	if n == nil && f.n.find(name) == nil {
		f.s.fault(f.n.place, f.at(name), "is required: %s", hint)
	}
	return n
}

// notYet names fields that are known and that nothing acts on yet.
func (f *fields) notYet(names ...string) {
	f.later = append(f.later, names...)
}

// end reports the fields that nobody asked for.
func (f *fields) end() {
	for _, e := range f.n.entries {
		if slices.Contains(f.asked, e.key) {
			continue
		}
		if slices.Contains(f.later, e.key) {
			f.s.fault(e.place, f.at(e.key), "is not supported yet")
			continue
		}
		if suggestion := suggest(e.key, f.asked); suggestion != "" {
			f.s.fault(e.place, f.at(e.key), "unknown field; did you mean %q?", suggestion)
			continue
		}
		f.s.fault(e.place, f.at(e.key), "unknown field; allowed are: %s", strings.Join(f.asked, ", "))
	}
}

// text reads a text; numbers and booleans count as the text they are written as. "" if not written or at fault.
func (f *fields) text(name string) string {
	return f.s.text(f.take(name), f.at(name))
}

func (s *session) text(n *node, path string) string {
	switch {
	case n == nil || n.kind == brokenKind:
		return ""
	case n.kind == listKind || n.kind == mapKind || n.kind == nullKind:
		s.fault(n.place, path, "must be a text, not %s", n.is())
		return ""
	case n.text == "":
		s.fault(n.place, path, "must not be empty")
	}
	return n.text
}

// oneOf reads a text out of a closed set.
func (f *fields) oneOf(name string, allowed ...string) string {
	n := f.take(name)
	text := f.s.text(n, f.at(name))
	if text == "" || slices.Contains(allowed, text) {
		return text
	}
	if suggestion := suggest(text, allowed); suggestion != "" {
		f.s.fault(n.place, f.at(name), "%q is not one of %s; did you mean %q?", text, strings.Join(allowed, ", "), suggestion)
	} else {
		f.s.fault(n.place, f.at(name), "%q is not one of %s", text, strings.Join(allowed, ", "))
	}
	return ""
}

// boolean reads true or false; nil if not written.
func (f *fields) boolean(name string) *bool {
	n := f.take(name)
	if n == nil {
		return nil
	}
	if n.kind != boolKind {
		f.s.fault(n.place, f.at(name), "must be true or false, not %s", n.is())
		return nil
	}
	value := strings.EqualFold(n.text, "true")
	return &value
}

// integer reads a whole number from least to most; nil if not written.
func (f *fields) integer(name string, least, most int) *int {
	n := f.take(name)
	if n == nil {
		return nil
	}
	if n.kind != numberKind {
		f.s.fault(n.place, f.at(name), "must be a whole number, not %s", n.is())
		return nil
	}
	value, err := n.number()
	switch {
	case err != nil:
		f.s.fault(n.place, f.at(name), "%v", err)
		return nil
	case value != math.Trunc(value) || value < float64(least) || value > float64(most):
		f.s.fault(n.place, f.at(name), "must be a whole number from %d to %d, not %s", least, most, n.text)
		return nil
	}
	whole := int(value)
	return &whole
}

// maxDuration bounds durations: a rollout runs for weeks, so more than a year is a slip of the pen.
const maxDuration = 366 * 24 * time.Hour

// duration reads a duration in any of its spellings: `soak: 30m`, `soakSeconds: 1800`, `soakMinutes: 30`; nil if none is
// written. Zero is allowed where positive is false.
func (f *fields) duration(name string, positive bool) *policy.Duration {
	var found *policy.Duration
	first := ""
	for _, spelling := range []struct {
		name string
		unit time.Duration
	}{{name, 0}, {name + "Seconds", time.Second}, {name + "Minutes", time.Minute}} {
		n := f.n.find(spelling.name)
		if spelling.unit != 0 && n == nil {
			continue // the other spellings are allowed, but not listed with each field
		}
		n = f.take(spelling.name)
		if n == nil {
			continue
		}
		if first != "" {
			f.s.fault(n.place, f.at(spelling.name), "says again what %s says; write one of them", first)
			continue
		}
		first = spelling.name
		found = f.s.duration(n, f.at(spelling.name), spelling.unit, positive)
	}
	return found
}

// duration reads a Go duration, or a number of units.
func (s *session) duration(n *node, path string, unit time.Duration, positive bool) *policy.Duration {
	const goDuration = "write a duration with its units, such as 90s, 30m or 1h30m"
	var value time.Duration
	switch {
	case n.kind == brokenKind:
		return nil
	case unit != 0:
		if n.kind != numberKind {
			s.fault(n.place, path, "must be a number, not %s", n.is())
			return nil
		}
		number, err := n.number()
		if err != nil {
			s.fault(n.place, path, "%v", err)
			return nil
		}
		if math.Abs(number)*float64(unit) > float64(maxDuration) {
			s.fault(n.place, path, "%s is too long; at most 366 days are allowed", n.text)
			return nil
		}
		value = time.Duration(math.Round(number * float64(unit)))
	case n.kind == numberKind:
		if strings.Trim(n.text, "+-0.") != "" || n.text == "" {
			s.fault(n.place, path, "%s has no unit; %s", n.text, goDuration)
			return nil
		}
	case n.kind == textKind:
		var err error
		if value, err = time.ParseDuration(n.text); err != nil {
			hint := ""
			if strings.HasSuffix(n.text, "d") || strings.HasSuffix(n.text, "w") {
				hint = "; a day is 24h"
			}
			s.fault(n.place, path, "%.60q is not a duration; %s%s", n.text, goDuration, hint)
			return nil
		}
	default:
		s.fault(n.place, path, "must be a duration, not %s; %s", n.is(), goDuration)
		return nil
	}
	switch {
	case value == 0 && strings.ContainsAny(n.text, "123456789"):
		s.fault(n.place, path, "%.60s is shorter than a nanosecond; write 0, or a longer time", n.text)
		return nil
	case value < 0:
		s.fault(n.place, path, "must not be negative")
		return nil
	case value == 0 && positive:
		s.fault(n.place, path, "must be more than zero")
		return nil
	case value > maxDuration:
		s.fault(n.place, path, "%s is too long; at most 366 days are allowed", n.text)
		return nil
	}
	d := policy.Duration(value)
	return &d
}

var (
	wholeNumber = regexp.MustCompile(`^[-+]?[0-9]+$`)
	percentage  = regexp.MustCompile(`^([-+]?[0-9]+(\.[0-9]+)?)\s*%$`)
)

// maxAmount bounds a number of targets, far above any fleet, so that sums of amounts cannot overflow.
const maxAmount = 1_000_000_000

// amount reads a number of targets or a percentage; nil if not written. Budgets may be zero, sizes and concurrency not.
func (f *fields) amount(name string, mayBeZero bool) *policy.Amount {
	n := f.take(name)
	if n == nil {
		return nil
	}
	allowed := `write a whole number of at least 1, or a percentage from "1%" to "100%"`
	least := 1
	if mayBeZero {
		allowed, least = `write a whole number of at least 0, or a percentage from "0%" to "100%"`, 0
	}
	refuse := func(format string, args ...any) *policy.Amount {
		f.s.fault(n.place, f.at(name), "%s; %s", fmt.Sprintf(format, args...), allowed)
		return nil
	}
	text, percent := n.text, false
	switch n.kind {
	case numberKind:
		if leadingZero.MatchString(text) {
			return refuse("%s begins with a zero, which some read as octal", text)
		}
	case textKind:
		match := percentage.FindStringSubmatch(text)
		switch {
		case match != nil:
			text, percent = match[1], true
		case wholeNumber.MatchString(text):
			return refuse("%q is a text: neither a number nor a percentage", text)
		default:
			return refuse("%.60q is neither a number nor a percentage", text)
		}
	case nullKind, boolKind, listKind, mapKind, brokenKind:
		return refuse("%s is neither a number nor a percentage", n.is())
	}
	value, err := strconv.Atoi(text)
	switch {
	case err != nil && wholeNumber.MatchString(text) || value > maxAmount:
		return refuse("%s is too many", n.text)
	case err != nil:
		return refuse("%s is not whole", n.text)
	case value < 0:
		return refuse("%s is negative", n.text)
	case percent && value > 100:
		return refuse("%s is above 100%%", n.text)
	case value < least:
		return refuse("%s is too few", n.text)
	}
	return &policy.Amount{Value: value, Percent: percent}
}

// list reads a list that is not empty; nil after a fault or if not written.
func (f *fields) list(name, of string) []*node {
	return f.s.list(f.take(name), f.at(name), of)
}

func (s *session) list(n *node, path, of string) []*node {
	switch {
	case n == nil || n.kind == brokenKind:
		return nil
	case n.kind != listKind:
		s.fault(n.place, path, "must be a list of %s, not %s", of, n.is())
		return nil
	case len(n.items) == 0:
		s.fault(n.place, path, "must not be empty; write %s", of)
	}
	return n.items
}

// expression reads and compiles CEL; "" if not written or at fault.
func (f *fields) expression(name string, scope expr.Scope) policy.Expression {
	return f.s.expression(f.take(name), f.at(name), scope)
}

func (s *session) expression(n *node, path string, scope expr.Scope) policy.Expression {
	source := strings.TrimSpace(s.text(n, path)) // a block text ends with a line break
	if source == "" {
		return ""
	}
	if err := expr.Compile(source, scope); err != nil {
		s.fault(n.place, path, "not a CEL expression for this place: %v", err)
		return ""
	}
	return policy.Expression(source)
}

var (
	nameCharacters   = regexp.MustCompile(`^[A-Za-z0-9._-]+( +[A-Za-z0-9._-]+)*$`)
	targetCharacters = regexp.MustCompile(`^[A-Za-z0-9._/-]+( +[A-Za-z0-9._/-]+)*$`)
)

// name checks a name: 1 to 63 characters out of a-z A-Z 0-9 - _ . and inner spaces.
func (s *session) name(n *node, path string) string {
	text := s.text(n, path)
	switch {
	case text == "":
	case len(text) > 63:
		s.fault(n.place, path, "the name has %d characters; at most 63 are allowed", len(text))
	case !nameCharacters.MatchString(text):
		s.fault(n.place, path, "the name %.70q is not allowed; allowed are a-z A-Z 0-9 - _ . and inner spaces", text)
	default:
		return text
	}
	return ""
}

// targetName checks a target's name: 1 to 120 characters, "/" among them.
func (s *session) targetName(n *node, path string) string {
	text := s.text(n, path)
	switch {
	case text == "":
	case len(text) > 120:
		s.fault(n.place, path, "the name has %d characters; at most 120 are allowed", len(text))
	case !targetCharacters.MatchString(text):
		s.fault(n.place, path, "the name %.130q is not allowed; allowed are a-z A-Z 0-9 - _ . / and inner spaces", text)
	default:
		return text
	}
	return ""
}
