package sns_test

import (
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/sns"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var _ brokertest.Broker = (*sns.Broker)(nil)

func TestSNSDoesWhatABrokerMust(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	brokertest.Run(t, func(t *testing.T) relaytest.BrokerHarness { return harness(f, f.URL) })
}

func TestSNSDoesWhatABrokerMustWhenTheServerFails(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
		p := testnet.New(t, f.Listener.Addr().String())
		h := harness(f, "http://"+p.Addr())
		h.Faults = &relaytest.BrokerFaults{Kill: p.Down, Restart: p.Up, Freeze: p.Freeze, Thaw: p.Thaw}
		return h
	})
}

// harness publishes by way of the endpoint.
func harness(f *fake, endpoint string) relaytest.BrokerHarness {
	topics := [2]string{f.topic(256 << 10), f.topic(256 << 10)}
	return relaytest.BrokerHarness{
		Open:         func(t *testing.T) relay.Broker { return open(t, endpoint, sns.Config{}) },
		Topics:       topics,
		Read:         f.readAll(topics),
		Forget:       brokertest.SortHeaders, // attributes have no order
		TooLarge:     256 << 10,
		UnknownTopic: "t-unknown-" + outbox.NewID().String(),
		Deduplicates: true,
		Slow:         true,
	}
}
