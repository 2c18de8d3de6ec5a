// Package jobs acts on many messages at once: it requeues, discards, acknowledges, restores and replays them, by lists
// that are frozen before anything happens. It also edits one dead letter, makes keys due that wait for an attempt, and
// acts on the dead letters of tables that are not the outbox's.
package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/schema"
)

// Requeue sends what s selects once more: dead letters become holds that are due at once, with no attempt counted;
// blocked messages are tried again, and what waits behind them follows. Messages of a key keep their order among
// themselves and among the holds of that key. What was delivered after a dead letter stays delivered: consumers that
// need order see it late.
//
// It is a job without delay, which is carried out before Requeue returns, in batches. If ctx ends before, [RunAll]
// goes on with it. More than max messages (if max is positive) are an ErrTooMany, none of those that s names an
// ErrNotFound. A destination without a cursor is refused, as no relay would deliver to it. A dry run plans the job.
func Requeue(ctx context.Context, db admin.DB, s find.Selection, max int64, action admin.Action) (Job, error) {
	return atOnce(ctx, db, BulkRequeue, s, max, action)
}

// Discard moves what s selects to the trash, where it is kept for a day. Behind a blocked message the rest of its lane
// goes on. The rest is as with Requeue.
func Discard(ctx context.Context, db admin.DB, s find.Selection, max int64, action admin.Action) (Job, error) {
	return atOnce(ctx, db, BulkDiscard, s, max, action)
}

// Acknowledge notes that the actor knows of the dead letters that s selects: the verdict no longer names them. They
// stay where they are, and one that dies again is new again. The rest is as with Requeue; blocked messages can't be
// acknowledged.
func Acknowledge(ctx context.Context, db admin.DB, s find.Selection, max int64, action admin.Action) (Job, error) {
	return atOnce(ctx, db, BulkAcknowledge, s, max, action)
}

func atOnce(ctx context.Context, db admin.DB, verb BulkVerb, s find.Selection, max int64, action admin.Action) (Job, error) {
	job, err := Start(ctx, db, verb, s, Options{Max: max}, action)
	if err == nil && !action.DryRun && job.ID > 0 {
		job, err = Run(ctx, db, job.ID, 0)
	}
	return job, err
}

// Run carries a job out until it ends, or, if d is positive, for about that long, and returns how it stands. Any
// number of processes may do so at once: each batch is one transaction of one of them. An error is noted in the job,
// whose next batch is due ten seconds later.
func Run(ctx context.Context, db admin.DB, id int64, d time.Duration) (job Job, err error) {
	deadline := time.Now().Add(d)
	for {
		worked, err := runNext(ctx, db, id)
		if err != nil {
			return job, err
		}
		if worked && (d <= 0 || time.Now().Before(deadline)) {
			continue
		}
		err = admin.Read(ctx, db, func(tx pgx.Tx) error {
			job, err = readJob(ctx, tx, id)
			return err
		})
		if err != nil || job.Next.IsZero() || d > 0 && !time.Now().Before(deadline) {
			return job, err
		}
		next := job.Next
		if d > 0 && next.After(deadline) {
			next = deadline
		}
		if err := wait(ctx, next); err != nil {
			return job, err
		}
	}
}

// RunAll carries out every job that is started, until none is left or ctx ends.
func RunAll(ctx context.Context, db admin.DB) error {
	for {
		worked, err := runNext(ctx, db, 0)
		if err != nil {
			return err
		}
		if worked {
			continue
		}
		var next *time.Time
		err = admin.Read(ctx, db, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, `SELECT min(next_at) FROM outbox.jobs WHERE state IN ('running', 'undoing')`).Scan(&next)
		})
		if err != nil || next == nil {
			return err
		}
		if err := wait(ctx, *next); err != nil {
			return err
		}
	}
}

// wait ends at a time of the database's clock, or after a second: another may have ended the job, and clocks differ.
func wait(ctx context.Context, until time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(min(max(time.Until(until), 10*time.Millisecond), time.Second)):
		return nil
	}
}

