package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/schema"
)

// States of the messages in the groups of a replay. Those that wait are not on its list.
const (
	ReplayPassed  = find.StatePassed
	ReplayHeld    = find.StateHeld
	ReplayDead    = find.StateDead
	ReplayWaiting = find.StateWaiting
)

const (
	// replayPage is how many ids a page of a replay has.
	replayPage = schema.ReplayPage
	// replayAhead bounds the replayed holds of a destination that are still to be sent: they take memory in relays and
	// keep what is new of their keys behind them.
	replayAhead = 2000
	// replayPause is how long a replay waits while there are so many.
	replayPause = 250 * time.Millisecond
	// replaySpan is how many transaction ids one row of a page covers at most, as a power of two.
	replaySpan = 16
)

// StartReplay lists the messages that r names, and starts a job that sends them once more: as [Start] does, with a list
// of pages, so that a replay of millions costs little. They are read from the segments that are still there.
//
// Each of them becomes a hold of the target that is due at once. So it is delivered as any other hold is, with the same
// id, headers and payload, and by the same promises: the messages of a key come in order among themselves, an answer
// that is lost repeats some, and the target's filter leaves out what it would leave out of new messages. What a key
// gets in the meantime comes between. The count of what was delivered counts them again.
//
// The list has the messages that the cursors of both destinations had passed when it was made. Others will be delivered
// anyway; they are counted in the groups as waiting. A message that is held or dead at one of both, or whose key is
// blocked at the target, is left as it is.
func StartReplay(ctx context.Context, db admin.DB, r Replay, options Options, action admin.Action) (Job, error) {
	return r.start(ctx, db, options, action, func(tx pgx.Tx) (int64, error) {
		return planReplay(ctx, tx, r, options.Max, action)
	})
}

// start starts the replay that plan has listed, or options.Job.
func (r Replay) start(ctx context.Context, db admin.DB, options Options, action admin.Action,
	plan func(pgx.Tx) (int64, error)) (Job, error) {
	err := r.validate()
	if options.Job > 0 {
		err = r.sameArchive(ctx, db, options.Job)
	}
	if err != nil {
		return Job{}, fmt.Errorf("replay: %w", err)
	}
	return start(ctx, db, BulkReplay, r.Destination, r.target(), options, action, plan)
}

