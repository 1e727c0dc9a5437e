// Package out writes results for people and for programs: tables, JSON, YAML, NDJSON, and progress that redraws itself.
//
// It must not know what the results mean: it imports nothing of ours. The same facts go into every format, and meaning
// is never in colour alone.
package out

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Format is how a result is written. The set is closed.
type Format string

// The formats.
const (
	Table  Format = "table"  // for people
	JSON   Format = "json"   // one indented document
	YAML   Format = "yaml"   // the same fields as JSON
	NDJSON Format = "ndjson" // one JSON document a line, for streams
)

// FormatFlag is a Format as a command-line flag that takes some of the formats. The first one is the default.
type FormatFlag struct {
	format  Format
	allowed []Format
}

// NewFormatFlag returns a flag that takes these formats and is the first of them until set.
func NewFormatFlag(allowed ...Format) *FormatFlag {
	return &FormatFlag{format: allowed[0], allowed: allowed}
}

// Format is the chosen format.
func (f *FormatFlag) Format() Format { return f.format }

// String implements pflag.Value.
func (f *FormatFlag) String() string { return string(f.format) }

// Type implements pflag.Value; it is what help shows in place of the value.
func (f *FormatFlag) Type() string { return f.names("|") }

// Set implements pflag.Value; the error lists what is allowed.
func (f *FormatFlag) Set(value string) error {
	if !slices.Contains(f.allowed, Format(value)) {
		return fmt.Errorf("the format is one of %s", f.names(", "))
	}
	f.format = Format(value)
	return nil
}

// names joins the allowed formats.
func (f *FormatFlag) names(separator string) string {
	names := make([]string, len(f.allowed))
	for i, one := range f.allowed {
		names[i] = string(one)
	}
	return strings.Join(names, separator)
}

// Write writes v as JSON, YAML or one line of NDJSON. Table is not a format of values: it is an error here.
func Write(w io.Writer, format Format, v any) error {
	switch format {
	case JSON:
		return encode(w, v, "  ")
	case NDJSON:
		return encode(w, v, "")
	case YAML:
		var text strings.Builder
		if err := encode(&text, v, ""); err != nil {
			return err
		}
		// By way of JSON, so that both have the same field names and the same spelling of durations and times.
		data, err := yaml.JSONToYAML([]byte(text.String()))
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		_, err = w.Write(data)
		return err
	case Table:
	}
	return fmt.Errorf("write: %q is not a format of values", format)
}

// encode writes JSON without escaping <, > and &, which selectors and conditions are full of.
func encode(w io.Writer, v any, indent string) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}
