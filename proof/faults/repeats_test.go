package faults

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig"
)

// Brokers that recognise repeats: what a relay sends again after its death is there once. settle(0) allows no
// duplicate.

// window is a duplicate window that a restart can miss.
const window = time.Second

func TestWhatAKilledRelaySendsAgainIsThereOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		open func(*testing.T) destination
		away time.Duration // between death and restart
	}{
		{"in Redis", onRedis, 0},
		{"in NATS, within the duplicate window", func(t *testing.T) destination { return onNATSWith(t, 2*time.Minute, 0) }, 0},
		{"in NATS, beyond the duplicate window", func(t *testing.T) destination { return onNATSWith(t, window, 20_000) }, 3 * window / 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.open)
			w.write(0)
			r := w.relay("relay-1")
			for range rounds(t, 3) {
				w.flowing()
				w.must(rig.Pause(t.Context(), rand.N(50*time.Millisecond))) // at any moment of a batch
				w.must(r.Kill())
				w.must(rig.Pause(t.Context(), c.away))
				w.must(r.Start())
			}
			w.flowing()
			w.settle(0)
		})
	}
}

// onRedis starts a Redis of the test's own.
func onRedis(t *testing.T) destination {
	server := servers.OwnRedis(t)
	return to(t, rig.RedisStream{Addr: server.Addr(), Topic: "events"}, &server.Server)
}

// onNATSWith starts a JetStream server of the test's own, with a stream that recognises repeats for a time, and a
// relay that does for a number of messages.
func onNATSWith(t *testing.T, within time.Duration, recall int) destination {
	server := servers.OwnNATS(t)
	return to(t, rig.NATSTopic{URL: server.URL(), Topic: "events", Window: within, Recall: recall}, &server.Server)
}
