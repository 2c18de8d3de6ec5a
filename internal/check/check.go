// Package check decides whether an outbox kept its promises. It is told what
// writers committed and rolled back and what consumers received, and answers
// with what was lost, invented, repeated or out of order.
//
// # Identity
//
// Every message of a run is named by an [ID]: the index of its ordering key
// and a number within that key. Numbers start at 1 and must be given out while
// the transaction holds that key's row lock, so that they rise in the order in
// which transactions took the row. [Encode] writes the identity into a payload
// and [Decode] reads it back.
//
// Two ways to number are supported. Where numbers are never used twice (a
// counter outside the database, advanced while the row is locked) a roll-back
// leaves a gap and every phantom is recognised. Where the number is read from
// the locked row itself, a roll-back gives it to the next transaction; a
// phantom of the first attempt then looks like a duplicate of the second.
// Prefer the former.
//
// # Outcomes
//
// A delivery may be observed before its writer reports the commit, and a
// connection that dies inside COMMIT leaves the outcome unknown. Reports and
// deliveries are therefore accepted in any order, and a verdict about a number
// without an outcome is given by [Checker.Report] alone. Of several reports
// about one number, Committed is final; otherwise the last one stands, so
// Unknown may be resolved later to either.
//
// # Memory
//
// A number costs a few bits while it is undecided or outstanding, and nothing
// once it is committed and delivered everywhere. A number rolled back costs a
// byte, for a later delivery of it is a phantom and not a duplicate. All in
// all: some 300 bytes a key, 250 bytes for each 256 consecutive numbers that
// are not all settled, one byte a roll-back.
package check

import (
	"fmt"
	"sync"
)

// MaxDestinations is the largest number of destinations of one [Checker].
const MaxDestinations = 64

// Config says what a [Checker] expects.
type Config struct {
	// Destinations lists those whose deliveries are checked. Default: one that
	// is named "default" and receives everything.
	Destinations []DestinationConfig
}

// DestinationConfig describes one destination.
type DestinationConfig struct {
	// Name identifies the destination in reports; it must be unique.
	Name string
	// Selects reports whether the destination's filter lets the messages of a key
	// through. It is called once for each key. Default: every key.
	Selects func(key uint32) bool
}

// Checker compares what was written with what was delivered. All its methods
// and those of its destinations may be called concurrently and at any time.
type Checker struct {
	destinations []*Destination
	shards       [shardCount]shard
}

// Destination takes the deliveries of one destination.
type Destination struct {
	checker *Checker
	index   int
	config  DestinationConfig
}

// shardCount keeps writers and consumers on different cores from waiting for
// each other; a sum over all shards still takes about a microsecond.
const shardCount = 64

// shard holds the keys whose index has the same remainder. Counters live
// beside the state that they count, under the same lock, so that no reader sees
// one without the other.
type shard struct {
	mu     sync.Mutex
	keys   map[uint32]*key
	writer writerCounts
	// at has one entry for each destination.
	at       []destinationCounts
	examples []shardExamples
}

type writerCounts struct {
	committed  uint64
	rolledBack uint64
	unknown    uint64
}

type destinationCounts struct {
	delivered    uint64
	outstanding  uint64
	deadLettered uint64
	undecided    uint64
	phantom      uint64
	duplicated   uint64
	inverted     uint64
	misrouted    uint64
	corrupted    uint64
}

// shardExamples keeps the first events that leave no trace in a key's state.
type shardExamples struct {
	duplicated []Example
	inverted   []Example
	misrouted  []Example
}

// New returns an empty Checker. It panics when a destination's name is empty
// or used twice, or when there are more than [MaxDestinations].
func New(config Config) *Checker {
	if len(config.Destinations) == 0 {
		config.Destinations = []DestinationConfig{{Name: "default"}}
	}
	if n := len(config.Destinations); n > MaxDestinations {
		panic(fmt.Sprintf("check: %d destinations, at most %d are possible", n, MaxDestinations))
	}
	c := &Checker{}
	seen := make(map[string]bool)
	for i, d := range config.Destinations {
		if d.Name == "" || seen[d.Name] {
			panic(fmt.Sprintf("check: destination %d: the name %q is empty or used twice", i, d.Name))
		}
		seen[d.Name] = true
		c.destinations = append(c.destinations, &Destination{checker: c, index: i, config: d})
	}
	for i := range c.shards {
		c.shards[i].keys = make(map[uint32]*key)
		c.shards[i].at = make([]destinationCounts, len(c.destinations))
		c.shards[i].examples = make([]shardExamples, len(c.destinations))
	}
	return c
}

// Destination returns the destination of that name, and panics when the
// Checker was configured without it.
func (c *Checker) Destination(name string) *Destination {
	for _, d := range c.destinations {
		if d.config.Name == name {
			return d
		}
	}
	panic(fmt.Sprintf("check: no destination %q was configured", name))
}

