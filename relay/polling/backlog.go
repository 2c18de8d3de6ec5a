package polling

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/relay/internal/messages"
	"github.com/pgoutbox/outbox/schema"
)

// backlog reads a window that is too large to be sorted at once. It returns pages in the order of ids. Each page costs
// about the same, however large the window is; it needs little memory and no long transaction.
//
// One pass over the index, in the index's order of (xid, id), cuts the window into chunks and notes the range of ids in
// each. A page is then read only from the chunks whose ids overlap it. Transactions that ran at the same time share a
// range of ids, so a page usually needs one or two chunks.
type backlog struct {
	next  cursors.Snapshot
	ahead []chunk // chunks that no page has needed yet, by their first ids
	open  []chunk // the other chunks that are not read to their end
	last  int64   // the highest id
	after int64   // everything up to this id has been returned
	asked int64   // everything up to this id has been requested
	step  int64   // the range of ids of the next page
	byID  bool    // the next page was requested before, and had more rows than fit

	pages *pages // nil before the first page and after the last
}

// askedAhead is how many pages are requested at a time: one that is being read, and one that the server has ready after
// it.
const askedAhead = 2

func (c *chunk) single() bool { return c.xids.Lo == c.xids.Hi }

// newBacklog measures what next sees and prev doesn't (and a little more, which next doesn't see). It will return the
// messages with ids greater than after.
func newBacklog(ctx context.Context, r *reader, prev, next *cursors.Snapshot, after int64) (*backlog, error) {
	b := &backlog{next: *next, after: after, asked: after}
	var singles []cursors.Range
	for _, within := range cursors.Between(prev, next) {
		if within.Lo == within.Hi {
			singles = append(singles, within)
			continue
		}
		for within.Lo <= within.Hi {
			spans, err := r.spans(ctx, within)
			if err != nil {
				return nil, err
			}
			for _, s := range spans {
				switch {
				case s.count < r.chunking.chunk:
					if s.count > 0 {
						b.ahead = append(b.ahead, chunk{cursors.Range{Lo: s.first, Hi: within.Hi}, s.ids})
					}
					within.Lo = within.Hi + 1
				case s.first == s.last:
					singles = append(singles, cursors.Range{Lo: s.first, Hi: s.first})
					within.Lo = s.first + 1
				default:
					// The last transaction may continue beyond the limit, so the next chunk covers it.
					b.ahead = append(b.ahead, chunk{cursors.Range{Lo: s.first, Hi: s.last - 1}, s.ids})
					within.Lo = s.last
				}
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

// read returns the next page of at most limit messages, or nil after the last. It also requests the pages after that,
// so that the server has them ready; life is their context.
//
// A page covers a range of ids. Ids are unique, so the page reads no more rows than that, however many chunks share the
// range. Where ids are sparse (rolled back, or of other shard groups), the range is widened.
func (b *backlog) read(life context.Context, r *reader, limit, maxBytes int) (*messages.Page, error) {
	for !b.done() {
		pg, err := b.answer(life, r, limit, maxBytes)
		if err == nil && len(pg.Deliveries) > 0 {
			return pg, nil
		}
		if pg != nil {
			r.pool.Put(pg)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, b.close()
}

// answer returns the next page, which may be empty, and requests those after it. If it returns an error with a page,
// the caller only puts the page back.
func (b *backlog) answer(life context.Context, r *reader, limit, maxBytes int) (*messages.Page, error) {
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
		b.widen(q, len(pg.Deliveries))
	case q.byID:
		first, last := pg.Deliveries[0].Position, pg.Deliveries[len(pg.Deliveries)-1].Position
		b.after, b.byID = last, false
		// An id that is far from the others has made the step wide, so these rows say how close the others are.
		b.step = min(b.step/2, int64(min(uint64(last)-uint64(first), maxStep)))
	default:
		// Any of its rows may be missing, so the page is requested again.
		r.pool.Put(pg)
		pg, b.byID = r.pool.Get(), true
		b.after = q.after
	}
	if cut {
		// The requested pages come after the missing rows, so they are given up.
		b.asked = b.after
		if b.pages != nil {
			switch err := b.pages.discard(); {
			case schema.IsDataError(err):
				_ = b.close() // with the same error, which comes again when its page is due
			case err != nil:
				return pg, err
			}
		}
	}
	if b.pages == nil {
		b.asked = b.after // the pages requested after it were given up with it
		return pg, nil
	}
	if b.done() {
		return pg, b.close()
	}
	return pg, b.ask(limit)
}

// maxStep is the widest range of ids of a page: an id that was inserted by hand can be far from all others.
const maxStep = 1 << 60

// widen makes the next pages cover more ids if n messages are few for q.
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

// close frees the connection for other statements.
func (b *backlog) close() (err error) {
	if b.pages != nil {
		err = b.pages.close()
		b.pages = nil
	}
	return err
}

// ask requests pages of at most limit messages after those already requested.
func (b *backlog) ask(limit int) error {
	ahead := askedAhead
	if b.byID {
		ahead = 1 // because the beginning of the next page depends on it
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

// ranges lists the transactions of the chunks that overlap after < id <= through. It joins adjacent ranges, except
// large transactions: the scan uses the index on ids only if such a transaction is a range of its own.
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
