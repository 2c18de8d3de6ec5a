// Package holds stores what was not delivered, and lists the holds that are due.
package holds

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/messages"
	"github.com/pgoutbox/outbox/schema"
)

// The times of holds cross the connection as durations from now, each side counting by its own clock: the clocks of
// database and relay need not agree.

// waitSQL is how long a hold has to wait, in microseconds, and whether it waits for an operator.
const waitSQL = `CASE WHEN isfinite(retry_at) THEN (extract(epoch FROM retry_at - clock_timestamp()) * 1000000)::bigint END,
	retry_at IS NOT NULL AND retry_at = 'infinity'`

func due(now time.Time, wait *int64) time.Time {
	if wait == nil {
		return time.Time{}
	}
	return now.Add(time.Duration(min(*wait, maxWait)) * time.Microsecond)
}

// maxWait is the longest time.Duration, in microseconds.
const maxWait = int64(1<<63-1) / 1000

// heldColumns follow those of a message.
const (
	heldColumns     = `, m.attempts, ` + waitSQL + `, m.job IS NOT NULL`
	heldColumnCount = 4
)

const heldOfLane = `
FROM outbox.holds m WHERE m.destination = $1 AND m.lane = $2 ORDER BY m.id, m.message_id LIMIT $3`

// heldOfLanesSQL reads the first holds of each lane of $2. The last column is the lane's place in $2, from 1.
const heldOfLanesSQL = "SELECT " + messages.Columns + heldColumns + `, l.n
FROM unnest($2::text[]) WITH ORDINALITY l (lane, n) CROSS JOIN LATERAL (
	SELECT * FROM outbox.holds h WHERE h.destination = $1 AND h.lane = l.lane ORDER BY h.id, h.message_id LIMIT $3
) m ORDER BY l.n, m.id, m.message_id`

