package executortest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-a0a4f4e3/sluice/executors"
)

// Versions that the suite moves the target between.
const (
	oldVersion = "1.4.0"
	newVersion = "1.5.0"
)

// outputLimit is the port's bound on Result.Output, in bytes.
const outputLimit = 4 << 10

// operation is an idempotency key as the engine builds them, with the characters that break adapters which use it
// unescaped in a path, a URL or a file name.
const operation = "rollout/Production/web/01J9Z/w02/../../edge 1/ü?a=b&c#%2e%2e/apply/1"

// Run checks the adapter against the port, each promise in a subtest that says what is broken if it fails.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.Patience == 0 {
		h.Patience = 30 * time.Second
	}
	t.Run("every ability is there or its lack is explained", h.testAbilities)
	for _, one := range []struct {
		name  string
		needs []Ability
		test  func(t *testing.T, b *bench)
	}{
		{"Observe reads the running version and changes nothing", nil, testObserve},
		{"Observe tells not installed from unknown", nil, testObserveNothing},
		{"Observe on an unknown version says that it is unknown", []Ability{Blind}, testBlind},
		{"Observe follows a change made by others", []Ability{Put}, testObserveOutside},
		{"Verify fails while the wanted version is not there, and changes nothing", nil, testVerifyBefore},
		{"Verify does not take the operation's own word", []Ability{Put}, testVerifyOutside},
		{"a change takes effect once and is verified", nil, testChange},
		{"a change on a target with nothing installed is verified", nil, testFirstInstall},
		{"Await may be asked again and answers the same", nil, testAwaitAgain},
		{"Await without a ticket adopts the operation", nil, testAwaitWithoutTicket},
		{"Await by another worker adopts the operation", nil, testAwaitByAnother},
		{"many Awaits at once agree", nil, testAwaitConcurrently},
		{"two operations are two changes", nil, testTwoOperations},
		{"a second Submit of an operation has no second effect", []Ability{Resubmit}, testResubmit},
		{"a running change is still running when the context ends, and ends later", []Ability{Hang}, testRunning},
		{"another worker sees a running change as running", []Ability{Hang}, testRunningElsewhere},
		{"an operation that was never submitted is fenced for ever", nil, testNeverSubmitted},
		{"a lost answer is adopted, not repeated", []Ability{LoseAnswer}, testLostAnswer},
		{"a request that arrives after the fence changes nothing", []Ability{Delay}, testLateRequest},
		{"a failed change says why and is not verified", []Ability{Fail}, testFailed},
		{"a blocked change has changed nothing", []Ability{Block}, testBlocked},
		{"an unreachable target is neither failed nor changed", []Ability{Unreachable}, testUnreachable},
		{"a change with a lost end is judged by the target: it took effect", []Ability{Crash}, testCrashWithEffect},
		{"a change with a lost end is judged by the target: it did not", []Ability{Crash}, testCrashWithoutEffect},
		{"a restore brings the former version back", nil, testRestore},
		{"a restore of a first install uninstalls", []Ability{Uninstall}, testUninstall},
		{"a context that is over makes no reading up", nil, testContextOver},
	} {
		t.Run(one.name, func(t *testing.T) {
			for _, ability := range one.needs {
				if why, ok := h.Unsupported[ability]; ok {
					t.Skipf("this adapter does not support %s: %s", ability, why)
				}
			}
			one.test(t, &bench{harness: h, t: t})
		})
	}
}

// testAbilities fails on an ability that is missing without a word, or present and disowned.
func (h Harness) testAbilities(t *testing.T) {
	staged := h.Open(t, oldVersion).staged()
	for ability, there := range staged {
		why, disowned := h.Unsupported[ability]
		switch {
		case !there && why == "":
			t.Errorf("the system has no %s: provide it, or give the reason in Harness.Unsupported", ability)
		case there && disowned:
			t.Errorf("the system has %s, but Harness.Unsupported disowns it", ability)
		}
	}
	for ability, why := range h.Unsupported {
		_, isFunc := staged[ability]
		if !isFunc && ability != Uninstall && ability != Resubmit {
			t.Errorf("Harness.Unsupported names %q, which is no ability", ability)
		}
		t.Logf("not supported by this adapter: %s: %s", ability, why)
	}
}

