package relay

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox"
)

// slow answers each call after a while.
type slow struct {
	wire
	after time.Duration
}

func (b *slow) Publish(ctx context.Context, batch []*outbox.Message) []error {
	time.Sleep(b.after)
	return b.wire.Publish(ctx, batch)
}

// told is what an Observer has been told of states.
type told struct {
	silent
	mu     sync.Mutex
	states []State
}

func (o *told) Changed(state State, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.states = append(o.states, state)
}

// silent is an Observer that does nothing.
type silent struct{}

func (silent) Published([]*outbox.Message, []error, []time.Duration, time.Duration) {}
func (silent) Settled(*Settlement)                                                  {}
func (silent) Changed(State, error)                                                 {}

func TestABrokerThatHangsIsNamedBeforeItsCallTimesOut(t *testing.T) {
	for after, want := range map[time.Duration][]State{
		hangsAfter - time.Second: {StateWaiting, StateFlowing},
		10 * hangsAfter:          {StateWaiting, StateFlowing, StateStalled, StateFlowing},
	} {
		synctest.Test(t, func(t *testing.T) {
			source, broker, seen := newTable(1), &slow{after: after}, &told{}
			stop := start(t, source, broker, Config{Observer: seen})
			time.Sleep(2 * after)
			seen.mu.Lock()
			if !slices.Equal(seen.states, want) {
				t.Errorf("of a call of %v it tells %v", after, seen.states)
			}
			seen.mu.Unlock()
			if err := stop(); err != nil || source.done() != 1 {
				t.Errorf("Run has returned %v; %d settled", err, source.done())
			}
		})
	}
}