// Held reads holds as messages are read, into memory that is not used again: a list for each lane.
func Held(ctx context.Context, conn *pgx.Conn, destination string, lanes []string, limit int) ([][]relay.Delivery, error) {
	var pg messages.Page
	var d messages.Decoder
	now := time.Now()
	array, err := conn.TypeMap().Encode(pgtype.TextArrayOID, pgtype.TextFormatCode, lanes, nil)
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	most := strconv.AppendInt(nil, int64(limit), 10)
	rows := conn.PgConn().ExecParams(ctx, heldOfLanesSQL, [][]byte{[]byte(destination), array, most}, nil, messages.Text, messages.Binary)
	ends := make([]int, len(lanes)+1) // of each lane's deliveries, and of those before the first
	for rows.NextRow() {
		if err != nil {
			continue // rows must be read to the end
		}
		var dl *relay.Delivery
		row := rows.Values()
		if dl, err = d.Decode(&pg, row); err == nil {
			readHold(dl, row, now)
			ends[messages.Int8(row[messages.ColumnCount+heldColumnCount])] = len(pg.Deliveries)
		}
	}
	if _, closeErr := rows.Close(); closeErr != nil {
		err = closeErr
	}
	if schema.IsDataError(err) {
		pg.Reset()
		clear(ends)
		err = nil
		for i := 0; i < len(lanes) && err == nil; i++ {
			err = heldPiecemeal(ctx, conn, &pg, &d, [][]byte{[]byte(destination), []byte(lanes[i]), most})
			ends[i+1] = len(pg.Deliveries)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the holds of %d lanes, the first %q: %w", len(lanes), lanes[0], err)
	}
	lists := make([][]relay.Delivery, len(lanes))
	for i := range lanes {
		ends[i+1] = max(ends[i], ends[i+1]) // a lane without holds
		lists[i] = pg.Deliveries[ends[i]:ends[i+1]:ends[i+1]]
	}
	return lists, nil
}

// heldPiecemeal reads holds one by one.
func heldPiecemeal(ctx context.Context, conn *pgx.Conn, pg *messages.Page, d *messages.Decoder, args [][]byte) error {
	now := time.Now()
	list := conn.PgConn().ExecParams(ctx, "SELECT m.id"+heldOfLane, args, nil, messages.Text, messages.Binary).Read()
	if list.Err != nil {
		return list.Err
	}
	for _, id := range list.Rows {
		dl, row, err := d.One(ctx, conn, pg, messages.Query{
			Extra: heldColumns,
			From:  " FROM outbox.holds m WHERE m.destination = $1 AND m.lane = $2 AND m.id = $3::bigint",
			Args:  [][]byte{args[0], args[1], strconv.AppendInt(nil, int64(messages.Int8(id[0])), 10)},
		})
		if err != nil {
			return err
		}
		if dl != nil {
			readHold(dl, row, now)
		}
	}
	return nil
}

// readHold reads the columns after those of a message.
func readHold(held *relay.Delivery, row [][]byte, now time.Time) {
	attempts, wait, blocked := row[messages.ColumnCount], row[messages.ColumnCount+1], row[messages.ColumnCount+2]
	held.Attempts = int(binary.BigEndian.Uint32(attempts))
	if len(wait) == 8 {
		w := int64(binary.BigEndian.Uint64(wait))
		held.RetryAt = due(now, &w)
	}
	held.Blocked = len(blocked) == 1 && blocked[0] == 1
	held.Replayed = row[messages.ColumnCount+3][0] == 1
}

// outcomes stores the outcomes of messages that were not delivered, and of holds.
type outcomes struct {
	destination string
	settlement  *relay.Settlement
}

// HasOutcomes reports whether Store has something to store of s.
func HasOutcomes(s *relay.Settlement) bool {
	return len(s.Hold)+len(s.Dead)+len(s.HeldDelivered)+len(s.HeldRetry)+len(s.HeldDead) > 0
}

// Store stores the holds and dead letters of a settlement; all their messages are in the table. See [Careful].
func Store(ctx context.Context, tx pgx.Tx, destination string, settlement *relay.Settlement) error {
	return outcomes{destination, settlement}.store(ctx, tx)
}

func (o outcomes) store(ctx context.Context, tx pgx.Tx) error {
	steps := []struct {
		what string
		do   func(context.Context, pgx.Tx) error
		n    int
	}{
		{"lock holds", func(ctx context.Context, tx pgx.Tx) error { return Lock(ctx, tx, o.destination, o.settlement) }, 1},
		{"remove delivered holds", o.delivered, len(o.settlement.HeldDelivered)},
		{"store the next attempts of holds", o.retry, len(o.settlement.HeldRetry)},
		{"move holds to the dead letters", o.heldDead, len(o.settlement.HeldDead)},
		{"hold messages", o.hold, len(o.settlement.Hold)},
		{"store dead letters", o.dead, len(o.settlement.Dead)},
	}
	for _, step := range steps {
		if step.n == 0 {
			continue
		}
		if err := step.do(ctx, tx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

const kept = schema.MessageColumns

// holdSQL copies messages, found by their position in the index, into the holds. The client names the lane, because it
// has decided by that name which message waits behind which. A conflict can only be with the same message. The first of
// its lane here is due at once if it is to wait behind others and there are none. Lock comes before.
const holdSQL = `
INSERT INTO outbox.holds (destination, lane, id, ` + kept + `, attempts, retry_at, error)
SELECT $1, o.lane, m.id, ` + kept + `, o.attempts, CASE WHEN o.first AND NOT o.blocked AND o.wait IS NULL AND NOT EXISTS (
		SELECT FROM outbox.holds h WHERE h.destination = $1 AND h.lane = o.lane AND (h.id, h.message_id) < (m.id, m.message_id))
	THEN clock_timestamp() ELSE ` + retryAtSQL + ` END, o.error
FROM unnest($2::text[]::xid8[], $3::bigint[], $4::text[]::uuid[], $5::text[], $6::integer[], $7::bigint[], $8::boolean[], $9::text[], $10::boolean[])
	o (xid, id, message, lane, attempts, wait, blocked, error, first)
JOIN LATERAL (SELECT * FROM outbox.messages m WHERE m.xid = o.xid AND m.id = o.id AND m.message_id = o.message) m ON true
ON CONFLICT (destination, lane, id, message_id) DO UPDATE SET
	attempts = excluded.attempts, retry_at = excluded.retry_at, error = excluded.error`

const retryAtSQL = `CASE WHEN o.blocked THEN 'infinity' ELSE clock_timestamp() + o.wait * interval '1 microsecond' END`

func (o outcomes) hold(ctx context.Context, tx pgx.Tx) error {
	c := newOutcomeColumns(tx, len(o.settlement.Hold))
	now := time.Now()
	seen := make(map[string]bool, len(o.settlement.Hold))
	first := make([]bool, len(o.settlement.Hold))
	for i, h := range o.settlement.Hold {
		c.add(h.Delivery, h.Err)
		c.addRetry(now, &h)
		first[i], seen[c.lanes[i]] = !seen[c.lanes[i]], true
	}
	tag, err := tx.Exec(ctx, schema.WithTableOf(o.destination, holdSQL),
		o.destination, c.xids, c.ids, c.messages, c.lanes, c.attempts, c.waits, c.blocked, c.errors, first)
	return allThere(o.destination, tag, err, len(o.settlement.Hold))
}

const deadSQL = `
INSERT INTO outbox.dead_letters (destination, lane, id, ` + kept + `, attempts, reason, error)
SELECT $1, o.lane, m.id, ` + kept + `, o.attempts, o.reason, coalesce(o.error, '')
FROM unnest($2::text[]::xid8[], $3::bigint[], $4::text[]::uuid[], $5::text[], $6::integer[], $7::text[], $8::text[])
	o (xid, id, message, lane, attempts, reason, error)
JOIN LATERAL (SELECT * FROM outbox.messages m WHERE m.xid = o.xid AND m.id = o.id AND m.message_id = o.message) m ON true
` + DeadAgainSQL

// DeadAgainSQL is for a message that was a dead letter, was sent again and failed again.
const DeadAgainSQL = `ON CONFLICT (destination, id, message_id) DO UPDATE SET
	attempts = excluded.attempts, reason = excluded.reason, error = excluded.error, dead_at = excluded.dead_at,
	acknowledged_at = NULL, acknowledged_by = NULL`

func (o outcomes) dead(ctx context.Context, tx pgx.Tx) error {
	c := newOutcomeColumns(tx, len(o.settlement.Dead))
	for _, d := range o.settlement.Dead {
		c.add(d.Delivery, d.Err)
		c.reasons = append(c.reasons, string(d.Reason))
	}
	tag, err := tx.Exec(ctx, schema.WithTableOf(o.destination, deadSQL),
		o.destination, c.xids, c.ids, c.messages, c.lanes, c.attempts, c.reasons, c.errors)
	return allThere(o.destination, tag, err, len(o.settlement.Dead))
}

// allThere checks that every message was copied. If one is missing, because it was deleted, the session ends, and the
// next one doesn't read it.
func allThere(destination string, tag pgconn.CommandTag, err error, want int) error {
	if err != nil {
		return err
	}
	if n := tag.RowsAffected(); n != int64(want) {
		return fmt.Errorf("%d of %d messages are not in %s any more: they were deleted before they were delivered",
			int64(want)-n, want, schema.TableOf(destination))
	}
	return nil
}

// The following statements find holds by their primary key. An operator may have removed one in the meantime; it stays
// removed.
const sameHoldSQL = `h.destination = $1 AND h.lane = o.lane AND h.id = o.id AND h.message_id = o.message_id`

// lockHoldsSQL locks rows in the order of their ids, as a job that changes several does: otherwise both could wait for
// each other, and the server would end one of them. The rows are the holds that have outcomes, and the first holds of
// the lanes $5, to which holds are added. An operator's job that is just removing the last hold of a lane doesn't see
// what is added, so the adding waits for the job's end, and sees then that the lane is empty. The answer is whether all
// first holds that were seen were still there when they were locked.
const lockHoldsSQL = `
WITH wanted AS MATERIALIZED (
	SELECT lane, id, message_id, false AS first FROM unnest($2::text[], $3::bigint[], $4::text[]::uuid[]) o (lane, id, message_id)
	UNION ALL
	SELECT l.lane, h.id, h.message_id, true FROM unnest($5::text[]) l (lane), LATERAL (
		SELECT h.id, h.message_id FROM outbox.holds h WHERE h.destination = $1 AND h.lane = l.lane ORDER BY h.id, h.message_id LIMIT 1) h
), locked AS MATERIALIZED (
	SELECT o.first FROM (SELECT * FROM wanted ORDER BY id, message_id) o,
	LATERAL (SELECT FROM outbox.holds h WHERE ` + sameHoldSQL + ` LIMIT 1 FOR UPDATE) h -- by the index, whatever the statistics
)
SELECT (SELECT count(*) FROM wanted WHERE first) = (SELECT count(*) FROM locked WHERE first)`

// Lock comes before the outcomes of s are stored in tx: it locks what other transactions may be changing too.
func Lock(ctx context.Context, tx pgx.Tx, destination string, s *relay.Settlement) error {
	var behind []string // lanes
	for _, h := range s.Hold {
		if h.RetryAt.IsZero() && !h.Blocked {
			behind = append(behind, h.Delivery.Lane())
		}
	}
	slices.Sort(behind)
	behind = slices.Compact(behind)
	o := outcomes{destination, s}
	if len(behind) == 0 && o.held() <= 1 {
		return nil
	}
	c := newOutcomeColumns(tx, o.held())
	for _, d := range s.HeldDelivered {
		c.add(d, nil)
	}
	for _, h := range s.HeldRetry {
		c.add(h.Delivery, nil)
	}
	for _, d := range s.HeldDead {
		c.add(d.Delivery, nil)
	}
	for all := false; !all; {
		if err := tx.QueryRow(ctx, lockHoldsSQL, destination, c.lanes, c.ids, c.messages, behind).Scan(&all); err != nil {
			return err
		}
	}
	return nil
}

// held is how many holds have an outcome.
func (o outcomes) held() int {
	return len(o.settlement.HeldDelivered) + len(o.settlement.HeldRetry) + len(o.settlement.HeldDead)
}

const heldDeliveredSQL = `
DELETE FROM outbox.holds h USING unnest($2::text[], $3::bigint[], $4::text[]::uuid[]) o (lane, id, message_id)
WHERE ` + sameHoldSQL

func (o outcomes) delivered(ctx context.Context, tx pgx.Tx) error {
	c := newOutcomeColumns(tx, len(o.settlement.HeldDelivered))
	for _, d := range o.settlement.HeldDelivered {
		c.add(d, nil)
	}
	_, err := tx.Exec(ctx, heldDeliveredSQL, o.destination, c.lanes, c.ids, c.messages)
	return err
}

// heldRetrySQL keeps the last error of a hold that waits for something else now, as for the end of a pause.
const heldRetrySQL = `
UPDATE outbox.holds h SET attempts = o.attempts, retry_at = ` + retryAtSQL + `, error = coalesce(o.error, h.error)
FROM unnest($2::text[], $3::bigint[], $4::text[]::uuid[], $5::integer[], $6::bigint[], $7::boolean[], $8::text[])
	o (lane, id, message_id, attempts, wait, blocked, error)
WHERE ` + sameHoldSQL

func (o outcomes) retry(ctx context.Context, tx pgx.Tx) error {
	c := newOutcomeColumns(tx, len(o.settlement.HeldRetry))
	now := time.Now()
	for _, h := range o.settlement.HeldRetry {
		c.add(h.Delivery, h.Err)
		c.addRetry(now, &h)
	}
	_, err := tx.Exec(ctx, heldRetrySQL, o.destination, c.lanes, c.ids, c.messages, c.attempts, c.waits, c.blocked, c.errors)
	return err
}

const heldDeadSQL = `
WITH m AS (
	DELETE FROM outbox.holds h
	USING unnest($2::text[], $3::bigint[], $4::text[]::uuid[], $5::integer[], $6::text[], $7::text[])
		o (lane, id, message_id, attempts, reason, error)
	WHERE ` + sameHoldSQL + `
	RETURNING h.*, o.attempts AS tried, o.reason AS why, coalesce(o.error, '') AS last_error
)
INSERT INTO outbox.dead_letters (destination, lane, id, ` + kept + `, attempts, reason, error, deaths, ` + schema.OriginalColumns + `)
SELECT destination, lane, id, ` + kept + `, tried, why, last_error, deaths + 1, ` + schema.OriginalColumns + ` FROM m
` + DeadAgainSQL

func (o outcomes) heldDead(ctx context.Context, tx pgx.Tx) error {
	c := newOutcomeColumns(tx, len(o.settlement.HeldDead))
	for _, d := range o.settlement.HeldDead {
		c.add(d.Delivery, d.Err)
		c.reasons = append(c.reasons, string(d.Reason))
	}
	_, err := tx.Exec(ctx, heldDeadSQL, o.destination, c.lanes, c.ids, c.messages, c.attempts, c.reasons, c.errors)
	return err
}

// outcomeColumns are the columns of a set of outcomes, as the statements unnest them.
type outcomeColumns struct {
	conn     *pgx.Conn // the connection that they are sent on
	xids     []string
	ids      []int64
	messages []string
	lanes    []string
	attempts []int32
	waits    []*int64
	blocked  []bool
	reasons  []string
	errors   []*string
}

func newOutcomeColumns(tx pgx.Tx, n int) *outcomeColumns {
	return &outcomeColumns{conn: tx.Conn(), xids: make([]string, 0, n),
		ids: make([]int64, 0, n), messages: make([]string, 0, n), lanes: make([]string, 0, n)}
}

func (c *outcomeColumns) add(d *relay.Delivery, err error) {
	c.xids = append(c.xids, strconv.FormatUint(d.Ref, 10))
	c.ids = append(c.ids, d.Position)
	c.messages = append(c.messages, d.ID.String())
	c.lanes = append(c.lanes, d.Lane())
	c.attempts = append(c.attempts, int32(min(d.Attempts, 1<<31-1)))
	c.errors = append(c.errors, schema.Note(c.conn, err))
}

func (c *outcomeColumns) addRetry(now time.Time, h *relay.Hold) {
	var wait *int64
	if !h.RetryAt.IsZero() {
		us := max(h.RetryAt.Sub(now), 0).Microseconds()
		wait = &us
	}
	c.waits = append(c.waits, wait)
	c.blocked = append(c.blocked, h.Blocked)
}
