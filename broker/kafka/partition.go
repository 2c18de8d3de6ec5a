package kafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/lanes"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// partition is a partition that is ours: what was fetched from it and how far it is done. mu is taken before that of
// the group.
type partition struct {
	consumer *Consumer
	id       topicPartition
	group    *lanes.Group
	limit    int

	mu        sync.Mutex
	backlog   []*kgo.Record // fetched, with no room in the group yet
	waiting   []*fetched    // in the group, in the order of offsets; the first one isn't done
	next      kgo.EpochOffset
	committed int64
	high      int64 // the offset of the partition's next record, as of the last fetch
	paused    bool
	left      bool // it is no longer ours
}

// fetched is a record that isn't below the committed offset.
type fetched struct {
	offset int64
	epoch  int32
	done   bool
}

// add takes records, and pauses fetching while there are too many.
func (p *partition) add(records []*kgo.Record, high int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.high = high
	p.backlog = append(p.backlog, records...)
	p.advance()
}

// advance passes records to the group, as many as it has room for. Fetching resumes before the backlog is empty,
// because the client asks for a paused partition only with its next request, and a running request may take fetchWait.
// The caller holds mu.
func (p *partition) advance() {
	n := min(len(p.backlog), max(p.limit-len(p.waiting), 0))
	for _, r := range p.backlog[:n] {
		p.handle(r)
	}
	clear(p.backlog[:n])
	if p.backlog = p.backlog[n:]; len(p.backlog) == 0 {
		p.backlog = nil
	}
	switch full := len(p.backlog) > p.limit; {
	case full && !p.paused:
		p.consumer.client.PauseFetchPartitions(p.name())
	case !full && p.paused:
		p.consumer.client.ResumeFetchPartitions(p.name())
	default:
		return
	}
	p.paused = !p.paused
}

func (p *partition) handle(r *kgo.Record) {
	at := &fetched{offset: r.Offset, epoch: r.LeaderEpoch}
	p.waiting = append(p.waiting, at)
	d := &lanes.Delivery{Source: fmt.Sprintf("%s/%d@%d", r.Topic, r.Partition, r.Offset)}
	d.Message, d.Err = decode(r)
	p.consumer.engine.Decode(d)
	d.Settle = func(o consume.Outcome, _ time.Duration) error {
		if o == consume.Done {
			p.done(at)
		}
		return nil // commit logs
	}
	p.group.Add(d) // a stopped group returns the record at once: not as Done, so mu isn't locked again
}

// done notes that a record was handled. Only a prefix without gaps may be committed: the group stores one offset per
// partition.
func (p *partition) done(f *fetched) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.done = true
	n := 0
	for n < len(p.waiting) && p.waiting[n].done {
		p.next = kgo.EpochOffset{Epoch: p.waiting[n].epoch, Offset: p.waiting[n].offset + 1}
		n++
	}
	clear(p.waiting[:n])
	p.waiting = p.waiting[n:]
	p.advance()
}

// leave ends the handling and the reports to the observer; the partition's next owner reports.
func (p *partition) leave(end func()) {
	end()
	p.mu.Lock()
	p.left = true
	p.mu.Unlock()
	p.consumer.engine.Lag(p.source(), 0)
}

// tellLag reports to the observer how many records of the partition are not done.
func (p *partition) tellLag() {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.next.Offset
	if len(p.waiting) > 0 {
		at = p.waiting[0].offset
	}
	if !p.left {
		p.consumer.engine.Lag(p.source(), p.high-at)
	}
}

func (p *partition) source() string { return fmt.Sprintf("%s/%d", p.id.topic, p.id.n) }

func (p *partition) name() map[string][]int32 { return map[string][]int32{p.id.topic: {p.id.n}} }

// commit stores the partitions' offsets in the group. If that fails, a later commit covers them. The caller holds
// committing.
func (c *Consumer) commit(ctx context.Context, all []*partition) {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for _, p := range all {
		p.mu.Lock()
		if p.next.Offset > p.committed {
			if offsets[p.id.topic] == nil {
				offsets[p.id.topic] = map[int32]kgo.EpochOffset{}
			}
			offsets[p.id.topic][p.id.n] = p.next
		}
		p.mu.Unlock()
	}
	if len(offsets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.broker.cfg.Unanswered)
	defer cancel()
	c.client.CommitOffsetsSync(ctx, offsets,
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
			if err != nil {
				if ctx.Err() != context.Canceled {
					c.cfg.Handling.Logger.Warn("offsets were not committed", "error", c.broker.explain(err))
				}
				return
			}
			for _, topic := range answer.Topics {
				for _, one := range topic.Partitions {
					if err := kerr.ErrorForCode(one.ErrorCode); err != nil {
						c.cfg.Handling.Logger.Warn("offset was not committed",
							"topic", topic.Topic, "partition", one.Partition, "error", err)
						continue
					}
					at := topicPartition{topic.Topic, one.Partition}
					for _, p := range all {
						if p.id == at {
							p.mu.Lock()
							p.committed = max(p.committed, offsets[at.topic][at.n].Offset)
							p.mu.Unlock()
						}
					}
				}
			}
		})
}
