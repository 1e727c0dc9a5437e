//go:build full

package uitest

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/seed-a0a4f4e3/sluice/workflows"
)

var screenshots = flag.String("screenshots", "", "the folder that the README's pictures are written to; none: a temporary one")

// TestScreenshots takes the README's pictures; it fails when a page that they show is no longer reached.
func TestScreenshots(t *testing.T) {
	folder := *screenshots
	if folder == "" {
		folder = t.TempDir()
	}
	s := newSite(t, scenario(4), twoWaves)
	s.untilState(workflows.AwaitingApproval)
	s.open(s.rollout())
	s.details("needs 1 approval more", "rest")
	s.picture(filepath.Join(folder, "ui-waits.png"))

	s.click("button", "More Actions")
	s.click(menuItem, "Send a Signal")
	s.click(signalButton, "")
	await[bool](s.page, "the commands are listed", `seen("`+signalOption+`", "approve").length > 0`)
	s.picture(filepath.Join(folder, "ui-commands.png"))

	s.writeSignal(s.rollout(), workflows.Approve, `{"by":"bob","wave":1}`)
	s.picture(filepath.Join(folder, "ui-signal.png"))

	s.signal(s.rollout(), workflows.Approve, `{"by":"bob","wave":2}`)
	s.open(s.rollout())
	s.details("Refused: approve by bob: wave 2 is not waiting for approval; wave 1 is")
	s.picture(filepath.Join(folder, "ui-refused.png"))
}

// picture writes what the browser's window shows.
func (s *site) picture(path string) {
	s.t.Helper()
	// The pointer and a blinking cursor would make each picture differ.
	s.do("move the pointer away", chromedp.MouseEvent("mouseMoved", 0, 0))
	png, err := chromedp.Run(s.tab, chromedp.CaptureScreenshot())
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, png, 0o644); err != nil {
		s.t.Fatal(err)
	}
}
