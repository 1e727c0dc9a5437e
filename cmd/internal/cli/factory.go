package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/user"
	"time"

	"golang.org/x/term"

	"github.com/seed-a0a4f4e3/sluice/activities"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// Factory is what commands get from their surroundings. Tests give their own.
type Factory struct {
	// Program is what the person called, for the commands that texts tell them to type.
	Program string
	In      io.Reader
	// Out takes the result, Err everything else.
	Out, Err io.Writer
	// Style and Notes colour Out and Err.
	Style, Notes out.Style
	// OutSize and ErrSize tell a terminal's width and height; nil when it is not one.
	OutSize, ErrSize func() (width, height int)
	Getenv           func(string) string
	Now              func() time.Time
	// Zone is the one in which times are shown.
	Zone *time.Location
	// Connect reaches Temporal; its error has the exit code for that.
	Connect func(ctx context.Context) (*temporal, error)
	// Load reads uploaded documents, Plan plans a request on them.
	Load func(documents []byte) (policy.Bundle, error)
	Plan activities.Planner
}

// newFactory returns the surroundings of this process.
func newFactory() *Factory {
	f := &Factory{Program: "sluice", In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Now: time.Now, Zone: time.Local,
		Load: wire.Load, Plan: wire.Plan}
	f.OutSize, f.ErrSize = terminalSize(os.Stdout), terminalSize(os.Stderr)
	// NO_COLOR: https://no-color.org. A dumb terminal can neither colour nor move its cursor.
	plain := f.Getenv("NO_COLOR") != "" || f.Getenv("TERM") == "dumb"
	if f.Getenv("TERM") == "dumb" {
		f.OutSize, f.ErrSize = nil, nil
	}
	f.Style = out.Style{Color: f.OutSize != nil && !plain}
	f.Notes = out.Style{Color: f.ErrSize != nil && !plain}
	f.Connect = func(ctx context.Context) (*temporal, error) { return dial(ctx, f) }
	return f
}

// terminalSize returns a way to ask for a terminal's size, or nil if the file is not a terminal.
func terminalSize(file *os.File) func() (int, int) {
	fd := int(file.Fd())
	if !term.IsTerminal(fd) {
		return nil
	}
	return func() (int, int) {
		width, height, err := term.GetSize(fd)
		if err != nil {
			return 80, 24
		}
		return width, height
	}
}

// note tells the person something that is not the result.
func (f *Factory) note(format string, args ...any) {
	// There is nowhere to report to that stderr is gone.
	_, _ = fmt.Fprintf(f.Err, format+"\n", args...)
}

// result writes a line of the result; an error, such as a full disk, is the command's.
func (f *Factory) result(format string, args ...any) error {
	if _, err := fmt.Fprintf(f.Out, format+"\n", args...); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// actor is who sends: as given, else SLUICE_ACTOR, else the name of the OS user. It is a claim and shown as one.
func (f *Factory) actor(as string) (string, error) {
	if name := cmp.Or(as, f.Getenv("SLUICE_ACTOR")); name != "" {
		return name, nil
	}
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username, nil
	}
	if name := cmp.Or(f.Getenv("USER"), f.Getenv("LOGNAME")); name != "" {
		return name, nil
	}
	return "", usagef("nobody can be named: give --as or set SLUICE_ACTOR")
}

// moment shows a point in time with its distance from now.
func (f *Factory) moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return f.clock(t) + " (" + distance(t.Sub(f.Now())) + ")"
}

// clock shows a point in time: without the date if it is today.
func (f *Factory) clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	local, now := t.In(f.Zone), f.Now().In(f.Zone)
	if local.Year() == now.Year() && local.YearDay() == now.YearDay() {
		return local.Format("15:04:05 MST")
	}
	return local.Format("2006-01-02 15:04:05 MST")
}

// distance says how far away something is, e.g. "3m ago" or "in 2h15m".
func distance(d time.Duration) string {
	if d < 0 {
		return short(-d) + " ago"
	}
	return "in " + short(d)
}

// short prints a duration to the precision that people care for.
func short(d time.Duration) string {
	switch {
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return policy.Duration(d.Round(time.Second)).String()
	case d < 48*time.Hour:
		return policy.Duration(d.Round(time.Minute)).String()
	}
	days := d / (24 * time.Hour)
	return fmt.Sprintf("%dd%dh", days, (d-days*24*time.Hour)/time.Hour)
}
