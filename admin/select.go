package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/schema"
)

// Selection names dead letters. Fields that are set must all match; one that selects nothing in
// particular needs All.
type Selection struct {
	// Blocked selects, instead of dead letters, the messages that keep their lanes held until an
	// operator acts (the policy "block").
	Blocked bool

	MessageIDs  []outbox.ID
	Positions   []int64 // rows' ids
	Destination string
	Topic       string
	Key         string // the ordering key
	Reason      string // "invalid", "refused", "exhausted"; not with Blocked
	Before      time.Time

	// Fingerprint is that of a [DeadGroup]; not with Blocked.
	Fingerprint string

	// New selects those that no operator has acknowledged; not with Blocked.
	New bool

	// Discarded selects, instead of dead letters, those in the trash; not with Blocked.
	Discarded bool

	// All allows a selection without any of the above.
	All bool
}

// validate refuses what verb can't act on; "" is a list.
func (s Selection) validate(verb BulkVerb) error {
	switch {
	case verb == BulkAcknowledge && s.Blocked:
		return errors.New("blocked messages can't be acknowledged: requeue or discard them")
	case verb != "" && s.Discarded != (verb == BulkRestore):
		return errors.New("what was discarded can be restored, and nothing else")
	case s.Blocked && s.Discarded:
		return errors.New("what was discarded is blocked no more: leave one of both out")
	case verb != "" && s.Everything() && !s.All:
		return errors.New("nothing is selected: name messages, a destination, a topic, a key or a reason, or say all")
	}
	if s.Blocked && s.Reason != "" {
		return errors.New("blocked messages have no reason to select by: leave the reason out")
	}
	if s.Blocked && s.Fingerprint != "" {
		return errors.New("blocked messages are in no group: leave the fingerprint out")
	}
	if s.Blocked && s.New {
		return errors.New("blocked messages can't be acknowledged: requeue or discard them")
	}
	return nil
}

// Everything reports whether nothing is named: s selects all there is.
func (s Selection) Everything() bool {
	return len(s.MessageIDs) == 0 && len(s.Positions) == 0 && s.Destination == "" && s.Topic == "" && s.Key == "" &&
		s.Reason == "" && s.Fingerprint == "" && s.Before.IsZero()
}

// named reports whether s names messages one by one.
func (s Selection) named() bool { return len(s.MessageIDs)+len(s.Positions) > 0 }

func (s Selection) table() string {
	if s.Blocked {
		return "outbox.holds"
	}
	if s.Discarded {
		return "outbox.trash"
	}
	return "outbox.dead_letters"
}

// at is when a row of the table came there.
func (s Selection) at() string {
	if s.Blocked {
		return "held_at"
	}
	if s.Discarded {
		return "trashed_at"
	}
	return "dead_at"
}

func (s Selection) kind() string {
	switch {
	case s.Blocked:
		return "blocked message"
	case s.Discarded:
		return "discarded message"
	case s.New:
		return "dead letter that is new"
	}
	return "dead letter"
}

// where is the condition for args.
func (s Selection) where() string {
	const common = `($1::uuid[] IS NULL OR message_id = ANY ($1)) AND ($2::bigint[] IS NULL OR id = ANY ($2))
		AND ($3::text IS NULL OR destination = $3) AND ($4::text IS NULL OR topic = $4) AND ($5::text IS NULL OR lane = $5)`
	if s.Blocked {
		return common + ` AND retry_at = 'infinity' AND $6::text IS NULL AND ($7::timestamptz IS NULL OR held_at < $7) AND $8::text IS NULL`
	}
	dead := common + ` AND ($6::text IS NULL OR reason = $6) AND ($7::timestamptz IS NULL OR dead_at < $7) AND ($8::text IS NULL OR fingerprint = $8)`
	if s.New {
		dead += ` AND acknowledged_at IS NULL`
	}
	return dead
}

// readable is a text as it can be sent whatever the database's encoding: unless that is UTF-8, one that isn't ASCII has
// its bytes in octal. A dead letter may be one because of a text that has no UTF-8 form.
func readable(text string) string {
	return `CASE WHEN getdatabaseencoding() = 'UTF8' OR ` + text + ` !~ E'[^\\x01-\\x7f]' THEN ` + text + `
		ELSE encode(decode(replace(` + text + `, E'\\', E'\\\\'), 'escape'), 'escape') END`
}

// moment is a time that JSON can write, or NULL: rows may have infinity, and years beyond 9999.
func moment(sql string) string {
	return "CASE WHEN " + sql + " BETWEEN '0001-01-02 00:00Z' AND '9999-12-30 00:00Z' THEN " + sql + " END"
}

// readableJSON is a column of json or jsonb, as text; one that can't be sent as it is becomes a string of what is
// readable.
func readableJSON(column string) string {
	text := column + "::text"
	return `CASE WHEN ` + readable(text) + ` = ` + text + ` THEN ` + text + ` ELSE to_jsonb(` + readable(text) + `)::text END`
}

func (s Selection) args() []any {
	text := func(v string) any {
		if v == "" {
			return nil
		}
		return v
	}
	var ids, positions, before any
	if len(s.MessageIDs) > 0 {
		ids = texts(s.MessageIDs)
	}
	if len(s.Positions) > 0 {
		positions = s.Positions
	}
	if !s.Before.IsZero() {
		before = s.Before
	}
	return []any{ids, positions, text(s.Destination), text(s.Topic), text(schema.LaneOf(s.Key)), text(s.Reason), before,
		text(s.Fingerprint)}
}

