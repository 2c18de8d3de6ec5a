package existing

import (
	"sync/atomic"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/reuse"
)

// FreeLists are lists of deliveries that were settled, for those that are read next. nil has none.
type FreeLists = reuse.Pool[[]relay.Delivery]

const maxFreeLists = 16

// Page is a list of deliveries that is handed out in batches, and is free when all of them are recycled.
type Page struct {
	deliveries []relay.Delivery
	users      atomic.Int32 // batches that are not recycled, plus one while more are to come
}

// NewPage returns a page of which no batch was cut.
func NewPage(ds []relay.Delivery) *Page {
	p := &Page{deliveries: ds}
	p.users.Store(1)
	return p
}

// Cut takes a batch of at most limit deliveries off the rest of the page, whose memory goes to f.
func (p *Page) Cut(rest *[]relay.Delivery, limit int, f *FreeLists) relay.Batch {
	return reuse.Cut(rest, limit, &p.users, func() { p.recycle(f) })
}

func (p *Page) recycle(f *FreeLists) {
	if p.users.Add(-1) == 0 {
		clear(p.deliveries)
		f.Put(p.deliveries[:0], maxFreeLists)
	}
}
