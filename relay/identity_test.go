package relay

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox"
)

// named is a broker that knows which one it is, if err is nil.
type named struct {
	wire
	name  string
	err   error
	looks int
}

func (n *named) Identity(context.Context) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks++
	return []string{n.name}, n.err
}

func (n *named) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

func TestAnotherBrokerThanTheDestinationsGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker, seen := newTable(100), &named{name: "b"}, &states{}
		source.broker = "a"
		stop := start(t, source, broker, Config{Observer: seen})
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := broker.count(); n > 0 {
			t.Errorf("another broker got %d messages", n)
		}
		seen.mu.Lock()
		if slices.Contains(seen.list, StateFlowing) {
			t.Errorf("the relay has said that it works: %v", seen.list)
		}
		seen.mu.Unlock()
		source.mu.Lock()
		if n := len(source.sessions); n < 5 || !source.sessions[0].closed {
			t.Errorf("%d sessions in a minute; the lease was given back: %v", n, source.sessions[0].closed)
		}
		source.broker = "b" // somebody accepts it
		source.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if source.done() != 100 {
			t.Errorf("settled %d of 100 after the broker was accepted", source.done())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestABrokerThatDoesNotKnowWhichItIsIsNoReasonToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker := newTable(100), &named{name: "b", err: errors.New("not authorized")}
		source.broker = "a"
		stop := start(t, source, broker, Config{})
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if source.done() != 100 {
			t.Errorf("settled %d of 100", source.done())
		}
		// It is asked again, though nothing is published.
		broker.set(func() { broker.err, broker.name = nil, "a" })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		looks := broker.looks
		time.Sleep(time.Minute)
		synctest.Wait()
		if looks < 2 || broker.looks != looks {
			t.Errorf("%d looks, and %d after it was known", looks, broker.looks-looks)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Behind an address there may be another broker when it answers again.
func TestABrokerIsRecognisedAgainAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker := newTable(100), &named{name: "a"}
		var down atomic.Bool
		broker.answer = func(*outbox.Message) error {
			if down.Load() {
				return outbox.Unavailable(errors.New("no answer"))
			}
			return nil
		}
		stop := start(t, source, broker, Config{})
		time.Sleep(time.Second)
		synctest.Wait()
		if source.broker != "a" || source.done() != 100 {
			t.Fatalf("recorded %q, settled %d", source.broker, source.done())
		}
		down.Store(true)
		broker.set(func() { broker.err = errors.New("no answer") })
		source.mu.Lock()
		source.rows = append(source.rows, newTable(101).rows[100])
		source.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		down.Store(false)
		broker.set(func() { broker.err, broker.name = nil, "b" })
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := broker.count(); n != 100 {
			t.Errorf("the broker behind the address is another one, and got %d messages", n-100)
		}
		broker.set(func() { broker.name = "a" })
		time.Sleep(time.Minute)
		synctest.Wait()
		if source.done() != 101 {
			t.Errorf("settled %d of 101 when the destination's broker was back", source.done())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