// Committed reports that the transaction of this message committed. It is
// final: later reports about the same number change nothing.
func (c *Checker) Committed(key uint32, seq uint64) { c.report(key, seq, committed) }

// RolledBack reports that the transaction of this message rolled back. Where
// numbers are used again, report it before the row is unlocked.
func (c *Checker) RolledBack(key uint32, seq uint64) { c.report(key, seq, rolledBack) }

// Unknown reports that the connection was lost while the transaction of this
// message was committing. The message may be delivered and needn't be; but
// once one destination has it, all others must get it too.
func (c *Checker) Unknown(key uint32, seq uint64) { c.report(key, seq, unknown) }

func (c *Checker) report(index uint32, seq uint64, o outcome) {
	s, k := c.lock(index, seq)
	defer s.mu.Unlock()
	if o == rolledBack {
		s.writer.rolledBack++
	}
	if settled := k.settledAs(seq); settled == committed || settled == o {
		return
	}
	n := k.number(seq)
	old := n.outcome()
	if old == committed || old == o {
		return
	}
	n.tally(s.at, -1)
	n.decide(o)
	n.tally(s.at, +1)
	if old == unknown {
		s.writer.unknown--
	}
	switch o {
	case committed:
		s.writer.committed++
	case unknown:
		s.writer.unknown++
	}
	k.compact(n)
}

// Name returns the destination's name.
func (d *Destination) Name() string { return d.config.Name }

// Delivered reports that a consumer of the destination received the message.
// Calls for the same key must be made in the order of reception.
func (d *Destination) Delivered(key uint32, seq uint64) {
	s, k := d.checker.lock(key, seq)
	defer s.mu.Unlock()
	at, examples := &s.at[d.index], &s.examples[d.index]
	if !k.selects(d.index) {
		at.misrouted++
		examples.misrouted = d.keep(examples.misrouted, Example{Key: key, Seq: seq})
		return
	}
	if k.settledAs(seq) == committed {
		at.duplicated++
		examples.duplicated = d.keep(examples.duplicated, Example{Key: key, Seq: seq})
		return
	}
	n := k.number(seq)
	if n.delivered(d.index) {
		at.duplicated++
		examples.duplicated = d.keep(examples.duplicated, Example{Key: key, Seq: seq})
		return
	}
	at.delivered++
	// A dead letter lets the later messages of its key pass, so that it may
	// come after them when it is requeued.
	if highest := k.highest[d.index]; seq > highest {
		k.highest[d.index] = seq
	} else if !n.deadLettered(d.index) {
		at.inverted++
		examples.inverted = d.keep(examples.inverted, Example{Key: key, Seq: seq, After: highest})
	}
	n.tally(s.at, -1)
	n.deliver(d.index)
	n.tally(s.at, +1)
	k.compact(n)
}

// DeadLettered reports that the destination gave the message up and keeps it
// as a dead letter, so it isn't lost. Report it before it is requeued: its
// delivery is then no inversion, however late.
func (d *Destination) DeadLettered(key uint32, seq uint64) {
	s, k := d.checker.lock(key, seq)
	defer s.mu.Unlock()
	if !k.selects(d.index) {
		s.at[d.index].misrouted++
		s.examples[d.index].misrouted = d.keep(s.examples[d.index].misrouted, Example{Key: key, Seq: seq})
		return
	}
	if k.settledAs(seq) == committed {
		return
	}
	n := k.number(seq)
	if n.delivered(d.index) || n.deadLettered(d.index) {
		return
	}
	n.tally(s.at, -1)
	n.deadLetter(d.index)
	n.tally(s.at, +1)
	k.compact(n)
}

// Payload decodes a payload made by [Encode] and reports its delivery. A
// payload that doesn't decode counts as corrupted, and the error tells why.
func (d *Destination) Payload(payload []byte) (ID, error) {
	id, err := Decode(payload)
	if err != nil {
		s := &d.checker.shards[0]
		s.mu.Lock()
		s.at[d.index].corrupted++
		s.mu.Unlock()
		return ID{}, err
	}
	d.Delivered(id.Key, id.Seq)
	return id, nil
}

// keep appends an example while there are few.
func (d *Destination) keep(list []Example, e Example) []Example {
	if len(list) >= MaxExamples {
		return list
	}
	e.Destination = d.config.Name
	return append(list, e)
}

// lock returns the key's state with its shard locked.
func (c *Checker) lock(index uint32, seq uint64) (*shard, *key) {
	if seq == 0 {
		panic("check: sequence numbers start at 1")
	}
	s := &c.shards[index%shardCount]
	s.mu.Lock()
	k := s.keys[index]
	if k == nil {
		k = newKey(c.selection(index), len(c.destinations))
		s.keys[index] = k
	}
	return s, k
}

// selection returns a bit for each destination that selects the key.
func (c *Checker) selection(index uint32) uint64 {
	var selected uint64
	for i, d := range c.destinations {
		if d.config.Selects == nil || d.config.Selects(index) {
			selected |= 1 << i
		}
	}
	return selected
}