// bench is one subtest's system and the assertions on it.
type bench struct {
	harness Harness
	t       *testing.T
	*System
}

// open gives the bench its system.
func (b *bench) open(from string) {
	b.t.Helper()
	b.System = b.harness.Open(b.t, from)
}

// ctx returns a context that is over after the harness's patience.
func (b *bench) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), b.harness.Patience)
	b.t.Cleanup(cancel)
	return ctx
}

// apply describes the move from the old to the new version.
func (b *bench) apply(operation string) executors.Change {
	return b.Change(operation, executors.Apply, newVersion, oldVersion)
}

func (b *bench) submit(c executors.Change) executors.Ticket {
	b.t.Helper()
	ticket, err := b.Executor.Submit(b.ctx(), c)
	if err != nil {
		b.t.Fatalf("Submit: %v", err)
	}
	return ticket
}

func (b *bench) await(e executors.Executor, c executors.Change, ticket executors.Ticket) executors.Result {
	b.t.Helper()
	result, err := e.Await(b.ctx(), c, ticket)
	if err != nil {
		b.t.Fatalf("Await: %v", err)
	}
	b.wellFormed("Await", result)
	return result
}

// wellFormed checks what holds for every result whatever its outcome.
func (b *bench) wellFormed(method string, r executors.Result) {
	b.t.Helper()
	if !slices.Contains(executors.Outcomes(), r.Outcome) {
		b.t.Errorf("%s: outcome %q is not one of %v", method, r.Outcome, executors.Outcomes())
	}
	if r.Outcome != executors.Succeeded && r.Reason == "" {
		b.t.Errorf("%s: outcome %s without a reason", method, r.Outcome)
	}
	if len(r.Output) > outputLimit || !utf8.ValidString(r.Output) {
		b.t.Errorf("%s: output of %d bytes, valid text: %t; want at most %d bytes of valid text",
			method, len(r.Output), utf8.ValidString(r.Output), outputLimit)
	}
	if !r.Reading.Known && r.Reading.Version != "" {
		b.t.Errorf("%s: version %q in a reading that is not known", method, r.Reading.Version)
	}
}

func (b *bench) wantOutcome(what string, r executors.Result, want ...executors.Outcome) {
	b.t.Helper()
	if !slices.Contains(want, r.Outcome) {
		b.t.Fatalf("%s: outcome %s (%s), want %v", what, r.Outcome, r.Reason, want)
	}
}

// wantVersion observes the target twice, because reading must not change what is read.
func (b *bench) wantVersion(c executors.Change, want string) {
	b.t.Helper()
	for range 2 {
		reading, err := b.Executor.Observe(b.ctx(), c)
		if err != nil {
			b.t.Fatalf("Observe: %v", err)
		}
		if !reading.Known || reading.Version != want {
			b.t.Fatalf("Observe: %+v, want version %q, known", reading, want)
		}
	}
}

// wantVerified verifies twice and wants the target's own word for c.Version.
func (b *bench) wantVerified(c executors.Change) {
	b.t.Helper()
	for range 2 {
		result, err := b.Executor.Verify(b.ctx(), c)
		if err != nil {
			b.t.Fatalf("Verify: %v", err)
		}
		b.wellFormed("Verify", result)
		b.wantOutcome("Verify", result, executors.Succeeded)
		if !result.Reading.Known || result.Reading.Version != c.Version {
			b.t.Fatalf("Verify: reading %+v, want version %q, known", result.Reading, c.Version)
		}
	}
}

// wantNotVerified verifies twice and wants Failed, with the version that really runs.
func (b *bench) wantNotVerified(c executors.Change, running string) {
	b.t.Helper()
	for range 2 {
		result, err := b.Executor.Verify(b.ctx(), c)
		if err != nil {
			b.t.Fatalf("Verify: %v", err)
		}
		b.wellFormed("Verify", result)
		b.wantOutcome("Verify", result, executors.Failed)
		if !result.Reading.Known || result.Reading.Version != running {
			b.t.Fatalf("Verify: reading %+v, want version %q, known", result.Reading, running)
		}
	}
}

