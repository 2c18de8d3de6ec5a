package console

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pgoutbox/outbox/internal/testdb"
)

// The page of all databases reads well while one of them is away, and leads to each.
func TestThePageOfSeveralDatabases(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	config := "databases:\n"
	database := func(name, url string) {
		config += fmt.Sprintf("  - name: %s\n    database: {url: %q}\n    destinations: [{name: file, broker: {file: {path: %s}}}]\n",
			name, url, filepath.Join(folder, name+".jsonl"))
	}
	for _, name := range []string{"orders", "billing"} {
		db := testdb.Published(t)
		database(name, db.URL)
	}
	database("warehouse", "postgres://nobody@127.0.0.1:1/warehouse")
	_, address := serve(t, folder, config)
	b := open(t, operator)
	for _, as := range []struct {
		theme string
		width int64
	}{{"light", 1280}, {"light", 360}, {"dark", 360}, {"dark", 1280}} {
		theme, width := as.theme, as.width
		b.as(width, 420, theme)
		b.visit("http://" + address + "/") // leads to the page
		b.await(`document.querySelector("h1").textContent.includes("1 of 3 databases needs you: warehouse (broken)")`)
		least := 28
		if width == 360 {
			least = 36
		}
		for _, text := range slices.Concat(b.troubles(), b.axe(), b.geometry(least)) {
			t.Errorf("at %d, %s: %s", width, theme, text)
		}
		b.picture("console-databases-" + map[int64]string{1280: "", 360: "phone-"}[width] + theme)
	}
	b.click(`td a.name[href="../../billing/console/"]`, chromedp.ByQuery)
	b.await(`location.pathname === "/databases/billing/console/" && document.querySelector("a[href=databases]")`)
	if list := b.troubles(); len(list) > 0 {
		t.Error(list)
	}
}

// Of many databases a person finds one by its name: / leads to the search. The page is as small as that of a few, and
// reads well on a phone.
func TestThePageOfManyDatabases(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	config := "destinations: [{name: kafka, broker: {stdout: {}}}]\ndatabases:\n"
	for _, name := range []string{"orders", "billing"} {
		config += fmt.Sprintf("  - {name: %s, database: {url: %q}}\n", name, testdb.Published(t).URL)
	}
	for i := range 118 {
		config += fmt.Sprintf("  - {name: tenant-%03d, database: {url: 'postgres://nobody@127.0.0.1:1/tenant-%03d'}}\n", i, i)
	}
	_, address := serve(t, folder, config)
	b := open(t, operator)
	const page = "/databases/orders/console/databases"
	const ready = `document.querySelector("h1").textContent.includes("118 of 120 databases need you: tenant-000 (broken), tenant-001 (broken), ` +
		`tenant-002 (broken) and 115 more")`
	for _, as := range []struct {
		theme string
		width int64
	}{{"light", 1440}, {"light", 390}, {"dark", 390}, {"dark", 1440}} {
		b.as(as.width, 900, as.theme)
		bytes := b.visit("http://" + address + page)
		b.await(ready)
		least := 28
		if as.width == 390 {
			least = 36
		}
		for _, text := range slices.Concat(b.troubles(), b.axe(), b.geometry(least)) {
			t.Errorf("at %d, %s: %s", as.width, as.theme, text)
		}
		if bytes > 150_000 {
			t.Errorf("it takes %.0f bytes", bytes)
		}
		b.picture("console-many-databases-" + map[int64]string{1440: "", 390: "phone-"}[as.width] + as.theme)
	}
	// One event, as of a keyboard: what the page prevents is not typed.
	b.do(input.DispatchKeyEvent(input.KeyDown).WithKey("/").WithText("/"), input.DispatchKeyEvent(input.KeyUp).WithKey("/"))
	b.await(`document.activeElement.name === "name"`)
	b.do(chromedp.KeyEvent("t-11" + kb.Enter))
	b.await(`location.search.startsWith("?name=t-11") && document.querySelectorAll("td a.name").length === 8`)
	b.visit("http://" + address + page + "?page=3")
	b.await(`document.querySelectorAll("td a.name").length === 20 && document.body.textContent.includes("101 to 120 of 120")`)
	if list := b.troubles(); len(list) > 0 {
		t.Error(list)
	}
}
