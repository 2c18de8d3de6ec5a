package find

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// Message is a row of outbox.messages.
type Message struct {
	Position      int64           `json:"position"`
	MessageID     outbox.ID       `json:"message_id"`
	Transaction   string          `json:"transaction,omitempty"` // the xid; empty if the row has been emptied with its segment
	Segment       int             `json:"segment"`               // -1 if the row is gone
	Topic         string          `json:"topic"`
	Key           string          `json:"key,omitempty"` // the ordering key
	AggregateType string          `json:"aggregate_type,omitempty"`
	AggregateID   string          `json:"aggregate_id,omitempty"`
	EventType     string          `json:"event_type,omitempty"`
	ContentType   string          `json:"content_type,omitempty"`
	Headers       json.RawMessage `json:"headers,omitempty"` // as stored
	CreatedAt     time.Time       `json:"created_at"`
	DeliverAt     time.Time       `json:"deliver_at,omitzero"`

	// Payload is base64 in JSON. Messages leaves it out.
	Payload []byte `json:"payload,omitempty"`
}

// MessageFilter selects messages. Fields that are set must all match.
type MessageFilter struct {
	MessageIDs  []outbox.ID `json:"message_ids,omitempty"`
	Key         string      `json:"key,omitempty"` // the ordering key
	Topic       string      `json:"topic,omitempty"`
	Since       time.Time   `json:"since,omitzero"`         // created at this time or later
	Until       time.Time   `json:"until,omitzero"`         // created before
	Header      string      `json:"header,omitempty"`       // not found in a row whose headers no text of the database can be
	HeaderValue string      `json:"header_value,omitempty"` // "" for any value
	Transaction int64       `json:"transaction,omitempty"`  // the xid
}

// Everything reports whether f has no condition: it selects all messages.
func (f MessageFilter) Everything() bool {
	return !f.indexed() && f.Topic == "" && f.Since.IsZero() && f.Until.IsZero() && f.Header == ""
}

// indexed reports whether an index leads to the messages. Otherwise rows are read one after the other.
func (f MessageFilter) indexed() bool {
	return len(f.MessageIDs) > 0 || f.Key != "" || f.Transaction > 0
}

// Conditions builds the WHERE clause of a statement and its arguments.
type Conditions struct {
	Text string
	Args []any
}

// add adds a condition that has %d for the number of each of its arguments.
func (c *Conditions) add(condition string, args ...any) {
	numbers := make([]any, len(args))
	for i := range args {
		numbers[i] = len(c.Args) + i + 1
	}
	c.Args = append(c.Args, args...)
	c.Text += " AND " + fmt.Sprintf(condition, numbers...)
}

// Match adds the conditions of f on a row m of outbox.messages.
func (c *Conditions) Match(f MessageFilter) {
	if len(f.MessageIDs) > 0 {
		c.add("m.message_id = ANY ($%d::text[]::uuid[])", admin.IDTexts(f.MessageIDs))
	}
	if f.Key != "" {
		c.add("coalesce(nullif(m.key, ''), nullif(m.aggregate_id, '')) = $%d", f.Key)
	}
	if f.Transaction > 0 {
		c.add("m.xid = $%d::text::xid8", fmt.Sprint(f.Transaction))
	}
	if f.Topic != "" {
		c.add("m.topic = $%d", f.Topic)
	}
	if !f.Since.IsZero() {
		c.add("m.created_at >= $%d::timestamptz", f.Since)
	}
	if !f.Until.IsZero() {
		c.add("m.created_at < $%d::timestamptz", f.Until)
	}
	if f.Header != "" {
		c.add("outbox.header(m.headers, $%d::text) IS NOT NULL", f.Header)
	}
	if f.HeaderValue != "" {
		c.add("outbox.header(m.headers, $%d::text) = $%d", f.Header, f.HeaderValue)
	}
}

