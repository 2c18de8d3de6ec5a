package reading

import (
	"fmt"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/schema"
)

// lookFormat runs before each poll of a table that is ordered by a sequence: see Horizon. It leaves out our own
// connections. It must be an earlier statement than the one that reads. It finds the table by its name, as the poll
// does: another table can have that name now. An INSERT into a partition, or a child, need not lock its parent.
const lookFormat = `
SELECT coalesce((SELECT max(%[1]s) FROM %[2]s m WHERE %[1]s > $1::bigint), $1::bigint)::bigint, ARRAY(
	SELECT l.virtualtransaction FROM pg_catalog.pg_locks l
	WHERE l.locktype = 'relation' AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
	AND l.relation = ANY(ARRAY(WITH RECURSIVE tree AS (
		SELECT to_regclass(%[3]s)::oid AS oid
		UNION ALL
		SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree t ON i.inhparent = t.oid
	) SELECT t.oid FROM tree t)) AND l.granted
	AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
	AND (l.pid = ANY($2::bigint[])) IS NOT TRUE
)::text[]`

// LookSQL looks for the highest number behind $1, and for writers; with drawn, also for what the sequence of the order
// has drawn. $2 are our own processes.
func LookSQL(t *existing.Table, drawn bool) string {
	last := "NULL::bigint"
	if drawn {
		last = drawnSQL(t.Ordered())
	}
	return fmt.Sprintf("SELECT l.*, %s FROM (%s) l", last, fmt.Sprintf(lookFormat, t.By, t.Name, schema.QuoteLiteral(t.Name)))
}

// drawnSQL is the last number that the sequence of c has drawn, at least that of every row that the statement sees. It
// is NULL if the sequence has drawn none, or if this role may not read it.
func drawnSQL(c *mapping.TableColumn) string {
	return fmt.Sprintf("CASE WHEN has_sequence_privilege(%[1]d::oid, 'USAGE, SELECT') THEN "+
		"pg_sequence_last_value(%[1]d::oid::regclass) END", c.Sequence)
}