func (b *bench) wantEffects(operation string, want int) {
	b.t.Helper()
	if got := b.Effects(b.t, operation); got != want {
		b.t.Errorf("operation %q was begun %d times, want %d", operation, got, want)
	}
}

// wantFenced awaits an operation that never started, on both workers.
func (b *bench) wantFenced(c executors.Change) {
	b.t.Helper()
	for _, e := range []executors.Executor{b.Executor, b.Another(b.t), b.Executor} {
		result, err := e.Await(b.ctx(), c, executors.Ticket{})
		if !errors.Is(err, executors.ErrNotSubmitted) {
			b.t.Fatalf("Await of an operation that never started: %+v, error %v; want ErrNotSubmitted", result, err)
		}
	}
}

func testObserve(t *testing.T, b *bench) {
	b.open(oldVersion)
	b.wantVersion(b.apply(operation), oldVersion)
	b.wantEffects(operation, 0)
}

func testObserveNothing(t *testing.T, b *bench) {
	b.open("")
	b.wantVersion(b.Change(operation, executors.Apply, newVersion, ""), "")
	b.wantEffects(operation, 0)
}

func testBlind(t *testing.T, b *bench) {
	b.open(oldVersion)
	b.Blind(t)
	c := b.apply(operation)
	if reading, err := b.Executor.Observe(b.ctx(), c); err == nil && reading.Known {
		t.Errorf("Observe: %+v, want an unknown reading or an error", reading)
	}
	if result, err := b.Executor.Verify(b.ctx(), c); err == nil {
		b.wellFormed("Verify", result)
		if result.Reading.Known {
			t.Errorf("Verify: %+v, want an unknown reading or an error", result)
		}
		if result.Reason == "" {
			t.Errorf("Verify: %+v, want a reason that says that nothing was verified", result)
		}
	}
	b.wantEffects(operation, 0)
}

func testObserveOutside(t *testing.T, b *bench) {
	b.open(oldVersion)
	c := b.apply(operation)
	b.wantVersion(c, oldVersion)
	b.Put(t, "9.9.9")
	b.wantVersion(c, "9.9.9")
}

func testVerifyBefore(t *testing.T, b *bench) {
	b.open(oldVersion)
	b.wantNotVerified(b.apply(operation), oldVersion)
	b.wantEffects(operation, 0)
	b.wantVersion(b.apply(operation), oldVersion)
}

func testVerifyOutside(t *testing.T, b *bench) {
	b.open(oldVersion)
	c := b.apply(operation)
	b.wantOutcome("Await", b.await(b.Executor, c, b.submit(c)), executors.Succeeded)
	b.Put(t, "9.9.9")
	b.wantNotVerified(c, "9.9.9")
	b.wantEffects(operation, 1)
}

func testChange(t *testing.T, b *bench) {
	b.open(oldVersion)
	c := b.apply(operation)
	ticket := b.submit(c)
	b.wantOutcome("Await", b.await(b.Executor, c, ticket), executors.Succeeded)
	b.wantVerified(c)
	b.wantVersion(c, newVersion)
	b.wantEffects(operation, 1)
}

func testFirstInstall(t *testing.T, b *bench) {
	b.open("")
	c := b.Change(operation, executors.Apply, newVersion, "")
	b.wantNotVerified(c, "")
	b.wantOutcome("Await", b.await(b.Executor, c, b.submit(c)), executors.Succeeded)
	b.wantVerified(c)
	b.wantEffects(operation, 1)
}

func testAwaitAgain(t *testing.T, b *bench) {
	b.open(oldVersion)
	c := b.apply(operation)
	ticket := b.submit(c)
	for range 3 {
		b.wantOutcome("Await", b.await(b.Executor, c, ticket), executors.Succeeded)
	}
	b.wantEffects(operation, 1)
}

