package sns_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/sns"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var (
	_ relay.Broker = (*sns.Broker)(nil)
	_ relay.Pinger = (*sns.Broker)(nil)
)

func TestSNSDoesWhatABrokerMust(t *testing.T) {
	t.Parallel()
	server := servers.TestMoto(t)
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness { return harness(connect(t, server.URL()), server.URL()) })
}

// The server keeps everything in memory, so it is cut off where others are killed.
func TestSNSDoesWhatABrokerMustWhenTheServerFails(t *testing.T) {
	t.Parallel()
	server := servers.OwnMoto(t)
	relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
		p := newProxy(t, server.Addr())
		h := harness(connect(t, server.URL()), "http://"+p.addr)
		h.Faults = &relaytest.BrokerFaults{
			Kill:    p.down,
			Restart: p.up,
			Freeze:  server.Freeze,
			Thaw:    server.Thaw,
		}
		return h
	})
}

// harness publishes by way of the endpoint.
func harness(a *account, endpoint string) relaytest.BrokerHarness {
	topics := [2]string{a.topic(".fifo"), a.topic(".fifo")}
	consumers := [2]*consumer{a.consume(topics[0]), a.consume(topics[1])}
	return relaytest.BrokerHarness{
		Open:   func(t *testing.T) relay.Broker { return open(t, endpoint, sns.Config{}) },
		Topics: [2]string{strings.TrimSuffix(topics[0], ".fifo"), strings.TrimSuffix(topics[1], ".fifo")},
		Read: func(ctx context.Context) ([]outbox.Message, error) {
			first, err := consumers[0].read(ctx)
			if err != nil {
				return nil, err
			}
			second, err := consumers[1].read(ctx)
			return slices.Concat(first, second), err
		},
		Forget:       sortHeaders, // attributes have no order
		TooLarge:     256 << 10,
		UnknownTopic: "t-unknown-" + outbox.NewID().String(),
		Slow:         true,
	}
}
