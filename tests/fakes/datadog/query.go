package datadog

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Metric queries as https://docs.datadoghq.com/metrics/#querying-metrics has them, and arithmetic over them as in
// https://docs.datadoghq.com/dashboards/functions/arithmetic/. What is not here is refused with 400, never guessed at.

// expression is a number, a name, a metric query, or two expressions and what is between them.
type expression struct {
	operator    byte // + - * /, 'n' for a number, 'v' for a name, 'q' for a metric query, 'z' for default_zero(left)
	number      float64
	name        string
	query       *metricQuery
	left, right *expression
}

// metricQuery is one `avg:metric{scope} by {tags}.modifier()`.
type metricQuery struct {
	space  string // how series become one: avg, sum, min, max
	metric string
	scope  []condition
	by     []string
	time   string        // how the points of a bucket become one: avg, sum, min, max, rate, last
	rollup time.Duration // the bucket that the query itself asks for; zero: none
}

// condition is one part of a scope; all must hold.
type condition struct {
	not      bool
	tag      string
	value    string
	wildcard bool // value is what the tag's value begins with
}

func (c condition) holds(tags map[string]string) bool {
	value, ok := tags[c.tag]
	if c.wildcard {
		ok = ok && strings.HasPrefix(value, c.value)
	} else {
		ok = ok && value == c.value
	}
	return ok != c.not
}

var (
	headPattern     = regexp.MustCompile(`^(avg|sum|min|max):([A-Za-z][A-Za-z0-9_.]*)\{`)
	byPattern       = regexp.MustCompile(`^\s*by\s*\{([^{}]*)\}`)
	modifierPattern = regexp.MustCompile(`^\.(as_count|as_rate|rollup)\(([^()]*)\)`)
	namePattern     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*`)
	numberPattern   = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?`)
	tagKeyPattern   = regexp.MustCompile(`^[\pL][\pL\pN_./-]*$`)
	tagValuePattern = regexp.MustCompile(`^[\pL\pN_./:-]+\*?$`)
)

// parser reads one expression.
type parser struct {
	rest string
	// names are what may be named; nil: metric queries may be written and names may not.
	names []string
}

// parse reads text: with names a formula over these, without a metric query or arithmetic over several.
func parse(text string, names []string) (*expression, error) {
	p := &parser{rest: text, names: names}
	e, err := p.sum()
	if err != nil {
		return nil, fmt.Errorf("Error parsing query: %w in %q", err, text) //nolint:staticcheck // as Datadog says it
	}
	if p.skip(); p.rest != "" {
		return nil, fmt.Errorf("Error parsing query: unexpected %q in %q", p.rest, text) //nolint:staticcheck // as Datadog says it
	}
	return e, nil
}

func (p *parser) skip() { p.rest = strings.TrimLeftFunc(p.rest, unicode.IsSpace) }

func (p *parser) take(prefix string) bool {
	p.skip()
	rest, ok := strings.CutPrefix(p.rest, prefix)
	if ok {
		p.rest = rest
	}
	return ok
}

func (p *parser) sum() (*expression, error) { return p.operators("+-", p.product) }

func (p *parser) product() (*expression, error) { return p.operators("*/", p.primary) }

func (p *parser) operators(operators string, operand func() (*expression, error)) (*expression, error) {
	left, err := operand()
	for err == nil {
		p.skip()
		if p.rest == "" || !strings.Contains(operators, p.rest[:1]) {
			break
		}
		operator := p.rest[0]
		p.rest = p.rest[1:]
		var right *expression
		right, err = operand()
		left = &expression{operator: operator, left: left, right: right}
	}
	return left, err
}

