package console

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

// browser is a Chromium without a window, and what it complains of.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	trouble  []string
	bytes    float64 // that came over the network since the last visit
	requests int
}

func open(t *testing.T, token string) *browser {
	t.Helper()
	temporary, err := os.MkdirTemp("", "outbox-chromium-") // short: Chromium has a socket there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(temporary) })
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(servers.Chromium(t)), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.Env("TMPDIR="+temporary),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(cancel)
	// What chromedp says of events that it doesn't know is no trouble of the page.
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {}))
	t.Cleanup(cancel)
	if at, limited := await.Context(t).Deadline(); limited {
		ctx, cancel = context.WithDeadline(ctx, at)
		t.Cleanup(cancel)
	}
	b := &browser{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, b.hear)
	b.do(log.Enable(), runtime.Enable(), network.Enable(), audits.Enable(),
		network.SetExtraHTTPHeaders(network.Headers{"Authorization": "Bearer " + token}))
	return b
}

func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			text, _ := json.Marshal(e.Args)
			b.trouble = append(b.trouble, "console: "+string(text))
		}
	case *runtime.EventExceptionThrown:
		b.trouble = append(b.trouble, "exception: "+e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError || e.Entry.Source == log.SourceSecurity {
			b.trouble = append(b.trouble, fmt.Sprintf("log: %s %s", e.Entry.Text, e.Entry.URL))
		}
	case *audits.EventIssueAdded:
		if e.Issue.Code == audits.InspectorIssueCodeContentSecurityPolicyIssue {
			b.trouble = append(b.trouble, "policy: "+e.Issue.Details.ContentSecurityPolicyIssueDetails.ViolatedDirective)
		}
	case *network.EventLoadingFinished:
		b.bytes += e.EncodedDataLength
	case *network.EventRequestWillBeSent:
		b.requests++
	case *page.EventJavascriptDialogOpening:
		b.trouble = append(b.trouble, "a dialog of script: "+e.Message)
	}
}

// troubles returns what there was since the last time.
func (b *browser) troubles() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.trouble
	b.trouble = nil
	return list
}

// visit opens a page and returns the bytes that it took.
func (b *browser) visit(url string) float64 {
	b.t.Helper()
	b.mu.Lock()
	b.bytes = 0
	b.mu.Unlock()
	b.do(chromedp.Navigate(url), chromedp.WaitReady("main"))
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

// as sets the size of the window, and the theme.
func (b *browser) as(width, height int64, theme string) {
	b.t.Helper()
	b.do(emulation.SetDeviceMetricsOverride(width, height, 1, width < 700),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme},
			{Name: "prefers-reduced-motion", Value: "reduce"}}))
}

// picture saves what is seen, where somebody wants to look at it: OUTBOX_CONSOLE_PICTURES names a folder.
func (b *browser) picture(name string) {
	b.t.Helper()
	folder := os.Getenv("OUTBOX_CONSOLE_PICTURES")
	if folder == "" {
		return
	}
	var png []byte
	b.do(chromedp.CaptureScreenshot(&png))
	if err := os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// eval runs script in the page.
func (b *browser) eval(script string, into any) {
	b.t.Helper()
	b.do(chromedp.Evaluate(script, into, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true)
	}))
}

// await waits until an expression in the page is true. The page may be another one meanwhile.
func (b *browser) await(expression string) {
	b.t.Helper()
	await.Until(b.t, expression, func() (is bool) {
		return chromedp.Run(b.ctx, chromedp.Evaluate("!!("+expression+")", &is)) == nil && is
	})
}

// click presses what a selector finds; a region that is replaced in that moment is looked at again.
func (b *browser) click(selector string, by chromedp.QueryOption) {
	b.t.Helper()
	await.Until(b.t, "a click on "+selector, func() bool {
		ctx, cancel := context.WithTimeout(b.ctx, await.Expiry(10*time.Second))
		defer cancel()
		return chromedp.Run(ctx, chromedp.WaitVisible(selector, by), chromedp.Click(selector, by)) == nil
	})
}

// axe finds what accessibility tools complain of, by all rules or by some.
func (b *browser) axe(rules ...string) (found []string) {
	b.t.Helper()
	script := servers.Axe(b.t)
	var result string
	b.eval(string(script)+";0", nil)
	only := "{}"
	if len(rules) > 0 {
		only = fmt.Sprintf(`{runOnly: {type: "rule", values: ["%s"]}}`, strings.Join(rules, `","`))
	}
	b.eval(`axe.run(document, `+only+`).then(r => JSON.stringify(r.violations.map(v =>
		[v.impact, v.id, v.nodes.length, v.nodes[0].html.slice(0, 160), v.nodes[0].failureSummary.slice(0, 200)].join(" "))))`, &result)
	if err := json.Unmarshal([]byte(result), &found); err != nil {
		b.t.Fatal(err)
	}
	return found
}

// geometry finds texts that are cut off, pages that scroll sideways, and targets that are too small for a finger.
func (b *browser) geometry(least int) (found []string) {
	b.t.Helper()
	b.eval(strings.ReplaceAll(`(() => {
		const out = [];
		const name = (e) => e.tagName + "." + e.className + " " + (e.textContent || "").trim().slice(0, 60);
		if (document.documentElement.scrollWidth > innerWidth + 1) out.push("the page scrolls sideways: " + document.documentElement.scrollWidth);
		for (const e of document.querySelectorAll("main *, header *")) {
			if (e.closest("svg, caption, thead, .skip, pre, option") || !e.getClientRects().length) continue;
			const style = getComputedStyle(e);
			const told = style.textOverflow === "ellipsis" && e.title === e.textContent.trim(); // it shows that it is cut, and its title has the rest
			const cut = style.overflowX !== "visible" && style.overflowX !== "auto" && e.scrollWidth > e.clientWidth + 1 && !told;
			if (cut) out.push("cut off: " + name(e));
			const box = e.getBoundingClientRect();
			const text = !e.children.length && e.textContent.trim() && !e.closest("nav, .scroll");
			if (text && (box.right > innerWidth + 1 || box.left < -1)) out.push("outside: " + name(e));
			const target = e.matches("a.button, button, input:not([type=hidden], [type=checkbox]), label.tick, select, nav a");
			if (target && box.height < LEAST) out.push("small: " + name(e) + " " + box.height);
		}
		return out.slice(0, 20);
	})()`, "LEAST", fmt.Sprint(least)), &found)
	return found
}
