package pubsub_test

import (
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/broker/pubsub"
	"github.com/pgoutbox/outbox/format"
)

func TestTheSDKReadsCloudEventsFromPubSub(t *testing.T) {
	t.Parallel()
	for _, structured := range []bool{false, true} {
		f := newFake(t)
		topic := f.topic()
		b := open(t, f.Addr, pubsub.Config{Format: format.CloudEvents{Structured: structured, Source: "/shop"}})
		m := sdkread.Order(topic)
		if errs := b.Publish(patient(t), []*outbox.Message{m}); errs != nil {
			t.Fatal(errs)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		messages := f.Messages()
		if len(messages) != 1 {
			t.Fatalf("%d messages", len(messages))
		}
		got := messages[0]
		sdkread.Check(t, sdkread.Message("ce-", got.Attributes["Content-Type"], got.Attributes, got.Data), m)
		if got.OrderingKey != m.Key || got.Attributes["tenant"] != "acme" ||
			got.Attributes["content-type"] != got.Attributes["Content-Type"] {
			t.Errorf("key %q, attributes %v", got.OrderingKey, got.Attributes)
		}
		for name := range got.Attributes {
			if strings.HasPrefix(name, "outbox-") {
				t.Errorf("%s stands beside the attributes of the format", name)
			}
		}
	}
}

func TestAMessageThatTheFormatRefusesStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	topic := f.topic()
	b := open(t, f.Addr, pubsub.Config{Format: format.CloudEvents{}})
	defer b.Close()
	batch := brokertest.Messages(topic, 6, 2)
	batch[2].Headers = []outbox.Header{{Name: "ce-id", Value: "x"}}
	brokertest.CheckRefused(t, batch, b.Publish(patient(t), batch), 2)
}
