package kafka_test

import (
	"context"
	"testing"

	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var (
	_ relay.Broker = (*kafka.Broker)(nil)
	_ relay.Pinger = (*kafka.Broker)(nil)
)

func TestKafkaDoesWhatABrokerMust(t *testing.T) {
	t.Parallel()
	c := connect(t, servers.TestKafka(t).Addr())
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness {
		return c.harness(kafka.Config{})
	})
}

func TestKafkaDoesWhatABrokerMustWhenTheServerFails(t *testing.T) {
	t.Parallel()
	server := servers.OwnKafka(t)
	c := connect(t, server.Addr())
	relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
		h := c.harness(kafka.Config{})
		h.Faults = &relaytest.BrokerFaults{
			Kill:    server.Kill9,
			Restart: func() error { return server.Restart(context.Background()) },
			Freeze:  server.Freeze,
			Thaw:    server.Thaw,
		}
		return h
	})
}
