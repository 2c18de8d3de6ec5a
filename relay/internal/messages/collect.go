package messages

import "github.com/pgoutbox/outbox/relay"

// Collector collects messages into the batches of a page. Small batches share its memory; with blocks of its own, each
// would keep much more memory than it uses. It belongs to the goroutine that reads; any goroutine may recycle batches.
type Collector struct {
	pool    *Pool
	decoder *Decoder
	pg      *Page

	// where the next batch begins
	from, fromBytes int
}

// Collect returns a collector of an empty page of the pool.
func Collect(pool *Pool, d *Decoder) *Collector {
	c := &Collector{pool: pool, decoder: d, pg: pool.Get()}
	c.pg.users.Store(1) // until Drop
	return c
}

// Add decodes a row of MessageColumns in binary format, nil for NULL. What the row points to is copied.
func (c *Collector) Add(row [][]byte) (*relay.Delivery, error) {
	return c.decoder.Decode(c.pg, row)
}

// Len is the number of messages that are not yet in a batch.
func (c *Collector) Len() int { return len(c.pg.Deliveries) - c.from }

// Bytes is their approximate size.
func (c *Collector) Bytes() int { return c.pg.arena.bytes - c.fromBytes }

// Batch returns these messages; later ones go into the next batch.
func (c *Collector) Batch() relay.Batch {
	n := len(c.pg.Deliveries)
	batch := relay.Batch{Deliveries: c.pg.Deliveries[c.from:n:n], Recycle: c.pool.recycler(c.pg)}
	c.pg.users.Add(1)
	c.from, c.fromBytes = n, c.pg.arena.bytes
	return batch
}

// Full reports whether the next messages should go to another page.
func (c *Collector) Full() bool {
	return c.pg.arena.bytes >= blockSize*3/4 || len(c.pg.Deliveries) >= 1000
}

// Drop ends the page. Its batches remain valid until they are recycled.
func (c *Collector) Drop() { c.pool.recycler(c.pg)() }
