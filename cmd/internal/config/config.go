// Package config reads what a worker is told about the place where it runs: its connections and its data folder.
//
// Documents say what and when; this says where and with which credentials. It is read strictly, every fault is reported
// by field path, and secrets never print themselves. It must not open anything.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"golang.org/x/net/http/httpguts"
)

// Config is a worker's configuration.
type Config struct {
	// Connections are the outside systems that measure, in the order of the file.
	Connections []Connection `json:"connections,omitempty"`
	// Data is the folder for the ledger and for running operations; empty means DataDir's answer.
	Data string `json:"data,omitempty"`
}

// Connection is one outside system. Documents refer to it by name.
type Connection struct {
	Name string `json:"name"`
	// Type is the kind of metric provider, e.g. "prometheus".
	Type string `json:"type"`
	// URL is the base address.
	URL string `json:"url,omitempty"`
	// Token is what tokenFrom named; it is sent as a bearer token when not empty.
	Token Secret `json:"token,omitempty"`
	// APIKey and AppKey are what apiKeyFrom and appKeyFrom named: the credentials of types with keys.
	APIKey Secret `json:"apiKey,omitempty"`
	AppKey Secret `json:"appKey,omitempty"`
	// Headers are sent with each request.
	Headers map[string]Secret `json:"headers,omitempty"`
	// Timeout bounds one request; zero means the provider's own default, 10 s.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Type is a connection type that this program knows.
type Type struct {
	Name string
	// Keys reports whether its connections authenticate with an API key and an application key, and not with a token.
	Keys bool
	// Example is what its connections' URL may look like.
	Example string
}

// Fault is one thing wrong with the file.
type Fault struct {
	File         string
	Line, Column int
	// Path is the field, e.g. "connections.main.url".
	Path    string
	Message string
}

// String prints the fault on one line.
func (f Fault) String() string {
	place := f.File
	if f.Line > 0 {
		place = fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
	}
	return strings.Join(slices.DeleteFunc([]string{place, f.Path, f.Message}, func(s string) bool { return s == "" }), ": ")
}

// Faults is an error that lists every fault, in the order of the file.
type Faults []Fault

// Error prints one fault a line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

// maxSecret bounds the file of a token or key; a longer one is none but a mistake in the path.
const maxSecret = 64 << 10

// Load reads a configuration file. types are the connection types that this program knows; getenv looks up tokens and
// keys. The error is Faults when the content is at fault.
func Load(file string, types []Type, getenv func(string) string) (Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Config{}, fmt.Errorf("read the worker's configuration: %w", err)
	}
	return Parse(file, data, types, getenv)
}

// Parse is Load on bytes; file only names them in faults. A relative path in it is meant relative to the file's
// folder.
func Parse(file string, data []byte, types []Type, getenv func(string) string) (Config, error) {
	r := reader{file: file, types: types, getenv: getenv}
	tree, err := parser.ParseBytes(data, 0)
	if err != nil {
		return Config{}, Faults{syntaxFault(file, err)}
	}
	var config Config
	for i, document := range tree.Docs {
		if i > 0 && document.Body != nil {
			r.fault(document.Body, "", "one document only")
			break
		}
		r.config(document.Body, &config)
	}
	if len(r.faults) > 0 {
		slices.SortStableFunc(r.faults, func(a, b Fault) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
		return Config{}, r.faults
	}
	return config, nil
}

// DataDir is where a worker keeps its data: the configured folder, else $SLUICE_DATA, else $XDG_STATE_HOME/sluice, else
// ~/.local/state/sluice. It is an error if none can be told; a guess would scatter ledgers.
func DataDir(configured string, getenv func(string) string) (string, error) {
	if dir := cmp.Or(configured, getenv("SLUICE_DATA")); dir != "" {
		return filepath.Abs(dir)
	}
	// The XDG base directory specification: a relative path is invalid and to be ignored.
	if state := getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "sluice"), nil
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "sluice"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errors.New("no data folder: set SLUICE_DATA or give --data")
	}
	return filepath.Join(home, ".local", "state", "sluice"), nil
}

// reader walks the file and collects faults.
type reader struct {
	file   string
	types  []Type
	getenv func(string) string
	faults Faults
}

// field is one key that a mapping may have.
type field struct {
	name string
	read func(node ast.Node, path string)
}

