package command

import (
	"errors"
	"os"
	"testing"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/executors/executortest"
	"github.com/seed-a0a4f4e3/sluice/inventory"
)

// TestConformance fails when the command executor breaks a promise of the port.
func TestConformance(t *testing.T) {
	executortest.Run(t, executortest.Harness{
		Patience: patience,
		Unsupported: map[executortest.Ability]string{
			executortest.Unreachable: "a program runs on the worker itself, and what it reaches beyond is its own affair",
			executortest.LoseAnswer:  "there is no network between Submit and the runner; a worker killed in between is tested here instead",
			executortest.Delay:       "a request is handed over under the lock, so none can be on its way; the race is tested here instead",
		},
		Open: func(t *testing.T, from string) *executortest.System {
			s := newSite(t, from)
			replace := map[string]any{}
			return &executortest.System{
				Executor: s.worker(),
				Another:  func(*testing.T) executors.Executor { return s.worker() },
				Change: func(operation string, d executors.Direction, version, from string) executors.Change {
					return executors.Change{
						Operation: operation, Direction: d, Target: inventory.Target{Name: "edge-1"},
						Deployment: "web", Environment: "Production", Version: version, From: from, Config: s.config(replace),
					}
				},
				Effects: func(_ *testing.T, operation string) int { return s.effects(operation) },
				Put:     func(_ *testing.T, version string) { s.write("version", version) },
				Fail:    func(*testing.T) { s.write("how", "exit-3") },
				Block:   func(*testing.T) { s.write("how", "exit-75") },
				Hang: func(*testing.T) func() {
					s.hang("hang")
					return s.release
				},
				Blind: func(*testing.T) { replace["check"] = nil },
				Crash: func(t *testing.T, effect bool) func() {
					s.hang(map[bool]string{true: "change-and-hang", false: "hang"}[effect])
					return func() {
						s.reached()
						var m mark
						started, err := os.ReadDir(s.dir)
						for _, entry := range started {
							_, err2 := folder(s.dir+"/"+entry.Name()).readJSON(startedFile, &m)
							if entry.IsDir() {
								err = errors.Join(err, err2)
							}
						}
						if err != nil {
							t.Fatal(err)
						}
						kill(t, m.PID)
						s.killScript()
					}
				},
			}
		},
	})
}
