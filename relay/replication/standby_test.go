package replication

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay/polling"
)

// The server sends what only its own disk has, even of writers that wait for the standby. By the time a message is
// handed out, the standby has it.
func TestWhatTheLogHandsOutSurvivesAFailoverToASynchronousStandby(t *testing.T) {
	t.Parallel()
	db, pg := alone(t, servers.PostgresConfig{Settings: map[string]string{"wal_level": "logical"}})
	standby, err := pg.Standby(t.Context(), servers.StandbyConfig{Name: "one"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Close() })
	db.Exec("ALTER SYSTEM SET synchronous_standby_names = 'one'")
	db.Exec("SELECT pg_reload_conf()")
	db.Await("SELECT coalesce(max(sync_state), '') = 'sync' FROM pg_stat_replication")
	// The lease is not renewed meanwhile: a renewal would wait for the standby as well, and hold up the write that is
	// looked for below.
	source, _ := db.source("d", Config{Table: polling.SnapshotConfig{Lease: 10 * time.Minute}})
	s := acquire(t, source)
	streaming(t, s)
	if err := standby.Stop(); err != nil {
		t.Fatal(err)
	}
	conn := db.Connect()
	if _, err := conn.Exec(t.Context(),
		"SET synchronous_commit = local; INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'x')"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	handedOut := make(chan bool, 1)
	go func() {
		for {
			batch, err := s.Next(ctx, 100)
			if err != nil || len(batch.Deliveries) > 0 {
				handedOut <- len(batch.Deliveries) > 0
				return
			}
		}
	}()
	var phantom, ended bool
	for waits := "0"; waits == "0" && !ended; {
		select {
		case phantom = <-handedOut:
			ended = true
		default:
		}
		waits = db.Value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND " +
			"query LIKE '%UPDATE outbox.cursors SET prev%'")
	}
	if err := pg.Kill9(); err != nil {
		t.Fatal(err)
	}
	if !ended {
		phantom = <-handedOut
	} else if !phantom {
		t.Fatal("the session ended before it waited for the standby")
	}
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
	var n int
	if err := after.QueryRow(t.Context(), "SELECT count(*) FROM outbox.messages").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if phantom && n == 0 {
		t.Error("the message was handed out and does not exist any more")
	}
}
