//go:build full

package uitest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// patience bounds each wait for a page or a rollout. It takes a second on an idle machine; the rest is for two busy
// cores and a race detector.
const patience = 2 * time.Minute

// openBrowser starts Chromium and returns it with the way to end it.
func openBrowser() (context.Context, func() error, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("chromium"),
		chromedp.NoSandbox, // which Chromium cannot have as root in a container; it opens our own pages only
		chromedp.WindowSize(1280, 1000),
		chromedp.Flag("lang", "en-US"),
		chromedp.Flag("disable-dev-shm-usage", true), // /dev/shm of a container is small
		// Nothing but our own server can be reached, so that no page depends on the network.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.Env("TZ=UTC"),
	)
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	if err := chromedp.Do(ctx); err != nil {
		stop()
		return nil, nil, fmt.Errorf("start chromium: %w", err)
	}
	return ctx, func() error {
		defer stop()
		return chromedp.Cancel(ctx)
	}, nil
}

// page is a tab of the browser, with cookies and settings of its own.
type page struct {
	t   *testing.T
	tab context.Context
}

func newPage(t *testing.T) *page {
	t.Helper()
	tab, closeTab := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(closeTab)
	// Opened without a timeout, because the tab lives as long as the context that opens it.
	if err := chromedp.Do(tab); err != nil {
		t.Fatal(err)
	}
	return &page{t: t, tab: tab}
}

// do acts on the page; what says what in a failure.
func (p *page) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.tab, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatalf("%s: %v; the page shows:\n%s", what, err, p.text())
	}
}

// text is what the page shows, for a failure.
func (p *page) text() string {
	ctx, cancel := context.WithTimeout(p.tab, 10*time.Second) // a page that hangs must not hide the failure
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		return err.Error()
	}
	return text
}

// inPage are functions that every expression of await may call: seen finds the elements that a person sees.
const inPage = `
	const seen = (selector, text) => [...document.querySelectorAll(selector)].filter(e =>
		e.checkVisibility({visibilityProperty: true}) && e.getBoundingClientRect().width > 0 && (!text || e.innerText.trim().startsWith(text)));
	const frame = (id) => document.getElementById(id)?.contentDocument?.body;
`

// look evaluates an expression in the page; nil: it is not true now.
func look[T any](ctx context.Context, expression string) (*T, error) {
	return chromedp.Run(ctx, chromedp.Evaluate[*T](`(() => {`+inPage+` return (`+expression+`) || null })()`))
}

// await looks until an expression is true, and returns its value. It is asked anew each time, so that it survives a page
// that is replaced meanwhile.
func await[T any](p *page, what, expression string) T {
	p.t.Helper()
	return awaitAfter[T](p, what, expression, func(context.Context) error { return nil })
}

// awaitAfter is await that does something before each look: what a person repeats until it helps.
func awaitAfter[T any](p *page, what, expression string, before func(context.Context) error) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.tab, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := before(ctx)
		var found *T
		if err == nil {
			found, err = look[T](ctx, expression)
		}
		if err == nil && found != nil {
			return *found
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.t.Fatalf("timed out waiting until %s (%v); the page shows:\n%s", what, err, p.text())
		}
	}
}

// click presses the first element that a person sees under a CSS selector and whose text begins as given, in its middle.
// It waits until the element is enabled, has stopped moving and nothing lies above it.
func (p *page) click(selector, text string) {
	p.t.Helper()
	var last [2]float64
	for {
		at := await[[2]float64](p, fmt.Sprintf("%s %q can be clicked", selector, text), fmt.Sprintf(`(() => {
			const e = seen(%q, %q).find(e => !e.disabled && e.getAttribute('aria-disabled') !== 'true');
			if (!e) return null;
			e.scrollIntoView({block: 'nearest', behavior: 'instant'});
			const box = e.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
			const top = document.elementFromPoint(x, y);
			return top && (e.contains(top) || top.contains(e)) ? [x, y] : null;
		})()`, selector, text))
		if at == last {
			break
		}
		last = at
	}
	p.do("click "+selector, chromedp.MouseClickXY(last[0], last[1]))
}

// open goes to an address.
func (p *page) open(address string) {
	p.t.Helper()
	p.do("open "+address, chromedp.Navigate(address))
}

// gone waits until nobody sees an element.
func (p *page) gone(selector string) {
	p.t.Helper()
	await[bool](p, selector+" has gone", fmt.Sprintf(`seen(%q).length === 0`, selector))
}

// The parts of the UI's pages that a person uses.
const (
	signalDialog  = "#modal-content-signal-confirmation-modal"
	cancelDialog  = "#modal-content-cancel-confirmation-modal"
	signalButton  = signalDialog + ` [data-testid="signal-select-button"]`
	signalOption  = signalDialog + " [role=option]"
	signalPayload = signalDialog + " .cm-content"
	menuItem      = "[role=menuitem]"
)

// chooseSignal opens the dialog of a workflow's page and chooses a command from its list.
func (p *page) chooseSignal(name string) {
	p.t.Helper()
	p.click("button", "More Actions")
	p.click(menuItem, "Send a Signal")
	p.click(signalButton, "")
	p.click(signalOption, name+"\n")
	await[bool](p, name+" is chosen", fmt.Sprintf(`seen(%q)[0]?.querySelector('input').value === %q`, signalButton, name))
}

// writeSignal opens a workflow's page, fills the dialog in, and leaves it open. The page is opened anew for each signal,
// because the UI's dialog keeps the last payload, and stays open while the toast of the last signal is there, although
// the command has been sent.
func (p *page) writeSignal(address, name, payload string) {
	p.t.Helper()
	p.open(address)
	p.chooseSignal(name)
	p.click(signalPayload, "")
	await[bool](p, "the payload can be typed", fmt.Sprintf(`document.activeElement?.closest(%q) != null`, signalPayload))
	p.do("type "+payload, func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		// As from the clipboard: the editor closes brackets by itself while one types.
		return cdp.Call(ctx, t, input.InsertText, input.InsertTextParams{Text: payload})
	})
	// Left, the editor lays the JSON out anew, and the dialog grows: a click on its buttons may miss them until then.
	p.click("#modal-title-signal-confirmation-modal", "")
	await[bool](p, "the payload is there", fmt.Sprintf(`seen(%q)[0]?.innerText.replace(/\s/g, '') === %q.replace(/\s/g, '')`, signalPayload, payload))
}

// signal sends a command from a workflow's page.
func (p *page) signal(address, name, payload string) {
	p.t.Helper()
	p.writeSignal(address, name, payload)
	p.click("button", "Submit")
	p.gone(signalDialog)
}

// details waits until the rollout's current details say each of the texts, and presses R meanwhile, as the page tells a
// person to.
func (p *page) details(wants ...string) {
	p.t.Helper()
	p.click("a[role=tab]", "User Metadata")
	for _, want := range wants {
		looks := 0
		awaitAfter[bool](p, fmt.Sprintf("the details say %q", want),
			fmt.Sprintf(`frame('user-metadata-current-details')?.innerText.includes(%q)`, want),
			func(ctx context.Context) error {
				if looks++; looks%20 != 0 { // about once a second: each time the page draws the details anew
					return nil
				}
				return chromedp.Do(ctx, chromedp.KeyEvent("r"))
			})
	}
}
