package polling

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/schema"
)

// backlog reads a window that is too large to be sorted at once: in order of id, in pages that each cost
// about the same however large it is, in little memory and without a long transaction.
//
// One pass over the index, in its own order of (xid, id), cuts the window into chunks and notes which
// ids lie in each. A page is then read from just those chunks whose ids it may contain. Transactions
// that ran at the same time share a stretch of ids, so a page usually takes one or two chunks.
type backlog struct {
	next  cursors.Snapshot
	ahead []chunk // of which no page has asked for anything, by their first ids
	open  []chunk // the others that are not read to their end
	last  int64   // id of all
	after int64   // everything up to here has been returned
	asked int64   // and everything up to here has been asked for
	step  int64   // ids that the next page spans
	byID  bool    // the next page was asked for before, and there was more than fits

	pages *pages // nil before the first page and after the last
}

// askedAhead is how many pages are asked for at a time: one that is being read, and one that the server has at hand
// when that is done.
const askedAhead = 2

// chunk is a stretch of the index: these transactions have no message outside of these ids. A
// transaction larger than a chunk is a chunk of its own, in which ids are found by the index.
type chunk struct {
	xids cursors.Range
	ids  idRange
}

func (c *chunk) single() bool { return c.xids.Lo == c.xids.Hi }

// A page looks at all index entries of its chunks, so they are about as large as a page. More of them cost
// memory, 32 bytes each, and a statement each when the backlog is measured.
const chunkSize = 2000

// newBacklog measures what next sees and prev doesn't (and a little more, that next doesn't see), and will return what has an id greater than after.
func newBacklog(ctx context.Context, r *reader, prev, next *cursors.Snapshot, after int64) (*backlog, error) {
	b := &backlog{next: *next, after: after, asked: after}
	var singles []cursors.Range
	for _, within := range cursors.Between(prev, next) {
		if within.Lo == within.Hi {
			singles = append(singles, within)
			continue
		}
		for within.Lo <= within.Hi {
			s, err := r.nextChunk(ctx, within, chunkSize)
			if err != nil {
				return nil, err
			}
			switch {
			case s.count < chunkSize:
				if s.count > 0 {
					b.ahead = append(b.ahead, chunk{cursors.Range{Lo: s.first, Hi: within.Hi}, s.ids})
				}
				within.Lo = within.Hi + 1
			case s.first == s.last:
				singles = append(singles, cursors.Range{Lo: s.first, Hi: s.first})
				within.Lo = s.first + 1
			default:
				// The last transaction may go on behind the limit, so it is left to the next chunk.
				b.ahead = append(b.ahead, chunk{cursors.Range{Lo: s.first, Hi: s.last - 1}, s.ids})
				within.Lo = s.last
			}
		}
	}
	found, err := r.transactions(ctx, singles)
	b.ahead = append(b.ahead, found...)
	slices.SortFunc(b.ahead, func(x, y chunk) int { return cmp.Compare(x.ids.first, y.ids.first) })
	for _, c := range b.ahead {
		b.last = max(b.last, c.ids.last)
	}
	return b, err
}

// done reports whether everything was returned.
func (b *backlog) done() bool {
	b.open = slices.DeleteFunc(b.open, func(c chunk) bool { return c.ids.last <= b.after })
	for len(b.open) == 0 && len(b.ahead) > 0 && b.ahead[0].ids.last <= b.after {
		b.ahead = b.ahead[1:]
	}
	return len(b.open)+len(b.ahead) == 0
}

