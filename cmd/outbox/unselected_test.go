package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A typo in the topics would have the rows of the table marked, and delivered to nobody, without a word.
func TestARowOfATableThatNoDestinationSelectsIsTold(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.exec(`CREATE TABLE ev (id bigserial PRIMARY KEY, topic text NOT NULL, key text, payload jsonb, published_at timestamptz)`)
	relay := d.relay(`http: {listen: ''}
destinations:
  - name: shop
    topics: [order]
    source: {strategy: skiplocked, table: ev, columns: {id: id, topic: "{topic}", key: "{key}", payload: payload},
      done: {how: timestamp, column: published_at}}
    broker: {file: {path: ` + filepath.Join(d.folder, "events.jsonl") + `}}
`)
	d.exec(`INSERT INTO ev (topic, key, payload) VALUES ('orders', 'k', '1')`)
	until(t, "status tells of it", func() bool {
		return strings.Contains(d.outbox("status").stdout, `1 message is of topic "orders", which no destination selects: nobody gets them`)
	})
	d.outbox("status").want(exitOK, "AT RISK", "add the topic to a destination's topics or filter")
	relay.stop()
}
