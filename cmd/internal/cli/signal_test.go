package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// signal sends a payload as somebody types it in the Temporal UI.
func (s *site) signal(name, payload string) {
	s.t.Helper()
	s.signalRaw(name, "json/plain", payload)
}

func (s *site) signalRaw(name, encoding, payload string) {
	s.t.Helper()
	raw := converter.NewRawValue(&commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte(encoding)}, Data: []byte(payload)})
	if err := s.client.SignalWorkflow(s.t.Context(), workflows.RolloutID("Production", "web"), "", name, raw); err != nil {
		s.t.Fatal(err)
	}
}

// TestASignalThatIsNotUnderstoodChangesNothing fails when a typing error in the Temporal UI approves, stops or starts
// something, or when whoever made it is not told. The rollout waits for the approval of its second wave.
func TestASignalThatIsNotUnderstoodChangesNothing(t *testing.T) {
	s := newSite(t)
	s.startWorker()
	s.run(exitPerson, "start", "web@v1", "-e", "Production", "-f", s.documents, "--wait", "--no-input")
	before := s.status()
	tests := []struct{ name, payload, want string }{
		{workflows.Approve, `{"by":"bob",`, `the payload is not understood (unexpected EOF); send a JSON object such as {"by":"you","wave":2}`},
		{workflows.Approve, `approve`, "the payload is not understood"},
		{workflows.Approve, `["bob"]`, "the payload is not understood"},
		{workflows.Approve, `{"by":"bob"} {"by":"eve"}`, "there is something after the object"},
		{workflows.Approve, `{"by":"bob","wave":"2"}`, "the payload is not understood"},
		{workflows.Approve, `{"by":"bob","wav":2}`, `unknown field "wav"; allowed are id, by, reason, rollout, wave, target and plan`},
		{workflows.Approve, `{"by":"bob","wave":1}`, "wave 1 is not waiting for approval; wave 2 is"},
		{workflows.Approve, `{"by":"bob","wave":7}`, "wave 7 is not waiting for approval; wave 2 is"},
		{workflows.Approve, `{"by":"bob","wave":-1}`, "wave -1 is not waiting for approval; wave 2 is"},
		{workflows.Approve, `{"by":"bob","plan":"sha256:0"}`, "it approves plan sha256:0, and the current one is " + before.PlanDigest},
		{workflows.Approve, `{"by":"bob","rollout":"01JOTHER"}`, "it is for rollout 01JOTHER, and " + before.Rollout + " is running here"},
		{workflows.Approve, `{"wave":2}`, `an approval needs a name; send {"by":"you"}`},
		{workflows.Approve, ``, `an approval needs a name; send {"by":"you"}`},
		{workflows.Skip, `{"by":"bob","target":"us-1","wave":1}`, "us-1 is in wave 2, not in wave 1"},
		{workflows.Skip, `{"by":"bob","target":"mars-1"}`, `the plan has no target "mars-1"`},
		{workflows.Skip, `{"by":"bob","tagret":"us-1"}`, `unknown field "tagret"`},
		{workflows.Retry, `{"by":"bob","target":"us-1"}`, "us-1 has not been tried yet: wave 2 has not begun"},
		{workflows.Retry, `{"by":"bob","target":1}`, "the payload is not understood"},
		{workflows.Resume, `{"by":"bob","wat":1}`, `unknown field "wat"`},
		{workflows.Resume, `{"by":"bob"}`, "it is not paused"},
		// A stop is taken with an unknown field, but not when it cannot be told what it says.
		{workflows.RollBack, `{"by":"bob"`, "the payload is not understood"},
		{workflows.RollBack, `{"wave":2}`, "wave 2 has not begun: nothing of it was reached"},
		{workflows.RollBack, `{"wave":7}`, "there is no wave 7; the plan has 2, counted from 1"},
		{workflows.RollBack, `{"target":"us-1"}`, "us-1 has not been reached: wave 2 has not begun; skip leaves it out"},
		{workflows.RollBack, `{"target":"mars-1"}`, `the plan has no target "mars-1"`},
		{workflows.RollBack, `{"target":"us-1","wave":1}`, "us-1 is in wave 2, not in wave 1"},
		{workflows.Abort, `[]`, "the payload is not understood"},
		{workflows.Reject, `{"reason":1}`, "the payload is not understood"},
		{workflows.Pause, `{"by":`, "the payload is not understood"},
	}
	for i, test := range tests {
		s.signal(test.name, test.payload)
		got := s.until("the signal is answered", func(got workflows.RolloutStatus) bool { return len(got.Commands) > i })
		receipt := got.Commands[i]
		if receipt.Name != test.name || receipt.Accepted || receipt.Pending {
			t.Errorf("%s %s: %+v, want a refusal", test.name, test.payload, receipt)
		}
		wants(t, receipt.Answer, test.want)
		// Only the receipts have grown.
		if diff := cmp.Diff(before, got, cmpopts.IgnoreFields(workflows.RolloutStatus{}, "Commands")); diff != "" {
			t.Errorf("%s %s changed the rollout (-before +after):\n%s", test.name, test.payload, diff)
		}
	}
	s.signalRaw(workflows.Approve, "binary/plain", `{"by":"bob"}`)
	s.until("an encoding is refused", func(got workflows.RolloutStatus) bool { return len(got.Commands) == len(tests)+1 })
	stdout, _ := s.run(exitOK, "status", "web", "-e", "Production")
	wants(t, stdout, "AwaitingApproval", "Last commands", "pause", "refused", "the payload is not understood (unexpected EOF)", `the payload is encoded as "binary/plain"`)
	if got := s.applied("us-1"); len(got) > 0 {
		t.Errorf("us-1 was changed: %v", got)
	}

	// What is understood still counts, once.
	s.signal(workflows.Pause, `{"by":"bob","resaon":"look"}`)
	paused := s.until("it is paused", func(got workflows.RolloutStatus) bool { return got.State == workflows.Paused })
	wants(t, paused.Commands[len(paused.Commands)-1].Answer, `the unknown field "resaon" was ignored`)
	s.signal(workflows.Resume, `{"by":"bob"}`)
	s.signal(workflows.Approve, `{"by":"bob","wave":2}`)
	s.run(exitOK, "watch", "web", "-e", "Production")
	if done := s.status(); done.State != workflows.Succeeded || len(done.Approvals) != 1 {
		t.Errorf("at the end: %s with %d approvals, want Succeeded with 1", done.State, len(done.Approvals))
	}
}