func testAwaitWithoutTicket(t *testing.T, b *bench) {
	b.open(oldVersion)
	c := b.apply(operation)
	b.submit(c)
	b.wantOutcome("Await without a ticket", b.await(b.Executor, c, executors.Ticket{}), executors.Succeeded)
	b.wantVerified(c)
	b.wantEffects(operation, 1)
}

func testAwaitByAnother(t *testing.T, b *bench) {
	b.open(oldVersion)
	c := b.apply(operation)
	ticket := b.submit(c)
	b.wantOutcome("Await by another worker", b.await(b.Another(t), c, ticket), executors.Succeeded)
	b.wantOutcome("Await by another worker, without a ticket", b.await(b.Another(t), c, executors.Ticket{}), executors.Succeeded)
	b.wantOutcome("Await by the first worker", b.await(b.Executor, c, ticket), executors.Succeeded)
	b.wantEffects(operation, 1)
}

func testAwaitConcurrently(t *testing.T, b *bench) {
	b.open(oldVersion)
	c := b.apply(operation)
	ticket := b.submit(c)
	another := b.Another(t)
	ctx := b.ctx()
	var wg sync.WaitGroup
	ends := make([]string, 8)
	for i := range ends {
		e, tk := b.Executor, ticket
		if i%2 == 1 {
			e, tk = another, executors.Ticket{}
		}
		wg.Go(func() {
			result, err := e.Await(ctx, c, tk)
			ends[i] = fmt.Sprintf("outcome %s, error %v", result.Outcome, err)
		})
	}
	wg.Wait()
	for i, got := range ends {
		if want := "outcome succeeded, error <nil>"; got != want {
			t.Errorf("Await %d: %s, want %s", i, got, want)
		}
	}
	b.wantEffects(operation, 1)
}

func testTwoOperations(t *testing.T, b *bench) {
	b.open(oldVersion)
	for _, op := range []string{operation, operation + "/again"} {
		c := b.apply(op)
		b.wantOutcome("Await", b.await(b.Executor, c, b.submit(c)), executors.Succeeded)
	}
	b.wantEffects(operation, 1)
	b.wantEffects(operation+"/again", 1)
}

func testResubmit(t *testing.T, b *bench) {
	b.open(oldVersion)
	c := b.apply(operation)
	ticket := b.submit(c)
	again := func(e executors.Executor) {
		t.Helper()
		_, err := e.Submit(b.ctx(), c)
		for _, vouches := range []error{executors.ErrUnreachable, executors.ErrRejected, executors.ErrBlocked} {
			if errors.Is(err, vouches) {
				t.Errorf("second Submit: %v vouches that nothing started, but the first Submit did start it", err)
			}
		}
	}
	again(b.Executor)
	b.wantOutcome("Await", b.await(b.Executor, c, ticket), executors.Succeeded)
	again(b.Another(t))
	b.wantOutcome("Await", b.await(b.Another(t), c, executors.Ticket{}), executors.Succeeded)
	b.barrier()
	b.wantEffects(operation, 1)
}

// barrier runs one more change to its end, so that whatever was asked for before it has had its chance to happen.
func (b *bench) barrier() {
	b.t.Helper()
	c := b.apply(operation + "/barrier")
	b.wantOutcome("Await of a later change", b.await(b.Executor, c, b.submit(c)), executors.Succeeded)
}

// wantRunning awaits with a context that ends first. The first call's context is over from the start, because an
// activity's may be; the second one's ends while it waits.
func (b *bench) wantRunning(e executors.Executor, c executors.Change, ticket executors.Ticket) {
	b.t.Helper()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	short, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer cancel()
	if result, err := e.Await(over, c, ticket); err == nil {
		b.t.Fatalf("Await of a running change, context over: %+v, want an error", result)
	}
	if result, err := e.Await(short, c, ticket); !errors.Is(err, executors.ErrRunning) {
		b.t.Fatalf("Await of a running change: %+v, error %v; want ErrRunning", result, err)
	}
}

