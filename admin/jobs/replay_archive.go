package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/schema"
)

// Archived are messages that only this process can read. They may be read several times, and must be the same each
// time.
type Archived struct {
	Names    []string // what is read, for the audit
	Messages iter.Seq2[*outbox.Message, error]
}

// StartArchived is [StartReplay] for messages of an archive, which no other process can read: the job begins at once
// and goes on while [FeedReplay] feeds it. A message is sent once, however often the archive has it. options.Job also
// takes a job up whose feeding has ended too early.
//
// An archive may have messages that one of both destinations has not passed. So a message is left out as waiting if its
// id is at or beyond the lowest one that is still to be passed.
func StartArchived(ctx context.Context, db admin.DB, r Replay, from Archived, options Options, action admin.Action) (Job, error) {
	r.Archive = from.Names
	return r.start(ctx, db, options, action, func(tx pgx.Tx) (int64, error) {
		return planArchived(ctx, tx, r, from, options.Max, action)
	})
}

// planArchived counts what r names. The last_id of the job is the lowest id that is not sent; one can be added to it.
func planArchived(ctx context.Context, tx pgx.Tx, r Replay, from Archived, most int64, action admin.Action) (id int64, err error) {
	bounds, err := replayBounds(ctx, tx, r)
	if err != nil {
		return 0, err
	}
	where := find.Conditions{Text: "true"}
	passed := passedBy(&where, bounds, len(r.destinations()))
	var beyond int64
	err = tx.QueryRow(ctx, `SELECT coalesce(min(m.id), 9223372036854775806) FROM outbox.messages m WHERE NOT `+passed, where.Args...).Scan(&beyond)
	if err != nil {
		return 0, err
	}
	type group struct{ topic, state string }
	groups := make(map[group]int64)
	var total, others int64
	for m, err := range r.selectFrom(from) {
		if err != nil {
			return 0, err
		}
		if m.Position >= beyond {
			groups[group{m.Topic, ReplayWaiting}]++
			others++
			continue
		}
		groups[group{m.Topic, ReplayPassed}]++
		total++
	}
	switch {
	case total == 0 && others > 0:
		return 0, fmt.Errorf("%w: %d match, and %s may not have got them yet: they are as new as what waits",
			admin.ErrNotFound, others, r.destinations())
	case total == 0:
		return 0, nil
	case most > 0 && total > most:
		return 0, tooMany(total, most)
	}
	var listed []JobGroup
	for _, g := range slices.SortedFunc(maps.Keys(groups), func(a, b group) int {
		return cmp.Or(cmp.Compare(groups[b], groups[a]), cmp.Compare(a.topic, b.topic), cmp.Compare(a.state, b.state))
	}) {
		if len(listed) < 200 {
			listed = append(listed, JobGroup{r.target(), g.topic, g.state, groups[g]})
		}
	}
	err = tx.QueryRow(ctx, `INSERT INTO outbox.jobs (verb, blocked, destination, target, selection, last_id, actor, total, groups)
		VALUES ('replay', false, $1, $2, $3, $4, $5, $6, $7) RETURNING id`,
		r.Destination, r.target(), r, beyond, schema.Storable(tx.Conn(), action.Actor), total, listed).Scan(&id)
	return id, err
}

// selectFrom yields the messages of the archive that r selects, each once.
func (r Replay) selectFrom(from Archived) iter.Seq2[*outbox.Message, error] {
	return func(yield func(*outbox.Message, error) bool) {
		seen := make(map[outbox.ID]bool)
		for m, err := range from.Messages {
			if err == nil && (seen[m.ID] || !r.Messages.Matches(m)) {
				continue
			}
			if err == nil {
				seen[m.ID] = true
			}
			if !yield(m, err) || err != nil {
				return
			}
		}
	}
}

