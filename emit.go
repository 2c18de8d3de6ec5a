package outbox

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// EmitPrefix is the prefix of the logical messages that Emit writes, EmitVersion the first byte of their
// encoding, which docs/replication.md documents.
const (
	EmitPrefix  = "outbox"
	EmitVersion = 1
)

// The id is drawn as for a row, so held and dead messages keep their order. MATERIALIZED and ORDER BY give the messages
// the same order in the log as here.
const (
	emitHead = `'\x01'::bytea || int8send(nextval('outbox.messages_id_seq')) || timestamptz_send(clock_timestamp())`

	emitOne  = `SELECT pg_logical_emit_message(true, 'outbox', ` + emitHead + ` || $1::bytea)`
	emitMany = `SELECT count(pg_logical_emit_message(true, 'outbox', ` + emitHead + ` || m.content))
FROM (SELECT u.content FROM unnest($1::bytea[]) WITH ORDINALITY AS u (content, place) ORDER BY u.place OFFSET 0) m`
)

// Emit writes messages to the write-ahead log and to no table. They reach only destinations that are read with the
// strategy replication and its setting Emitted. They can't be queried, sent again or restored: a destination that loses
// its replication slot loses those that it has not read. In all other respects it behaves like Write.
func (w *Writer) Emit(ctx context.Context, tx pgx.Tx, msgs ...Message) ([]ID, error) {
	if tx == nil {
		return nil, errNoTransaction
	}
	return w.emit(ctx, func(query string, arg any) error {
		_, err := tx.Exec(ctx, query, arg)
		return err
	}, func(contents [][]byte) any { return contents }, msgs)
}

// EmitSQL is Emit for database/sql.
func (w *Writer) EmitSQL(ctx context.Context, tx *sql.Tx, msgs ...Message) ([]ID, error) {
	if tx == nil {
		return nil, errNoTransaction
	}
	return w.emit(ctx, func(query string, arg any) error {
		_, err := tx.ExecContext(ctx, query, arg)
		return err
	}, func(contents [][]byte) any { return byteaArray(contents) }, msgs)
}

func (w *Writer) emit(ctx context.Context, exec func(query string, arg any) error, array func([][]byte) any,
	msgs []Message) (_ []ID, err error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	if err := w.validate(msgs); err != nil {
		return nil, fmt.Errorf("outbox: emit: %w", err)
	}
	ids := idsOf(msgs)
	traces := w.trace.begin(ctx, msgs, ids)
	defer func() { traces.end(err) }()
	contents := make([][]byte, len(msgs))
	for i := range msgs {
		contents[i] = encodeEmitted(&msgs[i], ids[i], traces.context(i))
	}
	if len(msgs) == 1 {
		err = exec(emitOne, contents[0])
	} else {
		err = exec(emitMany, array(contents))
	}
	if err != nil {
		return nil, fmt.Errorf("outbox: emit: %w", explainRole(err, "emitter"))
	}
	return ids, nil
}

// encodeEmitted writes the part after version, id and time of creation: fields with their lengths, -1 for an absent
// one.
func encodeEmitted(m *Message, id ID, trace traceContext) []byte {
	headers := encodeHeaders(m.Headers, trace)
	b := make([]byte, 0, 64+len(m.Topic)+len(m.Key)+len(m.AggregateType)+
		len(m.AggregateID)+len(m.EventType)+len(m.Payload)+len(m.ContentType)+len(headers))
	text := func(s string) {
		if s == "" {
			b = binary.BigEndian.AppendUint32(b, 1<<32-1)
			return
		}
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(id))), id[:]...)
	text(m.Topic)
	text(m.Key)
	text(m.AggregateType)
	text(m.AggregateID)
	text(m.EventType)
	if m.Payload == nil {
		b = binary.BigEndian.AppendUint32(b, 1<<32-1)
	} else {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(m.Payload))), m.Payload...)
	}
	text(m.ContentType)
	text(headers)
	if m.DeliverAt.IsZero() {
		b = binary.BigEndian.AppendUint32(b, 1<<32-1)
	} else {
		epoch := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(m.DeliverAt.UnixMicro()-epoch))
	}
	return b
}
