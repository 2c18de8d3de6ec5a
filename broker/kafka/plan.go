package kafka

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/pgoutbox/outbox"
)

// plan divides a call into waves: within a wave each key has only one topic, so each key's messages are in one
// partition, which keeps their order whatever happens. The next call reuses its memory.
type plan struct {
	topics []*topic // of each message of the batch
	order  []int32  // messages to send, by wave and then as in the batch
	wave   []int32  // of each message of the batch
	waves  int

	seed  maphash.Seed
	lanes []lane // open hash table; its length is a power of two
	round uint32 // lanes of other rounds count as empty
}

// lane is the state of a key. Keys whose hashes collide share a lane, which can only add a wave.
type lane struct {
	hash  uint64
	topic *topic
	wave  int32
	round uint32
}

func (p *plan) reset(n int) {
	p.topics = slices.Grow(p.topics[:0], n)[:n]
	clear(p.topics)
	p.order = slices.Grow(p.order[:0], n)
	p.waves = 1
}

// divide sorts p.order into waves. batch has messages for more than one topic.
func (p *plan) divide(batch []*outbox.Message) {
	p.wave = slices.Grow(p.wave[:0], len(batch))[:len(batch)]
	p.startLanes(len(batch))
	for _, i := range p.order {
		p.wave[i] = 0
		key := batch[i].OrderingKey()
		if key == "" {
			continue
		}
		l := p.lane(maphash.String(p.seed, key))
		switch {
		case l.topic == nil:
			l.topic = p.topics[i]
		case l.topic != p.topics[i]:
			l.topic = p.topics[i]
			l.wave++
			p.waves = max(p.waves, int(l.wave)+1)
		}
		p.wave[i] = l.wave
	}
	if p.waves > 1 {
		slices.SortStableFunc(p.order, func(a, b int32) int { return cmp.Compare(p.wave[a], p.wave[b]) })
	}
}

func (p *plan) startLanes(n int) {
	if p.round++; p.round == 0 || len(p.lanes) < 2*n {
		size := 1024
		for size < 2*n {
			size *= 2
		}
		p.lanes = make([]lane, size)
		p.round = 1
		p.seed = maphash.MakeSeed()
	}
}

func (p *plan) lane(hash uint64) *lane {
	mask := uint64(len(p.lanes) - 1)
	for at := hash & mask; ; at = (at + 1) & mask {
		l := &p.lanes[at]
		if l.round != p.round {
			*l = lane{hash: hash, round: p.round}
			return l
		}
		if l.hash == hash {
			return l
		}
	}
}
