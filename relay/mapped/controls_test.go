package mapped

import (
	"slices"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/pgoutbox/outbox/schema"
)

// What is paused is not published, and rows that were locked before are free again.
func TestEveryStrategyObeysAPause(t *testing.T) {
	t.Parallel()
	for name, open := range strategies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			conn := db.Connect()
			if _, err := schema.Up(t.Context(), conn, schema.UpConfig{}); err != nil {
				t.Fatal(err)
			}
			pause := func(key string) {
				db.Exec(`INSERT INTO outbox.controls (destination, lane, actor) VALUES ('shop', $1, 'anna')`, key)
			}
			pause("a") // not a topic: strategies that move an offset read topics independently of each other
			source := opened(t)(open(db.Config(), Config{Name: "one", Destination: "shop", PollIdle: 5 * time.Millisecond}))
			db.Exec(`INSERT INTO events (topic, key, payload, part)
				VALUES ('t', 'a', 'a1', 0), ('t', 'b', 'b1', 1), ('t', 'a', 'a2', 0)`)
			broker := relaytest.NewMemory()
			ctx, stop := testdb.Run(t, source, broker,
				relay.Config{Outage: relay.Backoff{Initial: 10 * time.Millisecond, Max: 10 * time.Millisecond}})
			must(t, broker.Wait(ctx, func() bool { return len(broker.Messages()) == 1 }))
			// Locked in a transaction that waits for the broker.
			broker.Kill()
			before, _ := broker.Calls()
			db.Exec(`INSERT INTO events (topic, key, payload, part) VALUES ('t', 'c', 'c1', 2)`)
			must(t, broker.Wait(ctx, func() bool { all, _ := broker.Calls(); return all > before }))
			pause("")
			for db.Value(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`) != "0" {
				if ctx.Err() != nil {
					t.Fatal("a transaction stays open")
				}
				time.Sleep(20 * time.Millisecond)
			}
			broker.Restart()
			db.Exec(`DELETE FROM outbox.controls`)
			if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) == 4 }); err != nil {
				t.Errorf("%d of 4 messages came: %v", len(broker.Messages()), err)
			}
			stop()
			var a []string
			for _, m := range broker.Messages() {
				if m.Key == "a" {
					a = append(a, string(m.Payload))
				}
			}
			if !slices.Equal(a, []string{"a1", "a2"}) {
				t.Errorf("of key a came %q", a)
			}
		})
	}
}
