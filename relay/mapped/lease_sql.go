package mapped

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
	"github.com/pgoutbox/outbox/relay/mapped/internal/reading"
	"github.com/pgoutbox/outbox/schema"
)

// claims is the SQL of reservations.
type claims struct {
	take    func(t *existing.Table, from string) string
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

func newClaims(t *existing.Table, owner string, lease time.Duration) *claims {
	m := &t.Mapping
	c := &claims{}
	duration := fmt.Sprintf("interval '%d microseconds'", lease.Microseconds())

	var set, free mapping.Assignments
	waits := t.Waiting
	var available, mark, kept string
	if until := m.Claim.Until; until != "" {
		mark = existing.Column(until)
		available = fmt.Sprintf("%s AND (%s IS NULL OR %s < (SELECT clock_timestamp()))", t.Waiting, mark, mark)
		if t.Info.Column(until).NotNull {
			available = fmt.Sprintf("%s AND %s < (SELECT clock_timestamp())", t.Waiting, mark)
		}
		if released := m.Released(); released != "" {
			available = fmt.Sprintf("(%s OR %s AND %s)", available, t.Waiting, released)
		}
		set.Set(until, claimedAt+" + "+duration)
		free.Set(until, "now()")
		kept = fmt.Sprintf("%s - now() < %s * 2 / 3", mark, duration)
	} else {
		mark = existing.Column(m.Claim.Since)
		processing := existing.Column(m.Done.Column) + " = " + schema.QuoteLiteral(m.Claim.Status)
		waits = fmt.Sprintf("(%s OR %s)", t.Waiting, processing)
		// A time that far in the future was written before the clock was set back.
		available = fmt.Sprintf("(%s OR %s AND (%s IS NULL OR %s NOT BETWEEN (SELECT clock_timestamp()) - %s AND "+
			"(SELECT clock_timestamp()) + %s))",
			t.Waiting, processing, mark, mark, duration, duration)
		set.Set(m.Done.Column, schema.QuoteLiteral(m.Claim.Status))
		set.Set(m.Claim.Since, claimedAt)
		free.Set(m.Done.Column, schema.QuoteLiteral(m.Done.Waiting))
		kept = fmt.Sprintf("(%s - now() < - %s / 3 OR %s > now())", mark, duration, mark)
		c.all = takeBackSQL(t, free, processing)
		c.fence = processing + " AND "
	}
	kind := t.Info.Column(existing.Unqualified(mark)).Base
	// Neither this condition nor kept can use an index on the mark. All rows of a claim have the same mark, so an index
	// would find all of them for each row, and the planner can't know that.
	c.fence += fmt.Sprintf("%s IS NOT DISTINCT FROM (to_timestamp(0) + o.token * interval '1 microsecond')::%s", mark, kind)
	renewed := set.String()
	if m.Claim.Owner != "" {
		set.Set(m.Claim.Owner, schema.QuoteLiteral(owner))
		free.Set(m.Claim.Owner, "NULL")
		c.mine = takeBackSQL(t, free, existing.Column(m.Claim.Owner)+" = "+schema.QuoteLiteral(owner))
	}
	if m.Claim.Counts {
		// The column may be a smallint.
		set.Set(m.Failure.Attempts, "least(coalesce("+existing.Column(m.Failure.Attempts)+", 0), 32766) + 1")
	}
	token := fmt.Sprintf("(extract(epoch FROM %s::timestamptz) * 1000000)::bigint", mark)
	c.take = func(t *existing.Table, from string) string {
		return reading.ReserveSQL(t, set.String(), token, waits, available, from)
	}
	const rows = "unnest($1::text[], $2::bigint[]) o (id, token)"
	same := fmt.Sprintf("%s = o.id::%s", t.ID, t.IDType)
	// A row that waits for another attempt may have a time of its own before which no relay takes it.
	var still string
	if m.Claim.Until != "" {
		still = fmt.Sprintf("%s AND (%s)", t.Waiting,
			strings.Join([]string{mark + " IS NULL", mark + " < now() + interval '100 milliseconds'",
				"o.freed AND " + mark + " = 'infinity'", c.fence}, " OR "))
	} else {
		still = fmt.Sprintf("(%s OR %s)", t.Waiting, c.fence)
	}
	itself := same + " AND " + t.IdentitySQL() + " = o.identity"
	// A row that can't be taken keeps back the rows behind it in the list.
	c.again = fmt.Sprintf(`WITH o AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::bigint[], $3::boolean[], $4::bigint[]) WITH ORDINALITY o (id, token, freed, identity, place)), l AS MATERIALIZED (
	SELECT %s AS o_id, o.place FROM o JOIN %s m ON %s AND %s FOR UPDATE OF m SKIP LOCKED
), h AS (SELECT min(o.place) AS place FROM o JOIN %s m ON %s AND %s WHERE %s NOT IN (SELECT l.o_id FROM l))
UPDATE %s m SET %s FROM l WHERE %s = l.o_id AND (l.place > (SELECT h.place FROM h)) IS NOT TRUE RETURNING %s, 0::bigint, %s, 0::bigint, NULL::bigint, NULL::bigint[]`,
		t.ID, t.Name, itself, still, t.Name, itself, waits, t.ID, t.Name, set.String(), t.ID, t.Columns, token)
	locked := t.ID + " = l.o_id"
	c.renew = marking.LockFirst(t, rows, same+" AND "+c.fence+" AND "+kept) +
		fmt.Sprintf("UPDATE %s m SET %s FROM l WHERE %s RETURNING %s::text, %s", t.Name, renewed, locked, t.ID, token)
	c.release = marking.LockFirst(t, rows, same+" AND "+c.fence) +
		fmt.Sprintf("UPDATE %s m SET %s FROM l WHERE %s", t.Name, free.String(), locked)
	c.waits = waits
	return c
}

// takeBackSQL frees rows, except those that another transaction has locked: they wait until their reservation ends.
func takeBackSQL(t *existing.Table, free mapping.Assignments, condition string) string {
	return fmt.Sprintf("WITH l AS MATERIALIZED (SELECT %s AS o_id FROM %s m WHERE %s FOR UPDATE SKIP LOCKED) UPDATE %s "+
		"m SET %s FROM l WHERE %s = l.o_id",
		t.ID, t.Name, condition, t.Name, free.String(), t.ID)
}
