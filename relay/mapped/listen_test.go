package mapped

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// notified is a database whose table notifies a channel, and the mapping of its table for a strategy.
func notified(t *testing.T, strategy, channel string) (database, mapping.Mapping) {
	t.Helper()
	var own []servers.PostgresConfig
	if strategy == mapping.XMin { // a cluster of its own: other tests' transactions would hold it up
		own = append(own, servers.PostgresConfig{Settings: map[string]string{"cluster_name": "notified"}})
	}
	db, m := newDatabase(t, own...), events()
	switch strategy {
	case mapping.Lease:
		m.Claim = mapping.Claim{Until: "locked_until", Owner: "owner"}
	case mapping.XMin, mapping.Serial:
		m.Done, m.Failure = mapping.Done{}, mapping.Failure{DeadTable: "dead_events"}
		m.Offsets = mapping.Offsets{Table: "offsets", Topic: "topic", Partition: "part"}
		if strategy == mapping.XMin {
			m.Offsets.Transaction = "xid"
		}
	}
	db.Exec(mapping.NotifySQL(mapping.TableName{Schema: "public", Name: "events"}, channel))
	return db, m
}

// The relays would wait for an hour after a poll: what comes sooner was sent because a commit has notified.
func TestAnAuthorsTableWakesItsRelayInEveryStrategy(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{mapping.SkipLocked, mapping.Advisory, mapping.Lease, mapping.XMin, mapping.Serial} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			const channel = `It's a "channel"`
			db, m := notified(t, strategy, channel)
			ctx := await.Context(t)
			source := opened(t)(Open(strategy, db.Config(), m,
				Config{Name: "r", PollBusy: time.Hour, PollIdle: time.Hour, Notify: channel}))
			broker := relaytest.NewMemory()
			insert := func(n int) {
				db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('orders', 'k', $1)`, fmt.Appendf(nil, "%d", n))
			}
			arrived := func(n int) {
				t.Helper()
				if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= n }); err != nil {
					t.Fatalf("%d of %d messages came: %v", len(broker.Messages()), n, err)
				}
				if strategy == mapping.XMin { // the transaction that moves the offset would hold up the next one
					await.Until(t, "the offset moves", func() bool {
						var moved bool
						err := db.Connect().QueryRow(ctx, `SELECT max(last_processed_id) >= $1 FROM offsets`, n).Scan(&moved)
						return err == nil && moved
					})
				}
			}
			const listens = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'`
			insert(1) // so that a poll is known to be over
			_, end := testdb.Run(t, source, broker, relay.Config{})
			defer end()
			arrived(1)
			for n := 2; n <= 4; n++ {
				insert(n)
				arrived(n)
			}
			// What is committed while it doesn't listen is read when it does again.
			db.Exec(listens)
			insert(5)
			arrived(5)
			for i, got := range broker.Messages() {
				if want := fmt.Sprint(i + 1); string(got.Payload) != want {
					t.Errorf("message %d is %s", i+1, got.Payload)
				}
			}
		})
	}
}

func TestWhereNoNotificationCanComeIsToldAndTheTableIsPolled(t *testing.T) {
	t.Parallel()
	db, m := notified(t, mapping.SkipLocked, "events")
	var log await.Buffer
	source := opened(t)(Open(mapping.SkipLocked, startPooler(t, db, 4), m, Config{Name: "r", Notify: "events",
		Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	broker := relaytest.NewMemory()
	_, end := testdb.Run(t, source, broker, relay.Config{})
	defer end()
	await.Until(t, "the log tells", func() bool { return strings.Contains(log.String(), "no notification comes through a pooler") })
	db.Exec(`INSERT INTO events (topic, payload) VALUES ('orders', '1')`)
	await.Until(t, "it is delivered", func() bool { return len(broker.Messages()) == 1 })
}
