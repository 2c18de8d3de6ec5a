package fleet

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

func databases(n int, seed uint64) []Part {
	parts := make([]Part, n)
	for i := range parts {
		parts[i] = Part{Database: fmt.Sprintf("tenant-%d-%04d", seed, i), Destination: "orders"}
	}
	return parts
}

// except returns members without one of them.
func except(members []Member, ordinal int) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.Ordinal == ordinal })
}

// moved counts the parts that both have, and whose first choice is another one.
func moved(a, b Placement) (n int) {
	for part, choice := range a {
		if other, ok := b[part]; ok && other.First != choice.First {
			n++
		}
	}
	return n
}

func loads(p Placement) map[int]int {
	n := map[int]int{}
	for _, choice := range p {
		n[choice.First]++
	}
	return n
}

func TestPlacementIsTheSameInEveryProcess(t *testing.T) {
	t.Parallel()
	parts, members := databases(300, 1), append(Numbered(7), Member{Name: "spare", Ordinal: Spare})
	members[3].Leaving = true
	want := Place(parts, members)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		parts, members := slices.Clone(append(parts, parts[rng.IntN(len(parts))])), slices.Clone(members)
		rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		got := Place(parts, members)
		if len(got) != len(want) || moved(got, want) > 0 {
			t.Fatal("the order of the arguments changes the placement")
		}
	}
}

// Members of two versions run together while a fleet is updated: they have to agree.
func TestPlacementIsThatOfOtherVersions(t *testing.T) {
	t.Parallel()
	members := Numbered(9)
	members[2].Leaving, members[4].Weight = true, 2.5
	placement := Place(databases(500, 3), members)
	h := fnv.New64a()
	for _, part := range databases(500, 3) {
		fmt.Fprintln(h, part, placement[part])
	}
	if got := fmt.Sprintf("%x", h.Sum64()); got != "782b12241ed0df84" {
		t.Errorf("the placement is another one (%s): while a fleet is updated, old and new members would each take the "+
			"other's parts. Give the new one a number in Version, and place by the lowest of all members", got)
	}
}

func TestEachHasItsShare(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 2))
	for seed := range uint64(30) {
		members := Numbered(2 + rng.IntN(25))
		var total float64
		for i := range members {
			members[i].Leaving = i > 0 && rng.IntN(5) == 0
			members[i].Weight = []float64{0, 0, 1, 2, 0.5}[rng.IntN(5)]
			if !members[i].Leaving {
				total += weightOf(members[i])
			}
		}
		n := 50 * len(members)
		first := loads(Place(databases(n, seed), members))
		for _, m := range members {
			if m.Leaving {
				if first[m.Ordinal] > 0 {
					t.Errorf("seed %d: one that leaves runs %d parts", seed, first[m.Ordinal])
				}
				continue
			}
			share := float64(n) * weightOf(m) / total
			if got := float64(first[m.Ordinal]); got < 0.85*share-1 || got > 1.15*share+1 {
				t.Errorf("seed %d: a member of %d has %.0f parts, its share is %.1f", seed, len(members), got, share)
			}
		}
	}
}

func weightOf(m Member) float64 {
	if m.Weight == 0 {
		return 1
	}
	return m.Weight
}

func TestAMemberThatJoinsTakesItsShareAndNothingElseMoves(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		parts := databases(1000, seed)
		before, after := Place(parts, Numbered(20)), Place(parts, Numbered(21))
		for part, choice := range after {
			if was := before[part].First; was != choice.First && choice.First != 20 {
				t.Fatalf("seed %d: %v moves from %d to %d", seed, part, was, choice.First)
			}
		}
		if n, ideal := moved(before, after), 1000.0/21; float64(n) > 1.3*ideal {
			t.Errorf("seed %d: %d parts move, ideal are %.0f", seed, n, ideal)
		}
	}
}

func TestThePartsOfOneThatLeavesGoToTheirSecondChoicesAndBack(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		parts, members := databases(1000, seed), Numbered(20)
		before := Place(parts, members)
		gone := int(seed)
		members[gone].Leaving = true
		after := Place(parts, members)
		takers := map[int]int{}
		for part, choice := range before {
			switch now := after[part].First; {
			case choice.First != gone && now != choice.First:
				t.Fatalf("seed %d: %v moves from %d to %d, though %d leaves", seed, part, choice.First, now, gone)
			case choice.First == gone && now != choice.Second:
				t.Fatalf("seed %d: %v goes to %d, its second choice is %d", seed, part, now, choice.Second)
			case choice.First == gone:
				takers[now]++
			}
			if choice.First == choice.Second || choice.Second == Spare {
				t.Fatalf("%v has the choices %+v", part, choice)
			}
		}
		if most := slices.Max(slices.Collect(maps.Values(takers))); len(takers) < 12 || most > 12 {
			t.Errorf("seed %d: the parts of %d go to %d others, up to %d to one", seed, gone, len(takers), most)
		}
		if moved(after, Place(parts, except(members, gone))) > 0 {
			t.Errorf("seed %d: parts move when the ordinal is forgotten", seed)
		}
		members[gone].Leaving = false
		if moved(before, Place(parts, members)) > 0 {
			t.Errorf("seed %d: parts don't go back to where they were", seed)
		}
	}
}

func TestAPartThatIsAddedMovesFewOthers(t *testing.T) {
	t.Parallel()
	var total, worst, n int
	for seed := range uint64(10) {
		parts := databases(1010, seed)
		for i := 1000; i < len(parts); i++ {
			moves := moved(Place(parts[:i], Numbered(20)), Place(parts[:i+1], Numbered(20)))
			total, worst, n = total+moves, max(worst, moves), n+1
		}
	}
	t.Logf("%d parts were added to 1,000: %.1f others move for each, at most %d", n, float64(total)/float64(n), worst)
	if float64(total) > 8*float64(n) || worst > 40 {
		t.Error("these are too many")
	}
}

func TestFewMembersAndFewParts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		members []Member
		first   bool
		second  bool
	}{
		{"nobody", nil, false, false},
		{"a spare", []Member{{Ordinal: Spare}}, false, false},
		{"one that leaves", []Member{{Ordinal: 0, Leaving: true}}, false, false},
		{"one", []Member{{Ordinal: 0}}, true, false},
		{"one with a high ordinal", []Member{{Ordinal: 11}}, true, false},
		{"two", Numbered(2), true, true},
		{"two of which one leaves", []Member{{Ordinal: 0}, {Ordinal: 1, Leaving: true}}, true, false},
		{"one that leaves, whose ordinal was taken", []Member{{Ordinal: 0, Leaving: true}, {Ordinal: 0}}, true, false},
		{"more members than parts", Numbered(12), true, true},
	} {
		for _, n := range []int{0, 1, 2, 5} {
			placement := Place(databases(n, 1), c.members)
			if len(placement) != n {
				t.Errorf("%s: %d of %d parts are placed", c.name, len(placement), n)
			}
			for part, choice := range placement {
				if (choice.First != Spare) != c.first || (choice.Second != Spare) != c.second {
					t.Errorf("%s: %v has the choices %+v", c.name, part, choice)
				}
			}
		}
	}
}

func BenchmarkPlace(b *testing.B) {
	for _, size := range []struct{ parts, members int }{{1_000, 20}, {10_000, 60}, {100_000, 600}} {
		b.Run(fmt.Sprintf("%dx%d", size.parts, size.members), func(b *testing.B) {
			parts, members := databases(size.parts, 1), Numbered(size.members)
			for b.Loop() {
				Place(parts, members)
			}
		})
	}
}
