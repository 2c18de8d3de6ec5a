// Package versus measures what a broker's adapter costs: it lets the adapter and the barest loop on the same client
// library publish in turn, in one run on the same server, nearby and with a millisecond more of round trip.
package versus

import (
	"slices"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/testnet"
)

// turn is how long a contender publishes until it is the next one's turn.
const turn = 300 * time.Millisecond

// distance is the round trip of a server that is far away.
const distance = time.Millisecond

// Publish publishes some messages, waits until all are acknowledged, and returns how many they were. It fails the
// benchmark if one is not. One goroutine calls it.
type Publish func() int

// Contest is an adapter, a loop, and the server of both.
type Contest struct {
	// Address is the server's host:port.
	Address string
	// Adapter and Loop connect to address, which is the server's or that of a proxy before it. What they open they
	// close by b.Cleanup. Messages are alike: as many, as large, over as many keys.
	Adapter, Loop func(b *testing.B, address string) Publish
}

// contender is who publishes where, and how fast it was in each round.
type contender struct {
	publish Publish
	rates   []float64 // messages a second
}

// Run measures c, one round for each iteration of b: -benchtime 7x makes seven. A round gives each contender a turn,
// and begins with another one than the last. Ratios are taken within a round. Reported are the medians:
//
//	adapter-msg/s, loop-msg/s     messages a second, nearby
//	ratio                         adapter by loop, nearby
//	far-ratio                     adapter by loop, both through a proxy that makes a round trip 1 ms longer
//	kept                          adapter through that proxy, by adapter through a proxy that delays nothing
//
// and of each ratio the lowest and the highest, with -low and -high behind its name.
func Run(b *testing.B, c Contest) {
	near, far := testnet.New(b, c.Address), testnet.New(b, c.Address)
	far.Delay(distance)
	adapter, loop := &contender{publish: c.Adapter(b, c.Address)}, &contender{publish: c.Loop(b, c.Address)}
	adapterNear, adapterFar := &contender{publish: c.Adapter(b, near.Addr())}, &contender{publish: c.Adapter(b, far.Addr())}
	loopFar := &contender{publish: c.Loop(b, far.Addr())}
	all := []*contender{adapter, loop, adapterNear, adapterFar, loopFar}
	for _, one := range all {
		one.turn() // connections are opened, and servers warm up
		one.rates = nil
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
	report(b, "ratio", adapter, loop)
	report(b, "far-ratio", adapterFar, loopFar)
	report(b, "kept", adapterFar, adapterNear)
}

func (c *contender) turn() {
	began, n := time.Now(), 0
	for time.Since(began) < turn {
		n += c.publish()
	}
	c.rates = append(c.rates, float64(n)/time.Since(began).Seconds())
}

func report(b *testing.B, name string, over, under *contender) {
	ratios := make([]float64, len(over.rates))
	for i := range ratios {
		ratios[i] = over.rates[i] / under.rates[i]
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