// config reads the whole document.
func (r *reader) config(node ast.Node, c *Config) {
	if node == nil {
		return
	}
	r.mapping(node, "", []field{
		{"connections", func(node ast.Node, path string) {
			r.each(node, path, func(name string, node ast.Node, path string) {
				c.Connections = append(c.Connections, r.connection(name, node, path))
			})
		}},
		{"data", func(node ast.Node, path string) { c.Data = r.beside(r.text(node, path)) }},
	})
}

// connection reads one connection.
func (r *reader) connection(name string, node ast.Node, path string) Connection {
	c := Connection{Name: name}
	if !nameable(name) {
		r.fault(node, path, "a name is 1 to 63 of a-z A-Z 0-9 - _ .")
	}
	credentials := map[string]ast.Node{}
	r.mapping(node, path, []field{
		{"type", func(node ast.Node, path string) {
			c.Type = r.text(node, path)
			if c.Type != "" && !slices.ContainsFunc(r.types, func(t Type) bool { return t.Name == c.Type }) {
				r.fault(node, path, fmt.Sprintf("%q is not known; known types: %s", c.Type, r.known()))
			}
		}},
		{"url", func(node ast.Node, path string) { c.URL = r.url(node, path) }},
		{"tokenFrom", func(node ast.Node, path string) {
			credentials["tokenFrom"] = node
			c.Token = r.secret(node, path)
		}},
		{"apiKeyFrom", func(node ast.Node, path string) {
			credentials["apiKeyFrom"] = node
			c.APIKey = r.secret(node, path)
		}},
		{"appKeyFrom", func(node ast.Node, path string) {
			credentials["appKeyFrom"] = node
			c.AppKey = r.secret(node, path)
		}},
		{"headers", func(node ast.Node, path string) {
			c.Headers = map[string]Secret{}
			r.each(node, path, func(name string, node ast.Node, path string) {
				value := r.text(node, path)
				// The header grammar of RFC 9110, section 5.
				if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
					r.fault(node, path, "not an HTTP header")
				}
				c.Headers[http.CanonicalHeaderKey(name)] = Secret(value)
			})
		}},
		{"timeout", func(node ast.Node, path string) {
			text := r.text(node, path)
			if text == "" {
				return
			}
			parsed, err := time.ParseDuration(text)
			if err != nil || parsed <= 0 {
				r.fault(node, path, "a positive duration such as 10s is needed")
				return
			}
			c.Timeout = parsed
		}},
	})
	if c.Type == "" {
		r.missing(node, path+".type", "known types: "+r.known())
	}
	at := slices.IndexFunc(r.types, func(t Type) bool { return t.Name == c.Type })
	if c.URL == "" {
		hint := "the base address"
		if at >= 0 && r.types[at].Example != "" {
			hint += ", such as " + r.types[at].Example
		}
		r.missing(node, path+".url", hint)
	}
	if at >= 0 {
		r.credentials(r.types[at], node, path, credentials)
	}
	return c
}

// credentials checks that the credentials written are those of the connection's type.
func (r *reader) credentials(t Type, node ast.Node, path string, written map[string]ast.Node) {
	wrong, hint := []string{"apiKeyFrom", "appKeyFrom"}, "type %s has no keys; use tokenFrom or headers"
	if t.Keys {
		wrong, hint = []string{"tokenFrom"}, "type %s takes no token; use apiKeyFrom and appKeyFrom"
		for _, name := range []string{"apiKeyFrom", "appKeyFrom"} {
			if written[name] == nil {
				r.missing(node, path+"."+name, "{env: NAME} or {file: PATH}")
			}
		}
	}
	for _, name := range wrong {
		if written[name] != nil {
			r.fault(written[name], path+"."+name, fmt.Sprintf(hint, t.Name))
		}
	}
}

// known lists the types that there are.
func (r *reader) known() string {
	names := make([]string, len(r.types))
	for i, t := range r.types {
		names[i] = t.Name
	}
	return strings.Join(names, ", ")
}

// url reads a base address. One that carries a password is refused, because addresses are shown.
func (r *reader) url(node ast.Node, path string) string {
	text := r.text(node, path)
	if text == "" {
		return ""
	}
	parsed, err := url.Parse(text)
	switch {
	case err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "":
		r.fault(node, path, "an address that starts with http:// or https:// is needed")
	case parsed.User != nil:
		r.fault(node, path, "credentials do not belong in an address; use tokenFrom or headers")
	}
	return text
}

