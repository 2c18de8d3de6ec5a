package fleet

import (
	"cmp"
	"math"
	"slices"
)

// Part is what is placed: one shard group of a destination of a database.
type Part struct {
	Database, Destination string
	Group                 int
}

func (p Part) compare(o Part) int {
	return cmp.Or(cmp.Compare(p.Database, o.Database), cmp.Compare(p.Destination, o.Destination), cmp.Compare(p.Group, o.Group))
}

// Spare is the ordinal of a member that has none yet, and the choice of a part that nobody is there for.
const Spare = -1

// Member is one process of a fleet.
type Member struct {
	Name    string
	Ordinal int     // its number, from 0; Spare if it has none yet
	Weight  float64 // its share compared with the others'; 0 is 1
	// Leaving is a member that runs nothing, and whose ordinal is reserved: it leaves, has left, or is dead. Place uses
	// its weight alone.
	Leaving bool
}

// Numbered returns the members with the ordinals 0 to count-1, of equal weight.
func Numbered(count int) []Member {
	members := make([]Member, count)
	for i := range members {
		members[i].Ordinal = i
	}
	return members
}

// Choice has ordinals: who runs a part, and who does if that one can't. Spare is nobody.
type Choice struct{ First, Second int }

// Placement has the choice of each part.
type Placement map[Part]Choice

// Shares returns the parts whose first, and whose second choice is ordinal, sorted.
func (p Placement) Shares(ordinal int) (first, second []Part) {
	for part, choice := range p {
		if choice.First == ordinal {
			first = append(first, part)
		}
		if choice.Second == ordinal {
			second = append(second, part)
		}
	}
	slices.SortFunc(first, Part.compare)
	slices.SortFunc(second, Part.compare)
	return first, second
}

// Version is the number of this way to place parts. Members of a fleet can only agree if all place in the same way.
const Version = 1

// least and most bound what a member has, compared with its share by weight.
const least, most = 0.87, 1.13

// Place chooses who runs each part. Its result depends on nothing but the set of parts and the members that run: it is
// the same in every process.
//
// It deals the parts to the ordinals one after the other, as jump hashing does: each takes its share from those before
// it, of each the parts with the lowest hashes of part and ordinal, and more or fewer of them if somebody had too many
// or too few otherwise (least, most). So a member with a new ordinal takes its share, and nothing else moves; nor does
// it if the last one leaves.
//
// Below the last one, ordinals may be without a member that runs. Their parts go to the others by weighted rendezvous,
// within the same bounds. Nothing else moves, and they go back when somebody takes the ordinal. The second choice of a
// part is the member that it goes to if its first choice alone leaves.
func Place(parts []Part, members []Member) Placement {
	f := newField(parts, members)
	f.deal()
	f.fill()
	second := f.seconds()
	if last := len(f.running) - 1; last > 0 {
		// Without the last one, the ordinals are dealt as if it had never been there.
		without := newField(f.parts, slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.Ordinal == last }))
		without.deal()
		without.fill()
		for p, o := range f.owner {
			if o == last {
				second[p] = without.owner[p]
			}
		}
	}
	placement := make(Placement, len(f.parts))
	for p, part := range f.parts {
		placement[part] = Choice{First: f.owner[p], Second: second[p]}
	}
	return placement
}

// field is what Place works on. Parts are their numbers in it, members their ordinals.
type field struct {
	parts   []Part // sorted
	hashes  []uint64
	weights []float64 // of each ordinal up to the last that runs
	running []bool
	owner   []int // of each part
}

