package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	goccy "github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
	"go.yaml.in/yaml/v3"

	"github.com/seed-a0a4f4e3/sluice/policy"
)

// Two YAML packages, each for what it does right. yaml/v3 reads: it takes time in proportion to the text and loses no
// document (go-yaml drops everything after two `---` in a row, and its time grows with the square of a mapping's keys).
// But it says only roughly where a syntax error is; so once it has refused a text, go-yaml is asked for the place.

const (
	maxDepth = 100       // nested lists and mappings
	maxNodes = 1_000_000 // of all files, with aliases written out
	// maxDiagnosed is the largest text that go-yaml is shown, because of its quadratic time.
	maxDiagnosed = 64 << 10
)

type kind int

const (
	nullKind kind = iota
	boolKind
	numberKind
	textKind
	listKind
	mapKind
	// brokenKind stands where a fault has been reported; nothing more is said about it.
	brokenKind
)

// node is one YAML value: anchors, aliases, merge keys and tags are gone.
type node struct {
	kind  kind
	place policy.Place
	// text is a scalar as written, without quotes; of a number, its digits.
	text    string
	items   []*node
	entries []entry
}

type entry struct {
	key   string
	place policy.Place
	value *node
}

// find returns the value under key, or nil.
func (n *node) find(key string) *node {
	for _, e := range n.entries {
		if e.key == key {
			return e.value
		}
	}
	return nil
}

// is says what the node is, for messages.
func (n *node) is() string {
	switch n.kind {
	case nullKind:
		return "nothing"
	case boolKind, numberKind:
		return n.text
	case textKind:
		return fmt.Sprintf("the text %.60q", n.text)
	case listKind:
		return "a list"
	case mapKind:
		return "a mapping"
	case brokenKind:
		return "what cannot be read"
	}
	return "a value"
}

// parse returns the documents of a file. Documents that are null are left out; a list is a list of documents.
func (s *session) parse(file File) []*node {
	if at := invalidUTF8(file.Data); at >= 0 {
		line := 1 + bytes.Count(file.Data[:at], []byte("\n"))
		column := at - bytes.LastIndexByte(file.Data[:at], '\n')
		s.fault(policy.Place{File: file.Name, Line: line, Column: column}, "", "not UTF-8: byte 0x%02x", file.Data[at])
		return nil
	}
	var documents []*node
	data := file.Data
	if strings.HasSuffix(strings.ToLower(file.Name), ".json") && json.Valid(data) {
		data = plainEscapes(data)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var root yaml.Node
		err := decodeYAML(decoder, &root)
		if errors.Is(err, io.EOF) {
			return documents
		}
		if err != nil {
			s.syntaxFault(file, err)
			return documents
		}
		c := &conversion{session: s, file: file.Name, active: map[*yaml.Node]bool{}}
		n := c.convert(&root, 0)
		if s.expanded > maxNodes {
			return documents
		}
		documents = append(documents, s.split(n)...)
	}
}

// decodeYAML guards against a parser that panics on text which anyone may have written.
func decodeYAML(decoder *yaml.Decoder, into *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("cannot be read: %v", r)
		}
	}()
	return decoder.Decode(into)
}

func (s *session) split(n *node) []*node {
	switch n.kind {
	case nullKind, brokenKind:
		return nil
	case mapKind:
		return []*node{n}
	case listKind:
		var documents []*node
		for _, item := range n.items {
			switch item.kind {
			case nullKind, brokenKind:
			case mapKind:
				documents = append(documents, item)
			case boolKind, numberKind, textKind, listKind:
				s.notADocument(item)
			}
		}
		return documents
	case boolKind, numberKind, textKind:
		s.notADocument(n)
	}
	return nil
}

func (s *session) notADocument(n *node) {
	s.fault(n.place, "", "%s is not a document; a document is a mapping that begins with `type:` and `name:`", n.is())
}

// plainEscapes writes out the two escapes of JSON that YAML lacks: `\/`, and a character beyond 16 bits as a pair of \u.
func plainEscapes(data []byte) []byte {
	var out []byte
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' || i+1 == len(data) {
			out = append(out, data[i])
			continue
		}
		switch {
		case data[i+1] == '/':
			out = append(out, '/')
		case data[i+1] == 'u' && i+12 <= len(data) && data[i+6] == '\\' && data[i+7] == 'u':
			high, errHigh := strconv.ParseUint(string(data[i+2:i+6]), 16, 16)
			low, errLow := strconv.ParseUint(string(data[i+8:i+12]), 16, 16)
			if r := utf16.DecodeRune(rune(high), rune(low)); errHigh == nil && errLow == nil && r != utf8.RuneError {
				out = utf8.AppendRune(out, r)
				i += 11
				continue
			}
			out = append(out, data[i], data[i+1])
		default:
			out = append(out, data[i], data[i+1])
		}
		i++
	}
	return out
}

func invalidUTF8(data []byte) int {
	for at := 0; at < len(data); {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return -1
}

var (
	yamlLine      = regexp.MustCompile(`^line (\d+): `)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.+)' referenced$`)
)

