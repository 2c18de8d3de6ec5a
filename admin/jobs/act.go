package jobs

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/schema"
)

// act does the job's verb, or undoes it, for its messages first < n <= last that are still as they were listed. It
// returns how many these are.
func (r *lockedJob) act(ctx context.Context, tx pgx.Tx, first, last int64) (int64, error) {
	table, condition, do := "outbox.dead_letters", "t.dead_at = j.at", r.requeue
	switch {
	case r.undoing && r.verb == BulkDiscard:
		table, condition, do = "outbox.trash", "t.job = j.job", r.restore
	case r.undoing:
		condition, do = condition+" AND t.acknowledged_at IS NOT NULL", r.forget
	case r.verb == BulkRestore:
		table, condition, do = "outbox.trash", "t.trashed_at = j.at", r.restore
	case r.blocked:
		table, condition, do = "outbox.holds", "t.held_at = j.at AND t.retry_at = 'infinity'", r.unblock
		if r.verb == BulkDiscard {
			do = r.discardBlocked
		}
	case r.verb == BulkAcknowledge:
		condition, do = condition+" AND t.acknowledged_at IS NULL", r.acknowledge
	case r.verb == BulkDiscard:
		do = r.discard
	default:
		// A blocked head is not overtaken, and nothing that is requeued in front of it may unblock it.
		condition += ` AND NOT EXISTS (SELECT FROM outbox.holds h
			WHERE h.destination = t.destination AND h.lane = t.lane AND h.retry_at = 'infinity')`
	}
	rows, err := tx.Query(ctx, `
		SELECT t.destination, t.lane, t.id, t.message_id::text FROM outbox.job_messages j JOIN `+table+` t ON `+isListed+`
		WHERE j.job = $1 AND j.n > $2 AND j.n <= $3 AND `+condition+` ORDER BY j.n FOR UPDATE OF t`, r.id, first, last)
	if err != nil {
		return 0, err
	}
	var chosen selected
	var destination, lane, message string
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&destination, &lane, &id, &message}, func() error {
		chosen.destinations = append(chosen.destinations, destination)
		chosen.lanes = append(chosen.lanes, lane)
		chosen.ids = append(chosen.ids, id)
		chosen.messages = append(chosen.messages, message)
		return nil
	})
	if err != nil {
		return 0, err
	}
	if len(chosen.ids) == 0 {
		return 0, nil
	}
	return int64(len(chosen.ids)), do(ctx, tx, chosen)
}

// selected are the keys of locked rows.
type selected struct {
	destinations []string
	lanes        []string
	ids          []int64
	messages     []string
}

const withSelected = `WITH selected AS (SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]::uuid[]) AS s (destination, lane, id, message_id))`

// args passes the keys as $1–$4 to statements that begin with withSelected.
func (c *selected) args(more ...any) []any {
	return append([]any{c.destinations, c.lanes, c.ids, c.messages}, more...)
}

// Rows d of dead letters or of the trash, and h of holds, that are selected.
const (
	deadSelected = `d.destination = s.destination AND d.id = s.id AND d.message_id = s.message_id`
	heldSelected = `h.destination = s.destination AND h.lane = s.lane AND h.id = s.id AND h.message_id = s.message_id`
)

// deadColumns are those of a dead letter.
const deadColumns = `destination, lane, id, ` + schema.MessageColumns + `, attempts, reason, error, dead_at, acknowledged_at, acknowledged_by, deaths,
	` + schema.OriginalColumns

// requeue moves dead letters to the holds. A requeued message that comes before the head takes its place.
func (r *lockedJob) requeue(ctx context.Context, tx pgx.Tx, chosen selected) error {
	_, err := tx.Exec(ctx, withSelected+`, moved AS (
			DELETE FROM outbox.dead_letters d USING selected s WHERE `+deadSelected+` RETURNING d.*)
		INSERT INTO outbox.holds (destination, lane, id, `+schema.MessageColumns+`, attempts, deaths, `+schema.OriginalColumns+`)
		SELECT destination, lane, id, `+schema.MessageColumns+`, 0, deaths, `+schema.OriginalColumns+` FROM moved`, chosen.args()...)
	if err != nil {
		return err
	}
	return makeHeadsDue(ctx, tx, chosen.destinations, chosen.lanes)
}

// makeHeadsDue sets the time of the heads of lanes that have got older holds, or have lost some, to now. Former heads
// lose their time. It first locks the heads: a relay that is just delivering a head doesn't see what this transaction
// has added, and would not look again. When that relay has committed, there is another head.
func makeHeadsDue(ctx context.Context, tx pgx.Tx, destinations, lanes []string) error {
	for all := false; !all; {
		if err := tx.QueryRow(ctx, lockHeadsSQL, destinations, lanes).Scan(&all); err != nil {
			return fmt.Errorf("lock the heads of lanes: %w", err)
		}
	}
	_, err := tx.Exec(ctx, headsDueSQL, destinations, lanes)
	return err
}

