package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/schema"
)

// Options tune [Start].
type Options struct {
	Max   int64         // more messages are an ErrTooMany; 0: any number
	Rate  int           // messages a second; 0: as fast as it goes
	Delay time.Duration // for an undo, before the first message is touched
	Job   int64         // a job that a dry run has planned, instead of a selection
}

// UndoWindow is the usual delay before a job begins.
const UndoWindow = 10 * time.Second

// Start lists what s selects and starts a job on the list: it is carried out by [Run] and [RunAll], of this process
// or another. A dry run only plans it; options.Job starts what a dry run has planned, once: starting it again does
// nothing. A selection of nothing is no job.
func Start(ctx context.Context, db admin.DB, verb BulkVerb, s find.Selection, options Options, action admin.Action) (job Job, err error) {
	if options.Job == 0 {
		if err = refuse(verb, s); err != nil {
			return job, fmt.Errorf("%s: %w", verb, err)
		}
	}
	return start(ctx, db, verb, s.Destination, "", options, action, func(tx pgx.Tx) (int64, error) {
		return plan(ctx, tx, verb, s, options.Max, action)
	})
}

// refuse reports why verb can't act on what s selects.
func refuse(verb BulkVerb, s find.Selection) error {
	switch {
	case verb == BulkAcknowledge && s.Blocked:
		return errors.New("blocked messages can't be acknowledged: requeue or discard them")
	case s.Discarded != (verb == BulkRestore):
		return errors.New("what was discarded can be restored, and nothing else")
	case s.Everything() && !s.All:
		return errors.New("nothing is selected: name messages, a destination, a topic, a key or a reason, or say all")
	}
	return s.Validate()
}

// start starts the job that plan has listed, or options.Job. plan returns 0 for nothing.
func start(ctx context.Context, db admin.DB, verb BulkVerb, destination, target string, options Options, action admin.Action,
	plan func(pgx.Tx) (int64, error)) (job Job, err error) {
	dry := action.DryRun
	action.DryRun = false // a plan is kept
	err = admin.Write(ctx, db, action, func(tx pgx.Tx) error {
		id := options.Job
		if id == 0 {
			if id, err = plan(tx); err != nil {
				return err
			}
		}
		if id == 0 {
			job = Job{Verb: verb, State: Done, Actor: action.Actor, Reason: action.Reason}
			return nil
		}
		if !dry {
			if err := startPlanned(ctx, tx, id, verb, destination, target, options, action); err != nil {
				return err
			}
		}
		job, err = readJob(ctx, tx, id)
		return err
	})
	if err != nil {
		return Job{}, fmt.Errorf("%s: %w", verb, err)
	}
	return job, nil
}