// syntaxFault reports a text that is not YAML, as precisely as can be told.
func (s *session) syntaxFault(file File, err error) {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 1
	if match := yamlLine.FindStringSubmatch(message); match != nil {
		line, _ = strconv.Atoi(match[1])
		message = strings.TrimPrefix(message, match[0])
	}
	place := policy.Place{File: file.Name, Line: line, Column: 1}
	if match := unknownAnchor.FindStringSubmatch(message); match != nil {
		if at := bytes.Index(file.Data, []byte("*"+match[1])); at >= 0 {
			place.Line = 1 + bytes.Count(file.Data[:at], []byte("\n"))
			place.Column = at - bytes.LastIndexByte(file.Data[:at], '\n')
		}
	} else if better, ok := diagnose(file.Data); ok {
		place.Line, place.Column = better.Token.Position.Line, better.Token.Position.Column
		message = better.Message
	}
	message = strings.ReplaceAll(message, "character '\t'", "a tab")
	s.fault(place, "", "not YAML: %s", strings.Join(strings.Fields(message), " "))
}

func diagnose(data []byte) (found *goccy.SyntaxError, ok bool) {
	if len(data) > maxDiagnosed || bytes.Count(data, []byte("[")) > maxNodes/1000 || bytes.Count(data, []byte("{")) > maxNodes/1000 {
		return nil, false
	}
	defer func() {
		if recover() != nil {
			found, ok = nil, false
		}
	}()
	_, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if !errors.As(err, &found) || found.Token == nil || found.Token.Position == nil {
		return nil, false
	}
	return found, true
}

// conversion makes nodes of one document.
type conversion struct {
	session *session
	file    string
	active  map[*yaml.Node]bool // aliases being written out, against one that holds itself
}

func (c *conversion) fault(n *yaml.Node, format string, args ...any) *node {
	c.session.fault(c.at(n), "", format, args...)
	return &node{kind: brokenKind, place: c.at(n)}
}

func (c *conversion) at(n *yaml.Node) policy.Place {
	return policy.Place{File: c.file, Line: n.Line, Column: n.Column}
}

// convert returns a broken node after a fault.
func (c *conversion) convert(n *yaml.Node, depth int) *node {
	c.session.expanded++
	if c.session.expanded == maxNodes+1 {
		return c.fault(n, "more than %d values with aliases written out; write less, or in fewer aliases", maxNodes)
	}
	if c.session.expanded > maxNodes {
		return &node{kind: brokenKind}
	}
	if depth > maxDepth {
		return c.fault(n, "nested more than %d deep", maxDepth)
	}
	switch n.Kind {
	case yaml.DocumentNode:
		if len(n.Content) == 0 {
			return &node{kind: nullKind, place: c.at(n)}
		}
		return c.convert(n.Content[0], depth)
	case yaml.AliasNode:
		if n.Alias == nil || c.active[n.Alias] {
			return c.fault(n, "the alias *%s holds itself", n.Value)
		}
		c.active[n.Alias] = true
		defer delete(c.active, n.Alias)
		converted := c.convert(n.Alias, depth)
		converted.place = c.at(n)
		return converted
	case yaml.SequenceNode:
		return c.list(n, depth)
	case yaml.MappingNode:
		return c.mapping(n, depth)
	case yaml.ScalarNode:
		return c.scalar(n)
	default: // an empty stream
		return &node{kind: nullKind, place: c.at(n)}
	}
}

func (c *conversion) list(n *yaml.Node, depth int) *node {
	if n.Style&yaml.TaggedStyle != 0 && n.ShortTag() != "!!seq" {
		return c.fault(n, "the tag %s is not allowed", n.Tag)
	}
	c.active[n] = true
	defer delete(c.active, n)
	converted := &node{kind: listKind, place: c.at(n)}
	for _, item := range n.Content {
		converted.items = append(converted.items, c.convert(item, depth+1))
	}
	return converted
}

func (c *conversion) mapping(n *yaml.Node, depth int) *node {
	if n.Style&yaml.TaggedStyle != 0 && n.ShortTag() != "!!map" {
		return c.fault(n, "the tag %s is not allowed", n.Tag)
	}
	c.active[n] = true
	defer delete(c.active, n)
	converted := &node{kind: mapKind, place: c.at(n)}
	written := map[string]policy.Place{}
	faults := c.session.found
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if isMerge(key) {
			merges = append(merges, value)
			continue
		}
		for key.Kind == yaml.AliasNode && key.Alias != nil {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			c.fault(n.Content[i], "a key must be a plain text; a template needs quotes: '{{…}}'")
			continue
		}
		if key.Value == "" && key.Style == 0 {
			c.fault(n.Content[i], "a key must not be empty")
			continue
		}
		if first, twice := written[key.Value]; twice {
			c.fault(n.Content[i], "the key %.60q is written twice; first at %s", key.Value, first)
			continue
		}
		written[key.Value] = c.at(n.Content[i])
		converted.entries = append(converted.entries, entry{key: key.Value, place: c.at(n.Content[i]), value: c.convert(value, depth+1)})
	}
	for _, merge := range merges {
		c.merge(converted, merge, written, depth)
	}
	if len(converted.entries) == 0 && c.session.found > faults {
		converted.kind = brokenKind // such as a template without quotes, which YAML takes for a mapping
	}
	return converted
}

