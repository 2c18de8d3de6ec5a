package main

import (
	"fmt"
	"os"
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

// The database knows a destination only once a relay has worked on it. The configuration that is given knows it before.
func TestADestinationThatNoRelayHasWorkedOnIsNotIdle(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier, owner, lease, lease_until)
		SELECT 'kafka', 0, 1, system_identifier, 'relay-1', '1 hour', now() + interval '1 hour' FROM pg_control_system()`)
	d.outbox("status").want(exitOK, "IDLE")
	file := filepath.Join(d.folder, "outbox.yaml")
	yaml := fmt.Sprintf("database: {url: %q}\n"+
		"destinations:\n  - {name: kafka, broker: {stdout: {}}}\n  - {name: shop, broker: {stdout: {}}}\n", d.url)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, d.folder, nil, "status", "--config", file, "--exit-code").
		want(exitError, "NO RELAY", "shop", "no relay has worked on it yet")
}
