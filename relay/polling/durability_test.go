package polling

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// A writer with synchronous_commit=off is visible before its commit is on disk, and a server that dies then
// comes back without it. By the time a message is handed out, its commit must be safe.
func TestWhatIsHandedOutSurvivesTheServersDeathEvenOfAsynchronousCommits(t *testing.T) {
	t.Parallel()
	// Nothing but our own commits writes the log.
	pg := servers.OwnPostgres(t, servers.PostgresConfig{Settings: map[string]string{
		"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "autovacuum": "off", "checkpoint_timeout": "1h",
	}})
	db := database{testdb.DB{T: t, URL: pg.URL("postgres")}}
	db.Install()
	for round := range 3 {
		s := testdb.Acquire(t, db.source("d", SnapshotConfig{PollIdle: time.Millisecond}))
		conn, err := pgx.Connect(t.Context(), db.URL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "SET synchronous_commit = off"); err != nil {
			t.Fatal(err)
		}
		id := ""
		if err := conn.QueryRow(t.Context(),
			"INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'x') RETURNING message_id::text").Scan(&id); err != nil {
			t.Fatal(err)
		}
		for handedOut := false; !handedOut; {
			batch, err := s.Next(t.Context(), 100) // those of earlier rounds too: nothing was settled
			if err != nil {
				t.Fatal(err)
			}
			handedOut = slices.ContainsFunc(batch.Deliveries, func(d relay.Delivery) bool { return d.ID.String() == id })
		}
		if err := pg.Kill9(); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close(context.Background()) // its server is gone
		_ = s.Close(context.Background())
		if err := pg.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := db.Value("SELECT count(*) FROM outbox.messages WHERE message_id = $1", id); n != "1" {
			t.Errorf("round %d: the message was handed out and does not exist any more", round)
		}
	}
}
