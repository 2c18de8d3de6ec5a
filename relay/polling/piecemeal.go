package polling

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/relay/internal/messages"
	"github.com/pgoutbox/outbox/schema"
)

// One row that the server can't send spoils the whole answer: one of its texts has no UTF-8 form (in a database of
// another encoding), or the row is larger than a message of the protocol may be. Then rows are read one by one, and the
// columns of such a row one by one. The columns that can be read become an invalid delivery that states the reason.

// piecemeal reads a page row by row. The connection must be idle.
func (r *reader) piecemeal(ctx context.Context, next *cursors.Snapshot,
	ranges []cursors.Range, q pageQuery, maxBytes int) (pg *messages.Page, cut bool, err error) {
	lo, hi := cursors.Arrays(ranges)
	sql := schema.WithTableOf(r.destination, strings.Replace(pageSQL, "m.xid, "+messages.Columns, "m.xid, m.id", 1)+byIDSQL)
	list := r.conn.PgConn().ExecParams(ctx, sql, r.pageArguments(lo, hi, next, q), nil, messages.Text, messages.Binary)
	type place struct{ xid, id uint64 }
	var places []place
	for list.NextRow() {
		at := place{messages.Int8(list.Values()[0]), messages.Int8(list.Values()[1])}
		if n := len(places); n == 0 || places[n-1] != at {
			places = append(places, at)
		}
	}
	if _, err := list.Close(); err != nil {
		return nil, false, fmt.Errorf("list the rows of a page: %w", err)
	}
	pg = r.pool.Get()
	for _, at := range places {
		if cut = len(pg.Deliveries) == q.limit || len(pg.Deliveries) > 0 && pg.Size() >= maxBytes; cut {
			break
		}
		dl, _, err := r.decoder.One(ctx, r.conn, pg, messages.Query{
			From: schema.WithTableOf(r.destination, " FROM outbox.messages m WHERE m.xid = $1::xid8 AND m.id = $2::bigint"),
			Args: [][]byte{strconv.AppendUint(nil, at.xid, 10), strconv.AppendInt(nil, int64(at.id), 10)},
		})
		if err != nil {
			r.pool.Put(pg)
			return nil, false, fmt.Errorf("read a row: %w", err)
		}
		if dl != nil {
			dl.Ref = at.xid
		}
	}
	return pg, cut, nil
}
