package nats_test

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var _ brokertest.Broker = (*nats.Broker)(nil)

func TestConformance(t *testing.T) {
	t.Parallel()
	server := servers.TestNATS(t)
	brokertest.Run(t, func(t *testing.T) relaytest.BrokerHarness { return harness(t, server.URL()) })
}

func TestConformanceUnderFaults(t *testing.T) {
	t.Parallel()
	server := servers.OwnNATS(t)
	relaytest.RunBrokerFaults(t, func(t *testing.T) relaytest.BrokerHarness {
		h := harness(t, server.URL())
		h.Faults = brokertest.Faults(server)
		return h
	})
}

func harness(t *testing.T, url string) relaytest.BrokerHarness {
	s := newStream(t, url)
	return relaytest.BrokerHarness{
		Open:         brokertest.Opener(func() (*nats.Broker, error) { return nats.New(url, nats.Config{AckTimeout: 10 * time.Second}) }),
		Topics:       [2]string{s.name + ".a", s.name + ".b"},
		Read:         s.read,
		Forget:       func(m *outbox.Message) { brokertest.SortHeaders(m) }, // the client's headers are a map
		TooLarge:     1<<20 + 1,
		UnknownTopic: "unknown." + s.name,
		Deduplicates: true,
	}
}

// read returns what a consumer makes of the stream by following the documented wire format.
func (s *stream) read(ctx context.Context) ([]outbox.Message, error) {
	st, err := s.js.Stream(ctx, s.name)
	if err != nil {
		return nil, err
	}
	total := int(st.CachedInfo().State.Msgs)
	if total == 0 {
		return nil, nil
	}
	consumer, err := st.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	var all []outbox.Message
	for len(all) < total {
		fetched, err := consumer.Fetch(min(total-len(all), 500), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return nil, err
		}
		before := len(all)
		for msg := range fetched.Messages() {
			m, err := decode(msg)
			if err != nil {
				return nil, err
			}
			all = append(all, m)
		}
		if len(all) == before {
			return nil, fmt.Errorf("%d of %d messages read: %w",
				len(all), total, cmp.Or(fetched.Error(), ctx.Err(), context.DeadlineExceeded))
		}
	}
	return all, nil
}

func decode(msg jetstream.Msg) (m outbox.Message, err error) {
	h := msg.Headers()
	text := func(name string) string {
		value, unescapeErr := url.PathUnescape(h.Get(name))
		if unescapeErr != nil {
			err = unescapeErr
		}
		return value
	}
	m = outbox.Message{
		Topic:         cmp.Or(text("Outbox-Topic"), msg.Subject()),
		Key:           text("Outbox-Key"),
		EventType:     text("Outbox-Event-Type"),
		AggregateType: text("Outbox-Aggregate-Type"),
		AggregateID:   text("Outbox-Aggregate-Id"),
		ContentType:   text("Content-Type"),
	}
	if err != nil {
		return m, err
	}
	if m.ID, err = outbox.ParseID(h.Get(natsgo.MsgIdHdr)); err != nil {
		return m, err
	}
	if position := h.Get("Outbox-Position"); position != "" {
		if m.Position, err = strconv.ParseInt(position, 10, 64); err != nil {
			return m, err
		}
	}
	if created := h.Get("Outbox-Created-At"); created != "" {
		if m.CreatedAt, err = time.Parse(time.RFC3339Nano, created); err != nil {
			return m, err
		}
	}
	if h.Get("Outbox-Payload") != "null" {
		m.Payload = append([]byte{}, msg.Data()...)
	}
	for name, values := range h {
		if !strings.HasPrefix(name, "Outbox-") && !strings.HasPrefix(name, "Nats-") && name != "Content-Type" {
			m.Headers = append(m.Headers, outbox.Header{Name: name, Value: values[0]})
		}
	}
	brokertest.SortHeaders(&m)
	return m, nil
}