// Search is a search for messages.
type Search struct {
	MessageFilter
	Limit            int // default 100, at most 1000
	AfterSegment     int // these three are of the place where the search before ended; an AfterTransaction of 0: from the newest
	AfterTransaction int64
	AfterPosition    int64
	Within           time.Duration // how long to look; default 1 s
	payload          bool
}

// FoundMessages is the result of a search, and how far it went.
type FoundMessages struct {
	Messages []Message `json:"messages"` // by segment, the one that is written to first; then the newest first

	// Complete means that all there was to look at has been looked at. Otherwise Next is where to go on.
	Complete bool   `json:"complete"`
	Next     string `json:"next,omitempty"` // SEGMENT:TRANSACTION:POSITION

	// What was looked at. Looked is exact if no index led to the messages. Otherwise it is the server's count of the
	// rows that the segments have, and only a part of them was read.
	Segments int     `json:"segments"`
	Of       int     `json:"of_segments"`
	Looked   int64   `json:"looked"`
	Seconds  float64 `json:"seconds"`
}

// messageColumns are those of outbox.messages m that make a Message, with %s for the payload.
var messageColumns = `m.id, m.message_id::text, ` + admin.Readable("m.topic") + `, ` +
	admin.Readable("coalesce(nullif(m.key, ''), nullif(m.aggregate_id, ''), '')") + `, ` + admin.Readable("coalesce(m.aggregate_type, '')") + `, ` +
	admin.Readable("coalesce(m.aggregate_id, '')") + `, ` + admin.Readable("coalesce(m.event_type, '')") + `, ` + admin.Readable("coalesce(m.content_type, '')") + `,
	` + admin.ReadableJSON("m.headers") + `,
	` + admin.JSONTime("m.created_at") + ", " + admin.JSONTime("m.deliver_at") + `, %s`

// messageNeeds are the columns that messageColumns take, and those of the order. Not every role may read the payload.
const messageNeeds = `m.xid, m.id, m.message_id, m.topic, m.key, m.aggregate_type, m.aggregate_id, m.event_type, m.content_type, m.headers,
	m.created_at, m.deliver_at`

func scanMessage(row pgx.CollectableRow, more ...any) (m Message, err error) {
	var id string
	var headers *string
	var created, deliver *time.Time
	err = row.Scan(append([]any{&m.Position, &id, &m.Topic, &m.Key, &m.AggregateType, &m.AggregateID, &m.EventType, &m.ContentType,
		&headers, &created, &deliver, &m.Payload}, more...)...)
	if err == nil {
		m.MessageID, err = outbox.ParseID(id)
	}
	m.CreatedAt, m.DeliverAt = admin.Value(created), admin.Value(deliver)
	m.Headers = admin.StoredJSON(headers)
	return m, err
}

// rowsPerStep is how many rows of a segment one statement reads when no index leads to the messages. It bounds the work
// that is lost when the search's time ends within a statement.
const rowsPerStep = 5_000

// newest is beyond every transaction id and every position.
const newest = "9223372036854775807"

// Messages searches in the segments of outbox.messages for f.Within, and returns how far it has come. By message
// id, key and transaction it is led by indexes. Otherwise it looks at one message after the other. It reads no payload.
func Messages(ctx context.Context, db admin.DB, f Search) (found FoundMessages, err error) {
	err = admin.Read(ctx, db, func(tx pgx.Tx) error {
		found, err = findMessages(ctx, tx, f)
		return err
	})
	if err != nil {
		return found, fmt.Errorf("find messages: %w", err)
	}
	return found, nil
}

