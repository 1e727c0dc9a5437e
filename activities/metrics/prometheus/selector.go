package prometheus

import (
	"regexp"
	"strings"
)

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*`)
	operator   = regexp.MustCompile(`^(=~|!=|!~|=)`)
)

// plainSelector reports whether the query is for certain one instant selector and nothing else: then the samples that it
// reads have a time of their own. Of anything that it does not understand it says no.
func plainSelector(query string) bool {
	rest := strings.TrimSpace(query)
	name := metricName.FindString(rest)
	rest = strings.TrimSpace(rest[len(name):])
	if rest == "" {
		lower := strings.ToLower(name)
		return name != "" && lower != "inf" && lower != "nan"
	}
	rest, ok := strings.CutPrefix(rest, "{")
	if !ok {
		return false
	}
	rest = strings.TrimSpace(rest)
	for !strings.HasPrefix(rest, "}") {
		n := len(labelName.FindString(rest))
		quoted := n == 0
		if quoted {
			n = stringLength(rest) // "a.metric" or "a.label"="value"
		}
		if n == 0 {
			return false
		}
		rest = strings.TrimSpace(rest[n:])
		if op := operator.FindString(rest); op != "" {
			rest = strings.TrimSpace(rest[len(op):])
			value := stringLength(rest)
			if value == 0 {
				return false
			}
			rest = strings.TrimSpace(rest[value:])
		} else if !quoted {
			return false
		}
		if after, ok := strings.CutPrefix(rest, ","); ok {
			rest = strings.TrimSpace(after)
		} else if !strings.HasPrefix(rest, "}") {
			return false
		}
	}
	return rest == "}"
}

// stringLength returns the length of the PromQL string at the start of text, its quotes included; 0 if there is none.
func stringLength(text string) int {
	if text == "" || !strings.ContainsRune("\"'`", rune(text[0])) {
		return 0
	}
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == text[0]:
			return i + 1
		case text[0] == '`':
		case text[i] == '\\':
			i++
		case text[i] == '\n':
			return 0
		}
	}
	return 0
}
