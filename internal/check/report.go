package check

import (
	"fmt"
	"iter"
	"maps"
	"math/bits"
	"slices"
	"strings"
)

// MaxExamples is how many examples of each fault a [Report] names.
const MaxExamples = 10

// Counts is a live view. Its destination figures are sums over all
// destinations, so one message that two destinations await counts twice.
type Counts struct {
	// Committed is how many numbers were reported as committed.
	Committed uint64 `json:"committed"`
	// RolledBack is how many roll-backs were reported.
	RolledBack uint64 `json:"rolled_back"`
	// Unknown is how many numbers have an unknown outcome still.
	Unknown uint64 `json:"unknown"`
	// Delivered counts first deliveries.
	Delivered uint64 `json:"delivered"`
	// Outstanding counts messages that are committed and neither delivered nor
	// dead-lettered yet.
	Outstanding uint64 `json:"outstanding"`
	// DeadLettered counts dead letters that were not delivered later.
	DeadLettered uint64 `json:"dead_lettered"`
	// Undecided counts messages that were delivered, or dead-lettered, before
	// their outcome was reported.
	Undecided uint64 `json:"undecided"`
	// Phantom counts messages that were delivered, or dead-lettered, although
	// they were rolled back.
	Phantom uint64 `json:"phantom"`
	// Duplicated counts deliveries of a message after its first.
	Duplicated uint64 `json:"duplicated"`
	// Inverted counts first deliveries that came after that of a later message
	// of the same key.
	Inverted uint64 `json:"inverted"`
	// Misrouted counts deliveries to a destination that doesn't select the key.
	Misrouted uint64 `json:"misrouted"`
	// Corrupted counts payloads that didn't decode.
	Corrupted uint64 `json:"corrupted"`
}

// Counts returns the counters as they are now, for all destinations together.
func (c *Checker) Counts() Counts {
	var sum Counts
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		sum.addWriter(s.writer)
		for d := range s.at {
			sum.addDestination(s.at[d])
		}
		s.mu.Unlock()
	}
	return sum
}

// Outstanding returns how many messages are committed and neither delivered
// nor dead-lettered yet, summed over the destinations. It takes about a
// microsecond.
func (c *Checker) Outstanding() uint64 { return c.Counts().Outstanding }

// Counts returns the counters of one destination. Those that come from
// writers (Committed, RolledBack, Unknown) are the same at all of them.
func (d *Destination) Counts() Counts {
	var sum Counts
	for i := range d.checker.shards {
		s := &d.checker.shards[i]
		s.mu.Lock()
		sum.addWriter(s.writer)
		sum.addDestination(s.at[d.index])
		s.mu.Unlock()
	}
	return sum
}

func (c *Counts) addWriter(w writerCounts) {
	c.Committed += w.committed
	c.RolledBack += w.rolledBack
	c.Unknown += w.unknown
}

func (c *Counts) addDestination(d destinationCounts) {
	c.Delivered += d.delivered
	c.Outstanding += d.outstanding
	c.DeadLettered += d.deadLettered
	c.Undecided += d.undecided
	c.Phantom += d.phantom
	c.Duplicated += d.duplicated
	c.Inverted += d.inverted
	c.Misrouted += d.misrouted
	c.Corrupted += d.corrupted
}

// Report is the verdict on a run. Its figures are sums over the destinations.
type Report struct {
	Committed    uint64 `json:"committed"`
	RolledBack   uint64 `json:"rolled_back"`
	Unknown      uint64 `json:"unknown"`
	Delivered    uint64 `json:"delivered"`
	DeadLettered uint64 `json:"dead_lettered"`
	// Lost counts messages that are committed and neither delivered nor
	// dead-lettered.
	Lost uint64 `json:"lost"`
	// Phantom counts messages that were delivered, or dead-lettered, and were
	// rolled back or never reported by a writer.
	Phantom    uint64 `json:"phantom"`
	Duplicated uint64 `json:"duplicated"`
	Inverted   uint64 `json:"inverted"`
	Misrouted  uint64 `json:"misrouted"`
	Corrupted  uint64 `json:"corrupted"`

	Examples Examples `json:"examples"`
}

