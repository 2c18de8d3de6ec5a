package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

// What the log says of a message that will not be tried again names it, and ends with the command that has exactly it
// delivered once more.
func TestALogLineEndsWithTheCommandThatSendsExactlyItsMessageOnceMore(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	const table = `
    source:
      strategy: advisory
      table: shop_outbox
      columns: {id: id, message_id: dedup, topic: "{topic}", key: "{key}", payload: payload}
      done: {how: status, column: status, value: done, waiting: new}
      failure: {attempts: attempts, next_attempt: next_at%s}
`
	const insert = `INSERT INTO shop_outbox (id, dedup, topic, key, payload) VALUES ('-1', 'd-1', 'orders', 'k1', 'bad'), ('it''s 2', 'd-2', 'orders', 'k2', 'bad')`
	const publish = `INSERT INTO outbox.messages (topic, key, payload) VALUES ('orders', 'k1', 'bad'), ('orders', 'k2', 'bad')`
	for name, c := range map[string]struct{ source, policy, insert, line, row string }{
		"a dead letter":                  {"", "dead_letter", publish, "dead letter", ""},
		"a blocked key":                  {"", "block", publish, "key blocked", ""},
		"a dead letter of a table":       {fmt.Sprintf(table, ", failed_value: failed"), "dead_letter", insert, "dead letter", "-1"},
		"a blocked key of a table":       {fmt.Sprintf(table, ""), "block", insert, "key blocked", "-1"},
		"another dead letter of a table": {fmt.Sprintf(table, ", failed_value: failed"), "dead_letter", insert, "dead letter", "it's 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := setup(t)
			d.exec(`CREATE TABLE shop_outbox (n bigint GENERATED ALWAYS AS IDENTITY, id text PRIMARY KEY, dedup text, topic text NOT NULL, key text, payload text NOT NULL,
				status text NOT NULL DEFAULT 'new', attempts int NOT NULL DEFAULT 0, next_at timestamptz)`)
			var healed atomic.Bool
			var came atomic.Int32
			receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if !healed.Load() {
					http.Error(w, "no", http.StatusUnprocessableEntity)
					return
				}
				came.Add(1)
			}))
			defer receiver.Close()
			relay := d.relay(fmt.Sprintf(`
http: {listen: ''}
destinations:
  - name: shop
    broker: {http: {url: %q, allow_networks: [127.0.0.1]}}
    delivery: {max_attempts: 1, on_exhausted: %s}%s`, receiver.URL, c.policy, c.source))
			d.exec(c.insert)
			lines := func() (found []map[string]any) {
				for _, line := range strings.Split(relay.stderr.String(), "\n") {
					var l map[string]any
					if json.Unmarshal([]byte(line), &l) == nil && l["msg"] == c.line {
						found = append(found, l)
					}
				}
				return found
			}
			until(t, "both are in the log", func() bool { return len(lines()) == 2 })
			if c.source != "" {
				until(t, "the relay has told of the table", func() bool { return d.int("SELECT count(*) FROM outbox.tables") == 1 })
			}
			healed.Store(true)
			line := lines()[0]
			for _, l := range lines() {
				if l["row"] == c.row {
					line = l
				}
			}
			if c.row != "" && (line["row"] != c.row || !strings.HasPrefix(line["dedup_key"].(string),
				"d-")) || line["topic"] != "orders" || line["key"] == "" {
				t.Errorf("the line is %v", line)
			}
			words, err := exec.Command("sh", "-c", "printf '%s\\0' "+line["next"].(string)).Output() // as a shell takes it
			if err != nil {
				t.Fatal(err)
			}
			next := strings.Split(strings.TrimSuffix(string(words), "\x00"), "\x00")
			d.outbox(slices.Insert(next[1:], 2, "--yes")...).want(exitOK, "1 message")
			until(t, "one is delivered", func() bool { return came.Load() == 1 })
			if code := relay.stop(); code != exitOK {
				t.Errorf("exit code %d", code)
			}
			if n := came.Load(); n != 1 {
				t.Errorf("%d were delivered, want 1", n)
			}
		})
	}
}
