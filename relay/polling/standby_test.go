package polling

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// A failover takes back what the synchronous standby doesn't have: a writer that doesn't wait for it is visible before.
// By the time a message is handed out, the standby has its commit.
func TestWhatIsHandedOutSurvivesAFailoverToASynchronousStandby(t *testing.T) {
	t.Parallel()
	for _, writer := range []string{"local", "off"} {
		t.Run(writer, func(t *testing.T) {
			t.Parallel()
			pg := servers.OwnPostgres(t, servers.PostgresConfig{})
			db := database{testdb.DB{T: t, URL: pg.URL("postgres")}}
			db.Install()
			standby, err := pg.Standby(t.Context(), servers.StandbyConfig{Name: "one"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = standby.Close() })

			// The standby becomes synchronous while the relay runs, and falls behind at once.
			s := testdb.Acquire(t, db.source("d", SnapshotConfig{PollIdle: time.Millisecond, Lease: time.Minute}))
			db.Exec("ALTER SYSTEM SET synchronous_standby_names = 'one'")
			db.Exec("SELECT pg_reload_conf()")
			conn := db.Connect()
			for one(t, conn, "SHOW synchronous_standby_names") != "one" ||
				one(t, conn, "SELECT coalesce(max(sync_state), '') FROM pg_stat_replication") != "sync" {
			}
			if err := standby.Stop(); err != nil {
				t.Fatal(err)
			}
			var id string
			if _, err := conn.Exec(t.Context(), "SET synchronous_commit = "+writer); err != nil {
				t.Fatal(err)
			}
			if err := conn.QueryRow(t.Context(),
				"INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'x') RETURNING message_id::text").Scan(&id); err != nil {
				t.Fatal(err)
			}
			handedOut := make(chan bool, 1)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				for {
					batch, err := s.Next(ctx, 100)
					if err != nil || len(batch.Deliveries) > 0 {
						handedOut <- slices.ContainsFunc(batch.Deliveries, func(d relay.Delivery) bool { return d.ID.String() == id })
						return
					}
				}
			}()
			// The commit that would hand it out waits for the standby.
			db.Await("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%outbox.cursors%'")
			if err := pg.Kill9(); err != nil {
				t.Fatal(err)
			}
			cancel()
			phantom := <-handedOut
			if err := standby.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := standby.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
			after, err := pgx.Connect(t.Context(), standby.URL("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			defer dial.HangUp(after)
			if n := one(t, after, fmt.Sprintf("SELECT count(*)::text FROM outbox.messages WHERE message_id = '%s'", id)); phantom &&
				n == "0" {
				t.Error("the message was handed out and does not exist any more")
			}
		})
	}
}

// If the wait is cancelled, the commit has happened here and nowhere else. The role asks for no warnings.
func TestACommitWhoseWaitForTheStandbyWasCancelledHandsOutNothing(t *testing.T) {
	t.Parallel()
	pg := servers.OwnPostgres(t, servers.PostgresConfig{Settings: map[string]string{"synchronous_standby_names": "nobody"}})
	db := database{testdb.DB{T: t, URL: pg.URL("postgres") + "&options=-csynchronous_commit%3Dlocal%20-cclient_min_messages%3Derror"}}
	db.Install()
	conn := db.Connect()
	got := make(chan error, 1)
	go func() {
		_, err := db.source("d", SnapshotConfig{}).Acquire(t.Context())
		got <- err
	}()
	const waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
	for ended := false; !ended; {
		if _, err := conn.Exec(t.Context(), "SELECT pg_cancel_backend(pid) "+waiting); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-got:
			ended = true
			if err == nil {
				t.Error("a lease that the standby doesn't know of was taken")
			}
		default:
		}
	}
}
