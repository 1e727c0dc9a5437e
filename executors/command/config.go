package command

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

const (
	// defaultTimeout is longer than a healthy script takes and shorter than a person's patience.
	defaultTimeout = 10 * time.Minute
	// defaultGrace is what a script gets between SIGTERM and SIGKILL to tidy up.
	defaultGrace = 10 * time.Second
)

// noCheckReason is why a step without a check can't go back.
const noCheckReason = "the step has no check, so the version to go back to is never read"

// ending is what an exit code means.
type ending string

const (
	endSucceeded ending = "succeeded"
	endFailed    ending = "failed"
	endBlocked   ending = "blocked" // the program vouches that it changed nothing
	endRetry     ending = "retry"   // failed, and the program vouches that running it again is safe
)

var endings = []string{string(endSucceeded), string(endFailed), string(endBlocked), string(endRetry)}

// config is a step's configuration. A relative dir, and a relative program name with a slash in it, are relative to the
// working directory of the worker, as they would be in a shell started there; a name without a slash is looked up in
// PATH.
type config struct {
	check    []string // prints the running version; empty: it can't be read
	apply    []string
	rollback []string          // empty: go back by apply with the former version
	timeout  time.Duration     // of apply and rollback
	grace    time.Duration     // from SIGTERM to SIGKILL
	ends     map[int]ending    // of non-zero exit codes; one that is not listed is failed
	env      map[string]string // added to the allow-list, over it
	dir      string            // empty: the worker's working directory
}

// Kind is the command step's entry in the list of executors.
func Kind() executors.Kind {
	return executors.Kind{Name: "command", Decode: func(raw json.RawMessage) (executors.Traits, error) {
		cfg, faults := decode(raw)
		if len(faults) > 0 {
			return executors.Traits{}, faults
		}
		return cfg.traits(), nil
	}}
}

// traits tells what the step promises. An uninstall needs the check as well: without it nobody knows that the change
// was a first install.
func (cfg config) traits() executors.Traits {
	longest := cfg.timeout + cfg.grace
	if len(cfg.check) == 0 {
		return executors.Traits{Reason: noCheckReason, Longest: longest}
	}
	return executors.Traits{Observes: true, Restores: true, Uninstalls: len(cfg.rollback) > 0, Longest: longest}
}

// decodeRendered decodes the configuration of a change.
func decodeRendered(c executors.Change) (config, error) {
	cfg, faults := decode(c.Config)
	if len(faults) > 0 {
		return config{}, fmt.Errorf("command: configuration of %q for %s: %w", c.Operation, c.Target.Name, faults)
	}
	return cfg, nil
}

// decode reads the configuration strictly and lists every fault: the known fields in their order, then the unknown ones.
// Templates need no care: they may stand only where any text may.
func decode(raw json.RawMessage) (config, executors.Faults) {
	d := decoder{fields: map[string]json.RawMessage{}}
	if err := json.Unmarshal(raw, &d.fields); err != nil || d.fields == nil {
		return config{}, executors.Faults{{Message: "must be an object with the field apply and any of " + strings.Join(optionalFields, ", ")}}
	}
	cfg := config{
		apply:    d.argv("apply"),
		check:    d.argv("check"),
		rollback: d.argv("rollback"),
		timeout:  d.duration("timeout", defaultTimeout),
		grace:    d.duration("grace", defaultGrace),
		ends:     d.exitCodes("exitCodes"),
		env:      d.env("env"),
		dir:      d.text("dir"),
	}
	for _, name := range slices.Sorted(maps.Keys(d.fields)) {
		d.fault(name, "unknown field; known are apply, %s", strings.Join(optionalFields, ", "))
	}
	return cfg, d.faults
}

var optionalFields = []string{"check", "rollback", "timeout", "grace", "exitCodes", "env", "dir"}

// decoder takes fields out of an object and collects what is wrong with them.
type decoder struct {
	fields map[string]json.RawMessage
	faults executors.Faults
}

