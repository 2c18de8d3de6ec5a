package sns_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/broker/sns"
	"github.com/pgoutbox/outbox/format"
)

func TestTheSDKReadsCloudEventsFromATopic(t *testing.T) {
	t.Parallel()
	for _, structured := range []bool{false, true} {
		f := newFake(t)
		topic := f.topic(256 << 10)
		b := open(t, f.URL, sns.Config{Topic: prefix + "{topic}.fifo", Format: format.CloudEvents{Structured: structured, Source: "/shop"}})
		m := sdkread.Order(topic)
		m.Key = "a b\x01"
		accepted(t, b.Publish(patient(t), []*outbox.Message{m}))
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		messages := f.read(topic)
		if len(messages) != 1 {
			t.Fatalf("%d messages", len(messages))
		}
		got, headers := messages[0], map[string]string{}
		for _, h := range got.Headers {
			var err error
			if headers[h.Name], err = url.PathUnescape(h.Value); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(h.Name, "outbox-") {
				t.Errorf("%s stands beside the attributes of the format", h.Name)
			}
		}
		sdkread.Check(t, sdkread.Message("ce-", got.ContentType, headers, got.Payload), m)
		if headers["tenant"] != "acme" {
			t.Errorf("structured %v: headers %v", structured, headers)
		}
	}
}

func TestAMessageThatTheFormatRefusesStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	topic := f.topic(256 << 10)
	b := open(t, f.URL, sns.Config{Topic: prefix + "{topic}.fifo", Format: format.CloudEvents{}})
	defer b.Close()
	batch := brokertest.Messages(topic, 6, 2)
	batch[2].Headers = []outbox.Header{{Name: "ce-id", Value: "x"}}
	brokertest.CheckRefused(t, batch, b.Publish(patient(t), batch), 2)
}
