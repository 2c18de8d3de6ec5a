package check

import (
	"bytes"
	"math/bits"
)

// outcome is what is known about the transaction of one number.
type outcome int

const (
	undecided outcome = iota
	committed
	rolledBack
	unknown
)

const (
	pageSize  = 256 // numbers; an offset within a page fits a byte
	pageWords = pageSize / 64

	// window is how many pages behind the newest one may stay open before they
	// are set aside, so that a single number that never settles doesn't keep
	// all later ones of its key in memory.
	window = 16
	// farAhead is the distance, in pages, at which a page is set aside at once
	// rather than making room for everything between.
	farAhead = 1024
)

// key is the state of one ordering key. Its numbers are divided into pages:
//
//	0 ........... base ............ base+len(open)
//	  archived        open           not seen yet
//
// An archived page is known by the offsets of its rolled-back numbers alone:
// each other number of it is committed and delivered to every destination that
// selects the key. A page in aside takes precedence over both.
type key struct {
	selected uint64   // a bit for each destination
	highest  []uint64 // the highest number delivered, for each destination

	base  uint64
	open  []*page // nil: nothing is known of any of its numbers
	aside map[uint64]*page

	// rolled holds the offsets of the archived pages one after the other; those
	// of page i end at ends[i-clean]. The first clean pages have none.
	clean  uint64
	rolled []byte
	ends   []uint32
}

func newKey(selected uint64, destinations int) *key {
	return &key{selected: selected, highest: make([]uint64, destinations)}
}

func (k *key) selects(destination int) bool { return k.selected>>destination&1 == 1 }

// settledAs returns the outcome of a number whose page is settled, and
// undecided for any other. A settled number that is committed has been
// delivered wherever it is selected.
func (k *key) settledAs(seq uint64) outcome {
	index, offset := position(seq)
	rolled, settled := k.settled(index)
	switch {
	case !settled:
		return undecided
	case bytes.IndexByte(rolled, offset) >= 0:
		return rolledBack
	}
	return committed
}

// settled returns the rolled-back offsets of a settled page.
func (k *key) settled(index uint64) (rolled []byte, ok bool) {
	if p := k.aside[index]; p != nil {
		return p.rolled, p.words == nil
	}
	if index < k.base {
		return k.archived(index), true
	}
	if i := index - k.base; i < uint64(len(k.open)) && k.open[i] != nil {
		return k.open[i].rolled, k.open[i].words == nil
	}
	return nil, false
}

func (k *key) archived(index uint64) []byte {
	if index < k.clean {
		return nil
	}
	i := index - k.clean
	var start uint32
	if i > 0 {
		start = k.ends[i-1]
	}
	return k.rolled[start:k.ends[i]]
}

// number returns the state of one number, ready to be changed. The caller
// calls compact afterwards.
func (k *key) number(seq uint64) number {
	index, offset := position(seq)
	p := k.page(index)
	stride := p.stride(len(k.highest))
	word := p.words[int(offset/64)*stride:][:stride]
	return number{page: p, index: index, word: word, bit: 1 << (offset % 64), selected: k.selected}
}

// page returns the page in its open form, where it may be changed.
func (k *key) page(index uint64) *page {
	if p := k.aside[index]; p != nil {
		return k.reopen(p)
	}
	switch {
	case index < k.base:
		return k.setAside(index, k.reopen(&page{rolled: k.archived(index)}))
	case index-k.base >= farAhead:
		return k.setAside(index, newPage(len(k.highest)))
	}
	for uint64(len(k.open)) <= index-k.base {
		k.open = append(k.open, nil)
	}
	if k.open[index-k.base] == nil {
		k.open[index-k.base] = newPage(len(k.highest))
	}
	return k.reopen(k.open[index-k.base])
}

func (k *key) setAside(index uint64, p *page) *page {
	if k.aside == nil {
		k.aside = make(map[uint64]*page)
	}
	k.aside[index] = p
	return p
}

// compact gives back what the page of n no longer needs after a change of n.
func (k *key) compact(n number) {
	if n.complete() && n.page.settle(k.selected, len(k.highest)) {
		if p := k.aside[n.index]; p != nil && n.index < k.base && bytes.Equal(p.rolled, k.archived(n.index)) {
			delete(k.aside, n.index)
		}
	}
	for len(k.open) > 0 && k.advance() {
	}
	if len(k.open) == 0 {
		k.open = nil
	}
}

// advance archives the first open page, if it can.
func (k *key) advance() bool {
	first := k.open[0]
	far := k.aside[k.base]
	switch {
	case far != nil:
		// It came from far ahead and was never open.
		if far.words == nil {
			k.archive(far.rolled)
			delete(k.aside, k.base)
		} else {
			k.archive(nil)
		}
	case first != nil && first.words == nil:
		k.archive(first.rolled)
	case len(k.open) > window:
		if first == nil {
			first = newPage(len(k.highest))
		}
		k.setAside(k.base, first)
		k.archive(nil)
	default:
		return false
	}
	k.open[0] = nil
	k.open = k.open[1:]
	k.base++
	return true
}

