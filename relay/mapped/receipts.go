package mapped

import (
	"strconv"
	"sync"

	"github.com/pgoutbox/outbox"
)

// receipts remembers the partition into which the broker has put each message that is not settled yet. The engine's
// limit on messages in flight bounds its memory. Safe for concurrent use.
type receipts struct {
	mu         sync.Mutex
	partitions map[outbox.ID]int32
}

func (r *receipts) accepted(id outbox.ID, place outbox.Receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.partitions == nil {
		r.partitions = make(map[outbox.ID]int32)
	}
	r.partitions[id] = place.Partition
}

// reset forgets the messages that an ended session has not settled.
func (r *receipts) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.partitions)
}

// take returns the partition of each delivered message and forgets it; nil if the broker has reported none.
func (r *receipts) take(marks []mark) []*string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*string, len(marks))
	for i := range marks {
		if partition, ok := r.partitions[marks[i].message]; ok {
			text := strconv.Itoa(int(partition))
			marks[i].partition = &text // take may be called again for this mark
			delete(r.partitions, marks[i].message)
		}
		list[i] = marks[i].partition
	}
	return list
}
