package testdb

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
)

// DropSlots drops every slot of this database, and ends what streams from one.
func (db DB) DropSlots() {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return // the server is gone, and its slots with it
	}
	defer hangUp(conn)
	for {
		var left int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`).Scan(&left)
		if err != nil || left == 0 || ctx.Err() != nil {
			return
		}
		_, _ = conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database() AND active`)
		_, _ = conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database() AND NOT active`)
		time.Sleep(5 * time.Millisecond) // a walsender takes a moment to end
	}
}
