// Package inorder keeps the promise of a call to a broker: no message of a key counts as accepted behind one that has
// failed. The adapters send; a [Batch] tells them what may be sent, and collects the outcomes.
package inorder

import (
	"fmt"
	"slices"
	"sync"

	"github.com/pgoutbox/outbox"
)

// Batch is the messages of one call. The messages of a key form a chain, in their order; a message without a key is a
// chain of its own. A Batch belongs to one goroutine at a time. The zero Batch is ready for Begin.
type Batch struct {
	Messages []*outbox.Message

	errs    []error // nil until a message fails
	nodes   []node
	last    map[string]int32 // the end of each key's chain, while chains are being built
	queue   []int32          // messages whose turn has come, from queued on
	queued  int
	left    int
	stopped error // the outcome of messages that have not been taken
}

// node is a message's position in its chain.
type node struct {
	next  int32 // the next message of the chain, -1 at the end
	state state
	turn  bool // all earlier messages of the chain were accepted
}

type state uint8

const (
	unsent state = iota
	taken
	accepted
	failed
)

// Begin starts a call with these messages.
func (b *Batch) Begin(messages []*outbox.Message) {
	n := len(messages)
	b.Messages, b.errs, b.stopped = messages, nil, nil
	b.left, b.queued = n, 0
	b.nodes = slices.Grow(b.nodes[:0], n)[:n]
	b.queue = slices.Grow(b.queue[:0], n)
	if b.last == nil {
		b.last = make(map[string]int32)
	}
	for i, m := range messages {
		b.nodes[i] = node{next: -1}
		key := m.OrderingKey()
		before, follows := int32(0), false
		if key != "" {
			before, follows = b.last[key]
			b.last[key] = int32(i)
		}
		if follows {
			b.nodes[before].next = int32(i)
		} else {
			b.give(int32(i))
		}
	}
	clear(b.last)
}

// End drops references to the caller's data. The caller owns the slice that Errs returned.
func (b *Batch) End() { b.Messages, b.errs, b.stopped = nil, nil, nil }

// give gives message i its turn.
func (b *Batch) give(i int32) {
	b.nodes[i].turn = true
	b.queue = append(b.queue, i)
}

// Next returns the first message whose turn it is: all earlier messages of its chain were accepted, and it was neither
// taken nor settled. It returns the same message until that is taken or settled, and false if there is none at present.
func (b *Batch) Next() (i int32, ok bool) {
	for ; b.queued < len(b.queue); b.queued++ {
		if i := b.queue[b.queued]; b.nodes[i].state == unsent {
			return i, true
		}
	}
	return 0, false
}

// Take notes that message i is on its way to the broker; from then on it must be settled. An adapter whose broker keeps
// the order by itself may take a message before its turn.
func (b *Batch) Take(i int32) {
	if n := &b.nodes[i]; n.state == unsent {
		n.state = taken
	}
}

// After returns the message after i in its chain, -1 for none. Safe for concurrent use.
func (b *Batch) After(i int32) int32 { return b.nodes[i].next }

// Taken reports whether message i was taken and isn't settled.
func (b *Batch) Taken(i int32) bool {
	return i >= 0 && int(i) < len(b.nodes) && b.nodes[i].state == taken
}

// Settled reports whether message i has an outcome: its own, or that of an earlier message of its chain.
func (b *Batch) Settled(i int32) bool { return b.nodes[i].state >= accepted }

// Left is how many messages are not settled.
func (b *Batch) Left() int { return b.left }

// Settle notes the outcome of message i, nil if the broker accepted it. After an accepted message, the next one of its
// chain has its turn. All messages behind a failed one are skipped, whatever the broker answers for them. The first
// outcome of a message counts.
func (b *Batch) Settle(i int32, err error) {
	if b.Settled(i) {
		return
	}
	b.left--
	if err != nil {
		b.nodes[i].state = failed
		b.fail(i, err)
		return
	}
	b.nodes[i].state = accepted
	for n := i; b.nodes[n].turn && b.nodes[n].state == accepted; {
		n = b.nodes[n].next
		if n < 0 {
			return
		}
		b.give(n)
		if b.stopped != nil && b.nodes[n].state == unsent {
			b.Settle(n, b.stopped)
		}
	}
}

// fail notes err, and skips the messages behind message i.
func (b *Batch) fail(i int32, err error) {
	if b.errs == nil {
		b.errs = make([]error, len(b.Messages))
	}
	b.errs[i] = err
	for n := b.nodes[i].next; n >= 0; n = b.nodes[n].next {
		if !b.Settled(n) {
			b.left--
		}
		b.nodes[n].state = failed
		b.errs[n] = outbox.ErrSkipped
	}
}

// Stop settles the messages that have not been taken with the error unsent, now or when their turn comes. Messages that
// were taken still need their outcome. The first call counts.
func (b *Batch) Stop(unsent error) {
	if b.stopped != nil {
		return
	}
	b.stopped = unsent
	for i, ok := b.Next(); ok; i, ok = b.Next() {
		b.Settle(i, unsent)
	}
}

// Abandon settles everything because of cause: messages that were taken have an unknown outcome, the others were not
// sent.
func (b *Batch) Abandon(cause error) {
	if b.left == 0 {
		return
	}
	b.Stop(outbox.Unavailable(fmt.Errorf("%w (not sent)", cause)))
	unknown := Unknown(cause)
	for i := range b.nodes {
		if b.Taken(int32(i)) {
			b.Settle(int32(i), unknown)
		}
	}
}

// Unknown is the outcome of a message that was or was not accepted.
func Unknown(cause error) error { return outbox.Unavailable(fmt.Errorf("%w (outcome unknown)", cause)) }

// Errs returns the outcomes in the order of Messages; nil if none failed.
func (b *Batch) Errs() []error { return b.errs }

// Pool reuses the memory of batches from call to call. The zero Pool is ready for use. Safe for concurrent use.
type Pool struct{ spare sync.Pool }

// Begin returns a batch of these messages.
func (p *Pool) Begin(messages []*outbox.Message) *Batch {
	b, _ := p.spare.Get().(*Batch)
	if b == nil {
		b = &Batch{}
	}
	b.Begin(messages)
	return b
}

// End ends b, which must not be used afterwards.
func (p *Pool) End(b *Batch) {
	b.End()
	p.spare.Put(b)
}