// read returns the next page of at most limit messages, or nil after the last. It asks for the pages that
// follow, so that the server has them ready when they are wanted; life is the context for that.
//
// A page spans a stretch of ids, and ids are unique, so it reads no more than that many rows, however
// many chunks share the stretch. Where ids are sparse (rolled back, or other shard groups') the
// stretch is made longer.
func (b *backlog) read(life context.Context, r *reader, limit, maxBytes int) (*page, error) {
	for !b.done() {
		pg, err := b.answer(life, r, limit, maxBytes)
		if err == nil && len(pg.deliveries) > 0 {
			return pg, nil
		}
		if pg != nil {
			r.pool.put(pg)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, b.close()
}

// answer returns the next page, which may be empty, and asks for those after it. A page that comes with an error is
// only to be put back.
func (b *backlog) answer(life context.Context, r *reader, limit, maxBytes int) (*page, error) {
	if b.pages == nil {
		b.pages = r.pages(life)
		if err := b.ask(limit); err != nil {
			return nil, err
		}
	}
	pg, q, cut, err := b.pages.read(maxBytes)
	if schema.IsDataError(err) {
		_ = b.close() // with the same error
		q.byID = true
		pg, cut, err = r.piecemeal(life, &b.next, b.ranges(q.after, q.through), q, maxBytes)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case !cut:
		b.after, b.byID = q.through, false
		b.widen(q, len(pg.deliveries))
	case q.byID:
		b.after, b.byID = pg.deliveries[len(pg.deliveries)-1].Position, false
		b.step /= 2
	default:
		// Any of them may be missing, so it is asked for again.
		r.pool.put(pg)
		pg, b.byID = r.pool.get(), true
		b.after = q.after
	}
	if cut {
		// What was asked for lies behind what is missing.
		b.asked = b.after
		if b.pages != nil {
			switch err := b.pages.discard(); {
			case schema.IsDataError(err):
				_ = b.close() // with the same error; it is met again when its page is due
			case err != nil:
				return pg, err
			}
		}
	}
	if b.pages == nil {
		b.asked = b.after // what was asked for behind it was given up with it
		return pg, nil
	}
	if b.done() {
		return pg, b.close()
	}
	return pg, b.ask(limit)
}

// maxStep is the most ids that a page spans: a single one that was made by hand can lie far from all others.
const maxStep = 1 << 60

// widen makes the next pages span more ids if n messages are few for q.
func (b *backlog) widen(q pageQuery, n int) {
	span := int64(maxStep)
	if n > 0 {
		want := q.limit * 4 / 5
		if n >= want*3/4 {
			return
		}
		span = int64(float64(q.through-q.after) * float64(want) / float64(n))
	}
	b.step = min(max(b.step, span), 2*b.step, maxStep)
}

// close lets others use the connection.
func (b *backlog) close() (err error) {
	if b.pages != nil {
		err = b.pages.close()
		b.pages = nil
	}
	return err
}

// ask asks for pages of at most limit messages after those that were asked for.
func (b *backlog) ask(limit int) error {
	ahead := askedAhead
	if b.byID {
		ahead = 1 // for where the next one begins depends on it
	}
	for len(b.pages.asked) < ahead && b.asked < b.last {
		after := b.asked
		if len(b.ahead) > 0 && !slices.ContainsFunc(b.open, func(c chunk) bool { return c.ids.last > after }) {
			after = max(after, max(b.ahead[0].ids.first, math.MinInt64+1)-1)
		}
		b.step = max(b.step, int64(limit))
		b.asked = b.last
		if after < math.MaxInt64-b.step {
			b.asked = min(b.last, after+b.step)
		}
		for len(b.ahead) > 0 && b.ahead[0].ids.first <= b.asked {
			b.open = append(b.open, b.ahead[0])
			b.ahead = b.ahead[1:]
		}
		slices.SortFunc(b.open, func(x, y chunk) int { return cmp.Compare(x.xids.Lo, y.xids.Lo) })
		if err := b.pages.ask(&b.next, b.ranges(after, b.asked), pageQuery{after, b.asked, limit, b.byID}); err != nil {
			return err
		}
	}
	return nil
}

// ranges lists the transactions of the chunks that share ids with after < id <= through. Neighbours are
// joined, except large transactions, in which the scan finds its ids by itself only if they are alone.
func (b *backlog) ranges(after, through int64) []cursors.Range {
	var ranges []cursors.Range
	joined := false // the last range may be extended
	for i := range b.open {
		c := &b.open[i]
		if c.ids.first > through || c.ids.last <= after {
			continue
		}
		if n := len(ranges); joined && !c.single() && ranges[n-1].Hi+1 == c.xids.Lo {
			ranges[n-1].Hi = c.xids.Hi
			continue
		}
		ranges = append(ranges, c.xids)
		joined = !c.single()
	}
	return ranges
}