// sameArchive refuses a job that was planned for another archive than that of r, or for the segments.
func (r Replay) sameArchive(ctx context.Context, db admin.DB, id int64) error {
	var of Replay
	err := admin.Read(ctx, db, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT selection FROM outbox.jobs WHERE id = $1 AND verb = 'replay'`, id).Scan(&of)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return noJob(id)
	case err != nil || slices.Equal(of.Archive, r.Archive):
		return err
	case len(of.Archive) == 0:
		return fmt.Errorf("job %d is of the segments, not of an archive", id)
	}
	return fmt.Errorf("job %d is of an archive, which a command has to read: %s", id, of.resumeCommand(id))
}

func (r Replay) validate() error {
	switch {
	case r.Destination == "":
		return errors.New("name the destination that has got the messages")
	case strings.HasPrefix(r.Destination, schema.InboxPrefix) || strings.HasPrefix(r.To, schema.InboxPrefix):
		return errors.New("what a stored inbox has applied can't be replayed: it applies each message once")
	case r.Messages.Everything() && !r.All:
		return errors.New("nothing is selected: name messages, a key, a topic, a header or a time, or say all")
	case len(r.Archive) > 0 && r.Messages.Transaction > 0:
		return errors.New("an archive does not know by which transaction a message was written")
	}
	return nil
}

// bound is the position of the cursor of some shards at the time when a replay was listed.
type bound struct {
	Destination string `json:"destination"`
	First       int    `json:"first"`
	Last        int    `json:"last"`
	Prev        string `json:"prev"`
}

// replayBounds reads what both destinations have passed.
func replayBounds(ctx context.Context, tx pgx.Tx, r Replay) (bounds []bound, err error) {
	all, err := admin.ReadCursors(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, name := range r.destinations() {
		n := len(bounds)
		for _, c := range all {
			if c.Destination != name {
				continue
			}
			if c.Foreign {
				return nil, fmt.Errorf("the cursor of %s is from another cluster: run: outbox rebase --destination %s",
					name, shell.Word(name))
			}
			first, last := schema.Shards(c.Group, c.Groups)
			bounds = append(bounds, bound{name, first, last, c.Prev})
		}
		if len(bounds) == n {
			return nil, fmt.Errorf("%w: no relay has a cursor for %s in this outbox: outbox destinations ls lists "+
				"those that have", admin.ErrNotFound, name)
		}
	}
	return bounds, nil
}

// passedBy adds the condition that all destinations of the bounds have passed a row m of outbox.messages, as an
// expression.
func passedBy(c *find.Conditions, bounds []bound, destinations int) (expression string) {
	first, last, prev := make([]int, len(bounds)), make([]int, len(bounds)), make([]string, len(bounds))
	for i, b := range bounds {
		first[i], last[i], prev[i] = b.First, b.Last, b.Prev
	}
	n := len(c.Args)
	c.Args = append(c.Args, first, last, prev)
	return fmt.Sprintf(`(SELECT count(*) FROM unnest($%d::int[], $%d::int[], $%d::text[]::pg_snapshot[]) b (first, last, prev)
		WHERE m.shard BETWEEN b.first AND b.last AND pg_visible_in_snapshot(m.xid, b.prev)) = %d`, n+1, n+2, n+3, destinations)
}

// planReplay lists what r names, by pages. It returns 0 if that is nothing.
func planReplay(ctx context.Context, tx pgx.Tx, r Replay, most int64, action admin.Action) (id int64, err error) {
	bounds, err := replayBounds(ctx, tx, r)
	if err != nil {
		return 0, err
	}
	note, err := emptiedNote(ctx, tx, r.Messages)
	if err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, `INSERT INTO outbox.jobs (verb, blocked, destination, target, selection, bounds, actor, note)
		VALUES ('replay', false, $1, $2, $3, $4, $5, nullif($6, '')) RETURNING id`,
		r.Destination, r.target(), r, bounds, schema.Storable(tx.Conn(), action.Actor), note).Scan(&id)
	if err != nil {
		return 0, err
	}
	where := find.Conditions{Text: "true", Args: []any{id, r.destinations(), r.target()}}
	where.Match(r.Messages)
	passed := passedBy(&where, bounds, len(r.destinations()))
	// One walk over the messages: by page, range of transactions, topic and state.
	var total, others int64
	err = tx.QueryRow(ctx, `
		WITH parts AS MATERIALIZED (
			SELECT m.id / `+fmt.Sprint(replayPage)+` AS page, m.xid::text::bigint >> `+fmt.Sprint(replaySpan)+` AS span, `+admin.Readable("m.topic")+` AS topic,
			       CASE WHEN NOT `+passed+` THEN 'waiting'
			            WHEN (m.id, m.message_id) IN (SELECT d.id, d.message_id FROM outbox.dead_letters d WHERE d.destination = ANY ($2)) THEN 'dead'
			            WHEN (m.id, m.message_id) IN (SELECT h.id, h.message_id FROM outbox.holds h WHERE h.destination = ANY ($2)) THEN 'held'
			            ELSE 'passed' END AS state,
			       min(m.xid::text::bigint) AS first, max(m.xid::text::bigint) AS last, count(*) AS n
			FROM outbox.messages m WHERE `+where.Text+` GROUP BY 1, 2, 3, 4),
		pages AS (
			INSERT INTO outbox.job_pages (job, page, first, last, upto)
			SELECT $1, page, min(first), max(last), sum(sum(n)) OVER (ORDER BY page, span) FROM parts WHERE state <> 'waiting' GROUP BY page, span),
		updated AS (
			UPDATE outbox.jobs SET total = (SELECT coalesce(sum(n), 0) FROM parts WHERE state <> 'waiting'), groups = coalesce((
				SELECT jsonb_agg(jsonb_build_object('destination', $3::text, 'topic', topic, 'reason', state, 'n', n) ORDER BY n DESC, topic, state)
				FROM (SELECT topic, state, sum(n) AS n FROM parts GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 200) g), '[]')
			WHERE id = $1 RETURNING total)
		SELECT total, (SELECT coalesce(sum(n), 0)::bigint FROM parts WHERE state = 'waiting') FROM updated`, where.Args...).Scan(&total, &others)
	switch {
	case err != nil:
		return 0, err
	case total == 0 && others > 0:
		return 0, fmt.Errorf("%w: %d match, and %s has not got them yet: they will be delivered anyway", admin.ErrNotFound,
			others, strings.Join(r.destinations(), " or "))
	case total == 0 && note != "":
		return 0, fmt.Errorf("%w: nothing is there that matches: %s", admin.ErrNotFound, note)
	case total == 0:
		_, err := tx.Exec(ctx, `DELETE FROM outbox.jobs WHERE id = $1`, id)
		return 0, err
	case most > 0 && total > most:
		return 0, tooMany(total, most)
	}
	return id, nil
}

// emptiedNote returns a note if the filter asks for messages of segments that were emptied. That happens when every
// destination has passed a segment.
func emptiedNote(ctx context.Context, tx pgx.Tx, f find.MessageFilter) (note string, err error) {
	if len(f.MessageIDs) > 0 {
		where := find.Conditions{Text: "true"}
		where.Match(find.MessageFilter{MessageIDs: f.MessageIDs})
		rows, err := tx.Query(ctx, `SELECT DISTINCT m.message_id::text FROM outbox.messages m WHERE `+where.Text, where.Args...)
		if err != nil {
			return "", err
		}
		there, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return "", err
		}
		missing := slices.DeleteFunc(admin.IDTexts(f.MessageIDs), func(id string) bool { return slices.Contains(there, id) })
		if len(missing) > 0 {
			note = fmt.Sprintf("%d of %d ids are in no segment, such as %s: the segment was emptied, or no message ever had the id",
				len(missing), len(f.MessageIDs), missing[0])
		}
		return note, nil
	}
	if f.Transaction > 0 {
		return "", nil
	}
	if err := admin.PreferIndexes(ctx, tx); err != nil {
		return "", err
	}
	var first int64
	var oldest time.Time
	err = tx.QueryRow(ctx, `SELECT id, created_at FROM outbox.messages ORDER BY xid, id LIMIT 1`).Scan(&first, &oldest)
	if errors.Is(err, pgx.ErrNoRows) {
		return "the segments are empty: every destination has passed all that was written", nil
	}
	if err != nil {
		return "", err
	}
	if first > 1 && (f.Since.IsZero() || f.Since.Before(oldest)) {
		note = fmt.Sprintf("the segments reach back to %s; what was written before is gone, as every destination has passed it",
			oldest.UTC().Format(time.RFC3339))
	}
	_, err = tx.Exec(ctx, `SET LOCAL enable_seqscan = on; SET LOCAL enable_bitmapscan = on`)
	return note, err
}

// errWait means that a batch has to wait until outstanding messages have arrived.
var errWait = errors.New("too many are outstanding")

// capacity returns how many more messages a replay may send to a target before others have arrived. If none, it is
// errWait.
func capacity(ctx context.Context, tx pgx.Tx, id int64, target string) (int64, error) {
	var outstanding int64
	var here bool
	err := tx.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM (SELECT FROM outbox.holds WHERE destination = $1 AND job IS NOT NULL LIMIT $2) h),
		       coalesce((SELECT bool_and(c.system_identifier = (SELECT s.system_identifier FROM pg_control_system() s))
		                 FROM outbox.cursors c WHERE c.destination = $1), false)`, target, replayAhead).Scan(&outstanding, &here)
	switch {
	case err != nil:
		return 0, err
	case outstanding >= replayAhead:
		return 0, errWait
	case !here:
		return 0, fmt.Errorf("no relay has a cursor for %s in this cluster: outbox jobs stop %d ends this", target, id)
	}
	return replayAhead - outstanding, nil
}