func isMerge(key *yaml.Node) bool {
	return key.Kind == yaml.ScalarNode && key.Value == "<<" && key.Style&^yaml.TaggedStyle == 0 && key.ShortTag() == "!!merge"
}

// merge adds the entries of `<<`; what the mapping itself has stays, and of several merged ones the first counts.
func (c *conversion) merge(into *node, from *yaml.Node, written map[string]policy.Place, depth int) {
	value := c.convert(from, depth+1)
	sources := []*node{value}
	if value.kind == listKind {
		sources = value.items
	}
	for _, source := range sources {
		if source.kind == brokenKind {
			return
		}
		if source.kind != mapKind {
			c.fault(from, "`<<` takes a mapping or a list of mappings, not %s", source.is())
			return
		}
		for _, e := range source.entries {
			if _, have := written[e.key]; !have {
				written[e.key] = e.place
				into.entries = append(into.entries, e)
			}
		}
	}
}

var (
	plainInt     = regexp.MustCompile(`^[-+]?[0-9]+$`)
	plainFloat   = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	leadingZero  = regexp.MustCompile(`^[-+]?0[0-9]`)
	otherNumbers = regexp.MustCompile(`^([-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN|0x[0-9a-fA-F]+|0o[0-7]+)$`)
)

// scalar reads a value by YAML 1.2's core schema: `yes` and `no` are texts, `012` is refused where a number is meant.
func (c *conversion) scalar(n *yaml.Node) *node {
	converted := &node{kind: textKind, place: c.at(n), text: n.Value}
	plain := n.Style&^yaml.TaggedStyle == 0
	if n.Style&yaml.TaggedStyle != 0 {
		switch n.ShortTag() {
		case "!!str":
			return converted
		case "!!int", "!!float", "!!bool", "!!null":
			plain = true
		default:
			return c.fault(n, "the tag %s is not allowed", n.Tag)
		}
	}
	if !plain {
		return converted
	}
	switch {
	case n.Value == "" || n.Value == "~" || n.Value == "null" || n.Value == "Null" || n.Value == "NULL":
		converted.kind = nullKind
	case n.Value == "true" || n.Value == "True" || n.Value == "TRUE":
		converted.kind, converted.text = boolKind, n.Value
	case n.Value == "false" || n.Value == "False" || n.Value == "FALSE":
		converted.kind, converted.text = boolKind, n.Value
	case plainInt.MatchString(n.Value) || plainFloat.MatchString(n.Value) || otherNumbers.MatchString(n.Value):
		converted.kind = numberKind
	}
	if converted.kind == textKind && n.Style&yaml.TaggedStyle != 0 {
		return c.fault(n, "%.60q is not a value of %s", n.Value, n.ShortTag())
	}
	return converted
}

// number reads a number node. Whole numbers beyond 2^53 are refused: JSON readers round them without a word.
func (n *node) number() (float64, error) {
	switch {
	case otherNumbers.MatchString(n.text):
		return 0, fmt.Errorf("%s is not a decimal number; write it in decimal, or in quotes if it is a text", n.text)
	case leadingZero.MatchString(n.text):
		return 0, fmt.Errorf("%s begins with a zero, which some read as octal; write it without, or in quotes if it is a text", n.text)
	}
	value, err := strconv.ParseFloat(n.text, 64)
	if err != nil || math.IsInf(value, 0) {
		return 0, fmt.Errorf("%.60s is too large; write it in quotes if it is a text", n.text)
	}
	if plainInt.MatchString(n.text) && math.Abs(value) > 1<<53 {
		return 0, fmt.Errorf("%.60s is beyond 2^53 and cannot be kept exactly; write it in quotes if it is a text", n.text)
	}
	return value, nil
}

// value turns a node into what encoding/json would decode; faults go to the session.
func (s *session) value(n *node, path string) any {
	switch n.kind {
	case nullKind, brokenKind:
		return nil
	case boolKind:
		return strings.EqualFold(n.text, "true")
	case numberKind:
		number, err := n.number()
		if err != nil {
			s.fault(n.place, path, "%v", err)
		}
		return number
	case textKind:
		return n.text
	case listKind:
		list := make([]any, len(n.items))
		for i, item := range n.items {
			list[i] = s.value(item, fmt.Sprintf("%s[%d]", path, i))
		}
		return list
	case mapKind:
		m := make(map[string]any, len(n.entries))
		for _, e := range n.entries {
			m[e.key] = s.value(e.value, join(path, e.key))
		}
		return m
	}
	return nil
}

// json turns a node into JSON. Every value has been through value's checks.
func (s *session) json(n *node, path string) json.RawMessage {
	data, err := json.Marshal(s.value(n, path))
	if err != nil {
		s.fault(n.place, path, "cannot be written as JSON: %v", err)
		return json.RawMessage("null")
	}
	return data
}
