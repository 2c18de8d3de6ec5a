package redis_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var (
	_ relay.Broker = (*redis.Broker)(nil)
	_ relay.Pinger = (*redis.Broker)(nil)
)

func TestConformance(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness {
		return harness(t, server.Addr(), redis.Config{})
	})
}

func TestConformanceWithoutRecognisingRepeats(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness {
		return harness(t, server.Addr(), redis.Config{DedupWindow: -1})
	})
}

func TestConformanceUnderFaults(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
		h := harness(t, server.Addr(), redis.Config{AckTimeout: 10 * time.Second})
		h.Faults = &relaytest.BrokerFaults{
			Kill:    server.Kill9,
			Restart: func() error { return server.Restart(context.Background()) },
			Freeze:  server.Freeze,
			Thaw:    server.Thaw,
		}
		return h
	})
}
