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
	// Leaving is a member that runs nothing, and whose ordinal is reserved: it leaves, has left, or is dead.
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
const least, most = 0.88, 1.12

// Place chooses who runs each part. Its result depends on nothing but the sets of parts and members: it is the same in
// every process. Spares have no influence.
//
// It deals the parts to the ordinals one after the other, as jump hashing does: each takes its share from those before
// it, of each the parts with the lowest hashes of part and ordinal, and more or fewer of them if somebody had too many
// or too few otherwise (least, most). So a member with a new ordinal takes its share, and nothing else moves; nor does
// it if the last one leaves. The parts of ordinals that nobody has, below the last one, go to the others by weighted
// rendezvous, within the same bounds.
//
// The parts of members that are leaving go to others, nothing else moves, and they go back when somebody takes the
// ordinal. The second choice of a part is the member that it goes to if its first choice leaves as well.
func Place(parts []Part, members []Member) Placement {
	members = distinct(members)
	f := lay(parts, members)
	staying := trim(members)
	if len(staying) < len(members) {
		f.follow(lay(f.parts, staying), func(o int) bool { return o > lastOf(staying) }, f.owner)
	}
	for _, m := range members {
		f.there[m.Ordinal] = !m.Leaving
	}
	f.fill()

	second := f.seconds()
	if last := lastOf(staying); last != Spare {
		// Without the last one, the others have what they had before it came.
		f.follow(lay(f.parts, trim(staying[:len(staying)-1])), func(o int) bool { return o == last }, second)
		var free []int
		for p, o := range f.owner {
			if o == last && second[p] != Spare && !f.there[second[p]] {
				free = append(free, p)
			}
		}
		f.spread(free, last, f.loads(), second)
	}
	placement := make(Placement, len(f.parts))
	for p, part := range f.parts {
		placement[part] = Choice{First: f.owner[p], Second: second[p]}
	}
	return placement
}

// distinct returns the members with ordinals, sorted. An ordinal that has just been taken from one that leaves may be
// listed twice: who runs counts.
func distinct(members []Member) []Member {
	members = slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.Ordinal < 0 })
	leaving := func(m Member) int {
		if m.Leaving {
			return 1
		}
		return 0
	}
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Ordinal, b.Ordinal), cmp.Compare(leaving(a), leaving(b)), cmp.Compare(a.weight(), b.weight()))
	})
	return slices.CompactFunc(members, func(a, b Member) bool { return a.Ordinal == b.Ordinal })
}

// trim returns the members without those at their end that are leaving.
func trim(members []Member) []Member {
	for len(members) > 0 && members[len(members)-1].Leaving {
		members = members[:len(members)-1]
	}
	return members
}

func lastOf(members []Member) int {
	if len(members) == 0 {
		return Spare
	}
	return members[len(members)-1].Ordinal
}

func (m Member) weight() float64 {
	if m.Weight > 0 {
		return m.Weight
	}
	return 1
}

// field is what Place works on. Parts are their numbers in it, members their ordinals.
type field struct {
	parts   []Part // sorted
	hashes  []uint64
	weights []float64 // of each ordinal up to the last
	there   []bool    // whether somebody has it
	owner   []int     // of each part
}

// lay places the parts with members none of which leaves, sorted by their ordinals.
func lay(parts []Part, members []Member) *field {
	parts = slices.Clone(parts)
	slices.SortFunc(parts, Part.compare)
	f := &field{parts: slices.Compact(parts), weights: make([]float64, lastOf(members)+1), there: make([]bool, lastOf(members)+1)}
	f.hashes, f.owner = make([]uint64, len(f.parts)), make([]int, len(f.parts))
	for i, p := range f.parts {
		f.hashes[i] = p.hash()
	}
	known := make([]float64, len(members))
	for i, m := range members {
		known[i], f.weights[m.Ordinal], f.there[m.Ordinal] = m.weight(), m.weight(), true
	}
	slices.Sort(known)
	for o, w := range f.weights {
		if w == 0 {
			f.weights[o] = known[len(known)/2] // who takes it is probably like the others
		}
	}
	f.deal()
	f.fill()
	return f
}

