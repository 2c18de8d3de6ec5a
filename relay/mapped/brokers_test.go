package mapped

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

func TestARelayOfATableWithAnotherBrokerDeliversNothingUntilTheDestinationMoves(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	all := strategies()
	all["replication"] = nil
	for name, open := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			if open == nil {
				var log logNames
				db, log = newLogDatabase(t)
				open = func(conn *pgx.ConnConfig, cfg Config) (relay.Source, error) {
					return openLogOf(conn, logged(), cfg, log)
				}
			}
			db.install(t)
			db.T = t
			begin := func(name string, broker relay.Broker) (stop func()) {
				t.Helper()
				source := opened(t)(open(db.Config(),
					Config{Name: name, Destination: "shop", LagObjective: time.Hour, PollIdle: 5 * time.Millisecond}))
				_, stop = testdb.Run(t, source, broker, relay.Config{})
				return stop
			}
			delivered := func(broker *relaytest.Memory, n int) {
				t.Helper()
				db.seen("a delivery", func(*health.Report, *health.Destination) bool { return len(broker.Messages()) == n })
			}
			insert := func() { db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', '1')`) }
			own, other := relaytest.NewMemory(), relaytest.NewMemory()
			own.Identify("cluster a")
			other.Identify("cluster b")
			stop := begin("one", own)
			insert()
			delivered(own, 1)
			stop()
			stop = begin("two", other)
			defer stop()
			insert()
			db.seen("the refusal", func(r *health.Report, d *health.Destination) bool {
				return d.Verdict.State == health.StateBroken && d.Broker != nil && slices.Equal(d.Broker.Refused, []string{"cluster b"})
			})
			if calls, _ := other.Calls(); calls > 0 {
				t.Errorf("another broker than the destination's got %d calls", calls)
			}
			if _, err := destinations.Move(t.Context(), db.Connect(), "shop", admin.Action{Actor: "anna"}); err != nil {
				t.Fatal(err)
			}
			delivered(other, 1)
		})
	}
}
