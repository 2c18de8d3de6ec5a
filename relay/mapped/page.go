package mapped

import "github.com/pgoutbox/outbox/relay"

// pageSize decides how many rows are read at once. One goroutine at a time.
type pageSize struct {
	least     int // rows of a page
	pageBytes int
	bytes     int // of a message, by what was read lately; 0: nothing was
}

// minPage is how many rows are read at once at least, where they are not large: a page has a cost of its
// own, so a small batch is a part of one. Of rows that are locked it is less: what a transaction has settled
// comes again if it is cut off before it commits.
const (
	minPage       = 1000
	minLockedPage = 200
)

// rows is how many rows to read so that they have about pageBytes. What is read beyond the bytes is
// memory, so a session begins with few.
func (p *pageSize) rows(limit int) int {
	const unknown = 256
	limit = max(limit, p.least)
	if p.bytes == 0 {
		return min(limit, unknown)
	}
	return min(limit, 1+p.pageBytes/p.bytes)
}

// observe learns how large messages are: quickly when they grow, slowly when they shrink.
func (p *pageSize) observe(ds []relay.Delivery) {
	if len(ds) == 0 {
		return
	}
	total := 0
	for i := range ds {
		total += len(ds[i].Payload) + 256
	}
	p.bytes = max(total/len(ds), p.bytes-p.bytes/4)
}
