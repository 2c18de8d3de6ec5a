package mapped

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// strategies opens each over the table of events.
func strategies() map[string]func(*pgx.ConnConfig, Config) (relay.Source, error) {
	return changed(func(*mapping.Mapping) {})
}

// changed is strategies after a change of each mapping.
func changed(change func(*mapping.Mapping)) map[string]func(*pgx.ConnConfig, Config) (relay.Source, error) {
	moved := events()
	moved.Done, moved.Failure = mapping.Done{}, mapping.Failure{DeadTable: "dead_events"}
	moved.Offsets = mapping.Offsets{Table: "offsets", Topic: "topic", Partition: "part", Transaction: "xid"}
	leased := events()
	leased.Claim = mapping.Claim{Until: "locked_until", Owner: "owner"}
	counted := events()
	counted.Claim = mapping.Claim{Status: "taken", Since: "locked_until", Counts: true}
	opens := make(map[string]func(*pgx.ConnConfig, Config) (relay.Source, error))
	for name, s := range map[string]struct {
		strategy string
		mapping  mapping.Mapping
	}{
		"skiplocked": {mapping.SkipLocked, events()}, "advisory": {mapping.Advisory, events()},
		"lease": {mapping.Lease, leased}, "lease by status": {mapping.Lease, counted},
		"xmin": {mapping.XMin, moved}, "serial": {mapping.Serial, moved},
	} {
		change(&s.mapping)
		opens[name] = func(c *pgx.ConnConfig, cfg Config) (relay.Source, error) { return Open(s.strategy, c, s.mapping, cfg) }
	}
	return opens
}

// deliverAll delivers messages of each key by a broker that fails some of them, and wants what the others are in the
// order of their keys and those beyond hope as dead letters.
func deliverAll(t *testing.T, db database, source relay.Source, keys, each int) {
	t.Helper()
	broker := relaytest.NewMemory()
	broker.Fail("1", 3, errors.New("not now"))
	broker.Fail("2", 25, errors.New("for a long time"))
	broker.Fail("5", 1, outbox.Permanent(errors.New("never")))
	ctx, stop := testdb.Run(t, source, broker, relay.Config{
		Batch: 20, HoldAfter: 20 * time.Millisecond, MaxAttempts: 20,
		Backoff: relay.Backoff{Initial: 15 * time.Millisecond, Max: 60 * time.Millisecond},
	})
	want := keys*each - 2 // one message of key 2 and one of key 5 are dead
	if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= want }); err != nil {
		t.Errorf("%d of %d messages came: %v", len(broker.Messages()), want, err)
	}
	stop()
	last := make(map[string]int64)
	for _, m := range broker.Messages() {
		if m.Position <= last[m.Key] {
			t.Errorf("key %s: %d after %d", m.Key, m.Position, last[m.Key])
		}
		last[m.Key] = m.Position
	}
	if got := db.Value("SELECT string_agg(key || ' ' || reason, ', ' ORDER BY key) FROM dead_events"); got != "2 exhausted, 5 refused" {
		t.Errorf("dead letters: %s", got)
	}
}

// One relay, a broker that fails some keys again and again: messages are set aside, tried again, come in
// order, and what is beyond hope is a dead letter.
func TestFailuresHoldUpTheirKeyAloneAndKeepItsOrder(t *testing.T) {
	t.Parallel()
	for name, open := range strategies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			const keys, each = 8, 30
			for range each {
				db.Exec(`INSERT INTO events (topic, key, payload, part)
					SELECT 't', k::text, convert_to(k::text, 'UTF8'), k % 4 FROM generate_series(0, $1 - 1) k`, keys)
			}
			source := opened(t)(open(db.Config(), Config{Name: "one", PollIdle: 5 * time.Millisecond}))
			deliverAll(t, db, source, keys, each)
			if got := db.Value(unsettled(name)); got != "0" {
				t.Errorf("%s rows are not marked", got)
			}
		})
	}
}

// unsettled counts the rows of a strategy that are not settled.
func unsettled(name string) string {
	if slices.Contains([]string{"xmin", "serial"}, name) {
		return `SELECT count(*) FROM events e WHERE NOT EXISTS (SELECT FROM offsets o WHERE o.topic = e.topic AND o.partition = e.part AND e.id <= o.last_processed_id)`
	}
	return "SELECT count(*) FROM events WHERE status <> 'done'"
}

// Three relays at once, and a writer that goes on: nothing is lost, without a fault nothing comes twice, and keys keep
// their order.
func TestSeveralRelaysShareATable(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"skiplocked", "lease", "lease by status"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			const total, more = 3000, 100
			db.Exec(`INSERT INTO events (topic, key, payload) SELECT 't', (n % 50)::text, convert_to(n::text, 'UTF8') FROM generate_series(1, $1) n`, total)
			broker := relaytest.NewMemory()
			broker.Delay(time.Millisecond)
			ctx, stop := context.WithCancel(await.Context(t))
			defer stop()
			ended := make(chan error, 3)
			for i := range 3 {
				source := opened(t)(strategies()[name](db.Config(), Config{Name: fmt.Sprint("relay ", i), PollIdle: 5 * time.Millisecond}))
				r, err := relay.New(source, broker, relay.Config{Batch: 50})
				must(t, err)
				go func() { ended <- r.Run(ctx) }()
			}
			for n := total; n < total+more; n++ {
				db.Exec(insertEvent, fmt.Sprint((n+1)%50), fmt.Sprint(n+1))
			}
			if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= total+more }); err != nil {
				t.Errorf("%d of %d messages came: %v", len(broker.Messages()), total+more, err)
			}
			stop()
			for range 3 {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			seen := make(map[string]int)
			last := make(map[string]int64)
			for _, m := range broker.Messages() {
				seen[string(m.Payload)]++
				if m.Position <= last[m.Key] {
					t.Errorf("key %s: %d after %d", m.Key, m.Position, last[m.Key])
				}
				last[m.Key] = m.Position
			}
			if len(seen) != total+more || len(broker.Messages()) != total+more {
				t.Errorf("%d messages came, %d different ones, want %d once each", len(broker.Messages()), len(seen), total+more)
			}
			if got := db.Value("SELECT count(*) FROM events WHERE status <> 'done'"); got != "0" {
				t.Errorf("%s rows are not marked", got)
			}
		})
	}
}

// opened returns a source that was opened without an error.
func opened(t testing.TB) func(relay.Source, error) relay.Source {
	t.Helper()
	return func(s relay.Source, err error) relay.Source {
		t.Helper()
		must(t, err)
		return s
	}
}