func testRunning(t *testing.T, b *bench) {
	b.open(oldVersion)
	release := b.Hang(t)
	c := b.apply(operation)
	ticket := b.submit(c)
	b.wantRunning(b.Executor, c, ticket)
	b.wantRunning(b.Executor, c, executors.Ticket{})
	b.wantVersion(c, oldVersion)
	release()
	b.wantOutcome("Await after the release", b.await(b.Executor, c, ticket), executors.Succeeded)
	b.wantVerified(c)
	b.wantEffects(operation, 1)
}

func testRunningElsewhere(t *testing.T, b *bench) {
	b.open(oldVersion)
	release := b.Hang(t)
	c := b.apply(operation)
	ticket := b.submit(c)
	another := b.Another(t)
	b.wantRunning(another, c, ticket)
	b.wantRunning(another, c, executors.Ticket{})
	release()
	b.wantOutcome("Await by another worker", b.await(another, c, executors.Ticket{}), executors.Succeeded)
	b.wantEffects(operation, 1)
}

func testNeverSubmitted(t *testing.T, b *bench) {
	b.open(oldVersion)
	c := b.apply(operation)
	b.wantFenced(c)
	for _, e := range []executors.Executor{b.Executor, b.Another(t)} {
		ticket, err := e.Submit(b.ctx(), c)
		if err == nil {
			t.Errorf("Submit of a fenced operation: ticket %+v, want an error", ticket)
		}
		if errors.Is(err, executors.ErrBlocked) || errors.Is(err, executors.ErrUnreachable) {
			t.Errorf("Submit of a fenced operation: %v, which invites to ask again; it can never start", err)
		}
	}
	b.wantFenced(c)
	b.wantVersion(c, oldVersion)
	b.barrier()
	b.wantEffects(operation, 0)
	b.wantFenced(c)
}

// submitUnanswered submits and wants an error that leaves the effect open.
func (b *bench) submitUnanswered(c executors.Change) {
	b.t.Helper()
	ticket, err := b.Executor.Submit(b.ctx(), c)
	if err == nil {
		b.t.Fatalf("Submit without an answer: ticket %+v, want an error", ticket)
	}
	for _, vouches := range []error{executors.ErrUnreachable, executors.ErrRejected, executors.ErrBlocked} {
		if errors.Is(err, vouches) {
			b.t.Fatalf("Submit without an answer: %v vouches that nothing started; it can't know", err)
		}
	}
}

func testLostAnswer(t *testing.T, b *bench) {
	b.open(oldVersion)
	b.LoseAnswer(t)
	c := b.apply(operation)
	b.submitUnanswered(c)
	b.wantOutcome("Await", b.await(b.Another(t), c, executors.Ticket{}), executors.Succeeded)
	b.wantVerified(c)
	b.wantEffects(operation, 1)
}

func testLateRequest(t *testing.T, b *bench) {
	b.open(oldVersion)
	deliver := b.Delay(t)
	c := b.apply(operation)
	b.submitUnanswered(c)
	b.wantFenced(c)
	deliver()
	b.wantFenced(c)
	b.wantVersion(c, oldVersion)
	b.wantEffects(operation, 0)
}

func testFailed(t *testing.T, b *bench) {
	b.open(oldVersion)
	b.Fail(t)
	c := b.apply(operation)
	ticket := b.submit(c)
	b.wantOutcome("Await", b.await(b.Executor, c, ticket), executors.Failed)
	b.wantOutcome("Await by another worker", b.await(b.Another(t), c, executors.Ticket{}), executors.Failed)
	b.wantNotVerified(c, oldVersion)
	b.wantEffects(operation, 1)
}

func testBlocked(t *testing.T, b *bench) {
	b.open(oldVersion)
	b.Block(t)
	c := b.apply(operation)
	ticket, err := b.Executor.Submit(b.ctx(), c)
	switch {
	case err == nil:
		b.wantOutcome("Await", b.await(b.Executor, c, ticket), executors.Blocked)
	case !errors.Is(err, executors.ErrBlocked):
		t.Fatalf("Submit on a blocked target: %v, want ErrBlocked, or a ticket and the outcome blocked", err)
	}
	b.wantVersion(c, oldVersion)
}