func findMessages(ctx context.Context, tx pgx.Tx, f Search) (FoundMessages, error) {
	found := FoundMessages{Messages: []Message{}, Of: schema.SegmentCount}
	begin := time.Now()
	if f.Within <= 0 {
		f.Within = time.Second
	}
	deadline := begin.Add(f.Within)
	limit := admin.PageSize(f.Limit)
	var current int
	if err := tx.QueryRow(ctx, `SELECT (date_part('epoch', now())::bigint / $1 % $2)::int`, schema.SegmentSeconds, schema.SegmentCount).Scan(&current); err != nil {
		return found, err
	}
	// The order of the segments is that in which they are written to, backwards. It is the same on every page.
	first, at, id := current, newest, int64(1<<63-1)
	if f.AfterTransaction > 0 {
		first, at, id = f.AfterSegment, fmt.Sprint(f.AfterTransaction), f.AfterPosition
	}
	steps := (schema.SegmentCount - (current-first+schema.SegmentCount)%schema.SegmentCount)
	found.Of = steps
	for i := range steps {
		segment := (first - i + schema.SegmentCount) % schema.SegmentCount
		for done := false; !done; {
			next := fmt.Sprintf("%d:%s:%d", segment, at, id)
			part, err := f.step(ctx, tx, segment, at, id, limit-len(found.Messages), time.Until(deadline))
			if sqlstate.Of(err) == queryCanceled && ctx.Err() == nil {
				found.Next, found.Seconds = next, time.Since(begin).Seconds()
				return found, nil
			}
			if err != nil {
				return found, err
			}
			found.Messages = append(found.Messages, part.messages...)
			found.Looked += part.looked
			at, id, done = part.at, part.id, part.done
			if len(found.Messages) >= limit && !done {
				found.Next, found.Seconds = fmt.Sprintf("%d:%s:%d", segment, at, id), time.Since(begin).Seconds()
				found.Segments++
				return found, nil
			}
		}
		found.Segments++
		at, id = newest, 1<<63-1
		if len(found.Messages) >= limit && i+1 < steps {
			following := (segment - 1 + schema.SegmentCount) % schema.SegmentCount
			found.Next, found.Seconds = fmt.Sprintf("%d:%s:%d", following, at, id), time.Since(begin).Seconds()
			return found, nil
		}
	}
	found.Complete, found.Seconds = true, time.Since(begin).Seconds()
	return found, nil
}

const queryCanceled = "57014"

// step is the result of one statement of a search, and where the next one begins.
type step struct {
	messages []Message
	looked   int64
	at       string
	id       int64
	done     bool // nothing of the segment is left
}

// step searches a part of a segment, at or before the given transaction and position, for at most the given time.
func (f Search) step(ctx context.Context, tx pgx.Tx, segment int, at string, id int64, limit int,
	left time.Duration) (p step, err error) {
	step, err := tx.Begin(ctx) // a statement that takes too long undoes this savepoint alone
	if err != nil {
		return p, err
	}
	defer func() { _ = step.Rollback(context.WithoutCancel(ctx)) }()
	indexes := `SET LOCAL enable_bitmapscan = off`
	if f.indexed() && f.Transaction == 0 {
		indexes = `SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off`
	}
	if _, err := step.Exec(ctx, fmt.Sprintf(`SET LOCAL statement_timeout = %d; SET LOCAL enable_seqscan = off; SET LOCAL jit = off;
		SET LOCAL max_parallel_workers_per_gather = 0; %s`, max(left.Milliseconds(), 1), indexes)); err != nil {
		return p, err
	}
	// The rows of the segment before a place in the order of the walk.
	where := Conditions{"m.segment = $1 AND (m.xid, m.id) < ($2::text::xid8, $3::bigint)", []any{segment, at, id}}
	where.Match(f.MessageFilter)
	if f.indexed() {
		err = step.QueryRow(ctx, `SELECT pg_stat_get_live_tuples(('outbox.messages_' || $1::int)::regclass)`, segment).Scan(&p.looked)
		p.done = true
	} else {
		// The end of this step, and how many rows it has: from the index alone.
		var last *string
		var lastID *int64
		err = step.QueryRow(ctx, `SELECT count(*), (array_agg(w.xid::text ORDER BY w.xid, w.id))[1], (array_agg(w.id ORDER BY w.xid, w.id))[1]
			FROM (SELECT m.xid, m.id FROM outbox.messages m WHERE m.segment = $1 AND (m.xid, m.id) < ($2::text::xid8, $3::bigint)
				ORDER BY m.xid DESC, m.id DESC LIMIT $4) w`, segment, at, id, rowsPerStep).Scan(&p.looked, &last, &lastID)
		if p.done = p.looked < rowsPerStep; last != nil {
			p.at, p.id = *last, *lastID
			where.add("(m.xid, m.id) >= ($%d::text::xid8, $%d::bigint)", *last, *lastID)
		}
	}
	if err != nil || p.looked == 0 && !f.indexed() {
		return p, err
	}
	payload, needed := "NULL::bytea", messageNeeds
	if f.payload {
		payload, needed = "m.payload", needed+", m.payload"
	}
	matching := `SELECT ` + needed + ` FROM outbox.messages m WHERE ` + where.Text
	if f.indexed() {
		// Otherwise PostgreSQL 18 walks the whole other index for the order, though that is disabled.
		matching += ` OFFSET 0`
	}
	rows, err := step.Query(ctx, `SELECT `+fmt.Sprintf(messageColumns, payload)+`, m.xid::text FROM (`+matching+`) m`+
		fmt.Sprintf(` ORDER BY m.xid DESC, m.id DESC LIMIT %d`, limit), where.Args...)
	if err != nil {
		return p, err
	}
	p.messages, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Message, error) {
		var xid string
		m, err := scanMessage(row, &xid)
		m.Transaction, m.Segment = xid, segment
		return m, err
	})
	if err == nil && len(p.messages) == limit { // the next one begins behind the last that was found
		end := p.messages[limit-1]
		p.at, p.id, p.done = end.Transaction, end.Position, false
	}
	return p, err
}

