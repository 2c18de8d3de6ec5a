package http_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/pgoutbox/outbox/webhook"
)

var _ brokertest.Broker = (*webhooks.Broker)(nil)

func TestConformance(t *testing.T) {
	t.Parallel()
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness {
		// The first segment of the path is the topic.
		r := newReceiver(t, webhook.Config{MaxBody: tooLarge - 1}, nil)
		inner := r.Config.Handler
		r.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/hooks/c" {
				http.NotFound(w, req)
				return
			}
			inner.ServeHTTP(w, req)
		})
		r.Start()
		h := r.harness(r.URL+"/hooks/{topic}", webhooks.Config{})
		h.Slow = true
		return h
	})
}

func TestConformanceOfBatchesOverHTTP2(t *testing.T) {
	t.Parallel()
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness {
		r := newReceiver(t, webhook.Config{MaxBody: 2 * tooLarge}, nil)
		r.EnableHTTP2 = true
		r.StartTLS()
		cfg := webhooks.Config{Batch: 200, MaxPayload: tooLarge - 1, TLS: r.Client().Transport.(*http.Transport).TLSClientConfig}
		h := r.harness(r.URL, cfg)
		h.UnknownTopic = ""
		return h
	})
}

func TestConformanceUnderFaults(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"single": 1, "batches": 50} {
		t.Run(name, func(t *testing.T) {
			relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
				p := brokertest.StartReceiver(t)
				return relaytest.BrokerHarness{
					Open:   open("http://"+p.Address, webhooks.Config{Batch: batch, Timeout: 10 * time.Second}),
					Topics: [2]string{"a", "b"},
					Read:   p.Received,
					Slow:   batch == 1,
					Faults: &relaytest.BrokerFaults{Kill: p.Kill, Restart: p.Start, Freeze: p.Freeze, Thaw: p.Thaw},
				}
			})
		})
	}
}

const tooLarge = 1_000_000

func (r *receiver) harness(url string, cfg webhooks.Config) relaytest.BrokerHarness {
	return relaytest.BrokerHarness{
		Open:         open(url, cfg),
		Topics:       [2]string{"a", "b"},
		Read:         func(context.Context) ([]outbox.Message, error) { return r.Messages(), nil },
		TooLarge:     tooLarge,
		UnknownTopic: "c",
	}
}

func open(url string, cfg webhooks.Config) func(t *testing.T) relay.Broker {
	cfg.Keys, cfg.AllowNetworks = keys(), loopback
	return brokertest.Opener(func() (*webhooks.Broker, error) { return webhooks.New(url, cfg) })
}