// secret reads tokenFrom, apiKeyFrom or appKeyFrom, and what it names.
func (r *reader) secret(node ast.Node, path string) Secret {
	var env, file string
	r.mapping(node, path, []field{
		{"env", func(node ast.Node, path string) { env = r.text(node, path) }},
		{"file", func(node ast.Node, path string) { file = r.beside(r.text(node, path)) }},
	})
	switch {
	case (env == "") == (file == ""):
		r.fault(node, path, "exactly one of env and file is needed")
	case env != "":
		secret := Secret(strings.TrimSpace(r.getenv(env)))
		if secret == "" {
			r.fault(node, path+".env", fmt.Sprintf("the environment variable %s is not set", env))
		}
		return secret
	default:
		data, err := os.ReadFile(file)
		secret := Secret(strings.TrimSpace(string(data)))
		switch {
		case err != nil:
			r.fault(node, path+".file", err.Error())
		case secret == "":
			r.fault(node, path+".file", file+" is empty")
		case len(data) > maxSecret:
			r.fault(node, path+".file", file+" is longer than a secret can be")
		}
		return secret
	}
	return ""
}

// beside resolves a path relative to the file's folder.
func (r *reader) beside(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(r.file), path)
}

// mapping reads a mapping with these fields and no others.
func (r *reader) mapping(node ast.Node, path string, fields []field) {
	r.each(node, path, func(name string, node ast.Node, path string) {
		at := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if at < 0 {
			names := make([]string, len(fields))
			for i, f := range fields {
				names[i] = f.name
			}
			hint := ""
			// Datadog's own tools take a site where ours take the address.
			if name == "site" && slices.Contains(names, "url") {
				hint = fmt.Sprintf("; write `url: https://api.%s`", cmp.Or(scalar(node), "SITE"))
			}
			r.fault(node, path, "unknown field; allowed: "+strings.Join(names, ", ")+hint)
			return
		}
		fields[at].read(node, path)
	})
}

// each calls visit for each key of a mapping.
func (r *reader) each(node ast.Node, path string, visit func(name string, node ast.Node, path string)) {
	mapping, ok := node.(ast.MapNode)
	if !ok {
		r.fault(node, path, "a mapping is needed")
		return
	}
	for pairs := mapping.MapRange(); pairs.Next(); {
		key := pairs.Key().String()
		if scalar, ok := pairs.Key().(ast.ScalarNode); ok {
			key = fmt.Sprint(scalar.GetValue())
		}
		visit(key, pairs.Value(), strings.TrimPrefix(path+"."+key, "."))
	}
}

// scalar is a text's value; "" if it is none.
func scalar(node ast.Node) string {
	if text, ok := node.(*ast.StringNode); ok {
		return text.Value
	}
	return ""
}

// text reads a string. Numbers and booleans are not strings: a password of 0123 must not lose its zero.
func (r *reader) text(node ast.Node, path string) string {
	switch n := node.(type) {
	case *ast.StringNode:
		if n.Value != "" {
			return n.Value
		}
	case *ast.LiteralNode:
		return n.Value.Value
	}
	r.fault(node, path, "a text is needed; quote it if it looks like a number")
	return ""
}

// missing records a field that is not there, unless something is already wrong with it.
func (r *reader) missing(node ast.Node, path, hint string) {
	if !slices.ContainsFunc(r.faults, func(f Fault) bool { return f.Path == path || strings.HasPrefix(path, f.Path+".") }) {
		r.fault(node, path, "missing; "+hint)
	}
}

// fault records one fault.
func (r *reader) fault(node ast.Node, path, message string) {
	f := Fault{File: r.file, Path: path, Message: message}
	if node != nil {
		if token := node.GetToken(); token != nil && token.Position != nil {
			f.Line, f.Column = token.Position.Line, token.Position.Column
		}
	}
	r.faults = append(r.faults, f)
}

// syntaxFault turns the parser's error into a fault.
func syntaxFault(file string, err error) Fault {
	fault := Fault{File: file, Message: err.Error()}
	var syntax yaml.Error
	if errors.As(err, &syntax) {
		fault.Message = syntax.GetMessage()
		if token := syntax.GetToken(); token != nil && token.Position != nil {
			fault.Line, fault.Column = token.Position.Line, token.Position.Column
		}
	}
	return fault
}

// nameable reports whether a connection may be called that; documents name it, so the rule for names holds.
func nameable(name string) bool {
	if name == "" || len(name) > 63 {
		return false
	}
	return strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	}) < 0
}
