package pubsub_test

import (
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/pgoutbox/outbox"
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
		m := &outbox.Message{ID: outbox.NewID(), Topic: topic,
			Key: "k", EventType: "Created", AggregateID: "7 €", Payload: []byte(`{"i":1}`),
			ContentType: "application/json", Headers: []outbox.Header{{Name: "tenant", Value: "acme"}}}
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
		e, err := binding.ToEvent(t.Context(), sdkread.Message("ce-", got.Attributes["Content-Type"], got.Attributes, got.Data))
		if err != nil {
			t.Fatal(err)
		}
		if e.Validate() != nil || e.ID() != m.ID.String() || e.Source() != "/shop" || e.Type() != "Created" || e.Subject() != "7 €" ||
			string(e.Data()) != `{"i":1}` || e.DataContentType() != "application/json" {
			t.Errorf("the event is %v", e)
		}
		if got.OrderingKey != "k" || got.Attributes["tenant"] != "acme" ||
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
