package relay

import (
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
)

// While a backlog is read, what would be a small call waits for the rest of it, but never for long, and not when
// nothing more can be read.
func TestSmallCallsOfABacklogWaitForWhatIsBeingRead(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_700_000_000, 0)
	batch := func(from int64, n int, more bool) Batch {
		b := Batch{More: more}
		for i := range int64(n) {
			b.Deliveries = append(b.Deliveries, Delivery{Message: outbox.Message{ID: outbox.ID{byte(from + i)},
				Topic: "t", Position: from + i}})
		}
		return b
	}
	reading := func(t *testing.T) *core {
		cfg, err := Config{Batch: 4, MaxInFlight: 8, Stripes: 1}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		c := newCore(cfg.core(), func() float64 { return 0 })
		c.next(start)
		c.onLanes(start, nil, "")
		if r := c.next(start); r.Read == 0 {
			t.Fatalf("nothing is read: %+v", r)
		}
		return c
	}

	t.Run("until there is enough", func(t *testing.T) {
		c := reading(t)
		c.onRead(start, batch(1, 1, true))
		r := c.next(start)
		if len(r.Publish) > 0 || r.Read == 0 || r.Wake.IsZero() || r.Wake.After(start.Add(c.cfg.Gather)) {
			t.Fatalf("a message alone does not wait for more: %+v", r)
		}
		c.onRead(start, batch(2, 1, true))
		if r := c.next(start); len(r.Publish) != 1 || len(r.Publish[0].Batch) != 2 {
			t.Fatalf("half a batch is not published: %+v", r)
		}
	})
	t.Run("until it has taken too long", func(t *testing.T) {
		c := reading(t)
		c.onRead(start, batch(1, 1, true))
		c.next(start)
		if r := c.next(start.Add(c.cfg.Gather)); len(r.Publish) != 1 {
			t.Fatalf("it is not published: %+v", r)
		}
	})
	t.Run("unless that was all", func(t *testing.T) {
		c := reading(t)
		c.onRead(start, batch(1, 1, false))
		if r := c.next(start); len(r.Publish) != 1 {
			t.Fatalf("it is not published: %+v", r)
		}
	})
	t.Run("unless no more may be read", func(t *testing.T) {
		c := reading(t)
		c.cfg.MaxInFlight = 2
		c.onRead(start, batch(1, 1, true))
		if r := c.next(start); len(r.Publish) != 1 || r.Read != 0 {
			t.Fatalf("it is not published: %+v", r)
		}
	})
	t.Run("unless the relay comes to its end", func(t *testing.T) {
		c := reading(t)
		c.onRead(start, batch(1, 1, true))
		c.drain()
		if r := c.next(start); len(r.Publish) != 1 {
			t.Fatalf("it is not published: %+v", r)
		}
	})
}
