package nats_test

import (
	"strings"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestCloudEventsInAStream(t *testing.T) {
	t.Parallel()
	server := servers.TestNATS(t)
	sdkread.Run(t, "ce-", func(t *testing.T, f format.CloudEvents) sdkread.Target {
		s := newStream(t, server.URL())
		return sdkread.Target{Broker: s.broker("", nats.Config{Format: f}), Topic: "orders",
			Read: func(t *testing.T, m *outbox.Message) (all []sdkread.Record) {
				for _, stored := range s.stored() {
					if got := stored.Header.Get(natsgo.MsgIdHdr); m != nil && got != m.ID.String() {
						t.Errorf("%s is %q", natsgo.MsgIdHdr, got)
					}
					all = append(all, received(t, stored))
				}
				return all
			}}
	})
}

func received(t *testing.T, m *jetstream.RawStreamMsg) sdkread.Record {
	t.Helper()
	headers := map[string]string{}
	for name, values := range m.Header {
		headers[name] = values[0]
		if strings.HasPrefix(name, "ce-") {
			text, ok := format.UnescapePercent(values[0])
			if !ok {
				t.Fatalf("%s: %q", name, values[0])
			}
			headers[name] = text
		}
	}
	return sdkread.Record{ContentType: m.Header.Get("Content-Type"), Headers: headers, Value: m.Data}
}

func TestTheDebeziumLayoutIsWhatAStreamHas(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL())
	b := s.broker("", nats.Config{Format: format.Debezium{Value: format.ConnectJSON, Header: format.ConnectJSON, Expand: true,
		Place: []format.Placement{{Field: "event_type", Alias: "eventType"}}}})
	m := sdkread.Order("orders")
	accepted(t, b.Publish(patient(t), []*outbox.Message{m}))
	stored := s.stored()[0]
	if string(stored.Data) != `{"i":1}` || stored.Header.Get("id") != `"`+m.ID.String()+`"` ||
		stored.Header.Get("eventType") != `"Created"` {
		t.Errorf("%s with %v", stored.Data, stored.Header)
	}
}

func TestAFormatIsCheckedAtTheStart(t *testing.T) {
	t.Parallel()
	_, err := nats.New("nats://127.0.0.1:1", nats.Config{Format: format.CloudEvents{Source: "{x}"}, Subject: "{y}"})
	brokertest.Contains(t, err, "cloudevents source", "{y}")
}
