package kafka_test

import (
	"testing"

	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var _ brokertest.Broker = (*kafka.Broker)(nil)

func TestKafkaDoesWhatABrokerMust(t *testing.T) {
	t.Parallel()
	c := connect(t, servers.TestKafka(t).Addr())
	brokertest.Run(t, func(t *testing.T) relaytest.BrokerHarness {
		return c.harness(kafka.Config{})
	})
}

func TestKafkaDoesWhatABrokerMustWhenTheServerFails(t *testing.T) {
	t.Parallel()
	server := servers.OwnKafka(t)
	c := connect(t, server.Addr())
	relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
		h := c.harness(kafka.Config{})
		h.Faults = brokertest.Faults(server)
		return h
	})
}
