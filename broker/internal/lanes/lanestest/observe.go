package lanestest

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/internal/await"
)

// told is an observer that records events.
type told struct {
	mu       sync.Mutex
	received map[outbox.ID]int
	settled  map[consume.Outcome]int
	attempts map[string]int // by number and error
	inFlight int
	lag      map[string]int64
	most     int64 // the highest lag of all sources
}

var _ consume.Observer = (*told)(nil)

func (o *told) Received(msg *outbox.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.received[msg.ID]++
	o.inFlight++
}

func (o *told) Settled(_ *outbox.Message, outcome consume.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settled[outcome]++
	o.inFlight--
}

func (o *told) Handled(a consume.Attempt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	result := "ok"
	if a.Err != nil {
		result = a.Err.Error()
	}
	if a.Took <= 0 {
		result = "took no time"
	}
	o.attempts[string(rune('0'+a.Number))+" "+result]++
}

func (o *told) Lag(source string, messages int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lag[source] = messages
	o.most = max(o.most, o.sum())
}

func (o *told) sum() (n int64) {
	for _, one := range o.lag {
		n += one
	}
	return n
}

func observed(t *testing.T, h Harness) {
	source := h.Source(t)
	seen := &told{received: map[outbox.ID]int{}, settled: map[consume.Outcome]int{}, attempts: map[string]int{}, lag: map[string]int64{}}
	cfg := quick()
	cfg.Observer = seen
	cfg.Policy = consume.Park
	cfg.Park = func(context.Context, consume.Poison) error { return nil }
	const count = 20
	source.publish(t, numbered(source.Topic, count, 1))
	gate := make(chan struct{})
	failed := false // by the first attempt of the second message; messages of one key come one after the other
	c := source.start(t, cfg, func(_ context.Context, msg *outbox.Message) error {
		<-gate
		switch string(msg.Payload) {
		case "1":
			if !failed {
				failed = true
				return errors.New("not yet")
			}
		case "2":
			return outbox.Permanent(errors.New("never"))
		}
		return nil
	})
	is := func(condition func() bool) func() bool {
		return func() bool {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			return condition()
		}
	}
	await.Until(t, "the lag is told", is(func() bool { return seen.most == count }))
	await.Until(t, "messages are in flight", is(func() bool { return seen.inFlight > 0 }))
	close(gate)
	await.Until(t, "all is settled", is(func() bool {
		return seen.settled[consume.Done]+seen.settled[consume.Parked] == count && seen.inFlight == 0
	}))
	if !h.LagByAsking {
		await.Until(t, "nothing is behind", is(func() bool { return seen.sum() == 0 }))
	}
	c.mustStop()
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if len(seen.received) != count || seen.settled[consume.Parked] != 1 {
		t.Errorf("%d received, settled: %v", len(seen.received), seen.settled)
	}
	if want := map[string]int{"1 ok": count - 2, "1 not yet": 1, "2 ok": 1, "1 never": 1}; !maps.Equal(seen.attempts, want) {
		t.Errorf("attempts: %v, want %v", seen.attempts, want)
	}
}
