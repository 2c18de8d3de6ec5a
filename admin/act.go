package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/schema"
)

// Outcome is what an action on dead letters changed, or would change.
type Outcome struct {
	Changed int64          `json:"changed"`
	Groups  []OutcomeGroup `json:"groups,omitempty"`
}

// OutcomeGroup counts messages of one destination, topic and reason.
type OutcomeGroup struct {
	Destination string `json:"destination"`
	Topic       string `json:"topic"`
	Reason      string `json:"reason"`
	N           int64  `json:"n"`
}

// Requeue sends what s selects once more: dead letters become holds that are due at once, with no attempt
// counted; blocked messages are tried again, and what waits behind them follows. Messages of a key keep
// their order among themselves and among the holds of that key. What was delivered after a dead letter
// stays delivered: consumers that need order see it late.
//
// More than max messages (if max is positive) are an ErrTooMany, none of those that s names an
// ErrNotFound, and a destination without a cursor is refused, as no relay would deliver to it.
func Requeue(ctx context.Context, db DB, s Selection, max int64, action Action) (Outcome, error) {
	out, err := act(ctx, db, s, max, action, "requeue", func(tx pgx.Tx, chosen selected) (int64, error) {
		if s.Blocked {
			return unblock(ctx, tx, chosen)
		}
		if err := destinationsExist(ctx, tx, chosen); err != nil {
			return 0, err
		}
		return requeue(ctx, tx, chosen)
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("requeue: %w", err)
	}
	return out, nil
}

// Discard deletes what s selects forever. Behind a blocked message the rest of its lane goes on.
// Errors are those of Requeue.
func Discard(ctx context.Context, db DB, s Selection, max int64, action Action) (Outcome, error) {
	out, err := act(ctx, db, s, max, action, "discard", func(tx pgx.Tx, chosen selected) (int64, error) {
		tag, err := tx.Exec(ctx, withSelected+`
			DELETE FROM `+s.table()+` d USING selected s
			WHERE d.destination = s.destination AND d.lane = s.lane AND d.id = s.id AND d.message_id = s.message_id`, chosen.args()...)
		if err != nil || !s.Blocked {
			return tag.RowsAffected(), err
		}
		return tag.RowsAffected(), wakeHeads(ctx, tx, chosen)
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("discard: %w", err)
	}
	return out, nil
}

// Acknowledge notes that the actor knows of the dead letters that s selects: the verdict speaks of them no more. They stay
// where they are, and one that dies again is new again. Errors are those of Requeue; blocked messages can't be acknowledged.
func Acknowledge(ctx context.Context, db DB, s Selection, max int64, action Action) (Outcome, error) {
	s.New = true
	out, err := act(ctx, db, s, max, action, "acknowledge", func(tx pgx.Tx, chosen selected) (int64, error) {
		tag, err := tx.Exec(ctx, withSelected+`
			UPDATE outbox.dead_letters d SET acknowledged_at = clock_timestamp(), acknowledged_by = $5 FROM selected s
			WHERE d.destination = s.destination AND d.id = s.id AND d.message_id = s.message_id`,
			append(chosen.args(), schema.Storable(tx.Conn(), action.Actor))...)
		return tag.RowsAffected(), err
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("acknowledge: %w", err)
	}
	return out, nil
}

// act locks what s selects, lets change do its work on it, and writes the audit.
func act(ctx context.Context, db DB, s Selection, max int64, action Action, verb string, change func(tx pgx.Tx, chosen selected) (int64, error)) (out Outcome, err error) {
	if err := s.validate(); err != nil {
		return out, err
	}
	if s.Everything() && !s.All {
		return out, errors.New("nothing is selected: name messages, a destination, a topic, a key or a reason, or say all")
	}
	err = write(ctx, db, action, func(tx pgx.Tx) error {
		chosen, groups, err := s.lock(ctx, tx)
		if err != nil {
			return err
		}
		out.Groups = groups
		switch total := int64(len(chosen.ids)); {
		case total == 0 && s.named():
			return fmt.Errorf("%w: no %s has such an id", ErrNotFound, s.kind())
		case total == 0:
			return nil
		case max > 0 && total > max:
			return fmt.Errorf("%w: %d are selected, at most %d may be: select fewer, or raise the maximum", ErrTooMany, total, max)
		}
		if out.Changed, err = change(tx, chosen); err != nil {
			return err
		}
		detail := s.detail()
		detail["messages"] = out.Changed
		detail["groups"] = groups
		return audit(ctx, tx, action, verb, s.Destination, detail)
	})
	return out, err
}

// selected are the keys of locked rows; it is the first four arguments of statements that begin with
// withSelected.
type selected struct {
	destinations []string
	lanes        []string
	ids          []int64
	messages     []string
}

const withSelected = `WITH selected AS (SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]::uuid[]) AS s (destination, lane, id, message_id))`

func (c *selected) args() []any { return []any{c.destinations, c.lanes, c.ids, c.messages} }

// lock locks what s selects, and counts it in groups, the largest first.
func (s Selection) lock(ctx context.Context, tx pgx.Tx) (chosen selected, groups []OutcomeGroup, err error) {
	reason := "reason"
	if s.Blocked {
		reason = "'blocked'"
	}
	rows, err := tx.Query(ctx, `
		SELECT destination, lane, id, message_id::text, `+readable("topic")+`, `+reason+` FROM `+s.table()+`
		WHERE `+s.where()+` ORDER BY destination, id FOR UPDATE`, s.args()...)
	if err != nil {
		return chosen, nil, err
	}
	counts := map[OutcomeGroup]int64{}
	var g OutcomeGroup
	var lane, message string
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&g.Destination, &lane, &id, &message, &g.Topic, &g.Reason}, func() error {
		chosen.destinations = append(chosen.destinations, g.Destination)
		chosen.lanes = append(chosen.lanes, lane)
		chosen.ids = append(chosen.ids, id)
		chosen.messages = append(chosen.messages, message)
		counts[g]++
		return nil
	})
	for g, n := range counts {
		g.N = n
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b OutcomeGroup) int {
		return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Reason, b.Reason))
	})
	return chosen, groups, err
}

