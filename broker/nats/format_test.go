package nats_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/servers"
)

func event(i int) *outbox.Message {
	m := sdkread.Order("orders")
	m.Key, m.AggregateType, m.Payload, m.Position = "k", "Order", fmt.Appendf(nil, `{"i":%d}`, i), int64(i+1)
	return m
}

func TestTheSDKReadsCloudEventsFromAStream(t *testing.T) {
	t.Parallel()
	server := servers.TestNATS(t)
	for _, structured := range []bool{false, true} {
		s := newStream(t, server.URL())
		b := s.broker("", nats.Config{Format: format.CloudEvents{Structured: structured, Source: "/shop"}})
		var batch []*outbox.Message
		for i := range 10 {
			batch = append(batch, event(i))
		}
		accepted(t, b.Publish(patient(t), batch))
		stored := s.stored()
		if len(stored) != len(batch) {
			t.Fatalf("%d messages are stored", len(stored))
		}
		for i, m := range stored {
			sdkread.Check(t, received(t, m), batch[i])
			if got := m.Header.Get(natsgo.MsgIdHdr); got != batch[i].ID.String() {
				t.Errorf("%s is %q", natsgo.MsgIdHdr, got)
			}
			if m.Header.Get("tenant") != "acme" {
				t.Errorf("headers are %v", m.Header)
			}
			for name := range m.Header {
				if strings.HasPrefix(name, "Outbox-") {
					t.Errorf("header %s stands beside those of the format", name)
				}
			}
		}
	}
}

func received(t *testing.T, m *jetstream.RawStreamMsg) binding.Message {
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
	return sdkread.Message("ce-", m.Header.Get("Content-Type"), headers, m.Data)
}

func TestTheDebeziumLayoutIsWhatAStreamHas(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL())
	b := s.broker("", nats.Config{Format: format.Debezium{Value: format.ConnectJSON, Header: format.ConnectJSON, Expand: true,
		Place: []format.Placement{{Field: "event_type", Alias: "eventType"}}}})
	m := event(1)
	accepted(t, b.Publish(patient(t), []*outbox.Message{m}))
	stored := s.stored()[0]
	if string(stored.Data) != `{"i":1}` || stored.Header.Get("id") != `"`+m.ID.String()+`"` ||
		stored.Header.Get("eventType") != `"Created"` {
		t.Errorf("%s with %v", stored.Data, stored.Header)
	}
}

func TestAMessageThatTheFormatRefusesStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL())
	b := s.broker("", nats.Config{Format: format.CloudEvents{}})
	batch := []*outbox.Message{event(0), event(1), event(2), event(3)}
	batch[1].Headers = []outbox.Header{{Name: "ce-id", Value: "x"}}
	batch[3].Key = "other"
	brokertest.CheckRefused(t, batch, b.Publish(patient(t), batch), 1)
	if got := s.storedIDs(); len(got) != 2 {
		t.Errorf("%v is stored", got)
	}
}

func TestAFormatIsCheckedAtTheStart(t *testing.T) {
	t.Parallel()
	_, err := nats.New("nats://127.0.0.1:1", nats.Config{Format: format.CloudEvents{Source: "{x}"}, Subject: "{y}"})
	if err == nil || !strings.Contains(err.Error(), "cloudevents source") || !strings.Contains(err.Error(), "{y}") {
		t.Errorf("the error is %v", err)
	}
}
