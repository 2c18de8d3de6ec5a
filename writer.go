package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// WriterConfig tunes a Writer. The zero value is fit for use.
type WriterConfig struct {
	// MaxPayloadBytes is the largest payload that the writer accepts, at most 256 MiB. Default
	// MaxPayloadBytes (1,000,000). Raise it only together with the limits of every broker behind it.
	MaxPayloadBytes int

	// Trace begins the span in which a message is created, and returns its context in the form of W3C's headers, "" for
	// none. It is stored as the headers "traceparent" and "tracestate", unless it is malformed or the limits of the
	// headers leave no room. end, if not nil, is called once the message has been inserted, or with the error. A
	// message that has a header "traceparent" keeps it, and Trace is not called for it. msg has its ID and is valid
	// during the call. It is nil where messages share a context: for Copy, and for a Write of more than 100 messages.
	// Package oteloutbox has a Trace for OpenTelemetry. Default: none.
	Trace func(ctx context.Context, msg *Message) (traceparent, tracestate string, end func(error))

	// Sequences makes the writer number the messages of each topic and ordering key, in their header SequenceHeader, so
	// that a consumer can detect a missing one. Transactions that write messages of one topic and key then exclude each
	// other from the first such Write to their end, whether or not they have locked the aggregate's row. Either all
	// writers of a key must do it, or none. Not for Copy. Default: no numbers.
	Sequences bool

	// Wake is called by Committed, to wake a relay in the same process. It must not block. Default: none.
	Wake func()
}

// Writer adds messages to a transaction. It takes the caller's transaction and never a pool, so the
// messages exist exactly if the transaction commits.
//
// Insert after the statement that locks the aggregate's row (its UPDATE, or SELECT ... FOR UPDATE):
// then messages of one key are delivered in the order of those locks.
//
// The zero Writer is ready to use. Methods are safe for concurrent use, each transaction by one
// goroutine at a time.
type Writer struct {
	limits
	trace tracer
	wake  func()
}

const maxPayloadLimit = 256 << 20

// NewWriter returns a Writer with cfg's settings, or an error about all faults of cfg.
func NewWriter(cfg WriterConfig) (*Writer, error) {
	if cfg.MaxPayloadBytes < 0 || cfg.MaxPayloadBytes > maxPayloadLimit {
		return nil, fmt.Errorf("outbox: WriterConfig.MaxPayloadBytes is %d: it must be 0 (for %d) to %d",
			cfg.MaxPayloadBytes, MaxPayloadBytes, maxPayloadLimit)
	}
	return &Writer{limits: limits{cfg.MaxPayloadBytes, cfg.Sequences}, trace: cfg.Trace, wake: cfg.Wake}, nil
}

// One message uses plain values and no arrays, so it costs what a hand-written INSERT costs. The casts let every query
// mode of pgx and every driver send text.
const insertOne = `INSERT INTO outbox.messages ` + insertColumns + `
VALUES ($1::uuid, $2::text, $3::text, $4::text, $5::text, $6::text, $7::bytea, $8::text, $9::json, $10::timestamptz)`

// Several messages use one statement, whatever their number, so it stays prepared. ORDER BY place makes ids ascend in
// the order of the messages: defaults are evaluated for the rows of the ordered subquery, one after the other. An empty
// text stands for NULL; payloads have real NULLs.
const insertMany = `INSERT INTO outbox.messages ` + insertColumns + `
SELECT nullif(m.message_id, '')::uuid, m.topic, nullif(m.key, ''), nullif(m.aggregate_type, ''), nullif(m.aggregate_id, ''),
       nullif(m.event_type, ''), m.payload, nullif(m.content_type, ''), nullif(m.headers, '')::json, nullif(m.deliver_at, '')::timestamptz
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::text[], $10::text[])
     WITH ORDINALITY AS m (message_id, topic, key, aggregate_type, aggregate_id, event_type, payload, content_type, headers, deliver_at, place)
ORDER BY m.place`

// Write adds messages to tx in one round trip and returns their ids, in the same order: the given ones, and new ones
// for messages without an id.
//
// Nothing is sent unless all messages are valid: otherwise the error wraps one *ValidationError per fault. If the
// database refuses, the error says what to do (errors.Is with schema.ErrMissing and schema.ErrForbidden) and tx can
// only be rolled back.
func (w *Writer) Write(ctx context.Context, tx pgx.Tx, msgs ...Message) ([]ID, error) {
	if tx == nil {
		return nil, errNoTransaction
	}
	ids, err := w.write(ctx, func(query string, args []any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}, (*batch).slices, msgs)
	if err != nil {
		return nil, fmt.Errorf("outbox: write: %w", explain(err))
	}
	return ids, nil
}

// WriteSQL is Write for database/sql. It works with every PostgreSQL driver.
func (w *Writer) WriteSQL(ctx context.Context, tx *sql.Tx, msgs ...Message) ([]ID, error) {
	if tx == nil {
		return nil, errNoTransaction
	}
	ids, err := w.write(ctx, func(query string, args []any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}, (*batch).literals, msgs)
	if err != nil {
		return nil, fmt.Errorf("outbox: write: %w", explain(err))
	}
	return ids, nil
}

var errNoTransaction = errors.New("outbox: write: tx is nil: begin a transaction and pass it, so that the messages " +
	"exist exactly if it commits")

func (w *Writer) write(ctx context.Context, exec func(query string, args []any) error,
	arrays func(*batch) []any, msgs []Message) (_ []ID, err error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	if err := w.validate(msgs); err != nil {
		return nil, err
	}
	ids := idsOf(msgs)
	traces := w.trace.begin(ctx, msgs, ids)
	defer func() { traces.end(err) }()
	if len(msgs) == 1 {
		args, key := arguments(&msgs[0], ids[0], traces.context(0)), msgs[0].OrderingKey()
		if w.sequences && key != "" {
			return ids, exec(insertOneNumbered, append(args, key))
		}
		return ids, exec(insertOne, args)
	}
	args := arrays(newBatch(msgs, ids, traces))
	if w.sequences {
		return ids, exec(insertManyNumbered, args)
	}
	return ids, exec(insertMany, args)
}

