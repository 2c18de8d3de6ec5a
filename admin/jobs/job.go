package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/internal/shell"
)

// BulkVerb is what a job does with each of its messages.
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

// jobBatch is how many messages one transaction acts on.
const jobBatch = 500

// Read reads the jobs of which the condition is true, the newest first, at most limit.
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
			j.Note = "the command that reads the archive has ended; to go on: " + of.resumeCommand(j.ID)
		}
		if j.State == Running && j.PerSecond > 0 {
			j.Remaining = float64(j.Left) / j.PerSecond
		}
		return j, err
	})
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

func noJob(id int64) error {
	return fmt.Errorf("%w: there is no such job %d: outbox jobs ls lists them", admin.ErrNotFound, id)
}

func tooMany(all, most int64) error {
	return fmt.Errorf("%w: %d are selected, at most %d may be: select fewer, or raise the maximum", admin.ErrTooMany, all, most)
}

// isListed is the condition that the message of a row t is the one of a row j of a job's list.
const isListed = `t.destination = j.destination AND t.lane = j.lane AND t.id = j.id AND t.message_id = j.message_id`

// lockedJob is a job whose row is locked.
type lockedJob struct {
	id       int64
	verb     BulkVerb
	blocked  bool
	undoing  bool
	position int64
	total    int64
	rate     int64
	actor    string
}

// skipNote explains which messages a job has skipped.
func (r *lockedJob) skipNote() string {
	if r.verb == BulkReplay {
		return "some were not sent: they are held or dead at the destination, their key is blocked there (outbox dead ls --blocked), " +
			"or their segment was emptied"
	}
	if r.verb == BulkRequeue && !r.blocked {
		return "some were requeued, discarded or sent since they were listed, or their key is blocked: outbox dead ls --blocked"
	}
	return "some were requeued, discarded or restored since they were listed"
}

// Replay selects messages that a destination has already got, to be sent once more.
type Replay struct {
	Destination string             `json:"destination"`  // that has got them
	To          string             `json:"to,omitempty"` // where they are sent to; "": to Destination
	Messages    find.MessageFilter `json:"messages"`

	// All allows a selection of all that the segments have.
	All bool `json:"all,omitempty"`

	Archive []string `json:"archive,omitempty"` // what a replay of [StartArchived] reads, which sets it
}

// target returns the destination that the messages are sent to.
func (r Replay) target() string {
	if r.To != "" {
		return r.To
	}
	return r.Destination
}

// destinations are those whose cursors must have passed a message that is replayed.
func (r Replay) destinations() []string { return slices.Compact([]string{r.Destination, r.target()}) }

// resumeCommand is the command that resumes a job of an archive.
func (r Replay) resumeCommand(id int64) string {
	text := "outbox replay --destination " + shell.Word(r.Destination)
	if r.To != "" {
		text += " --to " + shell.Word(r.To)
	}
	for _, dir := range r.Archive {
		text += " --archive " + shell.Word(dir)
	}
	return fmt.Sprintf("%s --job %d", text, id)
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
