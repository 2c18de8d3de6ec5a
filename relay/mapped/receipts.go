package mapped

import (
	"context"
	"strconv"
	"sync"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
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

// Broker wraps b for the relay of this source: if the mapping names a column for the partition (Done.Partition), b is
// asked to report partitions. Call it once, before relay.New.
func (s *Source) Broker(b relay.Broker) relay.Broker {
	if s.mapping.Done.Partition == "" {
		return b
	}
	return asking{b, s.receipts.accepted}
}

// asking is a broker that is asked for receipts.
type asking struct {
	relay.Broker
	accepted func(outbox.ID, outbox.Receipt)
}

func (b asking) Publish(ctx context.Context, batch []*outbox.Message) []error {
	return b.Broker.Publish(outbox.WithReceipts(ctx, b.accepted), batch)
}

func (b asking) Unwrap() relay.Broker { return b.Broker }

var _ relay.Wrapper = asking{}
