package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pgoutbox/outbox/internal/servers"
)

// Two relays of one destination with two brokers took turns, and each wrote where its own configuration said. The
// destination has all that stands around a broker: what the relay asks of it gets through.
func TestADestinationIsOneBrokersUntilItMoves(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	old, other := servers.OwnNATS(t), servers.OwnNATS(t)
	yaml := func(n *servers.NATS) string {
		return fmt.Sprintf(`http: {listen: ''}
destinations:
  - name: orders
    lease: 30s
    broker: {nats: {url: '%s', stream: ORDERS, create_stream: true, subject: 'orders.{topic}'}}
    route:
      headers: [{name: h, value: '{topic}'}]
    delivery: {outage: {after: 5}}
`, n.URL())
	}
	has := func(n *servers.NATS) (messages uint64) {
		conn, err := nats.Connect(n.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := js.Stream(t.Context(), "ORDERS")
		if err != nil {
			return 0
		}
		return stream.CachedInfo().State.Msgs
	}
	insert := func() { d.exec(`INSERT INTO outbox.messages (topic, key, payload) VALUES ('a', 'k', '1')`) }
	file := filepath.Join(d.folder, "outbox.yaml")
	checked := func(n *servers.NATS) result {
		if err := os.WriteFile(file, []byte(yaml(n)), 0o600); err != nil {
			t.Fatal(err)
		}
		return d.outbox("config", "validate", "--connect")
	}

	checked(other).want(exitOK, "destination orders: ok")
	first := d.relay(yaml(old))
	insert()
	until(t, "the old broker has a message", func() bool { return has(old) == 1 })
	checked(old).want(exitOK, "destination orders: ok")
	first.stop()
	checked(other).want(exitError, "another one than the destination's", "outbox destinations move orders")
	d.outbox("doctor").want(exitOK, "FAULT: destination orders: the broker is another one")

	second := d.relay(yaml(other))
	insert()
	until(t, "status tells of it", func() bool { return strings.Contains(d.outbox("status").stdout, "BROKEN") })
	for range 20 { // at an attempt, too
		d.outbox("status").want(exitOK, "BROKEN", "has another broker than this destination",
			"next: correct the broker in the configuration of", "outbox destinations move orders")
	}
	if n := has(other); n > 0 {
		t.Errorf("another broker than the destination's got %d messages", n)
	}
	d.outbox("destinations", "move", "nobody", "--yes").want(exitNotFound, "no broker is recorded")
	d.outbox("destinations", "move", "orders").want(exitUsage, "--yes")
	d.outbox("destinations", "move", "orders", "--dry-run").want(exitOK, "from", old.Addr(), "to", other.Addr())
	d.outbox("destinations", "move", "orders", "--yes", "--actor", "anna", "--reason", "a new cluster").
		want(exitOK, "moved orders to nats ", other.Addr())
	until(t, "the new broker has a message", func() bool { return has(other) == 1 })
	if n := d.int(`SELECT count(*) FROM outbox.audit WHERE actor = 'anna' AND verb = 'move_destination'`); n != 1 {
		t.Errorf("%d rows in the audit", n)
	}
	second.stop()
	if n := has(old); n != 1 {
		t.Errorf("the old broker has %d messages, want 1", n)
	}
}