// holdPageSQL makes holds of the messages of a relation "page", which has the lane, the id and the columns of holds,
// and returns their lanes. $1 is the job, $2 the target, $3 both destinations. A hold that is there already is the
// message's own. What is dead or blocked is left to those who requeue it. headsDue has to follow.
const holdPageSQL = `
	INSERT INTO outbox.holds (destination, lane, id, ` + schema.MessageColumns + `, job)
	SELECT $2, lane, id, ` + schema.MessageColumns + `, $1 FROM page m
	WHERE NOT EXISTS (SELECT FROM outbox.dead_letters d
		WHERE d.destination = ANY ($3) AND d.id = m.id AND d.message_id = m.message_id)
	AND NOT EXISTS (SELECT FROM outbox.holds h
		WHERE h.destination = ANY ($3) AND h.lane = m.lane AND h.id = m.id AND h.message_id = m.message_id)
	AND NOT EXISTS (SELECT FROM outbox.holds h WHERE h.destination = $2 AND h.lane = m.lane AND h.retry_at = 'infinity')
	ON CONFLICT (destination, lane, id, message_id) DO NOTHING
	RETURNING lane`

// replay makes holds of the next messages of a replay's list, in the order of their ids, and returns how far it has
// come in the list and how many they are.
func (r *lockedJob) replay(ctx context.Context, tx pgx.Tx, size int64) (to, sent int64, err error) {
	var of Replay
	var stored, limits []byte
	var after int64
	err = tx.QueryRow(ctx, `SELECT selection, bounds, last_id FROM outbox.jobs WHERE id = $1`, r.id).Scan(&stored, &limits, &after)
	if err != nil {
		return 0, 0, err
	}
	var bounds []bound
	if err := errors.Join(json.Unmarshal(stored, &of), json.Unmarshal(limits, &bounds)); err != nil {
		return 0, 0, fmt.Errorf("read what is selected: %w", err)
	}
	free, err := capacity(ctx, tx, r.id, of.target())
	if err != nil {
		return 0, 0, err
	}
	size = min(size, free)
	// The page, and where its messages are.
	var page, upto int64
	var first, last []string
	err = tx.QueryRow(ctx, `
		SELECT p.page, max(p.upto), array_agg(p.first::text ORDER BY p.first), array_agg(p.last::text ORDER BY p.first) FROM outbox.job_pages p
		WHERE p.job = $1 AND p.page = (SELECT min(n.page) FROM outbox.job_pages n WHERE n.job = $1 AND n.page >= $2::bigint / $3) GROUP BY 1`,
		r.id, after+1, replayPage).Scan(&page, &upto, &first, &last)
	if errors.Is(err, pgx.ErrNoRows) {
		return r.total, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	end := (page+1)*replayPage - 1
	where := find.Conditions{Text: "m.xid BETWEEN r.first AND r.last AND m.id BETWEEN $4 AND $5",
		Args: []any{r.id, of.target(), of.destinations(), max(page*replayPage, after+1), end, size, first, last}}
	where.Match(of.Messages)
	where.Text += " AND " + passedBy(&where, bounds, len(of.destinations()))
	if err := admin.PreferIndexes(ctx, tx); err != nil {
		return 0, 0, err
	}
	var read, reached int64
	var lanes []string
	err = tx.QueryRow(ctx, `
		WITH page AS MATERIALIZED (
			SELECT m.*, `+schema.LaneSQL+` AS lane FROM unnest($7::text[]::xid8[], $8::text[]::xid8[]) r (first, last)
			JOIN outbox.messages m ON `+where.Text+`
			ORDER BY m.id FETCH FIRST $6 ROWS WITH TIES),
		held AS (`+holdPageSQL+`)
		SELECT (SELECT count(*) FROM page), (SELECT coalesce(max(id), 0) FROM page), (SELECT count(*) FROM held),
		       (SELECT coalesce(array_agg(DISTINCT lane), '{}') FROM held)`, where.Args...).Scan(&read, &reached, &sent, &lanes)
	if err != nil {
		return 0, 0, fmt.Errorf("hold what is replayed: %w", err)
	}
	if to = min(r.position+read, upto); read < size {
		to, reached = upto, end
	}
	if _, err := tx.Exec(ctx, `UPDATE outbox.jobs SET last_id = $2 WHERE id = $1`, r.id, reached); err != nil {
		return 0, 0, err
	}
	return to, sent, makeHeadsDue(ctx, tx, slices.Repeat([]string{of.target()}, len(lanes)), lanes)
}

// StopReplays ends every replay, because its list is of transactions and ids that mean something else from now on.
func StopReplays(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		UPDATE outbox.jobs SET state = 'stopped', ended_at = clock_timestamp(), next_at = NULL, note = 'the rest was stopped by a rebase'
		WHERE verb = 'replay' AND state IN ('planned', 'running')`)
	if err != nil {
		return fmt.Errorf("stop replays: %w", err)
	}
	return nil
}
