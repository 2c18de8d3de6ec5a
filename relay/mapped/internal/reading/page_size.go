package reading

import "github.com/pgoutbox/outbox/relay"

// PageSize decides how many rows are read at once. One goroutine at a time.
type PageSize struct {
	Least     int // rows of a page
	PageBytes int
	bytes     int // of a message, by recent rows; 0: none was read
}

// MinPage is the least number of rows in a page, unless they are large: each page has a fixed cost, so a small batch is
// a part of a page. The minimum for claimed rows is smaller: they wait for the end of the claim if the relay dies. That
// for locked rows is the smallest: if a transaction is cut off before it commits, everything that it has settled comes
// again.
const (
	MinPage        = 4000
	MinClaimedPage = 1000
	MinLockedPage  = 200
)

// Rows is how many rows to read so that they have about PageBytes in total. Rows beyond the bytes cost memory, so a
// session begins with few.
func (p *PageSize) Rows(limit int) int {
	const unknown = 256
	limit = max(limit, p.Least)
	if p.bytes == 0 {
		return min(limit, unknown)
	}
	return min(limit, 1+p.PageBytes/p.bytes)
}

// Observe learns the size of messages: quickly when they grow, slowly when they shrink.
func (p *PageSize) Observe(ds []relay.Delivery) {
	if len(ds) == 0 {
		return
	}
	total := 0
	for i := range ds {
		total += len(ds[i].Payload) + 256
	}
	p.bytes = max(total/len(ds), p.bytes-p.bytes/4)
}