// States of a message at a destination.
const (
	// StateWaiting: the destination's cursor has not passed it.
	StateWaiting = "waiting"
	// StateDelivered: the broker has accepted it.
	StateDelivered = "delivered"
	// StateUnselected: the destination doesn't select it, or would not if it came now.
	StateUnselected = "not selected"
	// StateDiscarded: an operator discarded it.
	StateDiscarded = "discarded"
	// StatePassed: the cursor has passed it and nothing is left of it, and it isn't known which of the three above is
	// true: what the destination selected then is not recorded, or a rule leaves messages out, or it is long ago.
	StatePassed  = "passed"
	StateHeld    = "held"    // set aside, to be tried again, or behind a message of its key that is
	StateBlocked = "blocked" // it waits for an operator, or is behind a message of its key that does
	StateDead    = "dead"
	// StateUnknown: the cursor is from another cluster, or the row of the message is gone.
	StateUnknown = "unknown"
)

// Arrival is the state of a message at one destination.
type Arrival struct {
	Destination string    `json:"destination"`
	State       string    `json:"state"`
	Attempts    int       `json:"attempts,omitempty"` // of a held, blocked or dead one
	Error       string    `json:"error,omitempty"`
	Since       time.Time `json:"since,omitzero"`
	Due         time.Time `json:"due,omitzero"` // of the head of a held lane
}

// MessageLife is a message with its state at each destination.
type MessageLife struct {
	Message
	CommittedAt  time.Time `json:"committed_at,omitzero"` // zero unless the server has track_commit_timestamp
	TraceID      string    `json:"trace_id,omitempty"`    // of the header traceparent
	Destinations []Arrival `json:"destinations"`
}

