package daemon

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// awaited reports whether another relay stands by for a shard group.
func awaited(ctx context.Context, conn *pgx.Conn, destination string, group int) (is bool, err error) {
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.relays r JOIN pg_stat_activity a ON a.pid = r.backend_pid
		WHERE r.name <> (SELECT c.owner FROM outbox.cursors c WHERE c.destination = $1 AND c.shard_group = $2))`, destination, group).Scan(&is)
	return is, err
}
