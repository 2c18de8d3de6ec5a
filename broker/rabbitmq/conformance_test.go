package rabbitmq_test

import (
	"testing"

	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var _ brokertest.Broker = (*rabbitmq.Broker)(nil)

func TestConformance(t *testing.T) {
	t.Parallel()
	server := servers.TestRabbitMQ(t)
	brokertest.Run(t, func(t *testing.T) relaytest.BrokerHarness { return harness(t, server.URL(), pair(t, server.URL())) })
}

func TestConformanceUnderFaults(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	// A quorum queue that has just been declared does not survive a kill: what the node knows of it reaches the disk
	// seconds later, or when it stops in an orderly way.
	var queues [][2]*queue
	for range 6 {
		queues = append(queues, pair(t, server.URL()))
	}
	if err := server.Restart(patient(t)); err != nil {
		t.Fatal(err)
	}
	relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
		h := harness(t, server.URL(), queues[0])
		queues = queues[1:]
		h.Faults = brokertest.Faults(server)
		return h
	})
}
