package reading

import (
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
)

// claimSQL begins a statement that claims rows: it selects at most $3 available rows in order, leaves out the ids $2
// and the lanes $4, and locks the rest. selected lists the columns that the statement needs. waits is the condition
// that a row is not done, available the condition that it can also be taken.
//
// A waiting row can be hidden from the claim: its writer or another relay has locked it, another relay has reserved it,
// or it is not yet due. Then no later row of its key may be taken before it, whichever relay takes it. So the statement
// looks for hidden rows (h) in the snapshot in which it has found the rows to claim (c). If a row of c has an earlier
// row of its key that is neither in c nor done, that earlier row is in h. Such rows of c are kept back (k), and a later
// claim takes both in order. A row that became done after the snapshot counts as hidden too, until the next poll.
// Writers of a key wait for each other, so an earlier row of a key that is not in the snapshot doesn't exist.
//
// s has one row: the number of locked rows, the position of the first hidden row, and the lanes that fill the page if
// the whole page is kept back. The statement's rows end with the columns that Scan.Read reads.
func claimSQL(t *existing.Table, selected, waits, available, from string) string {
	hidden := "SELECT NULL::bigint AS o_lane, NULL::bigint AS o_by WHERE false"
	at := "NULL"
	if t.Along != existing.AlongNothing { // otherwise no order has to be kept
		at = t.By
		end := "9223372036854775807"
		if c := t.Ordered(); c.Kind == mapping.KindTime {
			end = "'infinity'::" + c.Base
		}
		hidden = fmt.Sprintf(`SELECT %s AS o_lane, min(%s) AS o_by FROM %s m
	WHERE %s AND %s AND %s AND %s <= (SELECT CASE WHEN count(*) < $3::bigint THEN %s ELSE max(c.o_at) END FROM c) AND %s NOT IN (SELECT c.o_id FROM c) GROUP BY 1`,
			LaneSQL(t), t.BySQL(), t.Name, waits, from, notListedSQL(t), t.By, end, t.ID)
	}
	return fmt.Sprintf(`WITH c AS MATERIALIZED (
	SELECT %s%s AS o_id, %s AS o_lane, %s AS o_by, %s AS o_at FROM %s m
	WHERE %s AND %s AND %s AND ($4::bigint[] IS NULL OR %s <> ALL($4::bigint[])) ORDER BY %s LIMIT $3::bigint FOR UPDATE OF m SKIP LOCKED
), h AS MATERIALIZED (%s
), k AS MATERIALIZED (
	SELECT x.o_id, x.o_lane FROM (
		SELECT y.*, min(y.hidden) OVER (PARTITION BY y.o_lane) AS first FROM (
			SELECT c.o_id, c.o_lane, c.o_by, NULL::bigint AS hidden FROM c WHERE EXISTS (SELECT FROM h)
			UNION ALL SELECT NULL, h.o_lane, h.o_by, h.o_by FROM h
		) y
	) x WHERE x.o_id IS NOT NULL AND x.first <= x.o_by
), s AS (
	SELECT c.n, (SELECT min(h.o_by) FROM h), CASE WHEN c.n = k.n THEN ARRAY(SELECT DISTINCT k.o_lane FROM k) END
	FROM (SELECT count(*) AS n FROM c) c, (SELECT count(*) AS n FROM k) k
)`, selected, t.ID, LaneSQL(t), t.BySQL(), at, t.Name, available, from, notListedSQL(t), LaneSQL(t), t.Order, hidden)
}

// LockSQL claims rows by locking them until the transaction ends. Rows that are kept back stay locked too.
func LockSQL(t *existing.Table, from string) string {
	return claimSQL(t, t.Columns+", ", t.Waiting, t.Waiting, from) + `
SELECT c.*, NULL::bigint, s.* FROM s LEFT JOIN (SELECT c.*, row_number() OVER () FROM c) c ON c.o_id NOT IN (SELECT k.o_id FROM k)`
}

// ReserveSQL claims rows by the assignments of set. token tells the claim from others.
func ReserveSQL(t *existing.Table, set, token, waits, available, from string) string {
	return claimSQL(t, "", waits, available, from) + fmt.Sprintf(`, n AS MATERIALIZED (
	SELECT c.o_id, row_number() OVER () AS place FROM c WHERE c.o_id NOT IN (SELECT k.o_id FROM k)
), u AS (
	UPDATE %s m SET %s FROM n WHERE %s = n.o_id RETURNING %s, n.place, %s
) SELECT u.*, s.* FROM s LEFT JOIN u ON true`, t.Name, set, t.ID, t.Columns, token)
}

// LaneSQL is a number that all rows of a lane share. Other lanes can have the same number.
func LaneSQL(t *existing.Table) string {
	text := func(expression string) string { return "nullif((" + expression + `)::text COLLATE "C", '')` }
	terms := []string{text(t.Template(t.Mapping.Key))}
	if t.Mapping.AggregateID != "" {
		terms = append(terms, text(existing.Column(t.Mapping.AggregateID)))
	}
	return fmt.Sprintf("hashtextextended(coalesce(%s, %s::text), 0)", strings.Join(terms, ", "), t.ID)
}

// ReadSQL reads waiting rows without claiming them.
func ReadSQL(t *existing.Table, from string) string {
	return fmt.Sprintf("SELECT %s FROM %s m WHERE %s AND %s AND %s ORDER BY %s LIMIT $3::bigint",
		t.Columns, t.Name, t.Waiting, from, notListedSQL(t), t.Order)
}

// notListedSQL is the condition that a row is none of the ids $2.
func notListedSQL(t *existing.Table) string {
	return fmt.Sprintf("(%s = ANY($2::text[]::%s[])) IS NOT TRUE", t.ID, t.IDType)
}
