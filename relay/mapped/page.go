package mapped

import (
	"sync/atomic"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/reuse"
)

// freeLists are lists of deliveries that were settled, for those that are read next. nil has none.
type freeLists = reuse.Pool[[]relay.Delivery]

const maxFreeLists = 16

// page is a list of deliveries that is handed out in batches, and is free when all of them are recycled.
type page struct {
	deliveries []relay.Delivery
	users      atomic.Int32 // batches that are not recycled, plus one while more are to come
}

func newPage(ds []relay.Delivery) *page {
	p := &page{deliveries: ds}
	p.users.Store(1)
	return p
}

// cut takes a batch of at most limit deliveries off the rest of the page, whose memory goes to f.
func (p *page) cut(rest *[]relay.Delivery, limit int, f *freeLists) relay.Batch {
	return reuse.Cut(rest, limit, &p.users, func() { p.recycle(f) })
}

func (p *page) recycle(f *freeLists) {
	if p.users.Add(-1) == 0 {
		clear(p.deliveries)
		f.Put(p.deliveries[:0], maxFreeLists)
	}
}
