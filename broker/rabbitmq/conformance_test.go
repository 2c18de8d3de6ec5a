package rabbitmq_test

import (
	"context"
	"testing"

	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var (
	_ relay.Broker = (*rabbitmq.Broker)(nil)
	_ relay.Pinger = (*rabbitmq.Broker)(nil)
)

func TestConformance(t *testing.T) {
	t.Parallel()
	server := servers.TestRabbitMQ(t)
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness { return harness(t, server.URL()) })
}

func TestConformanceUnderFaults(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
		h := harness(t, server.URL())
		h.Faults = &relaytest.BrokerFaults{
			Kill:    server.Kill9,
			Restart: func() error { return server.Restart(context.Background()) },
			Freeze:  server.Freeze,
			Thaw:    server.Thaw,
		}
		return h
	})
}