func testUnreachable(t *testing.T, b *bench) {
	b.open(oldVersion)
	reachable := b.Unreachable(t)
	c := b.apply(operation)
	if reading, err := b.Executor.Observe(b.ctx(), c); !errors.Is(err, executors.ErrUnreachable) {
		t.Errorf("Observe: %+v, error %v; want ErrUnreachable", reading, err)
	}
	if result, err := b.Executor.Verify(b.ctx(), c); !errors.Is(err, executors.ErrUnreachable) {
		t.Errorf("Verify: %+v, error %v; want ErrUnreachable", result, err)
	}
	ticket, err := b.Executor.Submit(b.ctx(), c)
	switch {
	case err == nil:
		b.wantOutcome("Await", b.await(b.Executor, c, ticket), executors.Unreachable)
		reachable()
	case errors.Is(err, executors.ErrUnreachable):
		reachable()
		b.wantFenced(c)
	default:
		t.Fatalf("Submit to an unreachable target: %v, want ErrUnreachable, or a ticket and the outcome unreachable", err)
	}
	b.wantVersion(c, oldVersion)
	b.wantEffects(operation, 0)
}

func testCrashWithEffect(t *testing.T, b *bench) {
	b.open(oldVersion)
	crash := b.Crash(t, true)
	c := b.apply(operation)
	ticket := b.submit(c)
	crash()
	for _, tk := range []executors.Ticket{ticket, {}} {
		b.wantOutcome("Await of a change that took effect and was forgotten", b.await(b.Another(t), c, tk), executors.Succeeded, executors.Indeterminate)
	}
	b.wantVerified(c)
	b.wantEffects(operation, 1)
}

func testCrashWithoutEffect(t *testing.T, b *bench) {
	b.open(oldVersion)
	crash := b.Crash(t, false)
	c := b.apply(operation)
	ticket := b.submit(c)
	crash()
	for _, tk := range []executors.Ticket{ticket, {}} {
		b.wantOutcome("Await of a change that was cut short and forgotten", b.await(b.Another(t), c, tk), executors.Failed, executors.Indeterminate)
	}
	b.wantNotVerified(c, oldVersion)
	b.wantEffects(operation, 1)
}

func testRestore(t *testing.T, b *bench) {
	b.open(oldVersion)
	forth := b.apply(operation)
	b.wantOutcome("Await of the apply", b.await(b.Executor, forth, b.submit(forth)), executors.Succeeded)
	back := b.Change(operation+"/back", executors.Restore, oldVersion, newVersion)
	b.wantNotVerified(back, newVersion)
	b.wantOutcome("Await of the restore", b.await(b.Executor, back, b.submit(back)), executors.Succeeded)
	b.wantVerified(back)
	b.wantVersion(back, oldVersion)
	b.wantEffects(operation, 1)
	b.wantEffects(operation+"/back", 1)
}

func testUninstall(t *testing.T, b *bench) {
	b.open("")
	forth := b.Change(operation, executors.Apply, newVersion, "")
	b.wantOutcome("Await of the apply", b.await(b.Executor, forth, b.submit(forth)), executors.Succeeded)
	back := b.Change(operation+"/back", executors.Restore, "", newVersion)
	b.wantOutcome("Await of the restore", b.await(b.Executor, back, b.submit(back)), executors.Succeeded)
	b.wantVerified(back)
	b.wantVersion(back, "")
	b.wantEffects(operation+"/back", 1)
}

func testContextOver(t *testing.T, b *bench) {
	b.open(oldVersion)
	c := b.apply(operation)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if reading, err := b.Executor.Observe(over, c); err == nil && (!reading.Known || reading.Version != oldVersion) {
		t.Errorf("Observe with a context that is over: %+v without an error", reading)
	}
	if result, err := b.Executor.Verify(over, c); err == nil && result.Outcome == executors.Succeeded {
		t.Errorf("Verify with a context that is over: %+v without an error", result)
	}
	b.wantEffects(operation, 0)
}