// Add adds the figures and examples of another run.
func (r *Report) Add(o Report) {
	r.Committed += o.Committed
	r.RolledBack += o.RolledBack
	r.Unknown += o.Unknown
	r.Delivered += o.Delivered
	r.DeadLettered += o.DeadLettered
	r.Lost += o.Lost
	r.Phantom += o.Phantom
	r.Duplicated += o.Duplicated
	r.Inverted += o.Inverted
	r.Misrouted += o.Misrouted
	r.Corrupted += o.Corrupted
	r.Examples.Lost = merge(r.Examples.Lost, o.Examples.Lost)
	r.Examples.Phantom = merge(r.Examples.Phantom, o.Examples.Phantom)
	r.Examples.Duplicated = merge(r.Examples.Duplicated, o.Examples.Duplicated)
	r.Examples.Inverted = merge(r.Examples.Inverted, o.Examples.Inverted)
	r.Examples.Misrouted = merge(r.Examples.Misrouted, o.Examples.Misrouted)
}

// Examples names up to [MaxExamples] messages for each kind of finding.
type Examples struct {
	Lost       []Example `json:"lost,omitempty"`
	Phantom    []Example `json:"phantom,omitempty"`
	Duplicated []Example `json:"duplicated,omitempty"`
	Inverted   []Example `json:"inverted,omitempty"`
	Misrouted  []Example `json:"misrouted,omitempty"`
}

// Example is one message at one destination.
type Example struct {
	Destination string `json:"destination"`
	Key         uint32 `json:"key"`
	Seq         uint64 `json:"seq"`
	// After is the number that had been delivered already, for an inversion.
	After uint64 `json:"after,omitempty"`
}

// String returns the example in the form "7/42 at orders".
func (e Example) String() string {
	s := ID{Key: e.Key, Seq: e.Seq}.String()
	if e.After > 0 {
		s += fmt.Sprintf(" after %d/%d", e.Key, e.After)
	}
	return s + " at " + e.Destination
}

// Report gives the verdict on what has been reported so far. Call it when the
// writers have ended and the consumers have received all they will: what is
// outstanding now counts as lost, and what was delivered without a writer's
// report counts as a phantom.
func (c *Checker) Report() Report {
	var sum Counts
	var r Report
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		sum.addWriter(s.writer)
		for d := range s.at {
			sum.addDestination(s.at[d])
			r.Examples.Duplicated = merge(r.Examples.Duplicated, s.examples[d].duplicated)
			r.Examples.Inverted = merge(r.Examples.Inverted, s.examples[d].inverted)
			r.Examples.Misrouted = merge(r.Examples.Misrouted, s.examples[d].misrouted)
		}
		s.find(c.destinations, &r.Examples)
		s.mu.Unlock()
	}
	r.Committed, r.RolledBack, r.Unknown = sum.Committed, sum.RolledBack, sum.Unknown
	r.Delivered, r.DeadLettered = sum.Delivered, sum.DeadLettered
	r.Lost, r.Phantom = sum.Outstanding, sum.Phantom+sum.Undecided
	r.Duplicated, r.Inverted = sum.Duplicated, sum.Inverted
	r.Misrouted, r.Corrupted = sum.Misrouted, sum.Corrupted
	return r
}

func merge(list, more []Example) []Example {
	return append(list, more[:min(len(more), MaxExamples-len(list))]...)
}

