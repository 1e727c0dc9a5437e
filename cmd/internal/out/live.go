package out

import (
	"fmt"
	"io"
	"strings"
)

// Live redraws a block of text in place on a terminal.
type Live struct {
	w     io.Writer
	size  func() (width, height int)
	lines int
}

// NewLive returns a Live on a terminal; size tells its present width and height in characters.
func NewLive(w io.Writer, size func() (width, height int)) *Live { return &Live{w: w, size: size} }

// Draw replaces what was drawn before by text. Lines wider than the terminal are cut, because a line that wraps would
// move everything below it; of a text higher than the terminal only the head is drawn, and the last line says so.
func (l *Live) Draw(text string) error {
	width, height := l.size()
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if height > 2 && len(lines) > height-1 {
		hidden := len(lines) - (height - 2)
		lines = append(lines[:height-2:height-2], fmt.Sprintf("… %d more lines", hidden))
	}
	var frame strings.Builder
	if l.lines > 0 {
		fmt.Fprintf(&frame, "\x1b[%dA", l.lines)
	}
	frame.WriteString("\r\x1b[J")
	for _, line := range lines {
		frame.WriteString(cut(line, width))
		frame.WriteByte('\n')
	}
	l.lines = len(lines)
	_, err := io.WriteString(l.w, frame.String())
	return err
}

// Clear removes what was drawn last.
func (l *Live) Clear() error {
	if l.lines == 0 {
		return nil
	}
	_, err := fmt.Fprintf(l.w, "\x1b[%dA\r\x1b[J", l.lines)
	l.lines = 0
	return err
}

// cut shortens a line to a terminal's width; colour does not count and is always closed again.
func cut(line string, limit int) string {
	if limit <= 0 || width(line) <= limit {
		return line
	}
	var kept strings.Builder
	count, coloured := 0, false
	for i := 0; i < len(line); {
		if line[i] == escape {
			if end := strings.IndexByte(line[i:], 'm'); end >= 0 {
				kept.WriteString(line[i : i+end+1])
				coloured = true
				i += end + 1
				continue
			}
		}
		r := []rune(line[i:min(i+4, len(line))])[0]
		if count == limit-1 {
			break
		}
		kept.WriteRune(r)
		count++
		i += len(string(r))
	}
	kept.WriteRune('…')
	if coloured {
		kept.WriteString("\x1b[0m")
	}
	return kept.String()
}
