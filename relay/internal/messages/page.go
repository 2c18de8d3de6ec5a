// Package messages reads rows of the outbox into deliveries, in pages of memory that is used again.
package messages

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/headers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/reuse"
)

// Page is the memory of one batch: its deliveries, and everything that they point to. It returns to its pool when the
// batch is recycled.
type Page struct {
	Deliveries []relay.Delivery
	headers    []outbox.Header
	arena      arena
	moves      []move // used by sort

	users atomic.Int32 // batches that are not recycled, plus one while more are to come
}

// Pool keeps unused pages for later rows, at most as many as a relay has in use at once.
type Pool struct{ free reuse.Pool[*Page] }

const maxFreePages = 8

func (p *Pool) Get() *Page {
	if pg := p.free.Get(); pg != nil {
		return pg
	}
	return &Page{}
}

// Put takes back a page that is no longer used.
func (p *Pool) Put(pg *Page) {
	pg.Reset()
	p.free.Put(pg, maxFreePages)
}

// Start begins to cut the page into batches.
func (pg *Page) Start() { pg.users.Store(1) }

// Cut takes the first batch, of at most limit deliveries, off the rest of a page that was started.
func (p *Pool) Cut(pg *Page, rest *[]relay.Delivery, limit int) relay.Batch {
	return reuse.Cut(rest, limit, &pg.users, p.recycler(pg))
}

// recycler puts a page back when its last batch is recycled.
func (p *Pool) recycler(pg *Page) func() {
	return func() {
		if pg.users.Add(-1) == 0 {
			p.Put(pg)
		}
	}
}

// Size is how many bytes of text and payload the page has.
func (pg *Page) Size() int { return pg.arena.bytes }

// Reset removes the rows. It clears headers, so that the pool doesn't keep foreign memory alive.
func (pg *Page) Reset() {
	clear(pg.Deliveries)
	clear(pg.headers)
	pg.Deliveries, pg.headers = pg.Deliveries[:0], pg.headers[:0]
	pg.arena.reset()
}

// move says where the delivery with a position lies.
type move struct {
	position int64
	from     int
}

// Sort orders the deliveries by position. It sorts numbers and then moves each delivery once: a delivery is as large as
// twenty numbers, and holds pointers.
func (pg *Page) Sort() {
	ds := pg.Deliveries
	moves := slices.Grow(pg.moves[:0], len(ds))
	for i := range ds {
		moves = append(moves, move{ds[i].Position, i})
	}
	pg.moves = moves
	slices.SortFunc(moves, func(a, b move) int { return cmp.Compare(a.position, b.position) })
	// The moves form cycles; each cycle sets one delivery aside.
	for i := range moves {
		if moves[i].from == i {
			continue
		}
		aside, to := ds[i], i
		for moves[to].from != i {
			from := moves[to].from
			ds[to], moves[to].from = ds[from], to
			to = from
		}
		ds[to], moves[to].from = aside, to
	}
}

// arena hands out bytes from a few large blocks. Bytes that were handed out don't move until reset.
type arena struct {
	block []byte   // handed out up to its length
	full  [][]byte // earlier blocks; deliveries point into them
	bytes int      // total that was handed out
}

// The text and payload of a row lie in one block, unless they are larger than a block.
const (
	blockSize = 256 << 10
	maxKept   = 8 << 20 // the most memory that a page takes back to its pool
)

// Grow returns n bytes, not cleared.
func (a *arena) Grow(n int) []byte {
	if cap(a.block)-len(a.block) < n {
		a.full = append(a.full, a.block)
		a.block = make([]byte, 0, max(n, blockSize))
	}
	from := len(a.block)
	a.block = a.block[:from+n]
	a.bytes += n
	return a.block[from : from+n : from+n]
}

// copy returns a copy of b, which is not nil: an empty payload is not an absent one.
func (a *arena) copy(b []byte) []byte {
	if len(b) == 0 {
		return []byte{}
	}
	c := a.Grow(len(b))
	copy(c, b)
	return c
}

func (a *arena) str(b []byte) string { return aliased(a.copy(b)) }

// reset keeps one block of the usual size. By the contract of relay.Batch its strings are no longer read.
func (a *arena) reset() {
	if cap(a.block) > maxKept {
		a.block = nil
	}
	// A page of many blocks tends to come again: make the next first block as large as all of them together.
	if a.bytes <= maxKept && cap(a.block) < a.bytes {
		a.block = make([]byte, 0, a.bytes)
	}
	a.block, a.full, a.bytes = a.block[:0], nil, 0
}

