package outbox_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestTheStatementsOnThePageAboutTheTableRun(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("docs/table.md")
	if err != nil {
		t.Fatal(err)
	}
	onMajors(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		if _, err := conn.Exec(t.Context(), `CREATE TABLE orders (id text PRIMARY KEY, paid boolean); INSERT INTO orders VALUES ('4711', false)`); err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1)
		for _, block := range blocks {
			before := len(stored(t, conn))
			if _, err := conn.Exec(t.Context(), block[1]); err != nil {
				t.Errorf("%s: %v", block[1], err)
			}
			if wrote := len(stored(t, conn)) - before; wrote != strings.Count(block[1], "outbox.") {
				t.Errorf("%s\nwrote %d messages", block[1], wrote)
			}
		}
		if len(blocks) < 4 {
			t.Errorf("only %d blocks of SQL were found", len(blocks))
		}

		// What the page says for other languages, with the parameters that their drivers send.
		body, key := []byte(`{"id":"4711"}`), "4711"
		for _, c := range []struct {
			sql  string
			args []any
		}{
			{"SELECT outbox.publish('orders', $1::bytea, key => $2::text, event_type => 'OrderPaid')", []any{body, key}},
			{"INSERT INTO outbox.messages (topic, key, event_type, payload, content_type) VALUES ($1, $2, $3, $4, $5)",
				[]any{"orders", key, "OrderPaid", body, "application/json"}},
			{"SELECT outbox.publish('orders', $1::jsonb, key => $2::text)", []any{string(body), key}},
		} {
			if _, err := conn.Exec(t.Context(), c.sql, c.args...); err != nil {
				t.Errorf("%s: %v", c.sql, err)
			}
			placeholders := regexp.MustCompile(`\$\d`)
			onPage := slices.ContainsFunc([]string{"%s", "?", "$0"}, func(mark string) bool {
				want := placeholders.ReplaceAllLiteralString(c.sql, mark)
				return strings.Contains(placeholders.ReplaceAllLiteralString(string(page), mark), want)
			})
			if !onPage {
				t.Errorf("the page doesn't have %s", c.sql)
			}
		}
	})
}

func TestThePageAboutTheTableNamesEveryColumn(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("docs/table.md")
	if err != nil {
		t.Fatal(err)
	}
	var onPage []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| `(\\w+)` \\|").FindAllStringSubmatch(string(page), -1) {
		onPage = append(onPage, row[1]+" "+row[2])
	}
	rows, err := connect(t, database(t)).Query(t.Context(), `SELECT attname || ' ' || replace(replace(format_type(atttypid, atttypmod),
		'timestamp with time zone', 'timestamptz'), 'pg_catalog.', '') FROM pg_attribute WHERE attrelid = 'outbox.messages'::regclass AND attnum > 0`)
	if err != nil {
		t.Fatal(err)
	}
	inTable, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(onPage)
	slices.Sort(inTable)
	if !slices.Equal(onPage, inTable) {
		t.Errorf("the page has  %v\nthe table has %v", onPage, inTable)
	}
}