const headsSQL = `
	SELECT h.destination, h.lane, h.id, h.message_id, h.id = l.head AS first FROM outbox.holds h
	JOIN (SELECT h.destination, h.lane, min(h.id) AS head FROM outbox.holds h
	      WHERE (h.destination, h.lane) IN (SELECT * FROM unnest($1::text[], $2::text[])) GROUP BY 1, 2) l
		ON h.destination = l.destination AND h.lane = l.lane AND (h.id = l.head OR h.retry_at IS NOT NULL)`

// lockHeadsSQL locks rows in the order of their ids, as a relay that settles does: otherwise both could wait for each
// other. It tells whether all heads that it has seen were still there when it had them.
const lockHeadsSQL = `
	WITH heads AS MATERIALIZED (` + headsSQL + `),
	locked AS MATERIALIZED (
		SELECT s.destination, s.lane, s.first FROM (SELECT * FROM heads ORDER BY destination, id, message_id) s,
		LATERAL (SELECT FROM outbox.holds h WHERE ` + heldSelected + ` LIMIT 1 FOR UPDATE) h)
	SELECT (SELECT count(DISTINCT (destination, lane)) FROM heads) = (SELECT count(DISTINCT (destination, lane)) FROM locked WHERE first)`

const headsDueSQL = `
	UPDATE outbox.holds h SET retry_at = CASE WHEN s.first THEN clock_timestamp() END
	FROM (` + headsSQL + `) s WHERE ` + heldSelected + ` AND s.first = (h.retry_at IS NULL)`

func (r *lockedJob) unblock(ctx context.Context, tx pgx.Tx, chosen selected) error {
	_, err := tx.Exec(ctx, withSelected+`
		UPDATE outbox.holds h SET retry_at = clock_timestamp(), attempts = 0 FROM selected s WHERE `+heldSelected, chosen.args()...)
	return err
}

// A message that is already in the trash was delivered twice, and failed twice.
const trashedAgain = ` ON CONFLICT (destination, id, message_id) DO UPDATE SET job = excluded.job, trashed_at = excluded.trashed_at`

func (r *lockedJob) discard(ctx context.Context, tx pgx.Tx, chosen selected) error {
	_, err := tx.Exec(ctx, withSelected+`, moved AS (
			DELETE FROM outbox.dead_letters d USING selected s WHERE `+deadSelected+` RETURNING d.*)
		INSERT INTO outbox.trash (`+deadColumns+`, fingerprint, job)
		SELECT `+deadColumns+`, fingerprint, $5 FROM moved`+trashedAgain, chosen.args(r.id)...)
	return err
}

// discardBlocked makes dead letters in the trash of blocked messages, and the new heads of their lanes due.
func (r *lockedJob) discardBlocked(ctx context.Context, tx pgx.Tx, chosen selected) error {
	_, err := tx.Exec(ctx, withSelected+`, moved AS (
			DELETE FROM outbox.holds h USING selected s WHERE `+heldSelected+` RETURNING h.*)
		INSERT INTO outbox.trash (destination, lane, id, `+schema.MessageColumns+`, attempts, reason, error, dead_at, deaths, fingerprint, job,
			`+schema.OriginalColumns+`)
		SELECT destination, lane, id, `+schema.MessageColumns+`, attempts, 'exhausted', coalesce(error, ''), held_at, deaths + 1, '', $5,
			`+schema.OriginalColumns+`
		FROM moved`+trashedAgain, chosen.args(r.id)...)
	if err != nil {
		return err
	}
	return makeHeadsDue(ctx, tx, chosen.destinations, chosen.lanes)
}

// restore brings dead letters back from the trash. One that has died once more meanwhile is a dead letter already, and
// stays the one it is.
func (r *lockedJob) restore(ctx context.Context, tx pgx.Tx, chosen selected) error {
	_, err := tx.Exec(ctx, withSelected+`, moved AS (
			DELETE FROM outbox.trash d USING selected s WHERE `+deadSelected+` RETURNING d.*)
		INSERT INTO outbox.dead_letters (`+deadColumns+`) SELECT `+deadColumns+` FROM moved
		ON CONFLICT (destination, id, message_id) DO NOTHING`, chosen.args()...)
	return err
}

func (r *lockedJob) acknowledge(ctx context.Context, tx pgx.Tx, chosen selected) error {
	_, err := tx.Exec(ctx, withSelected+`
		UPDATE outbox.dead_letters d SET acknowledged_at = clock_timestamp(), acknowledged_by = $5
		FROM selected s WHERE `+deadSelected, chosen.args(r.actor)...)
	return err
}

func (r *lockedJob) forget(ctx context.Context, tx pgx.Tx, chosen selected) error {
	_, err := tx.Exec(ctx, withSelected+`
		UPDATE outbox.dead_letters d SET acknowledged_at = NULL, acknowledged_by = NULL
		FROM selected s WHERE `+deadSelected+` AND d.acknowledged_by = $5`, chosen.args(r.actor)...)
	return err
}
