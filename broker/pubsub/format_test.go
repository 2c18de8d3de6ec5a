package pubsub_test

import (
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/broker/pubsub"
	"github.com/pgoutbox/outbox/format"
)

func TestCloudEventsInPubSub(t *testing.T) {
	t.Parallel()
	sdkread.Run(t, "ce-", func(t *testing.T, format format.CloudEvents) sdkread.Target {
		f := newFake(t)
		return sdkread.Target{Broker: f.broker(pubsub.Config{Format: format}), Topic: f.topic(),
			Read: func(t *testing.T, m *outbox.Message) (all []sdkread.Record) {
				for _, got := range f.Messages() {
					of := got.Attributes
					if m != nil && (got.OrderingKey != m.Key || of["content-type"] != of["Content-Type"]) {
						t.Errorf("key %q, attributes %v", got.OrderingKey, of)
					}
					all = append(all, sdkread.Record{ContentType: of["Content-Type"], Headers: of, Value: got.Data})
				}
				return all
			}}
	})
}
