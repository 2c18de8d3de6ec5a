package mapped

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
)

// What a priority promises: whatever waits with a higher one is taken first, and equals in the order of their ids.
func TestAPriorityIsTakenFirst(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`ALTER TABLE events ADD priority integer NOT NULL DEFAULT 0`)
	db.Exec(`INSERT INTO events (topic, key, payload, priority) VALUES
		('t', 'a', 'bulk 1', 0), ('t', 'b', 'bulk 2', 0), ('t', 'c', 'urgent 1', 9), ('t', 'd', 'urgent 2', 9)`)
	m := events()
	m.Priority = "priority"
	source := opened(t)(Open(mapping.SkipLocked, db.Config(), m, Config{Name: "one", PollIdle: 5 * time.Millisecond}))
	for i, d := range read(t, acquired(t, source), 4) {
		if want := []string{"urgent 1", "urgent 2", "bulk 1", "bulk 2"}[i]; string(d.Payload) != want {
			t.Errorf("got %q in the place of %q", d.Payload, want)
		}
	}
}

// What an offset moves over can't be overtaken, so its priority is that of a partition: one's backlog is not before
// another's rows. An order that nobody would keep is refused.
func TestPartitionsDoNotWaitForOneAnother(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"xmin", "serial"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			// One statement: a transaction of another test may keep a second one out of the snapshot for longer.
			db.Exec(`INSERT INTO events (topic, key, payload, part)
				SELECT 't', 'bulk', ''::bytea, 0 FROM generate_series(1, 10000)
				UNION ALL VALUES ('t', 'urgent', '1'::bytea, 7), ('t', 'urgent', '2', 7)`)
			source := opened(t)(strategies()[name](db.Config(), Config{Name: "one", PollIdle: 5 * time.Millisecond}))
			ds := read(t, acquired(t, source), 1000)
			if n := slices.IndexFunc(ds, func(d relay.Delivery) bool { return string(d.Payload) == "2" }); n < 0 {
				t.Error("the urgent partition waits behind the backlog of another")
			}
			_, err := changed(func(m *mapping.Mapping) {
				m.Priority, m.Types, m.Order = "part", []string{"a"}, "created_at"
			})[name](db.Config(), Config{})
			for _, want := range []string{"a priority is given", "an order of types is given", "a column for the order is given"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%q is missing in: %v", want, err)
				}
			}
		})
	}
}

// Types go in the order in which they are given, and those that are not named behind them.
func TestTypesAreTakenInTheirOrder(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`INSERT INTO events (topic, key, payload, event_type) VALUES
		('t', 'a', 'other', 'audit'), ('t', 'b', 'order 1', 'order_create'), ('t', 'c', 'ad 1', 'ad_create'),
		('t', 'd', 'order 2', 'order_create'), ('t', 'e', 'ad 2', 'ad_create')`)
	m := events()
	m.Types = []string{"ad_create", "order_create"}
	m.Claim = mapping.Claim{Status: "taken", Since: "locked_until", Counts: true}
	source := opened(t)(Open(mapping.Lease, db.Config(), m, Config{Name: "one", PollIdle: 5 * time.Millisecond}))
	var got []string
	for _, d := range read(t, acquired(t, source), 5) {
		got = append(got, string(d.Payload))
	}
	if want := []string{"ad 1", "ad 2", "order 1", "order 2", "other"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A table that its owner partitions by date: rows of all partitions are delivered and marked, and a partition of
// delivered rows can be dropped beneath a relay that runs.
func TestATablePartitionedByDateIsDelivered(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`CREATE TABLE dated (LIKE events INCLUDING DEFAULTS INCLUDING IDENTITY, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)`)
	db.Exec(`CREATE TABLE dated_old PARTITION OF dated FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')`)
	db.Exec(`CREATE TABLE dated_new PARTITION OF dated FOR VALUES FROM ('2020-02-01') TO ('2020-03-01')`)
	db.Exec(`INSERT INTO dated (topic, key, payload, created_at) VALUES ('t', 'k', '1', '2020-01-31'), ('t', 'k', '2', '2020-02-01')`)
	m := events()
	m.Table = "dated"
	source := opened(t)(Open(mapping.SkipLocked, db.Config(), m, Config{Name: "one", PollIdle: 5 * time.Millisecond}))
	s := acquired(t, source)
	ds := read(t, s, 2)
	if string(ds[0].Payload) != "1" || string(ds[1].Payload) != "2" {
		t.Fatalf("got %q and %q", ds[0].Payload, ds[1].Payload)
	}
	must(t, s.Settle(t.Context(), relay.Settlement{Through: &ds[1], Delivered: 2}))
	db.Await("SELECT count(*) = 2 FROM dated WHERE status = 'done'")
	db.Exec(`DROP TABLE dated_old`)
	db.Exec(`INSERT INTO dated (topic, key, payload, created_at) VALUES ('t', 'k', '3', '2020-02-02')`)
	if got := read(t, s, 1); string(got[0].Payload) != "3" {
		t.Errorf("got %q after the partition was dropped", got[0].Payload)
	}
}
