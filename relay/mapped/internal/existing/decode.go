package existing

import (
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// Row is a message that was read, with what identifies it in its table.
type Row struct {
	ID    string
	By    int64  // the order of the table, as a number
	Place int64  // its position among the rows that one statement claimed
	Token string // of the claim; empty in strategies without claims

	Message  outbox.ID
	Identity int64 // see IdentitySQL
}

// Query runs a statement whose rows are those of selectLists, see Collect.
func (t *Table) Query(ctx context.Context, conn *pgx.Conn, free *FreeLists, extra ReadExtra,
	sql string, args ...any) ([]relay.Delivery, []Row, error) {
	answer, _ := conn.Query(ctx, sql, args...) // its error is returned with the rows
	return t.Collect(answer, free, extra)
}

// ReadExtra reads the columns after those of the table. A row that is not a message has no delivery.
type ReadExtra func(d *relay.Delivery, r *Row, values [][]byte) error

// Collect reads all rows of an answer. It doesn't reuse the answer's memory. The deliveries are in a list of free, if
// that is not nil. If extra is not nil, it reads the columns after those of the table. A row without an id is not a
// message, and only extra sees it. If the rows have another layout than t was made for, they are returned with the
// error: a claim has to give them up.
func (t *Table) Collect(answer pgx.Rows, free *FreeLists,
	extra ReadExtra) (ds []relay.Delivery, rows []Row, err error) {
	defer answer.Close()
	var changed error
	width := columnCount + len(t.headers)
	for answer.Next() {
		values := answer.RawValues()
		if len(values) < width {
			return nil, nil, ErrRow
		}
		if values[colID] == nil && extra != nil {
			if err := extra(nil, nil, values[width:]); err != nil {
				return nil, nil, err
			}
			continue
		}
		if ds == nil {
			ds = free.Get()
			rows = make([]Row, 0, cap(ds))
		}
		if n := len(ds); n == cap(ds) { // append alone would copy a page of thousands a dozen times
			ds, rows = slices.Grow(ds, max(16, 3*n)), slices.Grow(rows, max(16, 3*n))
		}
		ds, rows = append(ds, relay.Delivery{}), append(rows, Row{})
		d, r := &ds[len(ds)-1], &rows[len(rows)-1]
		if err := t.decode(d, r, values); err != nil {
			return nil, nil, err
		}
		if int64(binary.BigEndian.Uint64(values[colLayout])) != t.layout {
			changed = t.errChanged()
		}
		if extra != nil {
			if err := extra(d, r, values[width:]); err != nil {
				return nil, nil, err
			}
		}
	}
	if err := answer.Err(); err != nil {
		return nil, nil, err
	}
	return ds, rows, changed
}

// textColumns are read as text, in the order in which they are laid out in memory.
var textColumns = [...]int{colID, colMessageID, colTopic, colKey, colAggregateType, colAggregateID, colEventType, colContentType}

func (t *Table) decode(d *relay.Delivery, r *Row, v [][]byte) error {
	if v[colID] == nil {
		return fmt.Errorf("a row of table %s has no id: its column %q is NULL. Delete the row or give it an id, and then run: "+
			"ALTER TABLE %[1]s ALTER COLUMN %[2]q SET NOT NULL", t.Name, t.Mapping.ID)
	}
	if len(v[colBy]) != 8 || len(v[colAttempts]) != 8 || len(v[colLayout]) != 8 || len(v[colIdentity]) != 8 {
		return ErrRow
	}
	// One allocation holds all texts of a row. The payload has its own, so that a caller that keeps an id doesn't keep
	// the payload.
	size := 0
	for _, c := range textColumns {
		size += len(v[c])
	}
	buf := make([]byte, 0, size)
	for _, c := range textColumns {
		buf = append(buf, v[c]...)
	}
	rest := unsafe.String(unsafe.SliceData(buf), len(buf)) // nothing writes to buf any more
	text := func(c int) (s string) {
		s, rest = rest[:len(v[c])], rest[len(v[c]):]
		return s
	}
	r.ID = text(colID)
	d.Row = r.ID
	messageID := text(colMessageID)
	d.Topic = text(colTopic)
	d.Key = text(colKey)
	d.AggregateType = text(colAggregateType)
	d.AggregateID = text(colAggregateID)
	d.EventType = text(colEventType)
	d.ContentType = text(colContentType)
	r.By = int64(binary.BigEndian.Uint64(v[colBy]))
	r.Identity = int64(binary.BigEndian.Uint64(v[colIdentity]))
	if v[colMessageID] == nil {
		d.ID, _ = t.messageID(r.ID)
	} else if id, derived := t.messageID(messageID); derived {
		d.ID, d.DedupKey = id, messageID
	} else {
		d.ID = id
	}
	r.Message = d.ID
	if v[colPayload] != nil {
		d.Payload = append(make([]byte, 0, len(v[colPayload])), v[colPayload]...)
		if t.jsonish {
			d.ContentType = "application/json"
		}
	}
	d.CreatedAt = timestamp(v[colCreatedAt])
	d.DeliverAt = timestamp(v[colDeliverAt])
	// The next row of the same key must not overtake a row that waits, so the engine sets both aside.
	d.Blocked = infinite(v[colNextAttempt])
	if next := timestamp(v[colNextAttempt]); !d.Blocked && next.After(d.DeliverAt) && next.After(time.Now()) {
		d.DeliverAt = next
	}
	d.Attempts = int(min(binary.BigEndian.Uint64(v[colAttempts]), math.MaxInt32))
	d.Shard = shardOf(d)
	t.check(d, v)
	return nil
}

// check records why a row can't be a message, and reads its headers.
func (t *Table) check(d *relay.Delivery, v [][]byte) {
	if d.Topic == "" {
		d.Invalid = errors.New("the topic is empty")
	}
	var err error
	if h := v[colHeaders]; h != nil {
		if d.Headers, err = parseHeaders(h); err != nil {
			d.Invalid = errors.Join(d.Invalid, err)
		}
	}
	for i, name := range t.headers {
		value := v[columnCount+i]
		if value == nil {
			continue
		}
		h := outbox.Header{Name: name, Value: string(value)}
		if err := checkHeader(h); err != nil {
			d.Invalid = errors.Join(d.Invalid, err)
			continue
		}
		if _, given := d.Header(name); !given {
			d.Headers = append(d.Headers, h)
		}
	}
}

// messageID turns a text that is not a UUID into one: version 5 of RFC 9562, of the table's name and the text. Every
// repeat and every relay gets the same one.
func (t *Table) messageID(s string) (id outbox.ID, derived bool) {
	if len(s) == 36 { // building the error for another length would cost more than the rest
		if id, err := outbox.ParseID(s); err == nil {
			return id, false
		}
	}
	var memory [160]byte
	name := append(append(append(memory[:0], t.Info.Schema...), 0), t.Info.Name...)
	h := sha1.Sum(append(append(name, 0), s...))
	id = outbox.ID(h[:16])
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	return id, true
}

// shardOf spreads lanes over the shards of the engine.
func shardOf(d *relay.Delivery) int {
	key := d.OrderingKey()
	if key == "" {
		return int(d.ID[15]) % schema.ShardCount
	}
	return int(hash64(key) >> 32 % schema.ShardCount)
}

// Microseconds: from 1970 to 2000, and from 2000 to the year 1.
const (
	Epoch   = 946684800000000
	YearOne = -63082281600000000
)

// infinite reports whether a time of the server's is infinity: a row whose next attempt is then waits for an operator.
func infinite(b []byte) bool {
	return len(b) == 8 && int64(binary.BigEndian.Uint64(b)) == math.MaxInt64
}

// timestamp reads microseconds since 2000. NULL is the zero time. A time beyond the calendar of brokers and JSON,
// including infinity, becomes the end of the year 9999 or the zero time.
func timestamp(b []byte) time.Time {
	if len(b) != 8 {
		return time.Time{}
	}
	const end = 252455615999999999 // of 9999-12-31
	switch us := int64(binary.BigEndian.Uint64(b)); {
	case us >= end:
		return time.UnixMicro(end + Epoch).UTC()
	case us < YearOne:
		return time.Time{}
	default:
		return time.UnixMicro(us + Epoch).UTC()
	}
}

// Number reads an id that is a whole number.
func Number(id string) int64 {
	n, _ := strconv.ParseInt(id, 10, 64) // the server has written it
	return n
}
