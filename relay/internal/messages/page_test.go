package messages

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/seed"
	"github.com/pgoutbox/outbox/relay"
)

func TestAnArenaHandsOutBytesThatStayUntilItIsReset(t *testing.T) {
	t.Parallel()
	var a arena
	random := seed.Rand(t)
	for range 3 {
		var kept []string
		var want []string
		for i := range 2000 {
			text := fmt.Sprint(i, string(make([]byte, random.IntN(2000))))
			kept, want = append(kept, a.str([]byte(text))), append(want, text)
		}
		kept, want = append(kept, a.str(make([]byte, 3*blockSize))), append(want, string(make([]byte, 3*blockSize)))
		if !slices.Equal(kept, want) {
			t.Fatal("what was handed out has changed")
		}
		b := a.Grow(10)
		if len(b) != 10 || cap(b) != 10 {
			t.Fatalf("len %d, cap %d, want 10", len(b), cap(b))
		}
		a.reset()
		if a.bytes != 0 || len(a.block) != 0 || cap(a.block) > maxKept {
			t.Fatalf("after reset: %d bytes, block %d of %d", a.bytes, len(a.block), cap(a.block))
		}
	}
}

func TestAPageIsSortedWhateverItsOrderWas(t *testing.T) {
	t.Parallel()
	var pg Page
	random := seed.Rand(t)
	for n := range 200 {
		pg.Reset()
		for _, i := range random.Perm(n) {
			pg.Deliveries = append(pg.Deliveries, relay.Delivery{Message: outbox.Message{Position: int64(10 * i), Key: fmt.Sprint(i)}})
		}
		switch n % 4 { // else at random
		case 1: // as it is
			slices.SortFunc(pg.Deliveries, func(a, b relay.Delivery) int { return int(a.Position - b.Position) })
		case 2: // all the other way round
			slices.SortFunc(pg.Deliveries, func(a, b relay.Delivery) int { return int(b.Position - a.Position) })
		}
		pg.Sort()
		for i := range pg.Deliveries {
			if d := &pg.Deliveries[i]; d.Position != int64(10*i) || d.Key != fmt.Sprint(i) {
				t.Fatalf("of %d, number %d has position %d and key %s", n, i, d.Position, d.Key)
			}
		}
		if len(pg.Deliveries) != n {
			t.Fatalf("%d of %d", len(pg.Deliveries), n)
		}
	}
}

func TestAnEmptyPayloadIsNotAnAbsentOne(t *testing.T) {
	t.Parallel()
	var a arena // of a page that has nothing yet
	if a.copy([]byte{}) == nil {
		t.Error("an empty payload becomes NULL, which means deletion to consumers of a compacted topic")
	}
}

func TestTimestampsOutsideOfTheCalendarAreCut(t *testing.T) {
	t.Parallel()
	last := time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
	for us, want := range map[int64]time.Time{
		0:                      time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		-1:                     time.Date(1999, 12, 31, 23, 59, 59, 999999000, time.UTC),
		math.MaxInt64:          last, // infinity
		math.MaxInt64 - 1:      last,
		252455615999999999:     last,
		252455615999999999 - 1: last.Add(-time.Microsecond),
		math.MinInt64:          {},
		math.MinInt64 + 1:      {},
	} {
		if got := timestamp(binary.BigEndian.AppendUint64(nil, uint64(us))); !got.Equal(want) {
			t.Errorf("%d: %v, want %v", us, got, want)
		}
	}
	if got := timestamp(nil); !got.IsZero() {
		t.Errorf("NULL: %v", got)
	}
}

// Not parallel: it counts allocations.
func TestNamesAreSharedAndBounded(t *testing.T) {
	var n names
	for i := range 3 * maxNames {
		text := fmt.Sprint("topic ", i%(2*maxNames))
		if got := n.str([]byte(text)); got != text {
			t.Fatalf("%q for %q", got, text)
		}
		if len(n.all) > maxNames {
			t.Fatalf("%d names kept", len(n.all))
		}
	}
	if n.str(nil) != "" {
		t.Error("NULL has a name")
	}
	b := []byte("topic")
	if allocs := testing.AllocsPerRun(100, func() { n.str(b); n.str([]byte("other")) }); allocs > 0 {
		t.Errorf("%v allocations for known names", allocs)
	}
}
