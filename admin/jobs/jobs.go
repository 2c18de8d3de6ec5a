// Package jobs acts on many messages at once: it requeues, discards, acknowledges, restores and replays them, by lists
// that are frozen before anything happens. It also edits one dead letter, makes keys due that wait for an attempt, and
// acts on the dead letters of tables that are not the outbox's.
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

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/schema"
)

// BulkVerb is what a job does to each of its messages.
type BulkVerb string

// The verbs of jobs.
const (
	BulkRequeue     BulkVerb = "requeue"
	BulkDiscard     BulkVerb = "discard"
	BulkAcknowledge BulkVerb = "acknowledge"
	BulkRestore     BulkVerb = "restore"
	BulkReplay      BulkVerb = "replay" // see [StartReplay]
)

// Job states. An ended job is done, stopped or undone.
const (
	Planned = "planned" // its messages are listed, nothing happens
	Waiting = "waiting" // it begins when the time for an undo has passed
	Running = "running"
	Undoing = "undoing"
	Done    = "done"
	Stopped = "stopped"
	Undone  = "undone"
)

// Job is a bulk verb: a list of messages that is frozen when the job is planned, and how far it has come in the list.
type Job struct {
	ID          int64           `json:"id,omitempty"` // 0: nothing was selected, so there is no job
	Verb        BulkVerb        `json:"verb"`
	Blocked     bool            `json:"blocked,omitempty"` // of blocked messages, instead of dead letters
	Destination string          `json:"destination,omitempty"`
	To          string          `json:"to,omitempty"` // where a replay sends to, if that is another destination
	Selection   json.RawMessage `json:"selection,omitempty"`
	State       string          `json:"state"`

	Total   int64 `json:"total"`
	Done    int64 `json:"done"`              // changed
	Skipped int64 `json:"skipped,omitempty"` // left as they are, see Note
	Left    int64 `json:"left"`              // still to come

	// Groups count what was listed, the largest first, at most 200.
	Groups []JobGroup `json:"groups,omitempty"`

	Rate      int     `json:"rate,omitempty"`              // messages a second at most
	PerSecond float64 `json:"per_second,omitempty"`        // while it runs
	Remaining float64 `json:"remaining_seconds,omitempty"` // an estimate

	Actor  string `json:"actor"`
	Reason string `json:"reason,omitempty"`
	Note   string `json:"note,omitempty"` // why messages were skipped, or the last error

	Planned time.Time `json:"planned"`
	Started time.Time `json:"started,omitzero"`
	Next    time.Time `json:"next,omitzero"` // when the next batch may begin; an undo before the first leaves no trace
	Ended   time.Time `json:"ended,omitzero"`
}

// JobGroup counts messages of one destination, topic and reason.
type JobGroup struct {
	Destination string `json:"destination"`
	Topic       string `json:"topic"`
	Reason      string `json:"reason"`
	N           int64  `json:"n"`
}

// Options tune [Start].
type Options struct {
	Max   int64         // more messages are an ErrTooMany; 0: any number
	Rate  int           // messages a second; 0: as fast as it goes
	Delay time.Duration // for an undo, before the first message is touched
	Job   int64         // a job that a dry run has planned, instead of a selection
}

// UndoWindow is the usual delay before a job begins.
const UndoWindow = 10 * time.Second

// jobBatch is how many messages one transaction acts on.
const jobBatch = 500

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
		SELECT $9, row_number() OVER (ORDER BY destination, id, message_id), destination, lane, id, message_id, `+s.At()+` FROM `+s.Table()+`
		WHERE `+s.Where()+` ORDER BY destination, id, message_id LIMIT $10`, append(s.Args(), id, limit)...)
	if err != nil {
		return 0, err
	}
	switch total := tag.RowsAffected(); {
	case total == 0 && s.Named():
		return 0, fmt.Errorf("%w: no %s has such an id", admin.ErrNotFound, s.Kind())
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
		if err := deliverable(ctx, tx, id); err != nil {
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
			      FROM outbox.job_messages j JOIN `+s.Table()+` t ON `+listed+` WHERE j.job = $1 GROUP BY 1, 2, 3 ORDER BY 4 DESC LIMIT 200) g), '[]')
		WHERE id = $1`, id, tag.RowsAffected())
	return id, err
}

func tooMany(all, most int64) error {
	return fmt.Errorf("%w: %d are selected, at most %d may be: select fewer, or raise the maximum", admin.ErrTooMany, all, most)
}

// listed joins a table t to the list j of a job.
const listed = `t.destination = j.destination AND t.lane = j.lane AND t.id = j.id AND t.message_id = j.message_id`

