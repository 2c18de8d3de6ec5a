package pubsub_test

import (
	"context"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/pubsub"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var _ brokertest.Broker = (*pubsub.Broker)(nil)

func TestPubSubDoesWhatABrokerMust(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	brokertest.Run(t, func(t *testing.T) relaytest.BrokerHarness { return harness(f, f.Addr) })
}

// The imitation lives in this process, so what fails is the network before it.
func TestPubSubDoesWhatABrokerMustWhenTheServerFails(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
		p := testnet.New(t, f.Addr)
		h := harness(f, p.Addr())
		h.Faults = &relaytest.BrokerFaults{Kill: p.Down, Restart: p.Up, Freeze: p.Freeze, Thaw: p.Thaw}
		return h
	})
}

// harness publishes by way of addr.
func harness(f *fake, addr string) relaytest.BrokerHarness {
	topics := [2]string{f.topic(), f.topic()}
	return relaytest.BrokerHarness{
		Open:         func(t *testing.T) relay.Broker { return open(t, addr, pubsub.Config{}) },
		Topics:       topics,
		Read:         func(context.Context) ([]outbox.Message, error) { return f.read(topics[:]...) },
		Forget:       brokertest.SortHeaders, // attributes have no order
		TooLarge:     10_000_000,
		UnknownTopic: "t-unknown-" + outbox.NewID().String(),
	}
}