// plan lists what s selects. It returns 0 if that is nothing.
func plan(ctx context.Context, tx pgx.Tx, verb BulkVerb, s find.Selection, max int64, action admin.Action) (id int64, err error) {
	if verb == BulkAcknowledge {
		s.New = true
	}
	err = tx.QueryRow(ctx, `INSERT INTO outbox.jobs (verb, blocked, destination, selection, actor) VALUES ($1, $2, nullif($3, ''), $4, $5) RETURNING id`,
		verb, s.Blocked, s.Destination, s.Detail(), schema.Storable(tx.Conn(), action.Actor)).Scan(&id)
	if err != nil {
		return 0, err
	}
	limit := any(nil)
	if max > 0 && max < math.MaxInt64 {
		limit = max + 1
	}
	tag, err := tx.Exec(ctx, `
		INSERT INTO outbox.job_messages (job, n, destination, lane, id, message_id, at)
		SELECT $9, row_number() OVER (ORDER BY destination, id, message_id), destination, lane, id, message_id, `+s.TimeColumn()+` FROM `+s.Table()+`
		WHERE `+s.Where()+` ORDER BY destination, id, message_id LIMIT $10`, append(s.Args(), id, limit)...)
	if err != nil {
		return 0, err
	}
	switch total := tag.RowsAffected(); {
	case total == 0 && s.Named():
		return 0, fmt.Errorf("%w: no %s has such an id", admin.ErrNotFound, s.Noun())
	case total == 0:
		_, err := tx.Exec(ctx, `DELETE FROM outbox.jobs WHERE id = $1`, id)
		return 0, err
	case max > 0 && total > max:
		var all int64
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM `+s.Table()+` WHERE `+s.Where(), s.Args()...).Scan(&all); err != nil {
			return 0, err
		}
		return 0, tooMany(all, max)
	}
	if verb == BulkRequeue && !s.Blocked {
		if err := refuseUndeliverable(ctx, tx, id); err != nil {
			return 0, err
		}
	}
	reason := "t.reason"
	if s.Blocked {
		reason = "'blocked'"
	}
	_, err = tx.Exec(ctx, `
		UPDATE outbox.jobs SET total = $2, groups = coalesce((
			SELECT jsonb_agg(jsonb_build_object('destination', destination, 'topic', topic, 'reason', reason, 'n', n) ORDER BY n DESC, destination, topic, reason)
			FROM (SELECT t.destination, `+admin.Readable("t.topic")+` AS topic, `+reason+` AS reason, count(*) AS n
			      FROM outbox.job_messages j JOIN `+s.Table()+` t ON `+isListed+` WHERE j.job = $1 GROUP BY 1, 2, 3 ORDER BY 4 DESC LIMIT 200) g), '[]')
		WHERE id = $1`, id, tag.RowsAffected())
	return id, err
}

// refuseUndeliverable refuses to requeue messages that no relay would deliver, or that are all behind blocked heads.
func refuseUndeliverable(ctx context.Context, tx pgx.Tx, id int64) error {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT destination FROM outbox.job_messages j
		WHERE job = $1 AND NOT EXISTS (SELECT FROM outbox.cursors c WHERE c.destination = j.destination) ORDER BY 1`, id)
	if err != nil {
		return err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("no relay has a cursor for %s, so no relay delivers to it: start one, or give these "+
			"messages up: outbox dead discard",
			strings.Join(missing, ", "))
	}
	var lane, destination *string
	var all bool
	err = tx.QueryRow(ctx, `
		SELECT bool_and(b.lane IS NOT NULL), min(b.lane), min(b.destination) FROM outbox.job_messages j
		LEFT JOIN LATERAL (SELECT h.destination, h.lane FROM outbox.holds h
			WHERE h.destination = j.destination AND h.lane = j.lane AND h.retry_at = 'infinity' LIMIT 1) b ON true
		WHERE j.job = $1`, id).Scan(&all, &lane, &destination)
	if err == nil && all {
		err = fmt.Errorf("key %q of %s is blocked by a held message: requeue or discard that one first: "+
			"outbox dead ls --blocked --destination %s", *lane, *destination, *destination)
	}
	return err
}

// startPlanned starts a job that is planned, and leaves one alone that was started before.
func startPlanned(ctx context.Context, tx pgx.Tx, id int64, verb BulkVerb, destination, target string, options Options,
	action admin.Action) error {
	var selection json.RawMessage
	var groups []JobGroup
	var total int64
	var of string
	err := tx.QueryRow(ctx, `
		UPDATE outbox.jobs SET state = 'running', started_at = clock_timestamp(),
			next_at = CASE WHEN selection ? 'archive' THEN NULL ELSE clock_timestamp() + $4 * interval '1 microsecond' END, -- NULL: see FeedReplay
			fed_at = CASE WHEN selection ? 'archive' THEN clock_timestamp() END, rate = nullif($5, 0), actor = $6, reason = nullif($7, '')
		WHERE id = $1 AND verb = $2 AND ($3 = '' OR destination = $3 AND coalesce(target, '') = $8) AND state = 'planned'
		RETURNING selection, groups, total, coalesce(destination, '')`,
		id, verb, destination, options.Delay.Microseconds(), options.Rate, schema.Storable(tx.Conn(), action.Actor),
		schema.Storable(tx.Conn(), action.Reason), target).Scan(&selection, &groups, &total, &of)
	if errors.Is(err, pgx.ErrNoRows) {
		var known bool
		err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.jobs WHERE id = $1 AND verb = $2 AND ($3 = '' OR destination = $3 AND coalesce(target, '') = $4))`,
			id, verb, destination, target).Scan(&known)
		if err == nil && !known {
			err = noJob(id)
		}
		return err
	}
	if err != nil {
		return err
	}
	detail := map[string]any{"job": id, "selection": selection, "messages": total, "groups": groups}
	return admin.Record(ctx, tx, action, string(verb), of, detail)
}