func newField(parts []Part, members []Member) *field {
	parts = slices.Clone(parts)
	slices.SortFunc(parts, Part.compare)
	f := &field{parts: slices.Compact(parts)}
	f.hashes = make([]uint64, len(f.parts))
	for i, p := range f.parts {
		f.hashes[i] = p.hash()
	}
	f.owner = make([]int, len(f.parts))
	last := Spare
	for _, m := range members {
		if !m.Leaving {
			last = max(last, m.Ordinal)
		}
	}
	f.weights, f.running = make([]float64, last+1), make([]bool, last+1)
	var known []float64
	for _, m := range members {
		if m.Ordinal < 0 || m.Ordinal > last {
			continue
		}
		w := m.Weight
		if !(w > 0) {
			w = 1
		}
		known = append(known, w)
		// An ordinal that has just been taken from one that leaves is listed twice: who runs counts.
		switch {
		case f.running[m.Ordinal] == !m.Leaving:
			f.weights[m.Ordinal] = max(f.weights[m.Ordinal], w)
		case !m.Leaving:
			f.weights[m.Ordinal], f.running[m.Ordinal] = w, true
		}
	}
	slices.Sort(known)
	for o, w := range f.weights {
		if w == 0 {
			f.weights[o] = known[len(known)/2] // nobody has it: who takes it is probably like the others
		}
	}
	return f
}

// deal gives each part to an ordinal, whether it is there or not.
func (f *field) deal() {
	if len(f.weights) == 0 {
		return
	}
	have := make([][]int, len(f.weights))
	for p := range f.parts {
		have[0] = append(have[0], p)
	}
	hashes := make([]uint64, len(f.parts)) // with the ordinal that takes
	byHash := func(p, q int) int { return cmp.Or(cmp.Compare(hashes[p], hashes[q]), cmp.Compare(p, q)) }
	takes := make([]int, len(f.weights)) // how many from each
	total := f.weights[0]
	for k := 1; k < len(f.weights); k++ {
		total += f.weights[k]
		for p, h := range f.hashes {
			hashes[p] = pair(h, k)
		}
		limit := uint64(f.weights[k] / total * (1 << 63) * 2)
		sum := 0
		for o, own := range have[:k] {
			n := 0
			for _, p := range own {
				if hashes[p] < limit {
					n++
				}
			}
			lo, hi := f.bounds(o, total)
			takes[o] = len(own) - min(max(len(own)-n, lo), hi)
			takes[o] = min(max(takes[o], 0), len(own))
			sum += takes[o]
			first(own, takes[o], limit, hashes, byHash)
		}
		lo, hi := f.bounds(k, total)
		if sum < lo || sum > hi {
			f.correct(have[:k], takes, min(max(sum, lo), hi)-sum, total, hashes, byHash)
		}
		for o, own := range have[:k] {
			have[k] = append(have[k], own[:takes[o]]...)
			have[o] = own[takes[o]:]
		}
	}
	for o, own := range have {
		for _, p := range own {
			f.owner[p] = o
		}
	}
}

// first puts the n parts with the lowest hashes before the others. Usually these are just those below the limit.
func first(own []int, n int, limit uint64, hashes []uint64, byHash func(p, q int) int) {
	below := 0
	for i, p := range own {
		if hashes[p] < limit {
			own[below], own[i] = p, own[below]
			below++
		}
	}
	if below != n {
		slices.SortFunc(own, byHash)
	}
}

// correct makes the one that takes take more parts, or fewer if more is negative: those with the lowest hashes of the
// others, or the highest of its own, as far as their owners have more, or less, than the bounds ask for.
func (f *field) correct(have [][]int, takes []int, more int, total float64, hashes []uint64, byHash func(p, q int) int) {
	type candidate struct{ part, owner int }
	var candidates []candidate
	for o, own := range have {
		slices.SortFunc(own, byHash)
		lo, hi := f.bounds(o, total)
		keeps := len(own) - takes[o]
		if more > 0 {
			for _, p := range own[takes[o]:][:max(keeps-lo, 0)] {
				candidates = append(candidates, candidate{p, o})
			}
		} else {
			for _, p := range own[takes[o]-min(max(hi-keeps, 0), takes[o]) : takes[o]] {
				candidates = append(candidates, candidate{p, o})
			}
		}
	}
	slices.SortFunc(candidates, func(a, b candidate) int { return byHash(a.part, b.part) })
	if more > 0 {
		for _, c := range candidates[:min(more, len(candidates))] {
			takes[c.owner]++
		}
	} else {
		for _, c := range candidates[max(len(candidates)+more, 0):] {
			takes[c.owner]--
		}
	}
}

