package mapped

import (
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// A relay that stands by has lost its session, and waits again: it isn't broken any more, whoever asks.
func TestARelayThatStandsByIsNotBrokenOnceItWaitsAgain(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for _, name := range []string{"advisory", "serial"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.install(t)
			db.T = t
			broker := relaytest.NewMemory()
			begin := func(name string, open func(Config) (relay.Source, error)) {
				t.Helper()
				source := opened(t)(open(Config{Name: name, Destination: "shop", LagObjective: time.Hour, PollIdle: 5 * time.Millisecond}))
				testdb.Run(t, source, broker, relay.Config{})
			}
			open := func(cfg Config) (relay.Source, error) { return strategies()[name](db.Config(), cfg) }
			begin("one", open)
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', '1')`)
			idle := func(_ *health.Report, d *health.Destination) bool {
				return d.Verdict.State == health.StateIdle && len(d.Groups) == 1 && d.Groups[0].Owner == "one"
			}
			db.seen("the first delivers", idle)
			begin("two", open)
			// As after a lost session of the second, and after its restart.
			db.Exec(`INSERT INTO outbox.tables (destination, shard_group, owner, shard_groups, session, strategy, mapping, state, state_since, last_error, lag_objective)
				SELECT destination, shard_group, 'two', shard_groups, replace(session, 'one', 'two'), strategy, mapping, 'broken', now(), 'lost', lag_objective FROM outbox.tables`)
			db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'outbox relay two%'`)
			db.seen("the second waits", func(r *health.Report, d *health.Destination) bool {
				return idle(r, d) && db.Value(`SELECT state FROM outbox.tables WHERE owner = 'two'`) == "waiting"
			})
		})
	}
}

// What was marked before a relay was started again isn't something that others have marked.
func TestARestartForgetsNotWhenARowWasHandled(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.install(t)
	for range 2 {
		source := opened(t)(strategies()["advisory"](db.Config(),
			Config{Name: "one", Destination: "shop", LagObjective: time.Hour, PollIdle: 5 * time.Millisecond}))
		began := db.Value(`SELECT clock_timestamp()::text`)
		_, stop := testdb.Run(t, source, relaytest.NewMemory(), relay.Config{})
		if db.Value(`SELECT count(*) FROM events`) == "0" {
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', '1')`)
		}
		db.Await(`SELECT count(*) = 1 FROM outbox.tables WHERE state = 'flowing' AND account ? 'handled_at' AND updated_at >= '` + began + `'`)
		stop()
	}
}
