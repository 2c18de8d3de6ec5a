package cursors

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/schema"
)

// Reasons why a source refuses a database permanently. Errors that wrap these are marked by outbox.Permanent.
var (
	// ErrStandby means that the server is a hot standby.
	ErrStandby = errors.New("the server is a hot standby")

	// ErrForeign means that a cursor or messages were written in another cluster, or in a history of this one that has
	// been undone, where transaction ids mean something else.
	ErrForeign = errors.New("the outbox is from another cluster")
)

// RefuseStandby returns ErrStandby on a standby: its snapshots don't list the transactions in progress, so a message
// that commits late would count as read.
func RefuseStandby(ctx context.Context, db Querier) error {
	var standby bool
	if err := db.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&standby); err != nil {
		return fmt.Errorf("ask whether the server is a standby: %w", err)
	}
	if standby {
		return permanent("%w, whose snapshots would lose messages: connect to the primary "+
			"(with several hosts in the address, add target_session_attrs=read-write)", ErrStandby)
	}
	return nil
}

// Server identifies the running server that a connection has reached.
func Server(ctx context.Context, db Querier) (name string, err error) {
	err = db.QueryRow(ctx, `SELECT s.system_identifier || ' ' || pg_postmaster_start_time() FROM pg_control_system() s`).Scan(&name)
	if err != nil {
		return "", fmt.Errorf("ask which server this is: %w", err)
	}
	return name, nil
}

// ForeignRows reports whether there are messages of transactions that this cluster has not reached. Messages of the
// cluster's own transactions are never beyond the statement's snapshot, so these messages came with a dump. When the
// cluster reaches their transactions, they would appear as new.
func ForeignRows(ctx context.Context, db Querier) (found bool, err error) {
	err = db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.messages WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()))
		OR EXISTS (SELECT FROM outbox.inbox_messages WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()))`).Scan(&found)
	if err != nil {
		return false, fmt.Errorf("look for messages of another cluster: %w", err)
	}
	return found, nil
}

// Position is how far a destination is, by its cursor.
type Position struct {
	Prev    string    // everything that it sees is settled
	Windows []string  // the open windows, oldest first
	LastID  int64     // the last settled id of the oldest
	LastAt  time.Time // when that message was written; zero: unknown to the relay, which found LastID
}

// Row is a row of outbox.cursors, with what the server knows about itself.
type Row struct {
	Destination   string
	Group, Groups int
	Position      Position
	Epoch         int64
	Owner         string
	Held          bool   // by owner, whose lease hasn't expired
	Locked        bool   // owner's session has the lock of the shard group, or has ended
	Attached      string // the segments, when the lease was taken
	cluster       int64

	here struct {
		cluster int64
		xmax    uint64
	}
}

const rowSQL = `
SELECT c.shard_group, c.shard_groups, c.prev::text, c.windows::text[], c.last_id, c.epoch, coalesce(c.owner, ''),
	` + schema.LeasedSQL + `, c.locked, c.system_identifier,
	(SELECT s.system_identifier FROM pg_control_system() s), pg_snapshot_xmax(pg_current_snapshot())::text
FROM outbox.cursors c WHERE c.destination = $1 ORDER BY c.shard_group`

// Querier queries the database: a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Rows reads the cursors of a destination, by shard group.
func Rows(ctx context.Context, db Querier, destination string) ([]Row, error) {
	rows, err := db.Query(ctx, rowSQL, destination)
	if err != nil {
		return nil, fmt.Errorf("read the cursor: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Row, error) {
		c := Row{Destination: destination}
		var xmax string
		err := row.Scan(&c.Group, &c.Groups, &c.Position.Prev, &c.Position.Windows, &c.Position.LastID, &c.Epoch, &c.Owner,
			&c.Held, &c.Locked, &c.cluster, &c.here.cluster, &xmax)
		if err == nil {
			_, err = fmt.Sscan(xmax, &c.here.xmax)
		}
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the cursor: %w", err)
	}
	return all, nil
}

// RefuseForeign returns ErrForeign unless c was written in this cluster's own past: after a dump is restored, rows with
// new transaction ids would count as read, and be skipped silently.
func RefuseForeign(c *Row) error {
	why := ""
	if c.cluster != c.here.cluster {
		why = fmt.Sprintf("was written in cluster %d, and this is cluster %d", uint64(c.cluster), uint64(c.here.cluster))
	} else {
		end := c.Position.Prev
		if n := len(c.Position.Windows); n > 0 {
			end = c.Position.Windows[n-1]
		}
		s, err := Parse(end)
		if err != nil {
			return err
		}
		if c.here.xmax < s.Xmax {
			why = fmt.Sprintf("has seen transaction %d, and this cluster has come to %d", s.Xmax, c.here.xmax)
		}
	}
	if why == "" {
		return nil
	}
	return Foreign(c.Destination, "the cursor "+why)
}

// Foreign is ErrForeign with what to do.
func Foreign(destination, why string) error {
	return permanent("%w: %s; a dump was restored here, or the cluster was upgraded. "+
		"With all writers and relays stopped, run: outbox rebase --destination %s", ErrForeign, why, destination)
}

// permanent returns an error that waiting doesn't cure.
func permanent(format string, args ...any) error {
	return outbox.Permanent(fmt.Errorf(format, args...))
}
