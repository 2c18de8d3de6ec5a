package sns_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/pgoutbox/outbox"
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
		m := &outbox.Message{ID: outbox.NewID(), Topic: topic,
			Key: "a b\x01", EventType: "Created", AggregateID: "7 €", Payload: []byte(`{"i":1}`),
			ContentType: "application/json", Headers: []outbox.Header{{Name: "tenant", Value: "acme"}}}
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
		e, err := binding.ToEvent(t.Context(), sdkread.Message("ce-", got.ContentType, headers, got.Payload))
		if err != nil {
			t.Fatal(err)
		}
		if e.Validate() != nil || e.ID() != m.ID.String() || e.Source() != "/shop" || e.Type() != "Created" || e.Subject() != "7 €" ||
			e.Extensions()["partitionkey"] != m.Key || string(e.Data()) != `{"i":1}` ||
			e.DataContentType() != "application/json" || headers["tenant"] != "acme" {
			t.Errorf("structured %v: the event is %v, headers %v", structured, e, headers)
		}
	}
}

func TestAMessageThatTheFormatRefusesStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	topic := f.topic(256 << 10)
	b := open(t, f.URL, sns.Config{Topic: prefix + "{topic}.fifo", Format: format.CloudEvents{}})
	defer b.Close()
	var batch []*outbox.Message
	for _, key := range []string{"a", "a", "a", "b"} {
		batch = append(batch, &outbox.Message{ID: outbox.NewID(), Topic: topic, Key: key, Payload: []byte("1")})
	}
	batch[1].Headers = []outbox.Header{{Name: "ce-id", Value: "x"}}
	errs := b.Publish(patient(t), batch)
	if len(errs) != 4 || errs[0] != nil || !outbox.IsPermanent(errs[1]) || errs[2] != outbox.ErrSkipped || errs[3] != nil {
		t.Errorf("answers are %v", errs)
	}
}
