// Package find looks for messages and what became of them, for dead letters and their groups, and for held lanes. It
// changes nothing.
package find

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/schema"
)

// Selection selects dead letters. Fields that are set must all match; without any, All must be set.
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

// Validate reports fields that contradict each other.
func (s Selection) Validate() error {
	switch {
	case s.Blocked && s.Discarded:
		return errors.New("what was discarded is blocked no more: leave one of both out")
	case s.Blocked && s.Reason != "":
		return errors.New("blocked messages have no reason to select by: leave the reason out")
	case s.Blocked && s.Fingerprint != "":
		return errors.New("blocked messages are in no group: leave the fingerprint out")
	case s.Blocked && s.New:
		return errors.New("blocked messages can't be acknowledged: requeue or discard them")
	}
	return nil
}

// Everything reports whether s has no condition: it selects all dead letters.
func (s Selection) Everything() bool {
	return len(s.MessageIDs) == 0 && len(s.Positions) == 0 && s.Destination == "" && s.Topic == "" && s.Key == "" &&
		s.Reason == "" && s.Fingerprint == "" && s.Before.IsZero()
}

// Named reports whether s names messages one by one.
func (s Selection) Named() bool { return len(s.MessageIDs)+len(s.Positions) > 0 }

// Table returns the table that has the selected rows.
func (s Selection) Table() string {
	if s.Blocked {
		return "outbox.holds"
	}
	if s.Discarded {
		return "outbox.trash"
	}
	return "outbox.dead_letters"
}

// TimeColumn returns the column with the time at which a row came into [Selection.Table].
func (s Selection) TimeColumn() string {
	if s.Blocked {
		return "held_at"
	}
	if s.Discarded {
		return "trashed_at"
	}
	return "dead_at"
}

// Noun returns what one selected row is called in messages: "dead letter", "blocked message".
func (s Selection) Noun() string {
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

// Where returns the condition on a row, with the parameters of [Selection.Args].
func (s Selection) Where() string {
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

// Args are the arguments of Where.
func (s Selection) Args() []any {
	text := func(v string) any {
		if v == "" {
			return nil
		}
		return v
	}
	var ids, positions, before any
	if len(s.MessageIDs) > 0 {
		ids = admin.IDTexts(s.MessageIDs)
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

// Detail describes s for the audit.
func (s Selection) Detail() map[string]any {
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

// DeadLetter is a message that will not be tried again, or a blocked one that keeps its lane held.
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

// DeadLetters lists what s selects, by destination and position; an empty selection lists all.
func DeadLetters(ctx context.Context, db admin.DB, s Selection, page Page) ([]DeadLetter, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	var list []DeadLetter
	err := admin.Read(ctx, db, func(tx pgx.Tx) (err error) {
		list, err = ReadDeadLetters(ctx, tx, s, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return list, nil
}

// ReadDeadLetters reads a page of what s selects.
func ReadDeadLetters(ctx context.Context, tx pgx.Tx, s Selection, page Page) ([]DeadLetter, error) {
	page.Limit = admin.PageSize(page.Limit)
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
		SELECT destination, id, message_id::text, `+admin.Readable("topic")+`, `+admin.Readable("coalesce(nullif(key, ''), nullif(aggregate_id, ''), '')")+`,
		       `+admin.Readable("coalesce(aggregate_type, '')")+`, `+admin.Readable("coalesce(aggregate_id, '')")+`,
		       `+admin.Readable("coalesce(event_type, '')")+`, `+admin.Readable("coalesce(content_type, '')")+`,
		       `+admin.ReadableJSON("headers")+`, created_at, attempts, `+payload+`, `+admin.ReadableJSON("original")+`, `+original+`, `+last+`
		FROM `+s.Table()+` d
		WHERE `+s.Where()+` AND (destination, id, message_id) > ($9, $10, $11::text::uuid) ORDER BY destination, id, message_id LIMIT $12`,
		append(s.Args(), page.AfterDestination, page.AfterPosition, page.AfterMessageID.String(), page.Limit)...)
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
		d.AcknowledgedAt = admin.Value(acknowledged)
		d.Headers = admin.StoredJSON(headers)
		if original != nil {
			if d.Original, err = readOriginal(*original, originalPayload); err != nil {
				return d, err
			}
		}
		d.MessageID, err = outbox.ParseID(id)
		return d, err
	})
}

// Original is the part of a message that an edit can change, as it was first written.
type Original struct {
	Topic       string          `json:"topic"`
	EventType   string          `json:"event_type,omitempty"`
	ContentType string          `json:"content_type,omitempty"`
	Headers     json.RawMessage `json:"headers,omitempty"` // as stored
	Payload     []byte          `json:"payload,omitempty"` // only if asked for; base64 in JSON
}

func readOriginal(text string, payload []byte) (*Original, error) {
	var stored struct {
		Topic       string
		EventType   *string `json:"event_type"`
		ContentType *string `json:"content_type"`
		Headers     *string
	}
	if strings.HasPrefix(text, `"`) { // it could be made readable only as a whole
		return &Original{Headers: json.RawMessage(text), Payload: payload}, nil
	}
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return nil, fmt.Errorf("read the original: %w", err)
	}
	return &Original{stored.Topic, admin.Value(stored.EventType), admin.Value(stored.ContentType), admin.StoredJSON(stored.Headers),
		payload}, nil
}