func (s Selection) kind() string {
	if s.Blocked {
		return "blocked message"
	}
	if s.New {
		return "dead letter that is new"
	}
	return "dead letter"
}

func destinationsExist(ctx context.Context, tx pgx.Tx, chosen selected) error {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT destination FROM unnest($1::text[]) AS s (destination)
		WHERE NOT EXISTS (SELECT FROM outbox.cursors c WHERE c.destination = s.destination) ORDER BY 1`, chosen.destinations)
	if err != nil {
		return err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("nobody delivers to %s: no relay has a cursor for it: start one. Or, if nobody needs these messages: outbox dead discard", strings.Join(missing, ", "))
	}
	return nil
}

// requeue moves dead letters to the holds. Only the head of a lane has a time of its own, so a requeued
// message that comes before the head takes its place. A blocked head is not overtaken, and nothing that
// is requeued in front of it may unblock it: such lanes are refused.
func requeue(ctx context.Context, tx pgx.Tx, chosen selected) (int64, error) {
	var lane, destination string
	err := tx.QueryRow(ctx, withSelected+`
		SELECT h.lane, h.destination FROM outbox.holds h JOIN selected s ON s.destination = h.destination AND s.lane = h.lane
		WHERE h.retry_at = 'infinity' LIMIT 1`, chosen.args()...).Scan(&lane, &destination)
	if err == nil {
		return 0, fmt.Errorf("key %q of %s is blocked by a held message: requeue or discard that one first: "+
			"outbox dead ls --blocked --destination %s", lane, destination, destination)
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return 0, err
	}
	tag, err := tx.Exec(ctx, withSelected+`, moved AS (
			DELETE FROM outbox.dead_letters d USING selected s
			WHERE d.destination = s.destination AND d.id = s.id AND d.message_id = s.message_id RETURNING d.*)
		INSERT INTO outbox.holds (destination, lane, id, `+schema.MessageColumns+`, attempts, deaths)
		SELECT destination, lane, id, `+schema.MessageColumns+`, 0, deaths FROM moved`, chosen.args()...)
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, withSelected+`
		UPDATE outbox.holds h SET retry_at = CASE WHEN h.id = l.head THEN coalesce(h.retry_at, clock_timestamp()) END
		FROM (SELECT h.destination, h.lane, min(h.id) AS head FROM outbox.holds h
		      WHERE (h.destination, h.lane) IN (SELECT destination, lane FROM selected) GROUP BY 1, 2) l
		WHERE h.destination = l.destination AND h.lane = l.lane AND (h.id = l.head OR h.retry_at IS NOT NULL)`, chosen.args()...)
	return tag.RowsAffected(), err
}

func unblock(ctx context.Context, tx pgx.Tx, chosen selected) (int64, error) {
	tag, err := tx.Exec(ctx, withSelected+`
		UPDATE outbox.holds h SET retry_at = clock_timestamp(), attempts = 0
		FROM selected s WHERE h.destination = s.destination AND h.lane = s.lane AND h.id = s.id AND h.message_id = s.message_id`, chosen.args()...)
	return tag.RowsAffected(), err
}

// wakeHeads makes the new heads of the selected lanes due.
func wakeHeads(ctx context.Context, tx pgx.Tx, chosen selected) error {
	_, err := tx.Exec(ctx, withSelected+`
		UPDATE outbox.holds h SET retry_at = clock_timestamp()
		FROM (SELECT destination, lane, min(id) AS head FROM outbox.holds
		      WHERE (destination, lane) IN (SELECT destination, lane FROM selected) GROUP BY 1, 2) l
		WHERE h.destination = l.destination AND h.lane = l.lane AND h.id = l.head AND h.retry_at IS NULL`, chosen.args()...)
	return err
}
