package console

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/await"
)

// pages are all pages of the console, with what makes them show something.
var pages = []string{
	"", "destination?name=billing", "destination?name=warehouse", "destination?name=mail&over=day", "destination?name=none",
	"messages", "messages?topic=orders", "messages?key=none", "message?message=none",
	"dead", "dead?destination=billing", "dead?topic=none", "letters?destination=billing", "keys", "keys?key=none",
	"relays", "retention", "inbox", "audit", "doctor", "help", "verbs", "ask-dead-ls?destination=billing", "ask-status", "do-handover",
	"do-dead-requeue?destination=billing", "do-dead-discard?destination=search-index",
	"do-pause?destination=billing", "do-throttle?destination=billing", "do-resume?destination=mail",
}

func TestEachPageReadsWellInABrowser(t *testing.T) {
	n := size()
	w := setup(t, n)
	w.write(t.Context())
	w.missing.Store(true)
	b := open(t, operator)
	b.as(1280, 900, "light")
	b.visit(w.base)
	b.await(`document.querySelector("h1").textContent.includes("warehouse") && document.body.textContent.includes("404")`)
	both := map[string][]int64{"light": {1280}, "dark": {360}}
	if n != small {
		both = map[string][]int64{"light": {1280, 360}, "dark": {1280, 360}}
	}
	for theme, widths := range both {
		rules := []string{"color-contrast"} // all that a theme changes
		if theme == "light" {
			rules = nil
		}
		for _, width := range widths {
			b.as(width, 900, theme)
			for _, path := range pages {
				began := time.Now()
				bytes := b.visit(w.base + path)
				took := time.Since(began)
				least := 28
				if width == 360 {
					least = 36
				}
				for _, text := range slices.Concat(b.troubles(), b.axe(rules...), b.geometry(least)) {
					t.Errorf("%s at %d, %s: %s", path, width, theme, text)
				}
				t.Logf("%-45s %5d %-5s %8.0f bytes %v", path, width, theme, bytes, took)
				if bytes > 150_000 {
					t.Errorf("%s takes %.0f bytes", path, bytes)
				}
				b.picture(name(path) + "-" + theme + "-" + map[int64]string{1280: "desktop", 360: "phone"}[width])
			}
		}
	}
}

// The log has how long each page takes without a browser, which would draw and check it beside the relay: while nothing
// is written, and while every destination gets messages.
func TestEachPageAnswers(t *testing.T) {
	w := setup(t, size())
	measure := func(when string) {
		await.Until(t, "the backlog is delivered", func() bool {
			time.Sleep(time.Second) // the relays have the cores meanwhile
			var report health.Report
			if err := json.Unmarshal(w.get("/api/v1/status"), &report); err != nil {
				t.Fatal(err)
			}
			return !slices.ContainsFunc(report.Destinations, func(d health.Destination) bool {
				catchesUp := d.Verdict.State.OK() || d.Verdict.State == health.StateLagging || d.Name == "orders-kafka"
				return catchesUp && d.Pending.N > 1000
			})
		})
		for _, path := range pages {
			var took []time.Duration
			for range 9 {
				began := time.Now()
				w.get("/console/" + path)
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			middle, most := took[4].Round(100*time.Microsecond), took[8].Round(100*time.Microsecond)
			t.Logf("%-8s %-45s %v in the middle, %v at most", when, path, middle, most)
		}
	}
	measure("quiet")
	w.write(t.Context())
	measure("written")
}

func name(path string) string {
	if path == "" {
		return "overview"
	}
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("?=&", r) {
			return 0x2d
		}
		return r
	}, path)
}
