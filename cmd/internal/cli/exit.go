package cli

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/api/serviceerror"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/config"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// Exit codes: the one table. Scripts rely on them.
const (
	exitOK           = 0 // done
	exitError        = 1 // anything that the others do not name
	exitUsage        = 2 // wrong usage, or a document that is not valid
	exitRefused      = 3 // refused by policy, or the lane is busy
	exitUnsuccessful = 4 // the rollout ended: failed, rolled back, rejected, aborted
	exitPerson       = 5 // waiting for a person, with --wait --no-input
	exitNotFound     = 6 // no such rollout
	exitUnavailable  = 7 // Temporal cannot be reached, or no worker is there to do it
)

// exitTable is what `sluice help` shows of the codes.
const exitTable = `Exit codes:
  0  done, or the rollout succeeded
  1  error
  2  wrong usage, or a document that is not valid
  3  refused by policy, or the lane is busy
  4  the rollout ended unsuccessful: failed, rolled back, rejected, aborted
  5  waiting for a person (with --wait --no-input)
  6  not found
  7  Temporal cannot be reached, or no worker is polling
`

// exitErr is an error that knows its exit code. An empty text means that everything has been said already.
type exitErr struct {
	code int
	err  error
}

// Error is what the person is told.
func (e *exitErr) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap is the cause.
func (e *exitErr) Unwrap() error { return e.err }

// failf is an error with an exit code.
func failf(code int, format string, args ...any) error {
	return &exitErr{code: code, err: fmt.Errorf(format, args...)}
}

// usagef is a mistake on the command line.
func usagef(format string, args ...any) error { return failf(exitUsage, format, args...) }

// exitCode is the code that an error ends the process with.
func exitCode(err error) int {
	var (
		coded   *exitErr
		faults  policy.Faults
		file    config.Faults
		missing *serviceerror.NotFound
		space   *serviceerror.NamespaceNotFound
		down    *serviceerror.Unavailable
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &faults), errors.As(err, &file):
		return exitUsage
	case errors.As(err, &down), errors.As(err, &space):
		return exitUnavailable
	case errors.As(err, &missing):
		return exitNotFound
	case errors.Is(err, context.Canceled):
		return exitError
	}
	return exitError
}
