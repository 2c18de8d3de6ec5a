package polling

import (
	"cmp"
	"context"
	"slices"
)

// backlog reads a window that is too large to be sorted at once: in order of id, in pages that each cost
// about the same however large it is, in little memory and without a long transaction.
//
// One pass over the index, in its own order of (xid, id), cuts the window into chunks and notes which
// ids lie in each. A page is then read from just those chunks whose ids it may contain. Transactions
// that ran at the same time share a stretch of ids, so a page usually takes one or two chunks.
type backlog struct {
	next  txSnapshot
	ahead []chunk // of which no page has asked for anything, by their first ids
	open  []chunk // the others that are not read to their end
	last  int64   // id of all
	after int64   // everything up to here has been returned
	step  int64   // ids that the next page spans

	asked   *pageQuery // of the page after the last one that was returned
	through int64      // where that ends
}

// chunk is a stretch of the index: these transactions have no message outside of these ids. A
// transaction larger than a chunk is a chunk of its own, in which ids are found by the index.
type chunk struct {
	xids xidRange
	ids  idRange
}

func (c *chunk) single() bool { return c.xids.lo == c.xids.hi }

// A page looks at all index entries of its chunks, so they are about as large as a page. More of them cost
// memory, 32 bytes each, and a statement each when the backlog is measured.
const chunkSize = 2000

// newBacklog measures what next sees and prev doesn't (and a little more, that next doesn't see), and will return what has an id greater than after.
func newBacklog(ctx context.Context, r *reader, prev, next *txSnapshot, after int64) (*backlog, error) {
	b := &backlog{next: *next, after: after}
	var singles []xidRange
	for _, within := range between(prev, next) {
		if within.lo == within.hi {
			singles = append(singles, within)
			continue
		}
		for within.lo <= within.hi {
			s, err := r.nextChunk(ctx, within, chunkSize)
			if err != nil {
				return nil, err
			}
			switch {
			case s.count < chunkSize:
				if s.count > 0 {
					b.ahead = append(b.ahead, chunk{xidRange{s.first, within.hi}, s.ids})
				}
				within.lo = within.hi + 1
			case s.first == s.last:
				singles = append(singles, xidRange{s.first, s.first})
				within.lo = s.first + 1
			default:
				// The last transaction may go on behind the limit, so it is left to the next chunk.
				b.ahead = append(b.ahead, chunk{xidRange{s.first, s.last - 1}, s.ids})
				within.lo = s.last
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

// read returns the next page of at most limit messages, or nil after the last. It asks for the page that
// follows, so that the server has it ready when it is wanted; life is the context for that.
//
// A page spans a stretch of ids, and ids are unique, so it reads no more than that many rows, however
// many chunks share the stretch. Where ids are sparse (rolled back, or other shard groups') the
// stretch is made longer.
func (b *backlog) read(life context.Context, r *reader, limit, maxBytes int) (*page, error) {
	for !b.done() {
		if b.asked == nil {
			b.ask(life, r, limit)
		}
		asked := b.asked
		b.asked = nil
		pg, cut, err := r.readPage(asked, maxBytes)
		if err != nil {
			return nil, err
		}
		n := len(pg.deliveries)
		switch {
		case cut:
			b.after = pg.deliveries[n-1].Position
			b.step /= 2
		default:
			b.after = b.through
			if n < asked.limit/2+1 {
				b.step = min(2*b.step, 1<<40)
			}
		}
		if n > 0 {
			if !b.done() {
				b.ask(life, r, limit)
			}
			return pg, nil
		}
		r.pool.put(pg)
	}
	return nil, nil
}

// ask asks for the page of at most limit messages after those that were returned.
func (b *backlog) ask(life context.Context, r *reader, limit int) {
	after := b.after
	if len(b.open) == 0 {
		after = max(after, b.ahead[0].ids.first-1)
	}
	b.step = max(b.step, int64(limit))
	b.through = min(b.last, after+b.step)
	for len(b.ahead) > 0 && b.ahead[0].ids.first <= b.through {
		b.open = append(b.open, b.ahead[0])
		b.ahead = b.ahead[1:]
	}
	slices.SortFunc(b.open, func(x, y chunk) int { return cmp.Compare(x.xids.lo, y.xids.lo) })
	b.asked = r.askPage(life, &b.next, b.ranges(after, b.through), after, b.through, limit)
}

// ranges lists the transactions of the chunks that share ids with after < id <= through. Neighbours are
// joined, except large transactions, in which the scan finds its ids by itself only if they are alone.
func (b *backlog) ranges(after, through int64) []xidRange {
	var ranges []xidRange
	joined := false // the last range may be extended
	for i := range b.open {
		c := &b.open[i]
		if c.ids.first > through || c.ids.last <= after {
			continue
		}
		if n := len(ranges); joined && !c.single() && ranges[n-1].hi+1 == c.xids.lo {
			ranges[n-1].hi = c.xids.hi
			continue
		}
		ranges = append(ranges, c.xids)
		joined = !c.single()
	}
	return ranges
}
