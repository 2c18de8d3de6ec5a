package relay

import (
	"errors"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
)

// During an outage the only message may turn out to belong behind a hold that waits for an operator. Then
// there is nothing to probe with, and the relay must sleep until something happens.
func TestARelayWithNothingToProbeWithSleeps(t *testing.T) {
	t.Parallel()
	cfg, err := Config{Batch: 1, MaxInFlight: 2}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	withoutControls := cfg.core()
	withoutControls.Control = 0
	c := newCore(withoutControls, func() float64 { return 0 })
	now := time.Unix(1_700_000_000, 0)
	m := Delivery{Message: outbox.Message{ID: outbox.ID{1}, Topic: "t", Key: "k", Position: 1}}

	c.next(now)
	c.onLanes(now, nil, "")
	if r := c.next(now); r.Read == 0 || r.Due == nil {
		t.Fatalf("nothing is read, or no due lanes are listed: %+v", r)
	}
	c.onDue(now, nil)
	c.onRead(now, Batch{Deliveries: []Delivery{m}})
	probe := c.next(now).Publish
	c.onRead(now, Batch{})
	now = now.Add(cfg.core().Resync)
	if r := c.next(now); r.Lanes == nil {
		t.Fatalf("changed holds are not looked for: %+v", r)
	}
	c.onPublished(now, probe[0], []error{outbox.Unavailable(errors.New("nobody answers"))})
	c.onLanes(now, []string{"k"}, "k")

	held := false
	for range 20 {
		r := c.next(now)
		switch {
		case r.Settle != nil:
			held = held || len(r.Settle.Hold) == 1
			c.onSettled(now)
		case r.Lanes != nil:
			c.onLanes(now, []string{"k"}, "k")
		case r.Due != nil:
			c.onDue(now, nil)
		case r.Read > 0:
			// The source waits for messages.
		case len(r.Publish) > 0:
			c.onPublished(now, r.Publish[0], []error{outbox.Unavailable(errors.New("nobody answers"))})
		case !r.Wake.After(now) && !r.Wake.IsZero():
			t.Fatalf("at %v it wants to be woken at %v, with nothing to do", now, r.Wake)
		default:
			now = now.Add(time.Second)
		}
	}
	if !held {
		t.Error("the message was not held behind the one that is blocked")
	}
}
