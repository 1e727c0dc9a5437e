//go:build full

package uitest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

// TestDetailsSayWhyACommandIsRefused fails when an operator who mistypes a command is not told so on the rollout's page,
// or does not find there what the rollout waits for and how to answer.
func TestDetailsSayWhyACommandIsRefused(t *testing.T) {
	s := newSite(t, scenario(4), twoWaves)
	s.untilState(workflows.AwaitingApproval)
	s.open(s.rollout())
	s.details("AwaitingApproval", "waits: wave 1 (first) needs 1 approval more (approval of policy production). Lifted by: approve",
		`More Actions, Send a Signal: approve {"by":"you","wave":1}, reject {"by":"you","reason":"why"}`)
	cells := await[[]string](s.page, "the waves are a table", `[...(frame('user-metadata-current-details')?.querySelectorAll('tbody td') ?? [])].map(e => e.innerText)`)
	if want := "[1 first awaiting approval 2 0 0 (max 1) 0 2 rest pending 2 0 0 (max 1) 0]"; fmt.Sprint(cells) != want {
		t.Errorf("the waves are %v, want %s", cells, want)
	}
	for _, refused := range []struct{ name, payload, says string }{
		{workflows.Approve, `{"wav":2}`, `Refused: approve by somebody: unknown field "wav"; allowed are id, by, reason, rollout, wave, target and plan`},
		{workflows.Approve, `{"wave":1}`, `Refused: approve by somebody: an approval needs a name; send {"by":"you"}`},
		{workflows.Approve, `{"by":"bob","wave":2}`, "Refused: approve by bob: wave 2 is not waiting for approval; wave 1 is"},
		{workflows.Retry, `{"by":"bob","target":"c99"}`, `Refused: retry by bob: the plan has no target "c99"`},
		{workflows.Pause, `"lunch"`, "Refused: pause by somebody: the payload is not understood"},
	} {
		s.signal(s.rollout(), refused.name, refused.payload)
		s.details(refused.says)
	}
	if below := await[string](s.page, "the details are there", `(() => {
		const [above, below] = frame('user-metadata-current-details')?.innerText.split('in flight') ?? [];
		return above?.includes('Refused:') ? below : null;
	})()`); strings.Contains(below, "Refused") {
		t.Errorf("a refusal stands below the waves, where nobody looks for it: %s", below)
	}
	if status := s.untilState(workflows.AwaitingApproval); len(status.Commands) != 5 {
		t.Errorf("%d commands were heard, want 5: %+v", len(status.Commands), status.Commands)
	}
}