// find looks for examples of what is lost and what is a phantom. Both keep
// their page open, so that settled ones need no look.
func (s *shard) find(destinations []*Destination, found *Examples) {
	var lost, phantom uint64
	for _, at := range s.at {
		lost += at.outstanding
		phantom += at.phantom + at.undecided
	}
	wanted := func() bool {
		return lost > 0 && len(found.Lost) < MaxExamples || phantom > 0 && len(found.Phantom) < MaxExamples
	}
	counts := make([]destinationCounts, len(s.at))
	for _, index := range slices.Sorted(maps.Keys(s.keys)) {
		if !wanted() {
			return
		}
		for seq, n := range s.keys[index].unsettled() {
			if !wanted() {
				return
			}
			clear(counts)
			n.tally(counts, +1)
			for d, at := range counts {
				e := []Example{{Destination: destinations[d].config.Name, Key: index, Seq: seq}}
				if at.outstanding > 0 {
					found.Lost = merge(found.Lost, e)
				}
				if at.phantom+at.undecided > 0 {
					found.Phantom = merge(found.Phantom, e)
				}
			}
		}
	}
}

// unsettled yields the numbers in pages that are not settled of which
// something is known, in rising order.
func (k *key) unsettled() iter.Seq2[uint64, number] {
	pages := maps.Clone(k.aside)
	if pages == nil {
		pages = make(map[uint64]*page)
	}
	for i, p := range k.open {
		if index := k.base + uint64(i); p != nil && pages[index] == nil {
			pages[index] = p
		}
	}
	return func(yield func(uint64, number) bool) {
		for _, index := range slices.Sorted(maps.Keys(pages)) {
			p := pages[index]
			if p.words == nil {
				continue
			}
			stride := p.stride(len(k.highest))
			for i := range pageWords {
				word := p.words[i*stride:][:stride]
				var touched uint64
				for _, w := range word {
					touched |= w
				}
				for ; touched != 0; touched &= touched - 1 {
					offset := bits.TrailingZeros64(touched)
					n := number{page: p, index: index, word: word, bit: 1 << offset, selected: k.selected}
					if !yield(index*pageSize+uint64(i*64+offset)+1, n) {
						return
					}
				}
			}
		}
	}
}

// OK means that nothing was lost, invented, inverted, misrouted or corrupted.
// Duplicates, dead letters and unknown outcomes are no faults by themselves.
func (r Report) OK() bool {
	return r.Lost == 0 && r.Phantom == 0 && r.Inverted == 0 && r.Misrouted == 0 && r.Corrupted == 0
}

// String returns the verdict as one line of text.
func (r Report) String() string {
	var b strings.Builder
	b.WriteString("OK: ")
	if !r.OK() {
		b.Reset()
		b.WriteString("FAILED: ")
	}
	fmt.Fprintf(&b, "%d committed, %d rolled back", r.Committed, r.RolledBack)
	if r.Unknown > 0 {
		fmt.Fprintf(&b, ", %d unknown", r.Unknown)
	}
	fmt.Fprintf(&b, ", %d delivered", r.Delivered)
	if r.DeadLettered > 0 {
		fmt.Fprintf(&b, ", %d dead-lettered", r.DeadLettered)
	}
	fmt.Fprintf(&b, "; %d lost, %d phantom, %d duplicated, %d inverted", r.Lost, r.Phantom, r.Duplicated, r.Inverted)
	if r.Misrouted > 0 {
		fmt.Fprintf(&b, ", %d misrouted", r.Misrouted)
	}
	if r.Corrupted > 0 {
		fmt.Fprintf(&b, ", %d corrupted", r.Corrupted)
	}
	for _, finding := range []struct {
		name     string
		examples []Example
	}{
		{"lost", r.Examples.Lost},
		{"phantom", r.Examples.Phantom},
		{"inverted", r.Examples.Inverted},
		{"misrouted", r.Examples.Misrouted},
	} {
		if len(finding.examples) == 0 {
			continue
		}
		var names []string
		for _, e := range finding.examples[:min(3, len(finding.examples))] {
			names = append(names, e.String())
		}
		fmt.Fprintf(&b, "; %s: %s", finding.name, strings.Join(names, ", "))
		if len(finding.examples) > 3 {
			b.WriteString(", ...")
		}
	}
	return b.String()
}