// bounds returns how many parts an ordinal has at least and at most, where all have the total weight. A fraction
// depends on the ordinal: so one more part changes the bounds of one of them, and not of all.
func (f *field) bounds(o int, total float64) (lo, hi int) {
	share := float64(len(f.parts)) * f.weights[o] / total
	fraction := float64(mix(uint64(o)+1)>>11) / (1 << 53)
	lo = int(min(math.Floor(share), math.Floor(float64(least*share)+fraction)))
	hi = int(max(math.Ceil(share), math.Floor(float64(most*share)+fraction)))
	return lo, hi
}

// fill gives the parts of ordinals that are not there to those that are.
func (f *field) fill() {
	have, free := make([]int, len(f.weights)), []int{}
	for p, o := range f.owner {
		if len(f.weights) > 0 && f.running[o] {
			have[o]++
		} else {
			f.owner[p] = Spare
			free = append(free, p)
		}
	}
	f.spread(free, Spare, have, f.owner)
}

func (f *field) seconds() []int {
	parts, have := make([][]int, len(f.weights)), make([]int, len(f.weights))
	for p, o := range f.owner {
		if o != Spare {
			parts[o] = append(parts[o], p)
			have[o]++
		}
	}
	second := slices.Repeat([]int{Spare}, len(f.parts))
	for o, own := range parts {
		f.spread(own, o, have, second)
	}
	return second
}

// spread gives parts to those that run, but for one, that have so many already: at first to those that have too few.
func (f *field) spread(parts []int, without int, have, into []int) {
	if len(parts) == 0 {
		return
	}
	var there []int
	var total float64
	for o, running := range f.running {
		if running && o != without {
			there = append(there, o)
			total += f.weights[o]
		}
	}
	if len(there) == 0 {
		return
	}
	few, room := make([]int, len(f.weights)), make([]int, len(f.weights))
	for _, o := range there {
		lo, hi := f.bounds(o, total)
		few[o] = max(lo-have[o], 0)
		room[o] = max(hi-have[o], 0) - few[o]
	}
	parts = f.propose(parts, there, few, into)
	for _, o := range there {
		room[o] += few[o]
	}
	f.propose(parts, there, room, into)
}

// propose lets each part propose to the one that it prefers of those that have room. Whoever gets too many refuses
// those that prefer it least, which then propose to others. It returns the parts for which there is no room.
func (f *field) propose(parts, there, room, into []int) []int {
	type proposal struct {
		part, to int
		cost     float64
	}
	for len(parts) > 0 {
		open := slices.DeleteFunc(slices.Clone(there), func(o int) bool { return room[o] == 0 })
		if len(open) == 0 {
			return parts
		}
		proposals := make([]proposal, len(parts))
		for i, p := range parts {
			best := proposal{p, Spare, math.Inf(1)}
			for _, o := range open {
				if cost := f.cost(p, o); cost < best.cost {
					best.to, best.cost = o, cost
				}
			}
			proposals[i] = best
		}
		slices.SortFunc(proposals, func(a, b proposal) int { return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.part, b.part)) })
		var refused []int
		for _, p := range proposals {
			if room[p.to] == 0 {
				refused = append(refused, p.part)
				continue
			}
			room[p.to]--
			into[p.part] = p.to
		}
		parts = refused
	}
	return nil
}

// cost is low where a part prefers an ordinal: of all ordinals, each has the lowest as often as its weight says.
func (f *field) cost(p, o int) float64 {
	u := (float64(pair(f.hashes[p], o+1<<32)>>11) + 0.5) / (1 << 53) // another hash than the one of deal
	return -math.Log(u) / f.weights[o]
}

// hash is FNV-1a over the names with their lengths, mixed.
func (p Part) hash() uint64 {
	h := uint64(14695981039346656037)
	add := func(b byte) { h = (h ^ uint64(b)) * 1099511628211 }
	number := func(n int) {
		for i := range 8 {
			add(byte(n >> (8 * i)))
		}
	}
	for _, s := range []string{p.Database, p.Destination} {
		number(len(s))
		for i := range len(s) {
			add(s[i])
		}
	}
	number(p.Group)
	return mix(h)
}

func pair(part uint64, ordinal int) uint64 {
	return mix(part ^ mix(uint64(ordinal)*0x9e3779b97f4a7c15+1))
}

// mix is the finalizer of SplitMix64: each bit of x changes half of the result's.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