// follow has the parts of some owners go where another field has them.
func (f *field) follow(other *field, from func(owner int) bool, into []int) {
	for p, o := range f.owner {
		if from(o) {
			into[p] = other.owner[p]
		}
	}
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
	var free []int
	for p, o := range f.owner {
		if len(f.there) == 0 || o != Spare && !f.there[o] {
			f.owner[p] = Spare
		}
		if f.owner[p] == Spare {
			free = append(free, p)
		}
	}
	f.spread(free, Spare, f.loads(), f.owner)
}

// loads returns how many parts each ordinal has.
func (f *field) loads() []int {
	loads := make([]int, len(f.weights))
	for _, o := range f.owner {
		if o != Spare {
			loads[o]++
		}
	}
	return loads
}

// seconds returns who gets each part if its owner leaves.
func (f *field) seconds() []int {
	parts := make([][]int, len(f.weights))
	for p, o := range f.owner {
		if o != Spare {
			parts[o] = append(parts[o], p)
		}
	}
	second := slices.Repeat([]int{Spare}, len(f.parts))
	for o, own := range parts {
		f.spread(own, o, f.loads(), second)
	}
	return second
}

// spread gives parts to those that run, but for one, that have so many already.
func (f *field) spread(parts []int, without int, have, into []int) {
	var there []int
	var total float64
	for o, is := range f.there {
		if is && o != without {
			there = append(there, o)
			total += f.weights[o]
		}
	}
	if len(parts) == 0 || len(there) == 0 {
		return
	}
	spare, room := make([]int, len(f.weights)), make([]int, len(f.weights)) // above the least, below the most
	for _, o := range there {
		lo, hi := f.bounds(o, total)
		spare[o], room[o] = have[o]-lo, max(hi-have[o], 0)
	}
	f.propose(parts, there, room, into)
	for _, p := range parts {
		if into[p] != Spare {
			spare[into[p]]++
		}
	}
	f.even(parts, there, spare, into)
}

// proposal is a part that may go to an ordinal.
type proposal struct {
	part, to int
	cost     float64
}

func (p proposal) compare(o proposal) int {
	return cmp.Or(cmp.Compare(p.cost, o.cost), cmp.Compare(p.part, o.part), cmp.Compare(p.to, o.to))
}

// propose lets each part propose to the one that it prefers of those that have room. Whoever gets too many refuses
// those that prefer it least, which then propose to others.
func (f *field) propose(parts, there, room, into []int) {
	for len(parts) > 0 {
		open := slices.DeleteFunc(slices.Clone(there), func(o int) bool { return room[o] == 0 })
		if len(open) == 0 { // somebody has more than the bounds allow, so the others have no room for the rest
			open = there
			for _, o := range there {
				room[o]++
			}
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
		slices.SortFunc(proposals, proposal.compare)
		parts = nil
		for _, p := range proposals {
			if room[p.to] == 0 {
				parts = append(parts, p.part)
				continue
			}
			room[p.to]--
			into[p.part] = p.to
		}
	}
}

// even gives parts to those that have less than the least, from those that have more: those that prefer them most.
func (f *field) even(parts, there, spare, into []int) {
	var proposals []proposal
	for _, o := range there {
		if spare[o] < 0 {
			for _, p := range parts {
				proposals = append(proposals, proposal{p, o, f.cost(p, o)})
			}
		}
	}
	slices.SortFunc(proposals, proposal.compare)
	for _, p := range proposals {
		if from := into[p.part]; spare[p.to] < 0 && from != Spare && spare[from] > 0 {
			spare[from]--
			spare[p.to]++
			into[p.part] = p.to
		}
	}
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