// FeedReplay carries out a job of [StartArchived], from where it stands until it ends. progress, if not nil, is called
// after each batch. If FeedReplay ends early, the job stays as it is, for another FeedReplay or [Stop].
func FeedReplay(ctx context.Context, db admin.DB, id int64, from Archived, progress func(Job)) (job Job, err error) {
	var r Replay
	var stored []byte
	var beyond, rate, position int64
	err = admin.Read(ctx, db, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT selection, last_id, coalesce(rate, 0), position FROM outbox.jobs WHERE id = $1`, id).
			Scan(&stored, &beyond, &rate, &position)
	})
	if err == nil {
		err = json.Unmarshal(stored, &r)
	}
	if err != nil {
		return job, fmt.Errorf("read job %d: %w", id, err)
	}
	size := jobBatch
	if rate > 0 {
		size = int(min(jobBatch, rate))
	}
	sent := position // by those who fed it before
	var batch []*outbox.Message
	feed := func() error {
		if job, err = feedBatch(ctx, db, id, position, r, batch); err != nil || !job.Ended.IsZero() {
			return err
		}
		position += int64(len(batch))
		if progress != nil {
			progress(job)
		}
		if rate > 0 {
			err = wait(ctx, time.Now().Add(time.Duration(len(batch))*time.Second/time.Duration(rate)))
		}
		batch = batch[:0]
		return err
	}
	for m, err := range r.selectFrom(from) {
		if err != nil {
			return job, fmt.Errorf("read the archive: %w", err)
		}
		if m.Position >= beyond {
			continue
		}
		if sent > 0 {
			sent--
			continue
		}
		if batch = append(batch, m); len(batch) < size {
			continue
		}
		if err := feed(); err != nil || !job.Ended.IsZero() {
			return job, err
		}
	}
	if err = feed(); err != nil {
		return job, err
	}
	if job.Ended.IsZero() {
		err = errors.New("the archive has fewer messages than were counted")
	}
	return job, err
}

// feedBatch makes holds of messages as soon as there is room for them. position is how far the job has come in its
// list.
func feedBatch(ctx context.Context, db admin.DB, id, position int64, r Replay, batch []*outbox.Message) (job Job, err error) {
	for {
		full := false
		err := admin.InTx(ctx, db, pgx.TxOptions{}, func(tx pgx.Tx) error {
			var running bool
			var at int64
			err := tx.QueryRow(ctx, `UPDATE outbox.jobs SET fed_at = clock_timestamp() WHERE id = $1 RETURNING state = 'running', position`,
				id).Scan(&running, &at)
			switch {
			case err != nil:
				return err
			case running && at != position:
				return fmt.Errorf("another command goes on with job %d", id)
			case running && len(batch) > 0:
				_, err := capacity(ctx, tx, id, r.target())
				if full = errors.Is(err, errWait); full {
					return nil
				}
				if err == nil {
					err = holdArchived(ctx, tx, id, r, batch)
				}
				if err != nil {
					return err
				}
			}
			job, err = readJob(ctx, tx, id)
			return err
		})
		if err != nil || !full {
			return job, err
		}
		if err := wait(ctx, time.Now().Add(replayPause)); err != nil {
			return job, err
		}
	}
}

// holdArchived makes holds of messages, and moves the job on.
func holdArchived(ctx context.Context, tx pgx.Tx, id int64, r Replay, batch []*outbox.Message) error {
	n := len(batch)
	ids, messageIDs, created := make([]int64, n), make([]string, n), make([]time.Time, n)
	texts := [6][]string{} // "" is NULL
	for i := range texts {
		texts[i] = make([]string, n)
	}
	payloads, headers, deliver := make([][]byte, n), make([]*string, n), make([]*time.Time, n)
	for i, m := range batch {
		ids[i], messageIDs[i], created[i], payloads[i] = m.Position, m.ID.String(), m.CreatedAt, m.Payload
		for j, text := range []string{m.Topic, m.Key, m.AggregateType, m.AggregateID, m.EventType, m.ContentType} {
			texts[j][i] = text
		}
		if !m.DeliverAt.IsZero() {
			deliver[i] = &m.DeliverAt
		}
		if len(m.Headers) > 0 {
			object := make(map[string]string, len(m.Headers))
			for _, h := range m.Headers {
				object[h.Name] = h.Value
			}
			text, err := json.Marshal(object)
			if err != nil {
				return err
			}
			stored := string(text)
			headers[i] = &stored
		}
	}
	var sent int64
	var lanes []string
	err := tx.QueryRow(ctx, `
		WITH given AS (
			SELECT id, message_id, topic, nullif(key, '') AS key, nullif(aggregate_type, '') AS aggregate_type, nullif(aggregate_id, '') AS aggregate_id,
			       nullif(event_type, '') AS event_type, nullif(content_type, '') AS content_type, payload, headers::json AS headers, deliver_at, created_at,
			       (hashtextextended(coalesce(nullif(key, ''), nullif(aggregate_id, ''), message_id::text), 0) & 63)::smallint AS shard
			FROM unnest($4::bigint[], $5::text[]::uuid[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::bytea[], $13::text[],
			            $14::timestamptz[], $15::timestamptz[])
			     g (id, message_id, topic, key, aggregate_type, aggregate_id, event_type, content_type, payload, headers, deliver_at, created_at)),
		page AS MATERIALIZED (SELECT m.*, `+schema.LaneSQL+` AS lane FROM given m),
		held AS (`+holdPageSQL+`)
		SELECT count(*), coalesce(array_agg(DISTINCT lane), '{}') FROM held`,
		id, r.target(), r.destinations(), ids, messageIDs, texts[0], texts[1], texts[2], texts[3], texts[4], texts[5],
		payloads, headers, deliver, created).Scan(&sent, &lanes)
	if err != nil {
		return fmt.Errorf("hold what is replayed: %w", err)
	}
	if err := makeHeadsDue(ctx, tx, slices.Repeat([]string{r.target()}, len(lanes)), lanes); err != nil {
		return err
	}
	why := (&lockedJob{verb: BulkReplay}).skipNote()
	_, err = tx.Exec(ctx, `
		UPDATE outbox.jobs SET position = position + $2, done = done + $3, begun_at = coalesce(begun_at, clock_timestamp()),
			note = CASE WHEN $3 < $2 THEN $4 ELSE note END, state = CASE WHEN position + $2 >= total THEN 'done' ELSE state END,
			ended_at = CASE WHEN position + $2 >= total THEN clock_timestamp() END
		WHERE id = $1`, id, int64(n), sent, why)
	return err
}
