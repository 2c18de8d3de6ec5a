package polling

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/schema"
)

// ErrSequence says that the sequence of the ids gives no order: it is behind ids that were drawn, or is set to draw
// them in another one. Errors that wrap it are marked by outbox.Permanent.
var ErrSequence = errors.New("the sequence of the ids gives no order")

// lastSQL is the last id that was drawn.
const lastSQL = `(SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END FROM outbox.messages_id_seq s)`

// drawn is for ids below it. What is beyond was made by hand: no sequence is set to it, or there would be none left for writers.
const drawn = "4611686018427387904"

// sequenceSQL looks at the greatest ids where an index or a bounded walk finds them: the ends of the table, what is
// dead, the first holds. The sequence is read after the statement's snapshot was taken, so it isn't behind what that sees.
const sequenceSQL = `
SELECT q.seqincrement > 0 AND q.seqcache = 1 AND NOT q.seqcycle, ` + lastSQL + `, greatest(0,
	(SELECT m.id FROM outbox.messages m WHERE m.id < ` + drawn + ` ORDER BY m.xid DESC, m.id DESC LIMIT 1),
	(SELECT m.id FROM outbox.messages m WHERE m.id < ` + drawn + ` ORDER BY m.xid, m.id LIMIT 1),
	(SELECT max(d.id) FROM outbox.dead_letters d WHERE d.destination = $1 AND d.id < ` + drawn + `),
	(SELECT max(h.id) FROM (SELECT h.id FROM outbox.holds h WHERE h.destination = $1 AND h.id < ` + drawn + ` ORDER BY h.lane, h.id LIMIT 10000) h))
FROM pg_sequence q WHERE q.seqrelid = 'outbox.messages_id_seq'::regclass`

// refuseSequence returns ErrSequence if new messages would come before those that wait.
func refuseSequence(ctx context.Context, conn *pgx.Conn, destination string) error {
	var ordered bool
	var last, greatest int64
	name := schema.MessagesOf(destination) + "_id_seq"
	err := conn.QueryRow(ctx, reading(destination, sequenceSQL), destination).Scan(&ordered, &last, &greatest)
	switch {
	case err != nil:
		return fmt.Errorf("look at the sequence %s: %w", name, err)
	case !ordered:
		return permanent("%w: %s must count upwards, without a cache and without starting again: run: ALTER SEQUENCE %[2]s INCREMENT BY 1 CACHE 1 NO CYCLE",
			ErrSequence, name)
	case last < greatest:
		return permanent("%w: %s stands at %d, and there is a message with the id %d, so new ones would come before old ones: it was set back "+
			"(TRUNCATE … RESTART IDENTITY, setval), or the rows came by logical replication, which carries no sequences. "+
			"With all writers and relays stopped, run: outbox rebase --destination %s", ErrSequence, name, last, greatest, destination)
	}
	return nil
}

