package expr

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"
)

// maxTemplate bounds one templated text, in bytes: a script or a query, not a file.
const maxTemplate = 64 << 10

// templateRoots are the first elements that a template may name.
var templateRoots = []string{"target", "resource", "environment", "deployment", "version", "args"}

// CheckTemplate reports why the text is not a usable template; the error is one line. Without roots, every variable of
// templates may be named; with roots only those.
func CheckTemplate(text string, roots ...string) error {
	nodes, err := parseTemplate(text)
	if err != nil {
		return err
	}
	if len(roots) == 0 {
		roots = templateRoots
	}
	for _, n := range nodes {
		if n.path == nil {
			continue
		}
		root := n.path[0]
		if !slices.Contains(roots, root) {
			return fmt.Errorf("%s: unknown name %q; known here: %s", n.source, root, strings.Join(roots, ", "))
		}
		known, fixed := fields[root]
		switch {
		case len(n.path) == 1:
			return fmt.Errorf("%s: names all of %s; name one of its fields: %s", n.source, root, strings.Join(slices.Concat(known, []string{"…"}), ", "))
		case fixed && !slices.Contains(known, n.path[1]):
			return fmt.Errorf("%s: %s has no field %q; it has: %s", n.source, root, n.path[1], strings.Join(known, ", "))
		}
	}
	return nil
}

// TemplateReads lists the paths that the text's templates name, in order; nil if the text is not a template.
func TemplateReads(text string) [][]string {
	nodes, err := parseTemplate(text)
	if err != nil {
		return nil
	}
	var paths [][]string
	for _, n := range nodes {
		if n.path != nil {
			paths = append(paths, n.path)
		}
	}
	return paths
}

// Render replaces each {{.a.b}} of the text by its value in vars, through quote when that is not nil. A key that vars
// lacks, null, a list and a map are errors that name it.
func Render(text string, vars map[string]any, quote func(string) string) (string, error) {
	nodes, err := parseTemplate(text)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, n := range nodes {
		if n.path == nil {
			out.WriteString(n.text)
			continue
		}
		value, err := lookUp(n.path, vars)
		if err != nil {
			return "", fmt.Errorf("%s: %w", n.source, err)
		}
		if quote != nil {
			value = quote(value)
		}
		out.WriteString(value)
	}
	return out.String(), nil
}

// RenderJSON renders every text in a JSON document as Render does; keys, numbers and the rest stay as they are. The
// result is compact, with keys in order.
func RenderJSON(raw json.RawMessage, vars map[string]any, quote func(string) string) (json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var document any
	if err := decoder.Decode(&document); err != nil {
		return nil, fmt.Errorf("expr: templates in JSON: %w", err)
	}
	if decoder.More() {
		return nil, errors.New("expr: templates in JSON: more than one value")
	}
	rendered, err := renderValue(document, "", vars, quote)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(rendered); err != nil {
		return nil, fmt.Errorf("expr: templates in JSON: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

func renderValue(value any, path string, vars map[string]any, quote func(string) string) (any, error) {
	switch v := value.(type) {
	case string:
		text, err := Render(v, vars, quote)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimPrefix(path, "."), err)
		}
		return text, nil
	case []any:
		for i := range v {
			rendered, err := renderValue(v[i], fmt.Sprintf("%s[%d]", path, i), vars, quote)
			if err != nil {
				return nil, err
			}
			v[i] = rendered
		}
	case map[string]any:
		keys := make([]string, 0, len(v))
		for key := range v {
			keys = append(keys, key)
		}
		slices.Sort(keys) // the first fault reported is always the same one
		for _, key := range keys {
			rendered, err := renderValue(v[key], path+"."+key, vars, quote)
			if err != nil {
				return nil, err
			}
			v[key] = rendered
		}
	}
	return value, nil
}

// piece is a stretch of text, or one replacement.
type piece struct {
	text   string
	path   []string // nil for text
	source string   // as written, for errors
}

const allowedTemplate = `allowed are {{.target.name}}, {{.target.metadata.x}} and the like, and {{index .target.metadata "a-b"}}`

// parseTemplate reads Go's template grammar and keeps of it what names a value: no functions, pipelines or control
// structures, so that a document can say what goes where and nothing else. `index` is let through for the keys that a
// dotted path cannot spell.
func parseTemplate(text string) (pieces []piece, err error) {
	if !strings.Contains(text, "{{") {
		return []piece{{text: text}}, nil
	}
	if len(text) > maxTemplate {
		return nil, fmt.Errorf("a template of %d bytes; at most %d are allowed", len(text), maxTemplate)
	}
	defer func() {
		if r := recover(); r != nil {
			pieces, err = nil, fmt.Errorf("not a template: %v", r)
		}
	}()
	tree := parse.New("")
	tree.Mode = parse.SkipFuncCheck
	set := map[string]*parse.Tree{}
	if _, err := tree.Parse(text, "", "", set); err != nil {
		message := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "template: "), ":")
		return nil, fmt.Errorf("not a template: line %s; %s", message, allowedTemplate)
	}
	if tree.Root == nil || len(set) > 1 {
		return nil, errors.New("defines templates; " + allowedTemplate)
	}
	for _, node := range tree.Root.Nodes {
		switch n := node.(type) {
		case *parse.TextNode:
			pieces = append(pieces, piece{text: string(n.Text)})
		case *parse.ActionNode:
			path := actionPath(n)
			if path == nil {
				return nil, fmt.Errorf("%s: not allowed in a template; %s", n, allowedTemplate)
			}
			pieces = append(pieces, piece{path: path, source: n.String()})
		default:
			return nil, fmt.Errorf("%.60s: not allowed in a template; %s", node, allowedTemplate)
		}
	}
	return pieces, nil
}

// actionPath returns the path that an action names; nil for any other action.
func actionPath(n *parse.ActionNode) []string {
	if len(n.Pipe.Decl) != 0 || len(n.Pipe.Cmds) != 1 {
		return nil
	}
	args := n.Pipe.Cmds[0].Args
	if len(args) == 1 {
		if field, ok := args[0].(*parse.FieldNode); ok {
			return slices.Clone(field.Ident)
		}
		return nil
	}
	name, ok := args[0].(*parse.IdentifierNode)
	if !ok || name.Ident != "index" || len(args) < 3 {
		return nil
	}
	field, ok := args[1].(*parse.FieldNode)
	if !ok {
		return nil
	}
	path := slices.Clone(field.Ident)
	for _, arg := range args[2:] {
		key, ok := arg.(*parse.StringNode)
		if !ok {
			return nil
		}
		path = append(path, key.Text)
	}
	return path
}

func lookUp(path []string, vars map[string]any) (string, error) {
	var value any = vars
	at := ""
	for _, key := range path {
		here, ok := value.(map[string]any)
		if !ok {
			return "", fmt.Errorf("%s is %s, which has no keys", strings.TrimPrefix(at, "."), describe(value))
		}
		next, present := here[key]
		if !present {
			if at == "" {
				return "", fmt.Errorf("unknown name %q", key)
			}
			return "", errors.New(missing(key, strings.TrimPrefix(at, ".")))
		}
		value, at = next, at+accessor(key)
	}
	at = strings.TrimPrefix(at, ".")
	switch v := value.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int:
		return strconv.Itoa(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case json.Number:
		return v.String(), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return "", fmt.Errorf("%s is %v, which is not a number to write down", at, v)
		}
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	default:
		return "", fmt.Errorf("%s is %s, which cannot be written into a text", at, describe(value))
	}
}
