package sqs_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var _ brokertest.Broker = (*sqs.Broker)(nil)

// The server's strict limits are those of the time when a message had at most 256 KiB; see limit_test.go
// for the limits of today.
var relaxed = servers.ElasticMQConfig{Relaxed: true}

func TestSQSDoesWhatABrokerMust(t *testing.T) {
	t.Parallel()
	server := servers.TestElasticMQ(t, relaxed)
	brokertest.Run(t, func(t *testing.T) relaytest.BrokerHarness {
		a := connect(t, server.URL())
		return harness(a, []string{a.queue(".fifo"), a.queue(".fifo")})
	})
}

func TestSQSDoesWhatABrokerMustWhenTheServerFails(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 10 { // two for each case
		names = append(names, fmt.Sprintf("t-%d.fifo", i))
	}
	server := servers.OwnElasticMQ(t, servers.ElasticMQConfig{Durable: true, Queues: names})
	relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
		a := connect(t, server.URL())
		own := names[:2]
		names = names[2:]
		h := harness(a, own)
		h.Faults = brokertest.Faults(server)
		return h
	})
}

func harness(a *account, queues []string) relaytest.BrokerHarness {
	topics := [2]string{}
	for i, queue := range queues {
		topics[i] = queue[:len(queue)-len(".fifo")]
	}
	return relaytest.BrokerHarness{
		Open:         func(t *testing.T) relay.Broker { return open(t, a.url, sqs.Config{}) },
		Topics:       topics,
		Read:         func(ctx context.Context) ([]outbox.Message, error) { return a.read(ctx, queues...) },
		Forget:       brokertest.SortHeaders, // attributes have no order
		TooLarge:     1 << 20,
		UnknownTopic: "t-unknown-" + outbox.NewID().String(),
		Deduplicates: true,
		Slow:         true,
	}
}
