package command

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

// TestDecodeRefuses fails when a wrong configuration is let through, or its author is not told what to write instead.
func TestDecodeRefuses(t *testing.T) {
	for name, test := range map[string]struct{ config, want string }{
		"no object":           {`["sh"]`, "must be an object with the field apply and any of check, rollback, timeout, grace, exitCodes, env, dir"},
		"null":                {`null`, "must be an object with the field apply and any of check, rollback, timeout, grace, exitCodes, env, dir"},
		"nothing":             {``, "must be an object with the field apply and any of check, rollback, timeout, grace, exitCodes, env, dir"},
		"no apply":            {`{}`, "apply: is required: a list of strings, the program and its arguments"},
		"apply is a string":   {`{"apply": "sh -c x"}`, "apply: must be a list of strings, the program and its arguments"},
		"apply is empty":      {`{"apply": []}`, "apply: must be a list of strings, the program and its arguments"},
		"apply has a number":  {`{"apply": ["sleep", 5]}`, "apply[1]: must be a string, not 5; put it in quotes"},
		"apply has null":      {`{"apply": ["sleep", null]}`, "apply[1]: must be a string, not null; put it in quotes"},
		"no program":          {`{"apply": [" ", "x"]}`, "apply[0]: must name a program"},
		"NUL":                 {`{"apply": ["sh", "a\u0000b"]}`, "apply[1]: must not contain a NUL byte"},
		"null check":          {`{"apply": ["a"], "check": null}`, "check: must be a list of strings, the program and its arguments"},
		"rollback":            {`{"apply": ["a"], "rollback": [[]]}`, "rollback[0]: must be a string, not []; put it in quotes"},
		"timeout is a number": {`{"apply": ["a"], "timeout": 600}`, `timeout: must be a duration above zero such as "90s", "10m" or "1h30m", not 600`},
		"timeout is zero":     {`{"apply": ["a"], "timeout": "0s"}`, `timeout: must be a duration above zero such as "90s", "10m" or "1h30m", not "0s"`},
		"grace is negative":   {`{"apply": ["a"], "grace": "-1s"}`, `grace: must be a duration above zero such as "90s", "10m" or "1h30m", not "-1s"`},
		"grace has no unit":   {`{"apply": ["a"], "grace": "10"}`, `grace: must be a duration above zero such as "90s", "10m" or "1h30m", not "10"`},
		"exitCodes is a list": {`{"apply": ["a"], "exitCodes": [75]}`, "exitCodes: must be an object from exit codes to one of succeeded, failed, blocked, retry"},
		"exit code 0":         {`{"apply": ["a"], "exitCodes": {"0": "failed"}}`, "exitCodes.0: must be an exit code from 1 to 255; 0 always means succeeded"},
		"exit code 256":       {`{"apply": ["a"], "exitCodes": {"256": "failed"}}`, "exitCodes.256: must be an exit code from 1 to 255; 0 always means succeeded"},
		"exit code 075":       {`{"apply": ["a"], "exitCodes": {"075": "failed"}}`, "exitCodes.075: must be an exit code from 1 to 255; 0 always means succeeded"},
		"exit meaning":        {`{"apply": ["a"], "exitCodes": {"75": "wait"}}`, `exitCodes.75: must be one of succeeded, failed, blocked, retry, not "wait"`},
		"env value":           {`{"apply": ["a"], "env": {"PORT": 80}}`, "env.PORT: must be a string, not 80; put it in quotes"},
		"env name":            {`{"apply": ["a"], "env": {"A-B": "x"}}`, "env.A-B: must be a variable name of letters, digits and _, not beginning with a digit"},
		"env is ours":         {`{"apply": ["a"], "env": {"SLUICE_TARGET": "x"}}`, "env.SLUICE_TARGET: must not begin with SLUICE_, which names what Sluice itself tells the program"},
		"env is a list":       {`{"apply": ["a"], "env": ["A=b"]}`, "env: must be an object from variable names to strings"},
		"dir":                 {`{"apply": ["a"], "dir": 1}`, "dir: must be a string, not 1; put it in quotes"},
		"unknown":             {`{"apply": ["a"], "timeOut": "1m"}`, "timeOut: unknown field; known are apply, check, rollback, timeout, grace, exitCodes, env, dir"},
		"every fault at once": {
			`{"zeal": 1, "grace": "x", "applly": ["a"], "exitCodes": {"x": "failed", "7": "no"}}`,
			"apply: is required: a list of strings, the program and its arguments\n" +
				`grace: must be a duration above zero such as "90s", "10m" or "1h30m", not "x"` + "\n" +
				`exitCodes.7: must be one of succeeded, failed, blocked, retry, not "no"` + "\n" +
				"exitCodes.x: must be an exit code from 1 to 255; 0 always means succeeded\n" +
				"applly: unknown field; known are apply, check, rollback, timeout, grace, exitCodes, env, dir\n" +
				"zeal: unknown field; known are apply, check, rollback, timeout, grace, exitCodes, env, dir",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Kind().Decode(json.RawMessage(test.config))
			faults, ok := err.(executors.Faults)
			if !ok {
				t.Fatalf("got %v, want Faults", err)
			}
			if diff := cmp.Diff(test.want, faults.Error()); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDecodeFills fails when a default or a template is lost on the way.
func TestDecodeFills(t *testing.T) {
	got, faults := decode(json.RawMessage(`{"apply": ["deploy", "{{.version.name}}"]}`))
	want := config{apply: []string{"deploy", "{{.version.name}}"}, timeout: 10 * time.Minute, grace: 10 * time.Second}
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(config{})); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	got, faults = decode(json.RawMessage(`{"check": ["c"], "apply": ["a"], "rollback": ["r"], "timeout": "1h", "grace": "1ms",
		"exitCodes": {"75": "blocked", "2": "retry", "3": "succeeded", "255": "failed"}, "env": {"A": "{{.target.name}}"}, "dir": "{{.target.config.dir}}"}`))
	want = config{
		check: []string{"c"}, apply: []string{"a"}, rollback: []string{"r"}, timeout: time.Hour, grace: time.Millisecond,
		ends: map[int]ending{75: endBlocked, 2: endRetry, 3: endSucceeded, 255: endFailed},
		env:  map[string]string{"A": "{{.target.name}}"}, dir: "{{.target.config.dir}}",
	}
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(config{})); diff != "" {
		t.Errorf("all fields (-want +got):\n%s", diff)
	}
}

// TestTraits fails when a plan promises a way back that the step does not have.
func TestTraits(t *testing.T) {
	const reason = "the step has no check, so the version to go back to is never read"
	for name, test := range map[string]struct {
		config string
		want   executors.Traits
	}{
		"apply alone":             {`{"apply": ["a"]}`, executors.Traits{Reason: reason, Longest: 10*time.Minute + 10*time.Second}},
		"rollback without check":  {`{"apply": ["a"], "rollback": ["r"]}`, executors.Traits{Reason: reason, Longest: 10*time.Minute + 10*time.Second}},
		"check":                   {`{"apply": ["a"], "check": ["c"]}`, executors.Traits{Observes: true, Restores: true, Longest: 10*time.Minute + 10*time.Second}},
		"check and rollback argv": {`{"apply": ["a"], "check": ["c"], "rollback": ["r"]}`, executors.Traits{Observes: true, Restores: true, Uninstalls: true, Longest: 10*time.Minute + 10*time.Second}},
		"timeout and grace":       {`{"apply": ["a"], "timeout": "2h", "grace": "1m"}`, executors.Traits{Reason: reason, Longest: 121 * time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Kind().Decode(json.RawMessage(test.config))
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestPlainDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		10 * time.Minute: "10m", time.Hour: "1h", 90 * time.Second: "1m30s", time.Hour + 30*time.Minute: "1h30m", 100 * time.Millisecond: "100ms", 10 * time.Second: "10s",
	} {
		if got := plain(d); got != want {
			t.Errorf("plain(%v) = %q, want %q", d, got, want)
		}
	}
}
