package existing

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// LogRows turns inserts into the columns that decode reads, so that a message is the same whether it comes by the log
// or from the table. One goroutine at a time.
type LogRows struct {
	table *Table
	topic []mapping.TemplatePart
	key   []mapping.TemplatePart

	relation *wal.Relation // of the last row
	layout   *logLayout
	decoded  [][]byte
}

// NewLogRows returns a reader of rows that are still to be read.
func NewLogRows(t *Table) *LogRows {
	r := &LogRows{table: t, decoded: make([][]byte, columnCount+len(t.headers))}
	r.topic, _ = mapping.ParseTemplate(t.Mapping.Topic) // the template was validated
	r.key, _ = mapping.ParseTemplate(t.Mapping.Key)
	return r
}

// Read makes deliveries of rows that follow one another. conn is a session like those that read tables.
func (r *LogRows) Read(ctx context.Context, conn *pgx.Conn, rows []*LogRow) (ds []relay.Delivery, err error) {
	for from := 0; from < len(rows); {
		to := from
		for to < len(rows) && rows[to].relation == rows[from].relation {
			to++
		}
		if r.relation != rows[from].relation {
			if r.layout, err = newLogLayout(ctx, conn, r.table, rows[from].relation); err != nil {
				return nil, err
			}
			r.relation = rows[from].relation
		}
		if ds, err = r.readLayout(ctx, conn, ds, rows[from:to]); err != nil {
			return nil, err
		}
		from = to
	}
	return ds, nil
}

// readLayout reads rows of one layout.
func (r *LogRows) readLayout(ctx context.Context, conn *pgx.Conn, ds []relay.Delivery, rows []*LogRow) ([]relay.Delivery, error) {
	l, m := r.layout, &r.table.Mapping
	for _, row := range rows {
		row.layout = l
	}
	created, err := l.moments(ctx, conn, m.CreatedAt, rows)
	if err != nil {
		return nil, err
	}
	due, err := l.moments(ctx, conn, m.DeliverAt, rows)
	if err != nil {
		return nil, err
	}
	for i, kept := range rows {
		if err := r.fill(kept); err != nil {
			return nil, err
		}
		r.decoded[colCreatedAt], r.decoded[colDeliverAt] = created[i], due[i]
		var d relay.Delivery
		var read Row
		if err := l.table.decode(&d, &read, r.decoded); err != nil {
			return nil, err
		}
		kept.ID = read.ID
		for _, name := range m.MessageColumns() {
			if fault := kept.values[l.columns[name]].Fault; fault != nil {
				d.Invalid = errors.Join(d.Invalid, fmt.Errorf("%s can't be read as UTF-8: %w", name, fault))
			}
		}
		if l.invalid != nil {
			d.Invalid = errors.Join(d.Invalid, l.invalid)
		}
		d.Ref, d.Position = kept.number, int64(kept.number)
		if l.table.Numbered() {
			d.Position = Number(kept.ID)
		}
		ds = append(ds, d)
	}
	return ds, nil
}

// NewLogRow keeps an insert. It copies the values, into one allocation.
func NewLogRow(i *wal.Insert) *LogRow {
	values := i.Values
	size := 0
	for i := range values {
		size += len(values[i].Text)
	}
	buf := make([]byte, 0, size)
	kept := make([]wal.Value, len(values))
	for i := range values {
		from := len(buf)
		buf = append(buf, values[i].Text...)
		kept[i] = wal.Value{Null: values[i].Null, Text: buf[from:len(buf):len(buf)], Fault: values[i].Fault}
	}
	return &LogRow{number: i.Number, relation: i.Table, values: kept}
}

// fill puts the columns into the order and formats of selectLists, except times.
func (r *LogRows) fill(row *LogRow) (err error) {
	m, v, l := &r.table.Mapping, r.decoded, r.layout
	var none [8]byte
	text := func(name string) []byte { return l.text(name, row) }
	v[colID], v[colBy], v[colAttempts], v[colLayout], v[colIdentity] = text(m.ID), none[:], none[:], none[:], none[:]
	v[colMessageID] = text(m.MessageID)
	if v[colTopic], err = l.template(r.topic, row); err != nil {
		return err
	}
	if v[colKey], err = l.template(r.key, row); err != nil {
		return err
	}
	v[colAggregateType], v[colAggregateID], v[colEventType] = text(m.AggregateType), text(m.AggregateID), text(m.EventType)
	if v[colPayload], err = l.bytes(m.Payload, row); err != nil {
		return err
	}
	v[colContentType], v[colHeaders], v[colNextAttempt] = text(m.ContentType), text(m.Headers), nil
	for i, h := range m.HeaderColumns {
		v[columnCount+i] = text(h.Column)
	}
	return nil
}