// aliased is b as a string, without a copy: b is not written to before its page is recycled, and by the contract of
// relay.Batch the string is not read after that.
func aliased(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Decoder turns rows in PostgreSQL's binary format into deliveries. It belongs to one connection.
type Decoder struct {
	names interner
}

// Columns is what decoder reads, of outbox.messages m or of anything with the same columns.
const Columns = `m.id, m.message_id, m.topic, m.key, m.shard, m.aggregate_type, m.aggregate_id,
	m.event_type, m.payload, m.content_type, m.headers, m.deliver_at, m.created_at`

// The positions of the columns in a row.
const (
	colID = iota
	colMessageID
	colTopic
	colKey
	colShard
	colAggregateType
	colAggregateID
	colEventType
	colPayload
	colContentType
	colHeaders
	colDeliverAt
	colCreatedAt
	ColumnCount
)

var ErrRow = errors.New("a row doesn't match the schema of this version: run: outbox check")

// Decode appends the message in row to pg and returns its delivery, in which the caller sets the remaining fields.
// Whatever row points to is copied.
func (d *Decoder) Decode(pg *Page, row [][]byte) (*relay.Delivery, error) {
	if len(row) < ColumnCount || len(row[colID]) != 8 ||
		len(row[colMessageID]) != 16 || len(row[colShard]) != 2 || len(row[colCreatedAt]) != 8 {
		return nil, ErrRow
	}
	if len(pg.Deliveries) < cap(pg.Deliveries) {
		pg.Deliveries = pg.Deliveries[:len(pg.Deliveries)+1]
	} else {
		pg.Deliveries = append(pg.Deliveries, relay.Delivery{})
	}
	dl := &pg.Deliveries[len(pg.Deliveries)-1]
	dl.Position = int64(binary.BigEndian.Uint64(row[colID]))
	copy(dl.ID[:], row[colMessageID])
	dl.Topic = d.names.topic.str(row[colTopic])
	dl.Shard = int(binary.BigEndian.Uint16(row[colShard]))
	dl.AggregateType = d.names.aggregateType.str(row[colAggregateType])
	dl.EventType = d.names.eventType.str(row[colEventType])
	dl.ContentType = d.names.contentType.str(row[colContentType])
	if len(row[colKey]) > 0 {
		dl.Key = pg.arena.str(row[colKey])
	}
	if len(row[colAggregateID]) > 0 {
		dl.AggregateID = pg.arena.str(row[colAggregateID])
	}
	if row[colPayload] != nil {
		dl.Payload = pg.arena.copy(row[colPayload])
	}
	dl.DeliverAt = timestamp(row[colDeliverAt])
	dl.CreatedAt = timestamp(row[colCreatedAt])
	if h := row[colHeaders]; h != nil {
		dl.Invalid = d.headers(pg, dl, h)
	}
	if at := row[colDeliverAt]; len(at) == 8 && int64(binary.BigEndian.Uint64(at)) >= endOfCalendar {
		dl.Invalid = errors.Join(dl.Invalid, errors.New("deliver_at is after the year 9999: the message would never be delivered"))
	}
	if err := dl.Validate(); err != nil {
		dl.Invalid = errors.Join(dl.Invalid, err)
	}
	return dl, nil
}

// headers reads a json, whose binary format is its text.
func (d *Decoder) headers(pg *Page, dl *relay.Delivery, text []byte) error {
	if string(text) == "{}" {
		return nil
	}
	from := len(pg.headers)
	all, err := headers.Append(pg.headers, pg.arena.str(text), &pg.arena)
	pg.headers = all
	dl.Headers = all[from:len(all):len(all)]
	return err
}

// endOfCalendar is the beginning of the year 10000, in microseconds since 2000.
const endOfCalendar = 252455616000000000

// timestamp reads microseconds since 2000. NULL is the zero time. A time beyond the calendar of brokers and JSON,
// including infinity, becomes the end of the year 9999 or the zero time.
func timestamp(b []byte) time.Time {
	if len(b) != 8 {
		return time.Time{}
	}
	const epoch = 946684800000000 // 2000-01-01
	switch us := int64(binary.BigEndian.Uint64(b)); {
	case us >= endOfCalendar:
		return time.UnixMicro(endOfCalendar - 1 + epoch).UTC()
	case us == math.MinInt64 || us < -63082281600000000: // before the year 1
		return time.Time{}
	default:
		return time.UnixMicro(us + epoch).UTC()
	}
}

// interner keeps one copy of names that repeat from row to row, so that they cost no memory and equal names share it.
type interner struct {
	topic, aggregateType, eventType, contentType names
}

type names struct {
	last string
	all  map[string]string
}

// The map is bounded, because an application may put an id into its topics.
const maxNames = 4096

func (n *names) str(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if string(b) == n.last {
		return n.last
	}
	s, ok := n.all[string(b)]
	if !ok {
		s = string(b)
		if n.all == nil || len(n.all) >= maxNames {
			n.all = make(map[string]string)
		}
		n.all[s] = s
	}
	n.last = s
	return s
}
