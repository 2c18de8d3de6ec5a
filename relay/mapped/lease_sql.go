package mapped

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/schema"
)

// claims is the SQL of reservations.
type claims struct {
	take    func(t *table, from string) string
	again   string // $1 ids, $2 tokens, $3 whether an operator has released the row, $4 identities: claim rows that were set aside
	renew   string // $1 ids, $2 tokens
	release string // $1 ids, $2 tokens
	mine    string // release all rows of the owner; empty: there is no column for the owner
	all     string // release the rows of all owners; empty: they can't be told from rows that wait
	fence   string // a row is still claimed by o.token
	waits   string // a row is not done
}

// claimedAt is the moment at which a claim begins: once its rows are found, which can take longer than the lease. It is
// the same for all rows of a claim.
const claimedAt = "(SELECT clock_timestamp())"

func newClaims(t *table, owner string, lease time.Duration) *claims {
	m := &t.mapping
	c := &claims{}
	duration := fmt.Sprintf("interval '%d microseconds'", lease.Microseconds())

	var set, free assignments
	waits := t.waiting
	var available, mark, kept string
	if until := m.Claim.Until; until != "" {
		mark = column(until)
		available = fmt.Sprintf("%s AND (%s IS NULL OR %s < (SELECT clock_timestamp()))", t.waiting, mark, mark)
		if t.info.Column(until).NotNull {
			available = fmt.Sprintf("%s AND %s < (SELECT clock_timestamp())", t.waiting, mark)
		}
		if released := m.Released(); released != "" {
			available = fmt.Sprintf("(%s OR %s AND %s)", available, t.waiting, released)
		}
		set.set(until, claimedAt+" + "+duration)
		free.set(until, "now()")
		kept = fmt.Sprintf("%s - now() < %s * 2 / 3", mark, duration)
	} else {
		mark = column(m.Claim.Since)
		processing := column(m.Done.Column) + " = " + schema.QuoteLiteral(m.Claim.Status)
		waits = fmt.Sprintf("(%s OR %s)", t.waiting, processing)
		// A time that far in the future was written before the clock was set back.
		available = fmt.Sprintf("(%s OR %s AND (%s IS NULL OR %s NOT BETWEEN (SELECT clock_timestamp()) - %s AND "+
			"(SELECT clock_timestamp()) + %s))",
			t.waiting, processing, mark, mark, duration, duration)
		set.set(m.Done.Column, schema.QuoteLiteral(m.Claim.Status))
		set.set(m.Claim.Since, claimedAt)
		free.set(m.Done.Column, schema.QuoteLiteral(m.Done.Waiting))
		kept = fmt.Sprintf("(%s - now() < - %s / 3 OR %s > now())", mark, duration, mark)
		c.all = takeBackSQL(t, free, processing)
		c.fence = processing + " AND "
	}
	kind := t.info.Column(unqualified(mark)).Base
	// Neither this condition nor kept can use an index on the mark. All rows of a claim have the same mark, so an index
	// would find all of them for each row, and the planner can't know that.
	c.fence += fmt.Sprintf("%s IS NOT DISTINCT FROM (to_timestamp(0) + o.token * interval '1 microsecond')::%s", mark, kind)
	renewed := strings.Join(set, ", ")
	if m.Claim.Owner != "" {
		set.set(m.Claim.Owner, schema.QuoteLiteral(owner))
		free.set(m.Claim.Owner, "NULL")
		c.mine = takeBackSQL(t, free, column(m.Claim.Owner)+" = "+schema.QuoteLiteral(owner))
	}
	if m.Claim.Counts {
		set.set(m.Failure.Attempts, "least(coalesce("+column(m.Failure.Attempts)+", 0), 32766) + 1") // the column may be a smallint
	}
	token := fmt.Sprintf("(extract(epoch FROM %s::timestamptz) * 1000000)::bigint", mark)
	c.take = func(t *table, from string) string {
		return reserveSQL(t, strings.Join(set, ", "), token, waits, available, from)
	}
	const rows = "unnest($1::text[], $2::bigint[]) o (id, token)"
	same := fmt.Sprintf("%s = o.id::%s", t.id, t.idType)
	// A row that waits for another attempt may have a time of its own before which no relay takes it.
	var still string
	if m.Claim.Until != "" {
		still = fmt.Sprintf("%s AND (%s)", t.waiting,
			strings.Join([]string{mark + " IS NULL", mark + " < now() + interval '100 milliseconds'",
				"o.freed AND " + mark + " = 'infinity'", c.fence}, " OR "))
	} else {
		still = fmt.Sprintf("(%s OR %s)", t.waiting, c.fence)
	}
	itself := same + " AND " + t.identitySQL() + " = o.identity"
	// A row that can't be taken keeps back the rows behind it in the list.
	c.again = fmt.Sprintf(`WITH o AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::bigint[], $3::boolean[], $4::bigint[]) WITH ORDINALITY o (id, token, freed, identity, place)), l AS MATERIALIZED (
	SELECT %s AS o_id, o.place FROM o JOIN %s m ON %s AND %s FOR UPDATE OF m SKIP LOCKED
), h AS (SELECT min(o.place) AS place FROM o JOIN %s m ON %s AND %s WHERE %s NOT IN (SELECT l.o_id FROM l))
UPDATE %s m SET %s FROM l WHERE %s = l.o_id AND (l.place > (SELECT h.place FROM h)) IS NOT TRUE RETURNING %s, 0::bigint, %s, 0::bigint, NULL::bigint, NULL::bigint[]`,
		t.id, t.name, itself, still, t.name, itself, waits, t.id, t.name, strings.Join(set, ", "), t.id, t.columns, token)
	locked := t.id + " = l.o_id"
	c.renew = lockFirst(t, rows, same+" AND "+c.fence+" AND "+kept) +
		fmt.Sprintf("UPDATE %s m SET %s FROM l WHERE %s RETURNING %s::text, %s", t.name, renewed, locked, t.id, token)
	c.release = lockFirst(t, rows, same+" AND "+c.fence) +
		fmt.Sprintf("UPDATE %s m SET %s FROM l WHERE %s", t.name, strings.Join(free, ", "), locked)
	c.waits = waits
	return c
}

// takeBackSQL frees rows, except those that another transaction has locked: they wait until their reservation ends.
func takeBackSQL(t *table, free assignments, condition string) string {
	return fmt.Sprintf("WITH l AS MATERIALIZED (SELECT %s AS o_id FROM %s m WHERE %s FOR UPDATE SKIP LOCKED) UPDATE %s "+
		"m SET %s FROM l WHERE %s = l.o_id",
		t.id, t.name, condition, t.name, strings.Join(free, ", "), t.id)
}
