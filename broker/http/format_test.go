package http_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/pgoutbox/outbox"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/format"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func TestTheOfficialSDKReadsCloudEvents(t *testing.T) {
	t.Parallel()
	for _, structured := range []bool{false, true} {
		r := newRecorder(t, always(204))
		b := newBroker(t, r.URL, webhooks.Config{Format: format.CloudEvents{Source: "/shop", Structured: structured}})
		m := &outbox.Message{
			ID: outbox.NewID(), Topic: "orders", Key: "k", EventType: "OrderCreated",
			ContentType: "application/json", Payload: []byte(`{"n":1}`),
			CreatedAt: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC),
		}
		accepted(t, b.Publish(patient(t), []*outbox.Message{m}))
		official, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := official.Verify(r.bodies[0], r.requests[0].Header); err != nil {
			t.Error(err)
		}
		for name := range r.requests[0].Header {
			if strings.HasPrefix(name, "Outbox-") {
				t.Errorf("a record of a format has the header %s", name)
			}
		}
		req := &http.Request{Header: r.requests[0].Header, Body: io.NopCloser(bytes.NewReader(r.bodies[0]))}
		event, err := binding.ToEvent(t.Context(), cehttp.NewMessageFromHttpRequest(req))
		if err != nil {
			t.Fatalf("structured %v: %v", structured, err)
		}
		if event.ID() != m.ID.String() || event.Type() != m.EventType ||
			event.Source() != "/shop" || string(event.Data()) != `{"n":1}` || !event.Time().Equal(m.CreatedAt) {
			t.Errorf("structured %v: %v", structured, event)
		}
	}
}
