package config

import (
	"fmt"
	"log/slog"
)

// redacted is what a Secret shows of itself.
const redacted = "(redacted)"

// Secret is a credential. It does not print itself: fmt, encoding/json and log/slog show that there is one and nothing
// more. Reveal is the only way to its text, so that a search for Reveal finds every use.
type Secret string

// Reveal returns the credential itself.
func (s Secret) Reveal() string { return string(s) }

// String shows whether there is a credential.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// Format keeps every fmt verb from printing the credential, %#v and %x too.
func (s Secret) Format(state fmt.State, _ rune) { _, _ = fmt.Fprint(state, s.String()) }

// MarshalText is what encoding/json and YAML encoders ask for.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue is what log/slog asks for.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
