package destinations

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// ErrNothingToRebase means that the destination's cursor and all rows are of this cluster.
var ErrNothingToRebase = errors.New("cursor and messages are of this cluster: there is nothing to rebase")

// Rebased is the result of Rebase for one destination.
type Rebased struct {
	Destination string `json:"destination"`
	Held        int64  `json:"held"` // messages that became holds, to be delivered at once
}

// Rebase makes the cursors of a database usable that was restored from a dump, or replicated logically:
// their transaction ids are of another cluster, and so are those in the rows that came along. After it,
// what a destination has not delivered are holds of that destination, due at once, and its cursor stands
// behind everything that is there. It is one transaction, which changes nothing if it fails.
//
// Delivered is what the old cursor says, of rows no younger than the cursor: rows written after the
// restore have transaction ids that mean something else to it. What was in flight is delivered again.
//
// The ids in the rows are rewritten where this cluster has not come to them yet, since they would turn up
// as new when it has. That takes from every cursor what it knows about them, so destinations are rebased
// together: all that need it, whichever was named, and one that doesn't gets holds for what it could
// not have seen. The result has those that it did something for, by name.
//
// Writers and relays must be stopped; Rebase holds off those that are not, and fails after ten seconds
// if one has not ended. It needs the rights of the tables' owner.
func Rebase(ctx context.Context, db admin.DB, destination string, action admin.Action) ([]Rebased, error) {
	var report []Rebased
	err := admin.Write(ctx, db, action, func(tx pgx.Tx) (err error) {
		if err := cursors.RefuseStandby(ctx, tx); err != nil {
			return err
		}
		if err := schema.Check(ctx, tx); err != nil {
			return err
		}
		report, err = rebase(ctx, tx, destination, action)
		return err
	})
	if sqlstate.Of(err) == "55P03" {
		err = fmt.Errorf("a writer or relay still holds a table: stop them, and find what is left with "+
			"SELECT pid, state, query FROM pg_stat_activity: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("rebase destination %q: %w", destination, err)
	}
	return report, nil
}

func rebase(ctx context.Context, tx pgx.Tx, destination string, action admin.Action) ([]Rebased, error) {
	// From here on no transaction writes a message or takes a lease, and those that did have ended.
	_, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '10s'; SET LOCAL search_path = pg_catalog; SET LOCAL row_security = off;
		LOCK TABLE outbox.messages, outbox.inbox_messages, outbox.cursors, outbox.holds, outbox.dead_letters IN SHARE ROW EXCLUSIVE MODE`)
	if err != nil {
		return nil, fmt.Errorf("keep writers and relays away: %w", err)
	}
	// In a statement of its own, so that it sees everything that committed before the lock.
	var here string
	if err := tx.QueryRow(ctx, "SELECT pg_current_snapshot()::text").Scan(&here); err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	all, err := allCursors(ctx, tx)
	if err != nil {
		return nil, err
	}
	foreign, err := cursors.ForeignRows(ctx, tx)
	if err != nil {
		return nil, err
	}
	foreign = foreign || slices.ContainsFunc(all, func(c rebasedCursor) bool { return c.foreign })
	tables := make(map[string]*ids)
	behind := false
	for _, table := range []string{schema.OutboxMessages, schema.InboxMessages} {
		i, err := newIDs(ctx, tx, table, foreign)
		if err != nil {
			return nil, err
		}
		tables[table] = &i
		behind = behind || i.behind
	}
	if err := rebaseable(all, destination, foreign || behind); err != nil {
		return nil, err
	}

	for _, i := range tables {
		if err := i.moveKept(ctx, tx); err != nil {
			return nil, err
		}
	}
	if err := jobs.StopReplays(ctx, tx); err != nil {
		return nil, err
	}
	var report []Rebased
	for _, c := range all {
		// Where ids move, the place that a cursor has among them means nothing any more.
		i := tables[schema.TableOf(c.Destination)]
		c.moved = c.foreign || i.shift > 0
		held, err := holdUndelivered(ctx, tx, &c, i, here)
		if err != nil {
			return nil, err
		}
		if c.moved {
			if _, err := tx.Exec(ctx, moveCursorSQL, c.Destination, c.Group, here); err != nil {
				return nil, fmt.Errorf("move the cursor of destination %q: %w", c.Destination, err)
			}
		}
		if n := len(report); n > 0 && report[n-1].Destination == c.Destination {
			report[n-1].Held += held
		} else if c.moved || held > 0 || c.Destination == destination {
			report = append(report, Rebased{c.Destination, held})
		}
	}
	for _, i := range tables {
		undo, err := identify(ctx, tx, i.table)
		if err != nil {
			return nil, err
		}
		if err := i.move(ctx, tx); err != nil {
			return nil, err
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf(rewriteSQL, i.table), here); err != nil {
			return nil, fmt.Errorf("rewrite transaction ids: %w", err)
		}
		if _, err := tx.Exec(ctx, undo); err != nil {
			return nil, fmt.Errorf("drop the indexes that identified rows of %s: %w", i.table, err)
		}
	}
	if err := catchUp(ctx, tx, "outbox.inbox_applied_seq", `(SELECT max(applied) FROM outbox.inbox)`); err != nil {
		return nil, err
	}
	if err := catchUp(ctx, tx, "outbox.audit_id_seq", `(SELECT max(id) FROM outbox.audit)`); err != nil {
		return nil, err
	}
	for _, r := range report {
		if err := admin.Record(ctx, tx, action, "rebase", r.Destination, map[string]any{"held": r.Held}); err != nil {
			return nil, err
		}
	}
	return report, nil
}

type rebasedCursor struct {
	cursors.Row
	foreign bool
	moved   bool // it is put behind everything, and what it has not delivered is held
}

func allCursors(ctx context.Context, tx pgx.Tx) (all []rebasedCursor, err error) {
	rows, err := tx.Query(ctx, "SELECT DISTINCT destination FROM outbox.cursors ORDER BY 1")
	if err != nil {
		return nil, fmt.Errorf("list destinations: %w", err)
	}
	destinations, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list destinations: %w", err)
	}
	for _, destination := range destinations {
		rows, err := cursors.Rows(ctx, tx, destination)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			err := cursors.RefuseForeign(&row)
			if err != nil && !errors.Is(err, cursors.ErrForeign) {
				return nil, err
			}
			all = append(all, rebasedCursor{Row: row, foreign: err != nil})
		}
	}
	return all, nil
}

// rebaseable makes sure that destination is there and needs it, and that no relay delivers.
func rebaseable(all []rebasedCursor, destination string, needed bool) error {
	known := false
	for _, c := range all {
		if c.Destination == destination {
			known = true
		}
		// The lease of a foreign cursor came with the dump.
		if c.Held && !c.foreign {
			return fmt.Errorf("relay %q delivers to destination %q: stop it first", c.Owner, c.Destination)
		}
	}
	switch {
	case !known:
		return errors.New("there is no such destination")
	case !needed:
		return ErrNothingToRebase
	}
	return nil
}

// holdUndeliveredSQL holds what a cursor has not delivered, at the ids that the rows will have: of one that moves ($6),
// what it doesn't see; of a foreign one ($7) what it can't have seen besides: written here after rows that came along,
// or later than the cursor; of another, what the cluster itself doesn't see yet. A conflict can only be with the
// message itself, which is held already.
var holdUndeliveredSQL = `
INSERT INTO outbox.holds (destination, lane, id, ` + schema.MessageColumns + `)
SELECT $3, ` + schema.LaneSQL + `, m.id + CASE WHEN ` + newSQL + ` THEN $12::bigint ELSE 0 END, ` + schema.MessageColumns + `
FROM outbox.messages m
WHERE m.shard BETWEEN $4::smallint AND $5::smallint AND CASE WHEN $6::boolean
	THEN NOT pg_visible_in_snapshot(m.xid, $8::text::pg_snapshot)
			AND NOT (m.id <= $9::bigint AND pg_visible_in_snapshot(m.xid, $10::text::pg_snapshot))
		OR $7::boolean AND ($2::bigint > 0 AND ` + newSQL + ` OR m.created_at > (SELECT c.updated_at FROM outbox.cursors c WHERE c.destination = $3 AND c.shard_group = $13::integer))
	ELSE NOT pg_visible_in_snapshot(m.xid, $11::text::pg_snapshot)
END
ON CONFLICT (destination, lane, id, message_id) DO NOTHING`

func holdUndelivered(ctx context.Context, tx pgx.Tx, c *rebasedCursor, i *ids, here string) (int64, error) {
	window := cursors.Nothing
	if len(c.Position.Windows) > 0 {
		window = c.Position.Windows[0]
	}
	first, last := schema.Shards(c.Group, c.Groups)
	tag, err := tx.Exec(ctx, i.withTable(holdUndeliveredSQL), i.now, i.end, c.Destination, first, last, c.moved, c.foreign,
		c.Position.Prev, c.Position.LastID, window, here, i.shift, c.Group)
	if err != nil {
		return 0, fmt.Errorf("hold what destination %q has not delivered: %w", c.Destination, err)
	}
	return tag.RowsAffected(), nil
}

// moveCursorSQL puts a cursor behind all rows. The epoch grows, so that no relay of the past can write it.
const moveCursorSQL = `
UPDATE outbox.cursors SET prev = $3::text::pg_snapshot, windows = '{}', last_id = 0, epoch = epoch + 1, lease_until = '-infinity',
	system_identifier = (SELECT s.system_identifier FROM pg_control_system() s), updated_at = clock_timestamp()
WHERE destination = $1 AND shard_group = $2`

// identifySQL lists statements that give the segments of a table an index by which updates name rows, and that take
// it away. Updates of a table in a publication fail without one. A permanent one would cost every writer, for updates
// that a rebase alone makes. REPLICA IDENTITY FULL would not do: PostgreSQL 18 refuses it, for the generated column.
// What was set is set again.
const identifySQL = `
SELECT coalesce(string_agg(format('CREATE UNIQUE INDEX %I ON %s (id, xid, message_id); ALTER TABLE %s REPLICA IDENTITY USING INDEX %I',
		s.relname || '_identity', s.name, s.name, s.relname || '_identity'), '; '), ''),
	coalesce(string_agg(format('ALTER TABLE %s REPLICA IDENTITY %s; DROP INDEX outbox.%I', s.name,
		CASE s.relreplident WHEN 'n' THEN 'NOTHING' WHEN 'f' THEN 'FULL' ELSE 'DEFAULT' END, s.relname || '_identity'), '; '), '')
FROM (
	SELECT c.relname, c.relreplident, c.oid::regclass AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class parent ON parent.oid = i.inhparent
	WHERE i.inhparent = $1::regclass AND c.relreplident <> 'i' AND EXISTS (
		SELECT FROM pg_publication_tables t JOIN pg_publication p USING (pubname)
		WHERE p.pubupdate AND t.schemaname = 'outbox' AND t.tablename IN (c.relname, parent.relname))
) s`

// identify lets rows of a table be updated whatever publications it is in. It returns what undoes that.
func identify(ctx context.Context, tx pgx.Tx, table string) (undo string, err error) {
	var do string
	if err := tx.QueryRow(ctx, identifySQL, table).Scan(&do, &undo); err != nil {
		return "", fmt.Errorf("look for publications of %s: %w", table, err)
	}
	switch _, err := tx.Exec(ctx, do); {
	case sqlstate.Of(err) == "23505":
		return "", fmt.Errorf("rows of %s are there twice, and a publication publishes updates of it, which need a key: until the "+
			"rebase is done, run: ALTER PUBLICATION … SET (publish = 'insert, delete, truncate'): %w", table, err)
	case err != nil:
		return "", fmt.Errorf("identify the rows of %s, whose updates are published: %w", table, err)
	}
	return undo, nil
}

// rewriteSQL gives rows that this cluster has not come to a transaction id that everybody has seen, but for
// the cursor of a new destination.
const rewriteSQL = `UPDATE %s SET xid = '1' WHERE NOT pg_visible_in_snapshot(xid, $1::text::pg_snapshot)`