// reopen undoes settle, where it has happened.
func (k *key) reopen(p *page) *page {
	if p.words != nil {
		return p
	}
	var gaps [pageWords]uint64
	for _, offset := range p.rolled {
		gaps[offset/64] |= 1 << (offset % 64)
	}
	*p = *newPage(len(k.highest))
	stride := p.stride(len(k.highest))
	for i, gap := range gaps {
		word := p.words[i*stride:][:stride]
		word[committed-1] = ^gap
		word[rolledBack-1] = gap
		for d := range k.highest {
			if k.selects(d) {
				word[outcomeWords+2*d] = ^gap
			}
		}
	}
	return p
}

// archive records the rolled-back offsets of page k.base.
func (k *key) archive(rolled []byte) {
	if len(k.ends) == 0 && len(rolled) == 0 {
		k.clean++
		return
	}
	k.rolled = append(k.rolled, rolled...)
	k.ends = append(k.ends, uint32(len(k.rolled)))
}

// page is the state of pageSize consecutive numbers. While open it has words:
// for each 64 numbers one word for each outcome, then for each destination one
// of those delivered and one of those dead-lettered. Once settled it has only
// the offsets that were rolled back.
type page struct {
	words  []uint64
	rolled []byte
}

const outcomeWords = 3

func newPage(destinations int) *page {
	return &page{words: make([]uint64, pageWords*(outcomeWords+2*destinations))}
}

func (p *page) stride(destinations int) int { return outcomeWords + 2*destinations }

// settle drops the words if they say no more than which numbers rolled back.
func (p *page) settle(selected uint64, destinations int) bool {
	stride := p.stride(destinations)
	for i := range pageWords {
		if !complete(p.words[i*stride:][:stride], selected) {
			return false
		}
	}
	for i := range pageWords {
		for gap := p.words[i*stride+int(rolledBack)-1]; gap != 0; gap &= gap - 1 {
			p.rolled = append(p.rolled, byte(i*64+bits.TrailingZeros64(gap)))
		}
	}
	p.words = nil
	return true
}

// complete reports whether each of 64 numbers is either committed and delivered
// everywhere, or rolled back and seen nowhere.
func complete(word []uint64, selected uint64) bool {
	if word[committed-1]|word[rolledBack-1] != ^uint64(0) {
		return false
	}
	for at := word[outcomeWords:]; len(at) > 0; at, selected = at[2:], selected>>1 {
		if selected&1 == 1 && (at[0] != word[committed-1] || at[1] != 0) {
			return false
		}
	}
	return true
}

// number is a view of one number's bits in an open page.
type number struct {
	page     *page
	index    uint64 // of the page
	word     []uint64
	bit      uint64
	selected uint64
}

func (n number) has(i int) bool { return n.word[i]&n.bit != 0 }

func (n number) outcome() outcome {
	for o := committed; o <= unknown; o++ {
		if n.has(int(o) - 1) {
			return o
		}
	}
	return undecided
}

func (n number) decide(o outcome) {
	for i := range outcomeWords {
		n.word[i] &^= n.bit
	}
	n.word[o-1] |= n.bit
}

func (n number) delivered(destination int) bool    { return n.has(outcomeWords + 2*destination) }
func (n number) deadLettered(destination int) bool { return n.has(outcomeWords + 2*destination + 1) }

// deliver also takes the number from the dead letters.
func (n number) deliver(destination int) {
	n.word[outcomeWords+2*destination] |= n.bit
	n.word[outcomeWords+2*destination+1] &^= n.bit
}

func (n number) deadLetter(destination int) { n.word[outcomeWords+2*destination+1] |= n.bit }

func (n number) complete() bool { return complete(n.word, n.selected) }

// tally adds the number's part in the counters that depend on its state, or
// takes it away. Every change of a number stands between the two.
func (n number) tally(at []destinationCounts, by int64) {
	o := n.outcome()
	// Nothing but a commit lets a message be seen, so that an unknown outcome
	// that one destination has seen is due at the others.
	due := o == committed
	if o == unknown {
		for i := outcomeWords; i < len(n.word); i++ {
			due = due || n.has(i)
		}
	}
	for d := range at {
		delivered, dead := n.delivered(d), n.deadLettered(d)
		delta := uint64(by)
		if dead {
			at[d].deadLettered += delta
		}
		switch {
		case !delivered && !dead:
			if due && n.selected>>d&1 == 1 {
				at[d].outstanding += delta
			}
		case o == rolledBack:
			at[d].phantom += delta
		case o == undecided:
			at[d].undecided += delta
		}
	}
}

// position returns the index of a number's page and its offset there.
func position(seq uint64) (index uint64, offset byte) {
	return (seq - 1) / pageSize, byte((seq - 1) % pageSize)
}
