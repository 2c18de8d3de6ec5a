package grpc_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
	grpcgo "google.golang.org/grpc"
)

var _ brokertest.Broker = (*grpc.Broker)(nil)

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, unary := range map[string]bool{"stream": false, "unary": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.Run(t, func(t *testing.T) relaytest.BrokerHarness {
				s := newServer(t, func(m *outbox.Message) error {
					if m.Topic == "c" {
						return errUnknownTopic
					}
					return nil
				}, nil, grpcgo.MaxRecvMsgSize(700_000))
				return relaytest.BrokerHarness{
					Open:         open(s.address, grpc.Config{Unary: unary, MaxMessageBytes: tooLarge}),
					Topics:       [2]string{"a", "b"},
					Read:         func(context.Context) ([]outbox.Message, error) { return s.Messages(), nil },
					TooLarge:     tooLarge,
					UnknownTopic: "c",

					TooLargeForServer: 800_000,
				}
			})
		})
	}
}

const tooLarge = 1_000_000

func TestConformanceUnderFaults(t *testing.T) {
	t.Parallel()
	for name, unary := range map[string]bool{"stream": false, "unary": true} {
		t.Run(name, func(t *testing.T) {
			relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
				p := brokertest.StartReceiver(t)
				return relaytest.BrokerHarness{
					Open:   open(p.Address, grpc.Config{Unary: unary, AckTimeout: 10 * time.Second}),
					Topics: [2]string{"a", "b"},
					Read:   p.Received,
					Faults: &relaytest.BrokerFaults{Kill: p.Kill, Restart: p.Start, Freeze: p.Freeze, Thaw: p.Thaw},
				}
			})
		})
	}
}

func open(target string, cfg grpc.Config) func(t *testing.T) relay.Broker {
	return brokertest.Opener(func() (*grpc.Broker, error) { return grpc.New(target, cfg) })
}