// deliverable refuses to requeue messages that no relay would deliver, or that are all behind blocked heads.
func deliverable(ctx context.Context, tx pgx.Tx, id int64) error {
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

func noJob(id int64) error {
	return fmt.Errorf("%w: there is no such job %d: outbox jobs ls lists them", admin.ErrNotFound, id)
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

// running is a job whose row is locked.
type running struct {
	id       int64
	verb     BulkVerb
	blocked  bool
	undoing  bool
	position int64
	total    int64
	rate     int64
	actor    string
}

// runBatch runs one batch that is due, and returns the id of its job; 0 if there is none.
func runBatch(ctx context.Context, db admin.DB, id int64) (job int64, err error) {
	err = admin.InTx(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		var r running
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
			to, changed, err = r.nextOfList(ctx, tx, size)
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
			WHERE id = $1`, r.id, to, changed, skipped, r.why(), pause)
		return err
	})
	return job, err
}

// nextOfList acts on the next messages of the list. To undo, it acts on the last ones before the position. It returns
// the new position.
func (r *running) nextOfList(ctx context.Context, tx pgx.Tx, size int64) (to, changed int64, err error) {
	if r.undoing {
		to = max(r.position-size, 0)
		changed, err = r.act(ctx, tx, to, r.position)
		return to, changed, err
	}
	to = min(r.position+size, r.total)
	changed, err = r.act(ctx, tx, r.position, to)
	return to, changed, err
}

// why explains which messages a job has skipped.
func (r *running) why() string {
	if r.verb == BulkReplay {
		return "some were not sent: they are held or dead at the destination, their key is blocked there (outbox dead ls --blocked), " +
			"or their segment was emptied"
	}
	if r.verb == BulkRequeue && !r.blocked {
		return "some were requeued, discarded or sent since they were listed, or their key is blocked: outbox dead ls --blocked"
	}
	return "some were requeued, discarded or restored since they were listed"
}

// readJob reads a job.
func readJob(ctx context.Context, tx pgx.Tx, id int64) (Job, error) {
	list, err := Read(ctx, tx, `id = $1`, 1, id)
	if err == nil && len(list) == 0 {
		err = noJob(id)
	}
	if err != nil {
		return Job{}, err
	}
	return list[0], nil
}

func Read(ctx context.Context, tx pgx.Tx, where string, limit int, args ...any) ([]Job, error) {
	rows, err := tx.Query(ctx, fmt.Sprintf(`
		SELECT id, verb, blocked, coalesce(destination, ''), coalesce(nullif(target, destination), ''), selection,
		       CASE WHEN state = 'running' AND begun_at IS NULL AND next_at > clock_timestamp() THEN 'waiting' ELSE state END,
		       total, done, CASE WHEN state = 'undoing' THEN 0 ELSE position - done END,
		       CASE WHEN state = 'undoing' THEN position WHEN state = 'undone' THEN 0 ELSE total - position END, groups, coalesce(rate, 0),
		       CASE WHEN state = 'running' THEN coalesce(position / nullif(extract(epoch FROM clock_timestamp() - begun_at), 0), 0) ELSE 0 END::float8,
		       actor, coalesce(reason, ''), coalesce(note, ''), planned_at, started_at, next_at, ended_at,
		       state = 'running' AND fed_at < clock_timestamp() - interval '15 s'
		FROM outbox.jobs WHERE %s ORDER BY id DESC LIMIT %d`, where, limit), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (j Job, err error) {
		var started, next, ended *time.Time
		var left *bool
		err = row.Scan(&j.ID, &j.Verb, &j.Blocked, &j.Destination, &j.To, &j.Selection, &j.State, &j.Total, &j.Done,
			&j.Skipped, &j.Left, &j.Groups, &j.Rate,
			&j.PerSecond, &j.Actor, &j.Reason, &j.Note, &j.Planned, &started, &next, &ended, &left)
		j.Started, j.Next, j.Ended = admin.Value(started), admin.Value(next), admin.Value(ended)
		if err == nil && admin.Value(left) {
			var of Replay
			err = json.Unmarshal(j.Selection, &of)
			j.Note = "the command that reads the archive has ended; to go on: " + of.goOn(j.ID)
		}
		if j.State == Running && j.PerSecond > 0 {
			j.Remaining = float64(j.Left) / j.PerSecond
		}
		return j, err
	})
}

// Filter selects jobs. Fields that are set must all match.
type Filter struct {
	Destination string
	Unfinished  bool  // not yet ended, and not only planned
	Before      int64 // only jobs with a smaller ID: that of the last one of the page before
	Limit       int   // default 100, at most 1000
}

// List lists jobs, the newest first.
func List(ctx context.Context, db admin.DB, f Filter) (list []Job, err error) {
	err = admin.Read(ctx, db, func(tx pgx.Tx) error {
		list, err = Read(ctx, tx, `($1 = '' OR destination = $1) AND (NOT $2 OR state IN ('running', 'undoing')) AND ($3::bigint = 0 OR id < $3)`,
			admin.PageSize(f.Limit), f.Destination, f.Unfinished, f.Before)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	return list, nil
}

// JobDetail is a job with the first of its messages.
type JobDetail struct {
	Job
	Sample []JobMessage `json:"sample,omitempty"`
}

// JobMessage is a message on the list of a job.
type JobMessage struct {
	Destination string    `json:"destination"`
	Position    int64     `json:"position"`
	MessageID   outbox.ID `json:"message_id"`
}

// Show returns a job with at most twenty of its messages. Messages are forgotten a day after the job's end.
func Show(ctx context.Context, db admin.DB, id int64) (d JobDetail, err error) {
	err = admin.Read(ctx, db, func(tx pgx.Tx) error {
		if d.Job, err = readJob(ctx, tx, id); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT destination, id, message_id::text FROM outbox.job_messages WHERE job = $1 ORDER BY n LIMIT 20`, id)
		if err != nil {
			return err
		}
		d.Sample, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (m JobMessage, err error) {
			var text string
			if err = row.Scan(&m.Destination, &m.Position, &text); err == nil {
				m.MessageID, err = outbox.ParseID(text)
			}
			return m, err
		})
		return err
	})
	if err != nil {
		return JobDetail{}, fmt.Errorf("show the job: %w", err)
	}
	return d, nil
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