// ids tells, for a table of messages, those that were there before its sequence began again from those after. cameSQL
// numbers the transaction that brought a row into this cluster.
//
// Rows of another cluster come before those that are written here. Some show it: their id is one that the sequence has not
// come to, or their xid one that this cluster hadn't come to. Everything that came before the last of these is old.
// A row that was written here has its own transaction's xid, or came by a subtransaction of that, which is younger. One
// that doesn't, and whose xid is older than the end of the old, is old as well, since nobody has written here before.
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
	SELECT least(m.xid, m.came) AS began, m.came, m.id > ` + lastSQL + ` AND m.id < ` + drawn + ` OR m.xid > m.came AS shows
	FROM (SELECT m.id, m.xid::text::bigint AS xid, ` + cameSQL + ` AS came FROM outbox.messages m) m
	WHERE m.xid <> m.came OR m.id > ` + lastSQL + `
), last AS (
	SELECT coalesce(max(came) FILTER (WHERE shows), CASE WHEN $2::boolean THEN min(came) END, 0) AS came FROM s
), apart AS (
	SELECT began, came, began > max(came) OVER (ORDER BY began, came ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS first FROM s
), joined AS (
	SELECT began, came, count(*) FILTER (WHERE first) OVER (ORDER BY began, came ROWS UNBOUNDED PRECEDING) AS island FROM apart
)
SELECT coalesce(max(j.came), 0) FROM joined j, last WHERE j.island <= (SELECT max(i.island) FROM joined i, last WHERE i.began <= last.came)`

// newSQL is whether a row m was written here since.
const newSQL = `(m.id < ` + drawn + ` AND ` + cameSQL + ` > $2::bigint)`

// spanSQL finds the greatest id of the old rows, the least of the new ones, and whether ids repeat or are beyond the sequence.
// What waits or is dead counts as old, unless its row is new.
const spanSQL = `
WITH kept AS (
	SELECT k.id FROM (SELECT destination, id, message_id FROM outbox.holds UNION ALL SELECT destination, id, message_id FROM outbox.dead_letters) k
	WHERE starts_with(k.destination, 'inbox:') = $3 AND k.id < ` + drawn + `
	AND NOT EXISTS (SELECT FROM outbox.messages m WHERE m.message_id = k.message_id AND m.id = k.id AND ` + newSQL + `)
), span AS (
	SELECT greatest(max(m.id) FILTER (WHERE NOT ` + newSQL + `), (SELECT max(id) FROM kept), 0) AS old,
		min(m.id) FILTER (WHERE ` + newSQL + `) AS new, count(*) > count(DISTINCT m.id) AS repeat
	FROM outbox.messages m WHERE m.id < ` + drawn + `
)
SELECT old > ` + lastSQL + `, CASE WHEN new <= old AND (repeat OR old > ` + lastSQL + `) THEN old ELSE 0 END FROM span`

// tellApart looks at a table. foreign says that there are cursors or messages of another cluster. Nobody writes meanwhile.
func tellApart(ctx context.Context, tx pgx.Tx, table string, foreign bool) (ids, error) {
	i := ids{table: table}
	err := tx.QueryRow(ctx, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&i.now)
	if err == nil {
		err = tx.QueryRow(ctx, i.of(endSQL), i.now, foreign).Scan(&i.end)
	}
	if err == nil {
		err = tx.QueryRow(ctx, i.of(spanSQL), i.now, i.end, table == schema.InboxMessages).Scan(&i.behind, &i.shift)
	}
	if err != nil {
		return i, fmt.Errorf("tell the ids in %s apart: %w", table, err)
	}
	return i, nil
}

func (i *ids) of(sql string) string { return readingTable(i.table, sql) }

// moveKept moves the ids of new messages that are held or dead behind the old ones.
func (i *ids) moveKept(ctx context.Context, tx pgx.Tx) error {
	if i.shift == 0 {
		return nil
	}
	for _, kept := range []string{"outbox.holds", "outbox.dead_letters"} {
		_, err := tx.Exec(ctx, i.of(`UPDATE `+kept+` k SET id = k.id + $3::bigint FROM outbox.messages m
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
		_, err := tx.Exec(ctx, i.of(`UPDATE outbox.messages m SET id = m.id + $3::bigint WHERE `+newSQL), i.now, i.end, i.shift)
		if err != nil {
			return fmt.Errorf("move ids behind those of before: %w", err)
		}
	}
	greatest := `(SELECT greatest((SELECT max(id) FROM outbox.messages WHERE id < ` + drawn + `),
		(SELECT max(id) FROM outbox.holds WHERE starts_with(destination, 'inbox:') = $1 AND id < ` + drawn + `),
		(SELECT max(id) FROM outbox.dead_letters WHERE starts_with(destination, 'inbox:') = $1 AND id < ` + drawn + `)))`
	return catchUp(ctx, tx, i.table+"_id_seq", i.of(greatest), i.table == schema.InboxMessages)
}

// catchUp sets a sequence to the number that sql finds, if it is behind. That stays if the transaction fails, and harms nobody.
func catchUp(ctx context.Context, tx pgx.Tx, sequence, sql string, args ...any) error {
	_, err := tx.Exec(ctx, fmt.Sprintf(`SELECT setval('%s', g.n) FROM %s g (n), %[1]s s WHERE g.n >= s.last_value`, sequence, sql), args...)
	if err != nil {
		return fmt.Errorf("set the sequence %s: %w", sequence, err)
	}
	return nil
}
