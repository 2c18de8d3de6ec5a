package messages

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// bareColumns are Columns without the columns that can't always be sent.
var bareColumns = strings.NewReplacer("m.topic", "''::text", "m.key", "NULL::text", "m.aggregate_type", "NULL::text",
	"m.aggregate_id", "NULL::text", "m.event_type", "NULL::text", "m.payload", "NULL::bytea", "m.content_type", "NULL::text",
	"m.headers", "NULL::json").Replace(Columns)

// texts are the columns that bareColumns leaves out, except the payload, which a message that isn't sent doesn't need.
var texts = []int{colTopic, colKey, colAggregateType, colAggregateID, colEventType, colContentType, colHeaders}

// Query finds one row, m: it is the statement after the columns of a SELECT. extra are the columns after those of a
// message.
type Query struct {
	Extra, From string
	Args        [][]byte
}

// One reads the row of q into pg. It also returns the row's values, which are valid until the next use of the
// connection. It returns nil if there is no such row.
func (d *Decoder) One(ctx context.Context, conn *pgx.Conn, pg *Page, q Query) (*relay.Delivery, [][]byte, error) {
	row, err := q.read(ctx, conn, Columns+q.Extra)
	if err == nil && row != nil {
		dl, err := d.Decode(pg, row)
		return dl, row, err
	}
	if !schema.IsDataError(err) {
		return nil, nil, err
	}
	whole := err
	if row, err = q.read(ctx, conn, bareColumns+q.Extra); err != nil || row == nil {
		return nil, nil, err
	}
	var faults []error
	names := ColumnNames()
	for _, column := range texts {
		value, err := q.read(ctx, conn, "m."+names[column])
		switch {
		case schema.IsDataError(err):
			faults = append(faults, fmt.Errorf("%s can't be read as UTF-8: %w", names[column], err))
		case err != nil || value == nil:
			return nil, nil, err
		default:
			row[column] = value[0]
		}
	}
	if len(faults) == 0 {
		faults = append(faults, fmt.Errorf("the row can't be read: %w", whole))
	}
	dl, err := d.Decode(pg, row)
	if err != nil {
		return nil, nil, err
	}
	dl.Invalid = errors.Join(faults...)
	if dl.Key == "" {
		// The column may be the key or the aggregate id: the message gets a lane of its own.
		dl.AggregateID = ""
	}
	return dl, row, nil
}

// read returns a copy of the row, or nil if there is none. If there are several, which only manual changes can cause,
// it is the last.
func (q *Query) read(ctx context.Context, conn *pgx.Conn, columns string) (row [][]byte, err error) {
	rows := conn.PgConn().ExecParams(ctx, "SELECT "+columns+q.From, q.Args, nil, Text, Binary)
	for rows.NextRow() {
		row = row[:0]
		for _, v := range rows.Values() {
			row = append(row, bytes.Clone(v))
		}
	}
	_, err = rows.Close()
	return row, err
}

// ColumnNames names the columns that [Page.Add] takes, in their order.
func ColumnNames() []string {
	names := strings.Split(Columns, ",")
	for i := range names {
		names[i] = strings.TrimPrefix(strings.TrimSpace(names[i]), "m.")
	}
	return names
}

func Int8(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Results come in binary; parameters go as text, which the server parses once.
var (
	Binary = []int16{1}
	Text   = []int16{0}
)
