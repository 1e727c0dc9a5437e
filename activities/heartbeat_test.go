package activities

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
)

// stuck is a ledger that answers, with an error, once it is let go.
type stuck struct{ free chan struct{} }

var errStuck = errors.New("stuck")

func (s stuck) wait(ctx context.Context) error {
	select {
	case <-s.free:
	case <-ctx.Done():
	case <-time.After(20 * time.Second):
	}
	return errStuck
}

func (s stuck) PutBlob(ctx context.Context, _, _ string, _ []byte) error { return s.wait(ctx) }
func (s stuck) Blob(ctx context.Context, _, _ string) ([]byte, error)    { return nil, s.wait(ctx) }
func (s stuck) DropBlob(ctx context.Context, _, _ string) error          { return s.wait(ctx) }
func (s stuck) PutRecord(ctx context.Context, _ ledger.Record) error     { return s.wait(ctx) }
func (s stuck) Record(ctx context.Context, _ string) (ledger.Record, error) {
	return ledger.Record{}, s.wait(ctx)
}
func (s stuck) LastRecord(ctx context.Context, _, _ string) (ledger.Record, error) {
	return ledger.Record{}, s.wait(ctx)
}

// TestSlowActivitiesBeat fails when an activity that takes longer than its heartbeat timeout is taken for dead: a
// reading would be given up, a record written for ever.
func TestSlowActivitiesBeat(t *testing.T) {
	var all sync.WaitGroup // not parallel tests: they only wait, and are many
	for name, call := range map[string]func(a *Activities) (any, any){
		"Observe":     func(a *Activities) (any, any) { return a.Observe, ChangeRef{} },
		"Submit":      func(a *Activities) (any, any) { return a.Submit, ChangeRef{} },
		"Await":       func(a *Activities) (any, any) { return a.Await, AwaitInput{} },
		"Verify":      func(a *Activities) (any, any) { return a.Verify, ChangeRef{} },
		"Record":      func(a *Activities) (any, any) { return a.Record, ledger.Record{} },
		"LoadRecord":  func(a *Activities) (any, any) { return a.LoadRecord, RecordPage{} },
		"MakePlan":    func(a *Activities) (any, any) { return a.MakePlan, PlanInput{} },
		"LoadPlan":    func(a *Activities) (any, any) { return a.LoadPlan, "digest" },
		"LoadWave":    func(a *Activities) (any, any) { return a.LoadWave, WaveRef{} },
		"FindTarget":  func(a *Activities) (any, any) { return a.FindTarget, TargetRef{} },
		"StoreChunk":  func(a *Activities) (any, any) { return a.StoreChunk, ChunkInput{} },
		"StoreBundle": func(a *Activities) (any, any) { return a.StoreBundle, BundleRef{Chunks: 1} },
	} {
		all.Go(func() {
			s := stuck{free: make(chan struct{})}
			a := &Activities{Blobs: s, Log: s}
			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestActivityEnvironment()
			env.SetTestTimeout(time.Minute)
			var beat sync.Once
			beats := false
			env.SetOnActivityHeartbeatListener(func(*activity.Info, converter.EncodedValues) {
				beat.Do(func() {
					beats = true
					close(s.free)
				})
			})
			function, in := call(a)
			env.RegisterActivity(function)
			if _, err := env.ExecuteActivity(function, in); err == nil {
				t.Errorf("%s lost the ledger's error", name)
			}
			if !beats {
				t.Errorf("%s did not beat within 20 s", name)
			}
		})
	}
	all.Wait()
}
