package relay

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
)

// holdMany has a core hold n messages that are to be delivered in an hour.
func holdMany(tb testing.TB, c *core, now time.Time, n int, key func(int) string) {
	settle := func() {
		for range 10 {
			r := c.next(now)
			switch {
			case r.Settle != nil:
				c.onSettled(now)
			case r.Lanes != nil:
				c.onLanes(now, nil, "")
			case r.Due != nil:
				c.onDue(now, nil)
			default:
				return
			}
		}
	}
	settle()
	for i := 0; i < n; {
		batch := make([]Delivery, min(n-i, 1000))
		for j := range batch {
			i++
			batch[j] = Delivery{Message: outbox.Message{Topic: "t", Key: key(i), Position: int64(i), DeliverAt: now.Add(time.Hour)}}
			batch[j].ID[0], batch[j].ID[1], batch[j].ID[2] = byte(i>>16), byte(i>>8), byte(i)
		}
		c.reading = true
		c.onRead(now, Batch{Deliveries: batch})
		settle()
	}
	if len(c.pages) > 0 || len(c.pending) > 0 || len(c.lanes) > 0 {
		tb.Fatalf("%d pages, %d pending holds and %d lanes are in memory", len(c.pages), len(c.pending), len(c.lanes))
	}
}

func testCore(tb testing.TB) *core {
	cfg, err := Config{}.withDefaults()
	if err != nil {
		tb.Fatal(err)
	}
	withoutControls := cfg.core()
	withoutControls.Control = 0
	return newCore(withoutControls, func() float64 { return 0 })
}

func TestHeldMessagesCostAFewBytesEach(t *testing.T) {
	const n = 200_000
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	now := time.Unix(1_700_000_000, 0)
	for _, x := range []struct {
		what string
		key  func(int) string
		keys int
	}{
		{"with a key each", func(i int) string { return fmt.Sprint("a key of some length ", i) }, n},
		{"without keys", func(int) string { return "" }, 0},
	} {
		before := heap()
		c := testCore(t)
		holdMany(t, c, now, n, x.key)
		each := (heap() - before) / n
		if each > 64 || c.stored.size() != x.keys {
			t.Errorf("%d held messages %s: %d bytes each, %d lanes are remembered, want %d", n, x.what, each, c.stored.size(), x.keys)
		}
		runtime.KeepAlive(c)
	}
}

// BenchmarkBesideHeldLanes is what a message of an ordinary key costs the core.
func BenchmarkBesideHeldLanes(b *testing.B) {
	for _, held := range []int{0, 1000, 1_000_000} {
		b.Run(fmt.Sprint(held), func(b *testing.B) {
			now := time.Unix(1_700_000_000, 0)
			c := testCore(b)
			holdMany(b, c, now, held, func(i int) string { return fmt.Sprint("held ", i) })
			batch := make([]Delivery, 500)
			for i := range batch {
				batch[i] = Delivery{Message: outbox.Message{Topic: "t", Key: fmt.Sprint("k", i)}, Shard: i % 64}
			}
			b.ResetTimer()
			for n := 0; n < b.N; n += len(batch) {
				now = now.Add(time.Millisecond)
				c.reading = true
				c.onRead(now, Batch{Deliveries: batch})
				for {
					r := c.next(now)
					for _, k := range r.Publish {
						c.onPublished(now, k, nil)
					}
					if r.Settle != nil {
						c.onSettled(now)
					}
					if r.Lanes != nil {
						c.onLanes(now, nil, "")
					}
					if r.Due != nil {
						c.onDue(now, nil)
					}
					if len(r.Publish) == 0 && r.Settle == nil && r.Lanes == nil && r.Due == nil {
						break
					}
					now = now.Add(10 * time.Millisecond)
				}
			}
		})
	}
}

// At the bound nothing new is read, and the core says why. What is delivered makes room.
func TestACoreThatRemembersAsManyLanesAsItMaySaysSo(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	c := testCore(t)
	c.cfg.MaxHeldLanes = 2000
	holdMany(t, c, now, 2000, func(i int) string { return fmt.Sprint("k", i) })
	c.reading = false
	if r := c.next(now); r.Read > 0 || c.whyFull() == nil {
		t.Fatalf("it reads %d, and is full because of %v", r.Read, c.whyFull())
	}
	full := c.whyFull().Error()
	for i := range 201 {
		if r := c.next(now); r.Read > 0 || fmt.Sprint(c.whyFull()) != full {
			t.Fatalf("with room for %d it reads %d, and is full because of %v", i, r.Read, c.whyFull())
		}
		c.release(&lane{name: fmt.Sprint("k", i+1)})
	}
	if r := c.next(now); r.Read == 0 || c.whyFull() != nil {
		t.Errorf("with room it reads %d, and is full because of %v", r.Read, c.whyFull())
	}
	c.onRead(now, Batch{Full: errors.New("enough")})
	if c.whyFull() == nil {
		t.Error("it doesn't say what its source says")
	}
}
