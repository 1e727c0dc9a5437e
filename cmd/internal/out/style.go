package out

import (
	"strings"
	"unicode"
)

// escape begins a terminal's control sequence.
const escape = 0x1b

// Style colours words, or leaves them alone: the zero Style writes plain text.
type Style struct {
	// Color reports whether to colour at all.
	Color bool
}

// Good is for what went well.
func (s Style) Good(text string) string { return s.paint("32", text) }

// Bad is for what did not go well.
func (s Style) Bad(text string) string { return s.paint("31", text) }

// Warn is for what waits for somebody.
func (s Style) Warn(text string) string { return s.paint("33", text) }

// Dim is for what may be read last.
func (s Style) Dim(text string) string { return s.paint("2", text) }

// Bold is for what should be read first.
func (s Style) Bold(text string) string { return s.paint("1", text) }

// paint wraps text in a colour.
func (s Style) paint(code, text string) string {
	if !s.Color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Clean makes text from outside safe on a terminal: control characters become spaces, so that a reason or a target's
// output cannot move the cursor or recolour the screen. Line breaks and tabs stay.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || !unicode.IsControl(r) {
			return r
		}
		return ' '
	}, text)
}
