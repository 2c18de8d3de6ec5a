package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox"
)

// recallAtOnce is how many messages are requested at once while a stream's end is read.
const recallAtOnce = 5000

// recall reads the ids of the stream's last messages, some of which may be sent again: by this broker after a break, or
// by a process that takes over from a dead one. Younger messages, which an earlier connection had sent and the server
// had not stored yet, are covered by the duplicate window.
func (b *Broker) recall(ctx context.Context, l *link) error {
	if b.cfg.Recall == 0 {
		return nil
	}
	ids, err := b.tail(ctx, l)
	if err != nil {
		return fmt.Errorf("nats: read what stream %q had last: %w; the user needs to publish to %q and %q, or set Recall to 0",
			b.cfg.Stream, err,
			b.api("CONSUMER.*."+b.cfg.Stream+".>"), b.api("CONSUMER.MSG.NEXT."+b.cfg.Stream+".>"))
	}
	l.stored = ids
	return nil
}

func (b *Broker) tail(ctx context.Context, l *link) (map[outbox.ID]struct{}, error) {
	asking, cancel := context.WithTimeout(ctx, b.cfg.AckTimeout)
	defer cancel()
	stream, err := l.js.Stream(asking, b.cfg.Stream)
	if err != nil {
		return nil, err
	}
	info := stream.CachedInfo()
	if info.Config.Retention == jetstream.WorkQueuePolicy {
		return nil, errors.New("it is a work queue, which forgets a message when it is consumed")
	}
	ids := make(map[outbox.ID]struct{}, min(uint64(b.cfg.Recall), info.State.Msgs))
	if info.State.Msgs == 0 {
		return ids, nil
	}
	from := info.State.FirstSeq
	if most := uint64(b.cfg.Recall); info.State.LastSeq >= from+most {
		from = info.State.LastSeq - most + 1
	}
	consumer, err := stream.CreateConsumer(asking, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		AckPolicy: jetstream.AckNonePolicy, HeadersOnly: true, MemoryStorage: true, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.DeleteConsumer(asking, consumer.CachedInfo().Name) }() // otherwise it expires later
	for left := consumer.CachedInfo().NumPending; left > 0; {
		n, err := b.remember(ctx, consumer, int(min(left, recallAtOnce)), ids)
		if err != nil {
			return nil, err
		}
		left -= uint64(n)
	}
	return ids, nil
}

// remember notes the ids of the next messages, and returns how many messages came.
func (b *Broker) remember(ctx context.Context, consumer jetstream.Consumer, most int, ids map[outbox.ID]struct{}) (n int, err error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	batch, err := consumer.Fetch(most, jetstream.FetchMaxWait(b.cfg.AckTimeout))
	if err != nil {
		return 0, err
	}
	for m := range batch.Messages() {
		n++
		if id, err := outbox.ParseID(m.Headers().Get(nats.MsgIdHdr)); err == nil { // other programs write there, too
			ids[id] = struct{}{}
		}
	}
	if err := batch.Error(); err != nil {
		return n, err
	}
	if n == 0 {
		return 0, fmt.Errorf("nothing came for %v", b.cfg.AckTimeout)
	}
	return n, nil
}