func (p *parser) primary() (*expression, error) {
	p.skip()
	if p.take("(") {
		e, err := p.sum()
		if err == nil && !p.take(")") {
			err = fmt.Errorf("a parenthesis is not closed at %q", p.rest)
		}
		return e, err
	}
	if number := numberPattern.FindString(p.rest); number != "" {
		p.rest = p.rest[len(number):]
		value, err := strconv.ParseFloat(number, 64)
		return &expression{operator: 'n', number: value}, err
	}
	if p.take("default_zero(") {
		e, err := p.sum()
		if err == nil && !p.take(")") {
			err = fmt.Errorf("default_zero is not closed at %q", p.rest)
		}
		return &expression{operator: 'z', left: e}, err
	}
	if p.names == nil {
		return p.metric()
	}
	name := namePattern.FindString(p.rest)
	if !slices.Contains(p.names, name) {
		return nil, fmt.Errorf("unknown query name at %q", p.rest)
	}
	p.rest = p.rest[len(name):]
	return &expression{operator: 'v', name: name}, nil
}

func (p *parser) metric() (*expression, error) {
	head := headPattern.FindStringSubmatch(p.rest)
	if head == nil {
		return nil, fmt.Errorf("no metric query at %q", p.rest)
	}
	q := &metricQuery{space: head[1], metric: head[2], time: "avg"}
	scope, rest, closed := strings.Cut(p.rest[len(head[0]):], "}")
	if !closed {
		return nil, fmt.Errorf("a scope is not closed at %q", p.rest)
	}
	p.rest = rest
	if strings.TrimSpace(scope) != "*" {
		for part := range strings.SplitSeq(scope, ",") {
			c, err := parseCondition(strings.TrimSpace(part))
			if err != nil {
				return nil, err
			}
			q.scope = append(q.scope, c)
		}
	}
	if by := byPattern.FindStringSubmatch(p.rest); by != nil {
		p.rest = p.rest[len(by[0]):]
		for tag := range strings.SplitSeq(by[1], ",") {
			tag = strings.TrimSpace(tag)
			if !tagKeyPattern.MatchString(tag) {
				return nil, fmt.Errorf("%q is not a tag to group by", tag)
			}
			q.by = append(q.by, tag)
		}
	}
	for {
		modifier := modifierPattern.FindStringSubmatch(p.rest)
		if modifier == nil {
			return &expression{operator: 'q', query: q}, nil
		}
		p.rest = p.rest[len(modifier[0]):]
		if err := q.modify(modifier[1], modifier[2]); err != nil {
			return nil, err
		}
	}
}

func parseCondition(text string) (condition, error) {
	rest, not := strings.CutPrefix(text, "!")
	tag, value, colon := strings.Cut(rest, ":")
	if !colon || !tagKeyPattern.MatchString(tag) || value != "*" && !tagValuePattern.MatchString(value) {
		return condition{}, fmt.Errorf("%q is not a tag", text)
	}
	value, wildcard := strings.CutSuffix(value, "*")
	return condition{not: not, tag: normalise(tag), value: normalise(value), wildcard: wildcard}, nil
}

func (q *metricQuery) modify(name, arguments string) error {
	switch name {
	case "as_count":
		q.time = "sum"
	case "as_rate":
		q.time = "rate"
	case "rollup":
		method, seconds, _ := strings.Cut(arguments, ",")
		if _, err := strconv.Atoi(strings.TrimSpace(method)); err == nil && seconds == "" {
			method, seconds = "avg", method
		}
		q.time = strings.TrimSpace(method)
		if !slices.Contains([]string{"avg", "sum", "min", "max", "last"}, q.time) {
			return fmt.Errorf("%q is not a method of rollup", q.time)
		}
		if seconds == "" {
			return nil
		}
		n, err := strconv.Atoi(strings.TrimSpace(seconds))
		if err != nil || n <= 0 {
			return fmt.Errorf("%q is not a number of seconds", seconds)
		}
		q.rollup = time.Duration(n) * time.Second
		return nil
	}
	if arguments != "" {
		return fmt.Errorf("%s takes no argument", name)
	}
	return nil
}

// rollup is the longest bucket that a query in the expression asks for itself.
func (e *expression) rollup() time.Duration {
	switch {
	case e == nil:
		return 0
	case e.query != nil:
		return e.query.rollup
	}
	return max(e.left.rollup(), e.right.rollup())
}

// normalise is what Datadog makes of a tag: https://docs.datadoghq.com/getting_started/tagging/#define-tags.
func normalise(tag string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_-:./", r) {
			return unicode.ToLower(r)
		}
		return '_'
	}, tag)
}