// ShowMessage returns the messages with an id and what became of them. There are several if a writer has given an id
// more than once. A message whose segment has been emptied is known as long as it is held or dead. The payload is read
// if asked for.
func ShowMessage(ctx context.Context, db admin.DB, id outbox.ID, payload bool) (lives []MessageLife, err error) {
	err = admin.Read(ctx, db, func(tx pgx.Tx) error {
		found, err := findMessages(ctx, tx, Search{MessageFilter: MessageFilter{MessageIDs: []outbox.ID{id}},
			Within: 20 * time.Second, payload: payload})
		if err != nil {
			return err
		}
		aside, err := readHeldOrDead(ctx, tx, id, payload)
		if err != nil {
			return err
		}
		cursors, err := admin.ReadCursors(ctx, tx)
		if err != nil {
			return err
		}
		for _, m := range found.Messages {
			lives = append(lives, MessageLife{Message: m})
		}
		for _, a := range aside { // those without a row
			known := false
			for _, l := range lives {
				known = known || l.Position == a.Position
			}
			if !known {
				lives = append(lives, MessageLife{Message: a.Message})
			}
		}
		for i := range lives {
			if err := lives[i].complete(ctx, tx, cursors, aside); err != nil {
				return err
			}
		}
		if len(lives) == 0 && !found.Complete {
			return fmt.Errorf("the segments could not be read in time: %d of %d were", found.Segments, found.Of)
		}
		return nil
	})
	if err == nil && len(lives) == 0 {
		err = fmt.Errorf("%w: no segment, hold or dead letter has the message id %s: it was delivered and its segment "+
			"is emptied, or it never was", admin.ErrNotFound, id)
	}
	if err != nil {
		return nil, fmt.Errorf("show a message: %w", err)
	}
	return lives, nil
}

// heldOrDead is a message that is held or dead at a destination.
type heldOrDead struct {
	Message
	arrival Arrival
}

// readHeldOrDead reads the holds and dead letters with a message id.
func readHeldOrDead(ctx context.Context, tx pgx.Tx, id outbox.ID, payload bool) ([]heldOrDead, error) {
	column := "NULL::bytea"
	if payload {
		column = "m.payload"
	}
	columns := fmt.Sprintf(messageColumns, column)
	rows, err := tx.Query(ctx, `
		SELECT `+columns+`, m.destination, 'dead', m.attempts, m.error, m.dead_at, NULL::timestamptz
		FROM outbox.dead_letters m WHERE m.message_id = $1::text::uuid
		UNION ALL
		SELECT `+columns+`, m.destination, CASE WHEN h.retry_at = 'infinity' THEN 'blocked' ELSE 'held' END, m.attempts, coalesce(m.error, ''), m.held_at,
			nullif(m.retry_at, 'infinity')
		FROM outbox.holds m CROSS JOIN LATERAL (SELECT retry_at FROM outbox.holds o
			WHERE o.destination = m.destination AND o.lane = m.lane ORDER BY o.id LIMIT 1) h
		WHERE m.message_id = $1::text::uuid`, id.String())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (a heldOrDead, err error) {
		var due *time.Time
		a.Message, err = scanMessage(row, &a.arrival.Destination, &a.arrival.State, &a.arrival.Attempts, &a.arrival.Error,
			&a.arrival.Since, &due)
		a.Segment, a.arrival.Due = -1, admin.Value(due)
		return a, err
	})
}

