package inbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// maxParkedError bounds the stored text of an error.
const maxParkedError = 2000

// Parked is a message that a consumer could not apply, for [Inbox.Park].
type Parked struct {
	Message  *outbox.Message
	Err      error
	Attempts int
	// Source names the message's position at its broker. A message without an id is identified by it and its payload,
	// because positions repeat when a topic is recreated.
	Source string
}

// requeue requires the cursor, as Store inserts it; an existing one will do.
//
// A second Park of a message, sent because the answer to the first was lost, waits by parkTurnSQL until the first has
// committed, and finds it in the next statement. The lock ends with the transaction of the batch.
const (
	parkTurnSQL = `SELECT pg_advisory_xact_lock(hashtextextended('outbox.park ' || $1 || ' ' || $2, 0))`

	parkCursorSQL = `INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier)
	SELECT $1, 0, 1, s.system_identifier FROM pg_control_system() s
	WHERE NOT EXISTS (SELECT FROM outbox.cursors c WHERE c.destination = $1) ON CONFLICT DO NOTHING`

	parkSQL = `INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, aggregate_type, aggregate_id,
		event_type, payload, content_type, headers, created_at, attempts, reason, error)
	SELECT $1::text, coalesce(nullif($4::text, ''), nullif($6::text, ''), $2::text), nextval('outbox.inbox_messages_id_seq'), $2::text::uuid, $3::text, nullif($4, ''),
		(hashtextextended(coalesce(nullif($4, ''), nullif($6, ''), $2), 0) & 63)::smallint, nullif($5::text, ''), nullif($6, ''), nullif($7::text, ''), $8::bytea, nullif($9::text, ''),
		$10::text::json, coalesce($11::timestamptz, clock_timestamp()), $12::int, $13::text, $14::text
	WHERE NOT EXISTS (SELECT FROM outbox.dead_letters d WHERE d.destination = $1 AND d.message_id = $2::text::uuid)`
)

// Park records a message that can't be applied as a dead letter of the consumer. When it returns nil, that is durable,
// and the message can be acknowledged. "outbox inbox dead" shows it. "outbox inbox requeue" passes it to the consumer's
// [Worker], which applies it in the place of the consumer that parked it. Park is for the consumers of package
// broker/consume.
//
// Park changes what the database can't store of a message (text that isn't UTF-8, a NUL, a repeated header); the error
// text tells so. A message that is already parked is left unchanged.
func (b *Inbox) Park(ctx context.Context, db DB, p Parked) error {
	if !settings.Given(db) || p.Message == nil || p.Err == nil {
		return errors.New("inbox: Park needs a database, a message and an error")
	}
	args, err := b.parked(p)
	if err != nil {
		return b.failed(p.Message, err)
	}
	batch := &pgx.Batch{}
	batch.Queue(parkCursorSQL, b.Destination())
	batch.Queue(parkTurnSQL, args[0], args[1])
	batch.Queue(parkSQL, args...)
	if err := db.SendBatch(ctx, batch).Close(); err != nil {
		return b.failed(p.Message, fmt.Errorf("park: %w", explain(err)))
	}
	return nil
}

// parked are the arguments of parkSQL.
func (b *Inbox) parked(p Parked) ([]any, error) {
	m, changed := *p.Message, false
	clean := func(text string) string {
		kept := strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
		changed = changed || kept != text
		return kept
	}
	if m.ID.IsZero() {
		if p.Source == "" {
			return nil, errors.New("park: the message has neither an id nor a source that could stand for it")
		}
		m.ID = DedupID(fmt.Sprintf("%s %x", p.Source, sha256.Sum256(m.Payload)))
	}
	headers := map[string]string{}
	for _, h := range m.Headers {
		name := clean(h.Name)
		if _, twice := headers[name]; twice {
			changed = true
		}
		headers[name] = clean(h.Value)
	}
	headers[consumerHeader] = b.consumer
	text, err := json.Marshal(headers)
	if err != nil {
		return nil, fmt.Errorf("park: encode the headers: %w", err)
	}
	topic, key, aggregateType, aggregate := clean(cmp.Or(m.Topic, "unknown")), clean(m.Key), clean(m.AggregateType), clean(m.AggregateID)
	eventType, contentType := clean(m.EventType), clean(m.ContentType)
	var payload, created any
	if m.Payload != nil {
		payload = slices.Clone(m.Payload)
	}
	if !m.CreatedAt.IsZero() {
		created = m.CreatedAt.UTC().Truncate(time.Microsecond)
	}
	reason := relay.ReasonExhausted
	if outbox.IsPermanent(p.Err) {
		reason = relay.ReasonRefused
	}
	what := strings.ReplaceAll(strings.ToValidUTF8(p.Err.Error(), "\uFFFD"), "\x00", "")
	if p.Source != "" {
		what += " (" + p.Source + ")"
	}
	if changed {
		what = "some of its text or headers could not be kept as they were; " + what
	}
	for len(what) > maxParkedError {
		_, size := utf8.DecodeLastRuneInString(what)
		what = what[:len(what)-size]
	}
	return []any{b.Destination(), m.ID.String(), topic, key,
		aggregateType, aggregate, eventType, payload, contentType, string(text), created, p.Attempts, string(reason), what}, nil
}