func idsOf(msgs []Message) []ID {
	ids := make([]ID, len(msgs))
	for i := range msgs {
		ids[i] = idOf(&msgs[i])
	}
	return ids
}

func idOf(m *Message) ID {
	if m.ID.IsZero() {
		return NewID()
	}
	return m.ID
}

// arguments are the parameters of insertOne. Text replaces types that database/sql doesn't have.
func arguments(m *Message, id ID, trace traceContext) []any {
	args := []any{id.String(), m.Topic, nil, nil, nil, nil, nil, nil, nil, nil}
	setText(&args[2], m.Key)
	setText(&args[3], m.AggregateType)
	setText(&args[4], m.AggregateID)
	setText(&args[5], m.EventType)
	if m.Payload != nil {
		args[6] = m.Payload
	}
	setText(&args[7], m.ContentType)
	setText(&args[8], encodeHeaders(m.Headers, trace))
	if !m.DeliverAt.IsZero() {
		args[9] = m.DeliverAt
	}
	return args
}

// setText leaves NULL for an empty text.
func setText(arg *any, text string) {
	if text != "" {
		*arg = text
	}
}

// Copy adds the messages of seq to tx by COPY, the fastest way for thousands, and returns how many. It reads seq while
// it sends, so memory stays bounded. An invalid message, or an error that seq yields, ends the COPY with that error,
// and tx can only be rolled back.
//
// seq runs on another goroutine while Copy waits, and must not use tx.
func (w *Writer) Copy(ctx context.Context, tx pgx.Tx, seq iter.Seq2[Message, error]) (n int64, err error) {
	if tx == nil {
		return 0, errNoTransaction
	}
	if w.sequences {
		return 0, errors.New("outbox: copy: this writer numbers messages (WriterConfig.Sequences), which COPY can't: use Write")
	}
	traces := w.trace.begin(ctx, nil, nil)
	defer func() { traces.end(err) }()
	source := &copySource{writer: w, trace: traces.context(0), values: make([]any, 10)}
	var stop func()
	source.pull, stop = iter.Pull2(seq)
	defer stop()
	n, err = tx.CopyFrom(ctx, pgx.Identifier{"outbox", "messages"}, copyColumns(), source)
	if source.panicked != nil {
		panic(source.panicked)
	}
	if source.err != nil {
		err = source.err // the server's error only says that the client gave up
	}
	if err != nil {
		return 0, fmt.Errorf("outbox: copy: %w", explain(err))
	}
	return n, nil
}

func copyColumns() []string {
	return []string{"message_id", "topic", "key", "aggregate_type",
		"aggregate_id", "event_type", "payload", "content_type", "headers", "deliver_at"}
}

// copySource feeds pgx from an iterator.
type copySource struct {
	writer   *Writer
	trace    traceContext
	pull     func() (Message, error, bool)
	index    int
	values   []any
	err      error
	panicked any
}

// Next runs on a goroutine of pgx, where a panic of the caller's iterator would end the process
// without a chance to recover: Copy raises it again on its own.
func (s *copySource) Next() (more bool) {
	defer func() {
		if s.panicked = recover(); s.panicked != nil {
			s.err = errors.New("the iterator panicked")
			more = false
		}
	}()
	m, err, ok := s.pull()
	if !ok {
		return false
	}
	if err != nil {
		s.err = fmt.Errorf("message %d: %w", s.index, err)
		return false
	}
	var faults faults
	s.writer.validateOne(&faults, s.index, &m)
	if s.err = faults.err(); s.err != nil {
		return false
	}
	s.index++
	id := idOf(&m)
	copy(s.values, arguments(&m, id, s.trace))
	s.values[0] = pgtype.UUID{Bytes: id, Valid: true}
	return true
}

func (s *copySource) Values() ([]any, error) { return s.values, nil }
func (s *copySource) Err() error             { return s.err }

// Committed wakes the relay by WriterConfig.Wake. Call it after the commit: a relay that looks earlier finds nothing.
// Delivery never depends on it; it only comes sooner.
func (w *Writer) Committed() {
	if w.wake != nil {
		w.wake()
	}
}

// InTx begins a transaction, runs fn, commits, and calls Committed. If fn fails or panics, the transaction is rolled
// back. db is a *pgxpool.Pool or a *pgx.Conn.
func (w *Writer) InTx(ctx context.Context, db interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, fn func(tx pgx.Tx) error) error {
	if err := pgx.BeginFunc(ctx, db, fn); err != nil {
		return err
	}
	w.Committed()
	return nil
}

// explain adds the next step to errors that are typical while setting up.
func explain(err error) error { return explainRole(err, "writer") }

func explainRole(err error, role string) error {
	if errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("the transaction was already committed or rolled back: write before its end: %w", err)
	}
	switch sqlstate.Of(err) {
	case "42P01", "3F000":
		return fmt.Errorf("%w in this database: run: outbox migrate up: %w", schema.ErrMissing, err)
	case "42501":
		return fmt.Errorf("%w to write messages: as the schema's owner, run: outbox migrate grants --apply --%s ROLE: %w",
			schema.ErrForbidden, role, err)
	case "25P02":
		return fmt.Errorf("an earlier statement of the transaction failed, so it can only be rolled back: %w", err)
	case "25006":
		return fmt.Errorf("the transaction is read-only, or the server is a hot standby: write to the primary: %w", err)
	}
	return err
}