// complete adds the message's state at each destination.
func (l *MessageLife) complete(ctx context.Context, tx pgx.Tx, cursors []admin.Cursor, all []heldOrDead) error {
	l.Destinations = []Arrival{}
	l.TraceID = traceID(l.Headers)
	at := map[string]bool{}
	for _, a := range all {
		if a.Position == l.Position {
			l.Destinations = append(l.Destinations, a.arrival)
			at[a.arrival.Destination] = true
		}
	}
	var shard int
	if l.Transaction != "" {
		var committed *time.Time
		err := tx.QueryRow(ctx, `SELECT (SELECT m.shard FROM outbox.messages m WHERE m.segment = $2 AND m.xid = $1::text::xid8 AND m.id = $3),
			CASE WHEN current_setting('track_commit_timestamp')::boolean THEN pg_xact_commit_timestamp($1::text::xid8::xid) END`,
			l.Transaction, l.Segment, l.Position).Scan(&shard, &committed)
		if err != nil {
			return err
		}
		l.CommittedAt = admin.Value(committed)
	}
	for _, c := range cursors {
		first, last := schema.Shards(c.Group, c.Groups)
		if at[c.Destination] || strings.HasPrefix(c.Destination, schema.InboxPrefix) || l.Transaction != "" &&
			(shard < first || shard > last) {
			continue
		}
		at[c.Destination] = true
		a := Arrival{Destination: c.Destination, State: StateUnknown}
		if l.Transaction != "" && !c.Foreign {
			var passed bool
			err := tx.QueryRow(ctx, `SELECT pg_visible_in_snapshot(x, $2::text::pg_snapshot) OR $4::bigint <= $5 AND pg_visible_in_snapshot(x, $3::text::pg_snapshot)
				FROM (SELECT $1::text::xid8) t (x)`, l.Transaction, c.Prev, c.First, l.Position, c.LastID).Scan(&passed)
			if err != nil {
				return err
			}
			a.State, err = stateAt(ctx, tx, &c, &l.Message, passed)
			if err != nil {
				return err
			}
		}
		l.Destinations = append(l.Destinations, a)
	}
	return nil
}

// stateAt returns the state of a message at a destination where it is neither held nor dead. Discarded messages are
// known for a day.
func stateAt(ctx context.Context, tx pgx.Tx, c *admin.Cursor, m *Message, passed bool) (string, error) {
	selected := c.Settings.Wants(&outbox.Message{Topic: m.Topic, EventType: m.EventType, AggregateType: m.AggregateType,
		ContentType: m.ContentType, Headers: admin.HeadersOf(m.Headers)})
	switch {
	case !selected:
		return StateUnselected, nil
	case !passed:
		return StateWaiting, nil
	}
	var discarded, recent bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.trash t WHERE t.destination = $1 AND t.id = $2 AND t.message_id = $3::text::uuid),
		$4::timestamptz > clock_timestamp() - interval '23 hours'`, c.Destination, m.Position, m.MessageID.String(), m.CreatedAt).Scan(&discarded, &recent)
	switch {
	case err != nil:
		return "", err
	case discarded:
		return StateDiscarded, nil
	case c.Settings.Selects == nil || c.Settings.Drops || !recent || m.CreatedAt.Before(c.SettingsAt):
		return StatePassed, nil
	}
	return StateDelivered, nil
}

// traceID is the trace's id in the header traceparent, by W3C's trace context.
func traceID(headers json.RawMessage) string {
	var h struct {
		Parent string `json:"traceparent"`
	}
	if json.Unmarshal(headers, &h) != nil {
		return ""
	}
	trace, _ := outbox.ParseTraceParent(h.Parent)
	return trace.TraceID
}

// ParseNext reads where the search before ended, as FoundMessages.Next has it.
func ParseNext(text string) (f Search, err error) {
	var rest string
	n, _ := fmt.Sscanf(text, "%d:%d:%d%s", &f.AfterSegment, &f.AfterTransaction, &f.AfterPosition, &rest)
	if n != 3 || f.AfterSegment < 0 || f.AfterSegment >= schema.SegmentCount || f.AfterTransaction <= 0 {
		return f, errors.New("want SEGMENT:TRANSACTION:POSITION, as the search before has it")
	}
	return f, nil
}

// Matches reports whether f selects a message that has left the table. The transaction of such a message is not known.
func (f MessageFilter) Matches(m *outbox.Message) bool {
	value, ok := m.Header(f.Header)
	return (len(f.MessageIDs) == 0 || slices.Contains(f.MessageIDs, m.ID)) &&
		(f.Key == "" || m.OrderingKey() == f.Key) && (f.Topic == "" || m.Topic == f.Topic) &&
		(f.Since.IsZero() || !m.CreatedAt.Before(f.Since)) && (f.Until.IsZero() || m.CreatedAt.Before(f.Until)) &&
		(f.Header == "" || ok && (f.HeaderValue == "" || value == f.HeaderValue))
}
