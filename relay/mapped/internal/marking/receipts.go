package marking

import (
	"strconv"
	"sync"

	"github.com/pgoutbox/outbox"
)

// Receipts remembers the partition into which the broker has put each message that is not settled yet. The engine's
// limit on messages in flight bounds its memory. Safe for concurrent use.
type Receipts struct {
	mu         sync.Mutex
	Partitions map[outbox.ID]int32
}

// Accepted notes where the broker has put a message.
func (r *Receipts) Accepted(id outbox.ID, place outbox.Receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Partitions == nil {
		r.Partitions = make(map[outbox.ID]int32)
	}
	r.Partitions[id] = place.Partition
}

// reset forgets the messages that an ended session has not settled.
func (r *Receipts) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.Partitions)
}

// Take returns the partition of each delivered message and forgets it; nil if the broker has reported none.
func (r *Receipts) Take(marks []Mark) []*string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*string, len(marks))
	for i := range marks {
		if partition, ok := r.Partitions[marks[i].Message]; ok {
			text := strconv.Itoa(int(partition))
			marks[i].partition = &text // Take may be called again for this mark
			delete(r.Partitions, marks[i].Message)
		}
		list[i] = marks[i].partition
	}
	return list
}