// runNext runs a batch that is due, of one job or, with 0, of any. It notes an error in the job.
func runNext(ctx context.Context, db admin.DB, id int64) (worked bool, err error) {
	job, err := runBatch(ctx, db, id)
	if err == nil || job == 0 || ctx.Err() != nil {
		return job > 0, err
	}
	noted := admin.InTx(ctx, db, pgx.TxOptions{}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE outbox.jobs SET note = $2, next_at = clock_timestamp() + interval '10 s'
			WHERE id = $1 AND state IN ('running', 'undoing')`, job, schema.Storable(tx.Conn(), err.Error()))
		return err
	})
	return false, errors.Join(fmt.Errorf("job %d: %w", job, err), noted)
}

// runBatch runs one batch that is due, and returns the id of its job; 0 if there is none.
func runBatch(ctx context.Context, db admin.DB, id int64) (job int64, err error) {
	err = admin.InTx(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		var r lockedJob
		err := tx.QueryRow(ctx, `
			SELECT id, verb, blocked, state = 'undoing', position, total, coalesce(rate, 0), actor FROM outbox.jobs
			WHERE state IN ('running', 'undoing') AND next_at <= clock_timestamp() AND ($1 = 0 OR id = $1)
			ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED`, id).
			Scan(&r.id, &r.verb, &r.blocked, &r.undoing, &r.position, &r.total, &r.rate, &r.actor)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		job = r.id
		size := int64(jobBatch)
		if r.rate > 0 && !r.undoing {
			size = min(size, r.rate)
		}
		var to, changed int64
		if r.verb == BulkReplay {
			to, changed, err = r.replay(ctx, tx, size)
		} else {
			to, changed, err = r.actOnNext(ctx, tx, size)
		}
		if errors.Is(err, errWait) {
			_, err = tx.Exec(ctx, `UPDATE outbox.jobs SET next_at = clock_timestamp() + $2 * interval '1 microsecond' WHERE id = $1`,
				r.id, replayPause.Microseconds())
			return err
		}
		if err != nil {
			return err
		}
		skipped := !r.undoing && changed < to-r.position
		if r.undoing {
			changed = -changed
		}
		var pause float64
		if r.rate > 0 && !r.undoing {
			pause = float64(to-r.position) / float64(r.rate)
		}
		_, err = tx.Exec(ctx, `
			UPDATE outbox.jobs SET position = $2::bigint, done = CASE WHEN $2::bigint = 0 THEN 0 ELSE done + $3::bigint END, begun_at = coalesce(begun_at, clock_timestamp()),
				note = CASE WHEN $4::boolean THEN $5::text ELSE note END,
				next_at = CASE WHEN $2::bigint NOT IN (0, total) THEN clock_timestamp() + $6::float8 * interval '1 second' END,
				state = CASE WHEN $2::bigint = 0 THEN 'undone' WHEN $2::bigint = total AND state = 'running' THEN 'done' ELSE state END,
				ended_at = CASE WHEN $2::bigint IN (0, total) THEN clock_timestamp() END
			WHERE id = $1`, r.id, to, changed, skipped, r.skipNote(), pause)
		return err
	})
	return job, err
}

// actOnNext acts on the next messages of the list. To undo, it acts on the last ones before the position. It returns
// the new position.
func (r *lockedJob) actOnNext(ctx context.Context, tx pgx.Tx, size int64) (to, changed int64, err error) {
	if r.undoing {
		to = max(r.position-size, 0)
		changed, err = r.act(ctx, tx, to, r.position)
		return to, changed, err
	}
	to = min(r.position+size, r.total)
	changed, err = r.act(ctx, tx, r.position, to)
	return to, changed, err
}

// Stop ends a job where it stands: what is done stays done. If destination is given, only a job of it is found.
func Stop(ctx context.Context, db admin.DB, id int64, destination string, action admin.Action) (Job, error) {
	return endJob(ctx, db, "stop_job", id, destination, action, func(tx pgx.Tx, job Job) (string, error) {
		switch job.State {
		case Planned, Waiting, Running, Undoing:
			return `state = 'stopped', ended_at = clock_timestamp(), next_at = NULL`, nil
		}
		return "", fmt.Errorf("job %d has ended: it is %s", id, job.State)
	})
}

// Undo takes back what a job has done, batch by batch: discarded messages return from the trash, and acknowledged
// ones are new again. A job that has not begun leaves no trace. If a requeue has begun, only its rest is stopped: what
// relays have read can't be called back. If destination is given, only a job of it is found.
func Undo(ctx context.Context, db admin.DB, id int64, destination string, action admin.Action) (Job, error) {
	return endJob(ctx, db, "undo_job", id, destination, action, func(tx pgx.Tx, job Job) (string, error) {
		touched := job.Done + job.Skipped
		switch {
		case job.State == Undoing || job.State == Undone:
			return "", fmt.Errorf("job %d is %s already", id, job.State)
		case touched == 0:
			return `state = 'undone', ended_at = clock_timestamp(), next_at = NULL`, nil
		case job.Verb == BulkDiscard || job.Verb == BulkAcknowledge:
			var listed bool
			err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.job_messages WHERE job = $1)`, id).Scan(&listed)
			if err == nil && !listed {
				err = fmt.Errorf("job %d has ended more than a day ago: its messages are forgotten", id)
			}
			return `state = 'undoing', ended_at = NULL, next_at = clock_timestamp(), note = NULL`, err
		case job.State == Running:
			return `state = 'stopped', ended_at = clock_timestamp(), next_at = NULL, note = 'the rest was stopped; what was done can''t be taken back'`, nil
		}
		return "", fmt.Errorf("job %d has ended, and a %s can't be taken back then", id, job.Verb)
	})
}

// endJob changes a job's row under its lock, by change.
func endJob(ctx context.Context, db admin.DB, verb string, id int64, destination string, action admin.Action,
	change func(pgx.Tx, Job) (string, error)) (job Job, err error) {
	err = admin.Write(ctx, db, action, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `SELECT FROM outbox.jobs WHERE id = $1 AND ($2 = '' OR destination = $2) FOR UPDATE`, id, destination)
		if err == nil && tag.RowsAffected() == 0 {
			err = noJob(id)
		}
		if err != nil {
			return err
		}
		if job, err = readJob(ctx, tx, id); err != nil {
			return err
		}
		set, err := change(tx, job)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE outbox.jobs SET `+set+` WHERE id = $1`, id); err != nil {
			return err
		}
		if job, err = readJob(ctx, tx, id); err != nil {
			return err
		}
		return admin.Record(ctx, tx, action, verb, job.Destination, map[string]any{"job": id, "done": job.Done, "left": job.Left})
	})
	if err != nil {
		return Job{}, err
	}
	return job, nil
}
