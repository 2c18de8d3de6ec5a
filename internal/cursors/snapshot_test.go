package cursors

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestASnapshotOfTransactionsReadsAsTheServerWritesIt(t *testing.T) {
	t.Parallel()
	s, err := Parse("10:20:10,14,19")
	if err != nil {
		t.Fatal(err)
	}
	var seen []uint64
	for x := range uint64(25) {
		if s.Sees(x) {
			seen = append(seen, x)
		}
	}
	if want := []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 18}; !slices.Equal(seen, want) {
		t.Errorf("sees %v, want %v", seen, want)
	}
	for _, bad := range []string{"", "1", "1:2", "2:1:", "1:3:2,2", "1:3:x", "a:b:", "1:3:2,"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// What lies between two snapshots is what the second sees and the first doesn't: by ranges and filter, as
// the statements look for it, and by definition.
func TestRangesBetweenSnapshotsMissNothing(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		// A history: transactions begin in order and end in any.
		running := map[uint64]bool{}
		nextXID := uint64(3 + random.IntN(10))
		take := func() Snapshot {
			s := Snapshot{Xmax: nextXID}
			for x := range running {
				s.Xip = append(s.Xip, x)
			}
			slices.Sort(s.Xip)
			s.Xmin = s.Xmax
			if len(s.Xip) > 0 {
				s.Xmin = s.Xip[0]
			}
			return s
		}
		step := func(n int) {
			for range n {
				if random.IntN(2) == 0 {
					running[nextXID] = true
					nextXID++
				} else {
					for x := range running {
						delete(running, x)
						break
					}
				}
			}
		}
		step(random.IntN(30))
		prev := take()
		step(random.IntN(30))
		next := take()
		ranges := Between(&prev, &next)
		for x := range nextXID + 5 {
			times := 0
			for _, r := range ranges {
				if r.Lo <= x && x <= r.Hi && next.Sees(x) {
					times++
				}
			}
			want := 0
			if next.Sees(x) && !prev.Sees(x) {
				want = 1
			}
			if times != want {
				t.Fatalf("transaction %d is read %d times between %+v and %+v, want %d", x, times, prev, next, want)
			}
		}
	}
}

func mustSee(t *testing.T, snapshot string) *Snapshot {
	t.Helper()
	v, err := Parse(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return &v
}

func TestSnapshotsCoverOneAnother(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		outer, inner string
		want         bool
	}{
		{"10:10:", "10:10:", true},
		{"10:20:10,15", "10:20:10,15", true},
		{"10:20:10,15", "10:20:10", false},
		{"10:20:10", "10:20:10,15", true},
		{"10:20:10", "5:9:7", true},
		{"10:20:", "10:22:", false},
		{"10:20:", "10:22:20,21", true},
		{"10:20:", "10:22:21", false},
		{"20:20:", "10:12:10", true},
	} {
		if got := mustSee(t, c.outer).Covers(mustSee(t, c.inner)); got != c.want {
			t.Errorf("%s covers %s: %v", c.outer, c.inner, got)
		}
	}
}

func TestASnapshotWithoutSomeTransactions(t *testing.T) {
	t.Parallel()
	v := mustSee(t, "10:20:10,15")
	for text, xids := range map[string][]uint64{
		"10:20:10,15":       nil,
		"10:20:10,12,15,19": {19, 12, 12, 15, 30},
		"3:20:3,10,15":      {3},
	} {
		got := v.Without(xids)
		if got != text {
			t.Errorf("without %v: %s, want %s", xids, got, text)
		}
		mustSee(t, got)
	}
}