func (d *decoder) fault(path, format string, args ...any) {
	d.faults = append(d.faults, executors.Fault{Path: path, Message: fmt.Sprintf(format, args...)})
}

// take returns the field and forgets it, so that what is left in the end is unknown.
func (d *decoder) take(name string) (json.RawMessage, bool) {
	raw, ok := d.fields[name]
	delete(d.fields, name)
	return raw, ok
}

func (d *decoder) argv(name string) []string {
	raw, ok := d.take(name)
	if !ok {
		if name == "apply" {
			d.fault(name, "is required: a list of strings, the program and its arguments")
		}
		return nil
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil || len(items) == 0 {
		d.fault(name, "must be a list of strings, the program and its arguments")
		return nil
	}
	argv := make([]string, len(items))
	for i, item := range items {
		path := fmt.Sprintf("%s[%d]", name, i)
		argv[i], ok = d.string(path, item)
		if ok && i == 0 && strings.TrimSpace(argv[i]) == "" {
			d.fault(path, "must name a program")
		}
	}
	return argv
}

// string decodes text that can be handed to a program, which NUL bytes can't.
func (d *decoder) string(path string, raw json.RawMessage) (string, bool) {
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		d.fault(path, "must be a string, not %s; put it in quotes", raw)
		return "", false
	}
	if strings.ContainsRune(*s, 0) {
		d.fault(path, "must not contain a NUL byte")
		return "", false
	}
	return *s, true
}

func (d *decoder) text(name string) string {
	raw, ok := d.take(name)
	if !ok {
		return ""
	}
	s, _ := d.string(name, raw)
	return s
}

func (d *decoder) duration(name string, unless time.Duration) time.Duration {
	raw, ok := d.take(name)
	if !ok {
		return unless
	}
	var s string
	err := json.Unmarshal(raw, &s)
	if err == nil {
		var dur time.Duration
		if dur, err = time.ParseDuration(s); err == nil && dur > 0 {
			return dur
		}
	}
	d.fault(name, "must be a duration above zero such as \"90s\", \"10m\" or \"1h30m\", not %s", raw)
	return unless
}

func (d *decoder) exitCodes(name string) map[int]ending {
	raw, ok := d.take(name)
	if !ok {
		return nil
	}
	var codes map[string]json.RawMessage
	if err := json.Unmarshal(raw, &codes); err != nil || codes == nil {
		d.fault(name, "must be an object from exit codes to one of %s", strings.Join(endings, ", "))
		return nil
	}
	ends := map[int]ending{}
	for _, key := range slices.Sorted(maps.Keys(codes)) {
		path := name + "." + key
		// Itoa, because "075" and "+75" would be second names of 75.
		code, err := strconv.Atoi(key)
		if err != nil || code < 1 || code > 255 || strconv.Itoa(code) != key {
			d.fault(path, "must be an exit code from 1 to 255; 0 always means succeeded")
			continue
		}
		var end string
		if err := json.Unmarshal(codes[key], &end); err != nil || !slices.Contains(endings, end) {
			d.fault(path, "must be one of %s, not %s", strings.Join(endings, ", "), codes[key])
			continue
		}
		ends[code] = ending(end)
	}
	return ends
}

// variable is the portable form of an environment variable's name (POSIX.1-2017, 8.1), lower case allowed.
var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (d *decoder) env(name string) map[string]string {
	raw, ok := d.take(name)
	if !ok {
		return nil
	}
	var items map[string]json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil || items == nil {
		d.fault(name, "must be an object from variable names to strings")
		return nil
	}
	env := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(items)) {
		path := name + "." + key
		switch {
		case !variable.MatchString(key):
			d.fault(path, "must be a variable name of letters, digits and _, not beginning with a digit")
		case strings.HasPrefix(key, ownPrefix):
			d.fault(path, "must not begin with %s, which names what Sluice itself tells the program", ownPrefix)
		default:
			env[key], _ = d.string(path, items[key])
		}
	}
	return env
}
