package polling

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// One row that the server can't send spoils the whole answer: one of its texts has no UTF-8 form (in a database of
// another encoding), or the row is larger than a message of the protocol may be. Then rows are read one by one, and the
// columns of such a row one by one. The columns that can be read become an invalid delivery that states the reason.

// bareColumns are messageColumns without the columns that can't always be sent.
var bareColumns = strings.NewReplacer("m.topic", "''::text", "m.key", "NULL::text", "m.aggregate_type", "NULL::text",
	"m.aggregate_id", "NULL::text", "m.event_type", "NULL::text", "m.payload", "NULL::bytea", "m.content_type", "NULL::text",
	"m.headers", "NULL::json").Replace(messageColumns)

// texts are the columns that bareColumns leaves out, except the payload, which a message that isn't sent doesn't need.
var texts = []int{colTopic, colKey, colAggregateType, colAggregateID, colEventType, colContentType, colHeaders}

// rowQuery finds one row, m: it is the statement after the columns of a SELECT. extra are the columns after those of a
// message.
type rowQuery struct {
	extra, from string
	args        [][]byte
}

// one reads the row of q into pg. It also returns the row's values, which are valid until the next use of the
// connection. It returns nil if there is no such row.
func (d *decoder) one(ctx context.Context, conn *pgx.Conn, pg *page, q rowQuery) (*relay.Delivery, [][]byte, error) {
	row, err := q.read(ctx, conn, messageColumns+q.extra)
	if err == nil && row != nil {
		dl, err := d.decode(pg, row)
		return dl, row, err
	}
	if !schema.IsDataError(err) {
		return nil, nil, err
	}
	whole := err
	if row, err = q.read(ctx, conn, bareColumns+q.extra); err != nil || row == nil {
		return nil, nil, err
	}
	var faults []error
	names := MessageColumns()
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
	dl, err := d.decode(pg, row)
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
func (q *rowQuery) read(ctx context.Context, conn *pgx.Conn, columns string) (row [][]byte, err error) {
	rows := conn.PgConn().ExecParams(ctx, "SELECT "+columns+q.from, q.args, nil, textFormat, binaryFormat)
	for rows.NextRow() {
		row = row[:0]
		for _, v := range rows.Values() {
			row = append(row, bytes.Clone(v))
		}
	}
	_, err = rows.Close()
	return row, err
}

// piecemeal reads a page row by row. The connection must be idle.
func (r *reader) piecemeal(ctx context.Context, next *cursors.Snapshot,
	ranges []cursors.Range, q pageQuery, maxBytes int) (pg *page, cut bool, err error) {
	lo, hi := cursors.Arrays(ranges)
	sql := reading(r.destination, strings.Replace(pageSQL, "m.xid, "+messageColumns, "m.xid, m.id", 1)+byIDSQL)
	list := r.conn.PgConn().ExecParams(ctx, sql, r.pageArguments(lo, hi, next, q), nil, textFormat, binaryFormat)
	type place struct{ xid, id uint64 }
	var places []place
	for list.NextRow() {
		at := place{int8Value(list.Values()[0]), int8Value(list.Values()[1])}
		if n := len(places); n == 0 || places[n-1] != at {
			places = append(places, at)
		}
	}
	if _, err := list.Close(); err != nil {
		return nil, false, fmt.Errorf("list the rows of a page: %w", err)
	}
	pg = r.pool.get()
	for _, at := range places {
		if cut = len(pg.deliveries) == q.limit || len(pg.deliveries) > 0 && pg.arena.bytes >= maxBytes; cut {
			break
		}
		dl, _, err := r.decoder.one(ctx, r.conn, pg, rowQuery{
			from: reading(r.destination, " FROM outbox.messages m WHERE m.xid = $1::xid8 AND m.id = $2::bigint"),
			args: [][]byte{strconv.AppendUint(nil, at.xid, 10), strconv.AppendInt(nil, int64(at.id), 10)},
		})
		if err != nil {
			r.pool.put(pg)
			return nil, false, fmt.Errorf("read a row: %w", err)
		}
		if dl != nil {
			dl.Ref = at.xid
		}
	}
	return pg, cut, nil
}
