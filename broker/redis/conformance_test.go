package redis_test

import (
	"testing"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var _ brokertest.Broker = (*redis.Broker)(nil)

func TestConformance(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	brokertest.Run(t, func(t *testing.T) relaytest.BrokerHarness {
		return harness(t, server.Addr(), redis.Config{})
	})
}

func TestConformanceWithoutRecognisingRepeats(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	brokertest.Run(t, func(t *testing.T) relaytest.BrokerHarness {
		return harness(t, server.Addr(), redis.Config{DedupWindow: -1})
	})
}

func TestConformanceUnderFaults(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
		h := harness(t, server.Addr(), redis.Config{AckTimeout: 10 * time.Second})
		h.Faults = brokertest.Faults(server)
		return h
	})
}