// detail describes s for the audit.
func (s Selection) detail() map[string]any {
	d := map[string]any{}
	set := func(name string, v any, ok bool) {
		if ok {
			d[name] = v
		}
	}
	set("blocked", true, s.Blocked)
	set("message_ids", s.MessageIDs, len(s.MessageIDs) > 0)
	set("positions", s.Positions, len(s.Positions) > 0)
	set("destination", s.Destination, s.Destination != "")
	set("topic", s.Topic, s.Topic != "")
	set("key", s.Key, s.Key != "")
	set("reason", s.Reason, s.Reason != "")
	set("fingerprint", s.Fingerprint, s.Fingerprint != "")
	set("before", s.Before, !s.Before.IsZero())
	set("new", true, s.New)
	set("discarded", true, s.Discarded)
	set("all", true, s.All)
	return d
}

// DeadLetter is a message that was set aside, or one that keeps its lane held.
type DeadLetter struct {
	Destination   string          `json:"destination"`
	Position      int64           `json:"position"`
	MessageID     outbox.ID       `json:"message_id"`
	Topic         string          `json:"topic"`
	Key           string          `json:"key,omitempty"` // the ordering key
	AggregateType string          `json:"aggregate_type,omitempty"`
	AggregateID   string          `json:"aggregate_id,omitempty"`
	EventType     string          `json:"event_type,omitempty"`
	ContentType   string          `json:"content_type,omitempty"`
	Headers       json.RawMessage `json:"headers,omitempty"` // as stored
	CreatedAt     time.Time       `json:"created_at"`
	Attempts      int             `json:"attempts"`
	Reason        string          `json:"reason"` // "invalid", "refused", "exhausted" or "blocked"
	Error         string          `json:"error"`
	At            time.Time       `json:"at"`               // when it was set aside
	Behind        int64           `json:"behind,omitempty"` // messages that wait behind a blocked one

	// Deaths is more than one if it was requeued and failed again. Fingerprint is that of its [DeadGroup].
	Deaths      int    `json:"deaths"`
	Fingerprint string `json:"fingerprint,omitempty"`

	// When an operator acknowledged it, and who; zero if it is new.
	AcknowledgedAt time.Time `json:"acknowledged_at,omitzero"`
	AcknowledgedBy string    `json:"acknowledged_by,omitempty"`

	Payload []byte `json:"payload,omitempty"` // only if asked for; base64 in JSON

	// Original is what it was before it was edited; nil if it never was.
	Original *Original `json:"original,omitempty"`
}

// Page bounds a list. The zero value is the first 100, without payloads.
type Page struct {
	// After are those of the last one of the page before.
	AfterDestination string
	AfterPosition    int64
	AfterMessageID   outbox.ID

	Limit   int // default 100, at most 1000
	Payload bool
}

// pageSize is how many entries of a list are read: 100 unless told, at most 1000.
func pageSize(limit int) int {
	if limit <= 0 {
		return 100
	}
	return min(limit, 1000)
}

// DeadLetters lists what s selects, by destination and position; an empty selection lists all.
func DeadLetters(ctx context.Context, db DB, s Selection, page Page) ([]DeadLetter, error) {
	if err := s.validate(""); err != nil {
		return nil, err
	}
	var list []DeadLetter
	err := read(ctx, db, func(tx pgx.Tx) (err error) {
		list, err = deadLetters(ctx, tx, s, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return list, nil
}

func deadLetters(ctx context.Context, tx pgx.Tx, s Selection, page Page) ([]DeadLetter, error) {
	page.Limit = pageSize(page.Limit)
	payload, original := "NULL::bytea", "NULL::bytea"
	if page.Payload {
		payload, original = "payload", "original_payload"
	}
	last := "reason, error, dead_at, 0::bigint, acknowledged_at, coalesce(acknowledged_by, ''), deaths, fingerprint"
	if s.Blocked {
		last = `'blocked', coalesce(error, ''), held_at,
			(SELECT count(*) - 1 FROM outbox.holds b WHERE b.destination = d.destination AND b.lane = d.lane), NULL::timestamptz, '', deaths + 1, ''`
	}
	rows, err := tx.Query(ctx, `
		SELECT destination, id, message_id::text, `+readable("topic")+`, `+readable("coalesce(nullif(key, ''), nullif(aggregate_id, ''), '')")+`,
		       `+readable("coalesce(aggregate_type, '')")+`, `+readable("coalesce(aggregate_id, '')")+`,
		       `+readable("coalesce(event_type, '')")+`, `+readable("coalesce(content_type, '')")+`,
		       `+readableJSON("headers")+`, created_at, attempts, `+payload+`, `+readableJSON("original")+`, `+original+`, `+last+`
		FROM `+s.table()+` d
		WHERE `+s.where()+` AND (destination, id, message_id) > ($9, $10, $11::text::uuid) ORDER BY destination, id, message_id LIMIT $12`,
		append(s.args(), page.AfterDestination, page.AfterPosition, page.AfterMessageID.String(), page.Limit)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (DeadLetter, error) {
		var d DeadLetter
		var id string
		var headers, original *string
		var originalPayload []byte
		var acknowledged *time.Time
		err := row.Scan(&d.Destination, &d.Position, &id, &d.Topic, &d.Key, &d.AggregateType, &d.AggregateID, &d.EventType,
			&d.ContentType, &headers, &d.CreatedAt, &d.Attempts, &d.Payload, &original, &originalPayload, &d.Reason, &d.Error, &d.At,
			&d.Behind, &acknowledged, &d.AcknowledgedBy, &d.Deaths, &d.Fingerprint)
		if err != nil {
			return d, err
		}
		d.AcknowledgedAt = value(acknowledged)
		d.Headers = storedJSON(headers)
		if original != nil {
			if d.Original, err = readOriginal(*original, originalPayload); err != nil {
				return d, err
			}
		}
		d.MessageID, err = outbox.ParseID(id)
		return d, err
	})
}
