package polling

import (
	"slices"
	"testing"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// Two relays of one destination with two brokers took turns, and each wrote where its own configuration said.
func TestARelayWithAnotherBrokerDeliversNothingUntilTheDestinationMoves(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	insert := func() { db.Exec("INSERT INTO outbox.messages (topic, key, payload) VALUES ('orders', 'k', '1')") }
	idle := func() {
		t.Helper()
		db.verdict(health.StateIdle, "")
	}
	// A broker that doesn't know which one it is delivers, and nothing is recorded.
	old, other := relaytest.NewMemory(), relaytest.NewMemory()
	end := db.embed(db.source("orders", SnapshotConfig{}), old, relay.Config{})
	insert()
	idle()
	db.seen("no broker", func(d *health.Destination) bool { return d.Broker == nil })
	// From a destination that has delivered before, it is recorded as soon as it is known.
	old.Identify("cluster a", "host a:1")
	db.seen("broker a", func(d *health.Destination) bool {
		return d.Broker != nil && slices.Equal(d.Broker.Identity, []string{"cluster a", "host a:1"})
	})
	if err := end(); err != nil {
		t.Error(err)
	}

	other.Identify("cluster b")
	endOther := db.embed(db.source("orders", SnapshotConfig{}), other, relay.Config{})
	insert()
	db.verdict(health.StateBroken, "it has cluster b, and the destination is delivered to cluster a = host a:1")
	// The destination's own relay isn't kept from its lease, and tells that all is well.
	end = db.embed(db.source("orders", SnapshotConfig{}), old, relay.Config{})
	idle()
	if err := end(); err != nil {
		t.Error(err)
	}
	insert()
	db.verdict(health.StateBroken, "has another broker")
	if calls, _ := other.Calls(); calls > 0 {
		t.Errorf("another broker than the destination's got %d calls", calls)
	}
	if out, err := destinations.Move(t.Context(), db.Connect(), "orders", admin.Action{Actor: "anna"}); err != nil ||
		!slices.Equal(out.To, []string{"cluster b"}) {
		t.Fatalf("%+v, %v", out, err)
	}
	idle()
	if err := endOther(); err != nil {
		t.Error(err)
	}
	if a, b := len(old.Messages()), len(other.Messages()); a != 2 || b != 1 {
		t.Errorf("the old broker has %d messages, the new one %d; want 2 and 1", a, b)
	}
}

// Shard groups begin anew when their number changes: the broker is the destination's.
func TestAnotherNumberOfShardGroupsKeepsTheBroker(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	one := testdb.Acquire(t, db.source("orders", SnapshotConfig{}))
	if err := one.Recognize(t.Context(), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if err := one.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	two := db.source("orders", SnapshotConfig{Groups: 2})
	changing := testdb.Acquire(t, two)
	if err := changing.Recognize(t.Context(), []string{"b"}); err == nil {
		t.Error("while the number changes, another broker is taken")
	}
	if _, err := changing.Next(t.Context(), 1); err == nil {
		t.Fatal("the number of groups has not changed")
	}
	_ = changing.Close(t.Context()) // its leases are gone
	if err := testdb.Acquire(t, two).Recognize(t.Context(), []string{"b"}); err == nil {
		t.Error("with another number of groups, another broker is taken")
	}
}
