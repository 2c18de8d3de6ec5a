package destinations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/schema"
)

// ids tells, for a table of messages, those that were there before its sequence began again from those after. cameSQL
// numbers the transaction that brought a row into this cluster.
//
// Rows of another cluster come before those that are written here. Some show it: their id is one that the sequence has
// not come to, or their xid one that this cluster hadn't come to. Everything that came before the last of these is old.
// A row that was written here has its own transaction's xid, or came by a subtransaction of that, which is younger. One
// that doesn't, and whose xid is older than the end of the old, is old as well, since nothing was written here before.
type ids struct {
	table  string
	now    int64 // the next transaction of this cluster
	end    int64 // rows that came up to this transaction are old
	behind bool  // the sequence is behind an id
	shift  int64 // what the ids of new rows have to grow by, to stand behind the old ones
}

const cameSQL = `($1::bigint - (($1::bigint - m.xmin::text::bigint) & 4294967295))`

const endSQL = `
WITH s AS (
	SELECT least(m.xid, m.came) AS began, m.came, m.id > ` + cursors.LastSQL + ` AND m.id < ` + cursors.MaxDrawn + ` OR m.xid > m.came AS shows
	FROM (SELECT m.id, m.xid::text::bigint AS xid, ` + cameSQL + ` AS came FROM outbox.messages m) m
	WHERE m.xid <> m.came OR m.id > ` + cursors.LastSQL + `
), last AS (
	SELECT coalesce(max(came) FILTER (WHERE shows), CASE WHEN $2::boolean THEN min(came) END, 0) AS came FROM s
), apart AS (
	SELECT began, came, began > max(came) OVER (ORDER BY began, came ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS first FROM s
), joined AS (
	SELECT began, came, count(*) FILTER (WHERE first) OVER (ORDER BY began, came ROWS UNBOUNDED PRECEDING) AS island FROM apart
)
SELECT coalesce(max(j.came), 0) FROM joined j, last WHERE j.island <= (SELECT max(i.island) FROM joined i, last WHERE i.began <= last.came)`

// newSQL is the condition that a row m was written here since.
const newSQL = `(m.id < ` + cursors.MaxDrawn + ` AND ` + cameSQL + ` > $2::bigint)`

// spanSQL finds the greatest id of the old rows, the least of the new ones, and whether ids repeat or are beyond the
// sequence. What waits or is dead counts as old, unless its row is new.
const spanSQL = `
WITH kept AS (
	SELECT k.id FROM (SELECT destination, id, message_id FROM outbox.holds UNION ALL SELECT destination, id, message_id FROM outbox.dead_letters) k
	WHERE starts_with(k.destination, 'inbox:') = $3 AND k.id < ` + cursors.MaxDrawn + `
	AND NOT EXISTS (SELECT FROM outbox.messages m WHERE m.message_id = k.message_id AND m.id = k.id AND ` + newSQL + `)
), span AS (
	SELECT greatest(max(m.id) FILTER (WHERE NOT ` + newSQL + `), (SELECT max(id) FROM kept), 0) AS old,
		min(m.id) FILTER (WHERE ` + newSQL + `) AS new, count(*) > count(DISTINCT m.id) AS repeat
	FROM outbox.messages m WHERE m.id < ` + cursors.MaxDrawn + `
)
SELECT old > ` + cursors.LastSQL + `, CASE WHEN new <= old AND (repeat OR old > ` + cursors.LastSQL + `) THEN old ELSE 0 END FROM span`

// newIDs finds out which rows of a table are old and which are new. foreign means that there are cursors or messages of
// another cluster. The tables must be locked against writers.
func newIDs(ctx context.Context, tx pgx.Tx, table string, foreign bool) (ids, error) {
	i := ids{table: table}
	err := tx.QueryRow(ctx, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&i.now)
	if err == nil {
		err = tx.QueryRow(ctx, i.withTable(endSQL), i.now, foreign).Scan(&i.end)
	}
	if err == nil {
		err = tx.QueryRow(ctx, i.withTable(spanSQL), i.now, i.end, table == schema.InboxMessages).Scan(&i.behind, &i.shift)
	}
	if err != nil {
		return i, fmt.Errorf("tell the ids in %s apart: %w", table, err)
	}
	return i, nil
}

// withTable is [schema.WithTable] for the table.
func (i *ids) withTable(sql string) string { return schema.WithTable(i.table, sql) }

// moveKept moves the ids of new messages that are held or dead behind the old ones.
func (i *ids) moveKept(ctx context.Context, tx pgx.Tx) error {
	if i.shift == 0 {
		return nil
	}
	for _, kept := range []string{"outbox.holds", "outbox.dead_letters"} {
		_, err := tx.Exec(ctx, i.withTable(`UPDATE `+kept+` k SET id = k.id + $3::bigint FROM outbox.messages m
			WHERE m.message_id = k.message_id AND m.id = k.id AND starts_with(k.destination, 'inbox:') = $4 AND `+newSQL),
			i.now, i.end, i.shift, i.table == schema.InboxMessages)
		if err != nil {
			return fmt.Errorf("move ids in %s behind those of before: %w", kept, err)
		}
	}
	return nil
}

// move does so in the table, whose rows are all old after it, and sets the sequence behind all.
func (i *ids) move(ctx context.Context, tx pgx.Tx) error {
	if i.shift > 0 {
		_, err := tx.Exec(ctx, i.withTable(`UPDATE outbox.messages m SET id = m.id + $3::bigint WHERE `+newSQL), i.now, i.end, i.shift)
		if err != nil {
			return fmt.Errorf("move ids behind those of before: %w", err)
		}
	}
	greatest := `(SELECT greatest((SELECT max(id) FROM outbox.messages WHERE id < ` + cursors.MaxDrawn + `),
		(SELECT max(id) FROM outbox.holds WHERE starts_with(destination, 'inbox:') = $1 AND id < ` + cursors.MaxDrawn + `),
		(SELECT max(id) FROM outbox.dead_letters WHERE starts_with(destination, 'inbox:') = $1 AND id < ` + cursors.MaxDrawn + `)))`
	return catchUp(ctx, tx, i.table+"_id_seq", i.withTable(greatest), i.table == schema.InboxMessages)
}

// catchUp sets a sequence to the number that sql finds, if it is behind. That stays if the transaction fails, and does
// no harm.
func catchUp(ctx context.Context, tx pgx.Tx, sequence, sql string, args ...any) error {
	_, err := tx.Exec(ctx, fmt.Sprintf(`SELECT setval('%s', g.n) FROM %s g (n), %[1]s s WHERE g.n >= s.last_value`, sequence, sql), args...)
	if err != nil {
		return fmt.Errorf("set the sequence %s: %w", sequence, err)
	}
	return nil
}
