package console

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"

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
		b.await(`document.body.textContent.includes("2 of 3 databases are well") && document.querySelector("h1").textContent.includes("warehouse")`)
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
