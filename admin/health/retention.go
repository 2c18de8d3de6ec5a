package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/schema"
)

// Turns of segments. Retention of any relay empties those that have passed, within its interval.
const (
	SegmentCurrent = "current" // it is written to
	SegmentNext    = "next"    // it is written to when the current one has had its time
	SegmentEmpty   = "empty"
	SegmentNeeded  = "needed" // it is emptied when the destinations and the replay that need it have passed it
	SegmentPassed  = "passed" // nothing keeps it
)

// RetainedSegment is a segment with what is in it, and its turn.
type RetainedSegment struct {
	Segment
	Messages int64     `json:"messages"`         // the server's estimate
	Oldest   time.Time `json:"oldest,omitzero"`  // when its first message was created
	Replay   int64     `json:"replay,omitempty"` // a job that replays from it
	Turn     string    `json:"turn"`
	From     time.Time `json:"written_from"` // its turn to be written to: this one, or the next one
	Until    time.Time `json:"written_until"`
}

// Retention lists the segments: what is in each, who needs it, and when it is written to. A foreign table that is
// attached to the outbox's is left out: Status says what to do about it.
func Retention(ctx context.Context, db admin.DB) (segments []RetainedSegment, err error) {
	err = admin.Read(ctx, db, func(tx pgx.Tx) error {
		if err := admin.PreferIndexes(ctx, tx); err != nil {
			return err
		}
		cursors, err := admin.ReadCursors(ctx, tx)
		if err != nil {
			return err
		}
		var r Report
		if err := r.readSegments(ctx, tx, cursors); err != nil {
			return err
		}
		for _, parent := range []string{schema.OutboxMessages, schema.InboxMessages} {
			for n := range schema.SegmentCount {
				name := fmt.Sprintf("%s_%d", strings.TrimPrefix(parent, "outbox."), n)
				at := slices.IndexFunc(r.Segments, func(s Segment) bool { return s.Name == name })
				if at < 0 {
					continue // it is detached
				}
				retained, err := r.Segments[at].retained(ctx, tx, parent, strconv.Itoa(n))
				if err != nil {
					return fmt.Errorf("look into segment %s: %w", name, err)
				}
				segments = append(segments, retained)
			}
		}
		return nil
	})
	return segments, err
}

func (s Segment) retained(ctx context.Context, tx pgx.Tx, parent, number string) (RetainedSegment, error) {
	r := RetainedSegment{Segment: s}
	var turns int64 // until its turn
	err := tx.QueryRow(ctx, `
		SELECT pg_stat_get_live_tuples(('outbox.' || $1)::regclass), turn.n, to_timestamp((now.slot + turn.n) * $3), to_timestamp((now.slot + turn.n + 1) * $3)
		FROM (SELECT date_part('epoch', now())::bigint / $3 AS slot) now,
		LATERAL (SELECT ($2::bigint - now.slot % $4 + $4) % $4 AS n) turn`,
		s.Name, number, schema.SegmentSeconds, schema.SegmentCount).Scan(&r.Messages, &turns, &r.From, &r.Until)
	if err != nil {
		return r, err
	}
	err = tx.QueryRow(ctx, `SELECT created_at FROM `+parent+` WHERE segment = $1 ORDER BY xid, id LIMIT 1`, number).Scan(&r.Oldest)
	empty := errors.Is(err, pgx.ErrNoRows)
	if err != nil && !empty {
		return r, err
	}
	if parent == schema.OutboxMessages {
		err := tx.QueryRow(ctx, schema.ReplayedBy(number)).Scan(&r.Replay)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return r, err
		}
	}
	switch {
	case turns == 0:
		r.Turn = SegmentCurrent
	case len(s.NeededBy) > 0 || r.Replay > 0:
		r.Turn = SegmentNeeded
	case turns == 1:
		r.Turn = SegmentNext
	case empty:
		r.Turn = SegmentEmpty
	default:
		r.Turn = SegmentPassed
	}
	return r, nil
}

// Emptied returns, in words, when the segment is emptied.
func (s RetainedSegment) Emptied() string {
	switch s.Turn {
	case SegmentCurrent:
		return "it is written to until " + s.Until.Format(time.RFC3339)
	case SegmentNext:
		return "it is written to from " + s.From.Format(time.RFC3339)
	case SegmentNeeded:
		if len(s.NeededBy) == 0 {
			return fmt.Sprintf("when job %d has replayed it, or is stopped", s.Replay)
		}
		return "when " + strings.Join(s.NeededBy, " and ") + " has passed it"
	case SegmentPassed:
		return "by the next pass of a relay's retention"
	}
	return "it is empty"
}

func (r *Report) readSegments(ctx context.Context, tx pgx.Tx, cursors []admin.Cursor) error {
	rows, err := tx.Query(ctx, `
		SELECT c.relname::text, pg_total_relation_size(c.oid)
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent IN ('outbox.messages'::regclass, 'outbox.inbox_messages'::regclass)
		ORDER BY i.inhparent = 'outbox.inbox_messages'::regclass, c.relname`)
	if err != nil {
		return fmt.Errorf("read segments: %w", err)
	}
	var s Segment
	_, err = pgx.ForEachRow(rows, []any{&s.Name, &s.Bytes}, func() error {
		r.Segments = append(r.Segments, s)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read segments: %w", err)
	}
	for i := range cursors {
		needed, err := waitsFor(ctx, tx, &cursors[i])
		if err != nil {
			return err
		}
		for _, n := range needed {
			name := fmt.Sprintf("%s_%d", strings.TrimPrefix(schema.TableOf(cursors[i].Destination), "outbox."), n)
			at := slices.IndexFunc(r.Segments, func(s Segment) bool { return s.Name == name })
			if at < 0 {
				continue
			}
			by := &r.Segments[at].NeededBy
			if !slices.Contains(*by, cursors[i].Destination) {
				*by = append(*by, cursors[i].Destination)
			}
		}
	}
	return nil
}
