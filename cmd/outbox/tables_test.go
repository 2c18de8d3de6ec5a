package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

func TestDeadLettersOfATableThatExistsAreRequeuedAsStatusSays(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	d.exec(`CREATE TABLE outbox_events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, payload bytea NOT NULL,
		status text NOT NULL DEFAULT 'new', attempts int NOT NULL DEFAULT 0, error text)`)
	d.exec(`INSERT INTO outbox_events (topic, payload) VALUES ('orders', '1')`)
	d.exec(`INSERT INTO outbox_events (topic, payload, status, attempts, error)
		SELECT 'orders', '1', 'failed', 5, 'it was refused' FROM generate_series(1, 3)`)
	relay := d.relay("http: {listen: ''}\ndestinations:\n  - name: shop\n    broker: {file: {path: " + d.file() + `}}
    source:
      strategy: advisory
      table: outbox_events
      columns: {id: id, topic: "{topic}", payload: payload}
      done: {how: status, column: status, value: done, waiting: new}
      failure: {attempts: attempts, error: error, failed_value: failed}
`)
	until(t, "what waits is delivered", func() bool { return d.count() == 1 })
	status := d.outbox("status", "--exit-code").want(exitError, "DEAD", "3 new dead letters", "it was refused",
		"outbox tables ack --destination shop").stdout
	d.outbox("dead", "requeue", "--destination", "shop", "--yes").want(exitOK, "nothing matches")
	d.outbox("tables", "dead", "--destination", "shop").want(exitOK, "ATTEMPTS", "it was refused")
	d.outbox("tables", "dead", "--destination", "shop", "3").want(exitOK, "\n3 ",
		"outbox tables requeue --destination shop ID").never("\n2 ")
	d.outbox("tables", "dead", "--destination", "none").want(exitNotFound, "none")
	d.outbox("tables", "requeue", "--destination", "shop", "9").want(exitNotFound, "outbox tables dead")
	d.outbox("tables", "requeue", "--destination", "shop", "--dry-run").want(exitOK, "3 messages of table")
	d.outbox("tables", "requeue", "--destination", "shop", "--max", "2", "--yes").want(exitError, "3 are selected")
	d.outbox("tables", "requeue", "--destination", "shop", "2", "--yes").want(exitOK, "1 message to be delivered once more")
	until(t, "one is delivered", func() bool { return d.count() == 2 })
	d.outbox("tables", "ack", "--destination", "shop", "--yes", "--reason", "known").want(exitOK, "2 messages acknowledged")
	d.outbox("status", "--exit-code").want(exitOK).never("new dead letter")

	next := regexp.MustCompile(`outbox tables requeue\S* --destination shop`).FindString(status)
	d.outbox(append(strings.Fields(next)[1:], "--yes")...).want(exitOK, "2 messages to be delivered once more")
	until(t, "all are delivered", func() bool { return d.count() == 4 })
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
