// Package versus measures what a broker's adapter costs. It makes the adapter and a minimal loop over the same client
// library publish in turn, in one run on the same server, at the server's own distance and with an added round trip of
// a millisecond.
package versus

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// turn is how long a contender publishes before the next one's turn.
const turn = 300 * time.Millisecond

// distance is the round trip of a server that is far away.
const distance = time.Millisecond

// Publish publishes some messages, waits until all are acknowledged, and returns their number. It fails the benchmark
// if one is not acknowledged. One goroutine calls it.
type Publish func() int

// Contest is an adapter, a loop, and the server of both.
type Contest struct {
	// Address is the server's host:port.
	Address string
	// Adapter and Loop connect to address, which is the server's or that of a proxy in front of it. They close what
	// they open by b.Cleanup. Their messages are alike in number, size and keys.
	Adapter, Loop func(b *testing.B, address string) Publish
}

// Batch returns messages of that number of keys, each with 256 bytes and an event type.
func Batch(topic string, size, keys int) []*outbox.Message {
	batch := brokertest.Messages(topic, size, keys)
	for _, m := range batch {
		m.Payload = []byte(strings.Repeat("x", 256))
		m.EventType, m.ContentType = "OrderCreated", "application/json"
	}
	return batch
}

// Broker is the part of an adapter that is measured.
type Broker interface {
	Publish(ctx context.Context, batch []*outbox.Message) []error
}

// Publishing returns a Publish of batch, whose messages get new ids each time, because servers recognise repeats.
func Publishing(b *testing.B, broker Broker, batch []*outbox.Message) Publish {
	return func() int {
		for _, m := range batch {
			m.ID = outbox.NewID()
		}
		brokertest.Accepted(b, broker.Publish(b.Context(), batch))
		return len(batch)
	}
}

// Measure measures one publisher alone. It reports messages a second, and this process's processor time a message,
// which says more on a machine with other work.
func Measure(b *testing.B, publish Publish) {
	publish() // connections
	n, before := 0, ProcessorTime()
	b.ReportAllocs()
	for b.Loop() {
		n += publish()
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64((ProcessorTime()-before).Nanoseconds())/1000/float64(n), "cpu-µs/msg")
}

// contender is a publisher and an address, with its results in each round.
type contender struct {
	publish Publish
	rates   []float64 // messages a second
	costs   []float64 // microseconds of this process's processor time a message
}

// Run measures c under a name, one round for each iteration of b: -benchtime 7x makes seven. A round gives each
// contender a turn, and begins with another one than the last. Ratios are taken within a round. Reported are the
// medians:
//
//	adapter-msg/s, loop-msg/s     messages a second, nearby
//	adapter-µs/msg, loop-µs/msg   this process's processor time a message, nearby: also the server's, if it is in here
//	ratio                         adapter by loop, nearby
//	cpu-ratio                     loop by adapter in processor time, nearby: what ratio would be if nothing else ran
//	far-ratio                     adapter by loop, both through a proxy that makes a round trip 1 ms longer
//	kept                          adapter through that proxy, by adapter through a proxy that delays nothing
//	loop-kept                     the same of the loop
//
// and of each ratio the lowest and the highest, with -low and -high behind its name. Figures of processor time are
// missing on systems that don't report it.
func Run(b *testing.B, name string, c Contest) { b.Run(name, c.run) }

func (c Contest) run(b *testing.B) {
	near, far := testnet.New(b, c.Address), testnet.New(b, c.Address)
	far.Distance(distance)
	adapter, loop := &contender{publish: c.Adapter(b, c.Address)}, &contender{publish: c.Loop(b, c.Address)}
	adapterNear, adapterFar := &contender{publish: c.Adapter(b, near.Addr())}, &contender{publish: c.Adapter(b, far.Addr())}
	loopNear, loopFar := &contender{publish: c.Loop(b, near.Addr())}, &contender{publish: c.Loop(b, far.Addr())}
	all := []*contender{adapter, loop, adapterNear, adapterFar, loopFar, loopNear}
	for _, one := range all {
		one.turn() // connections are opened, and servers warm up
		one.rates, one.costs = nil, nil
	}
	first := 0
	for b.Loop() {
		for i := range all {
			all[(first+i)%len(all)].turn()
		}
		first++
	}
	b.ReportMetric(0, "ns/op") // says nothing, and 0 leaves it out
	b.ReportMetric(median(adapter.rates), "adapter-msg/s")
	b.ReportMetric(median(loop.rates), "loop-msg/s")
	report(b, "ratio", adapter.rates, loop.rates)
	if ProcessorTime() > 0 {
		b.ReportMetric(median(adapter.costs), "adapter-µs/msg")
		b.ReportMetric(median(loop.costs), "loop-µs/msg")
		report(b, "cpu-ratio", loop.costs, adapter.costs)
	}
	report(b, "far-ratio", adapterFar.rates, loopFar.rates)
	report(b, "kept", adapterFar.rates, adapterNear.rates)
	report(b, "loop-kept", loopFar.rates, loopNear.rates)
}

// turn begins with a garbage collection, so that no contender pays for what another has left behind.
func (c *contender) turn() {
	runtime.GC()
	began, before, n := time.Now(), ProcessorTime(), 0
	for time.Since(began) < turn {
		n += c.publish()
	}
	c.rates = append(c.rates, float64(n)/time.Since(began).Seconds())
	c.costs = append(c.costs, float64((ProcessorTime()-before).Nanoseconds())/1000/float64(n))
}

func report(b *testing.B, name string, upper, lower []float64) {
	ratios := make([]float64, len(upper))
	for i := range ratios {
		ratios[i] = upper[i] / lower[i]
	}
	b.ReportMetric(median(ratios), name)
	b.ReportMetric(slices.Min(ratios), name+"-low")
	b.ReportMetric(slices.Max(ratios), name+"-high")
}

// median returns the middle of values, or the mean of the two in the middle.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
