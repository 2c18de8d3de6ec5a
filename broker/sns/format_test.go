package sns_test

import (
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/amazon/amazontest"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/broker/sns"
	"github.com/pgoutbox/outbox/format"
)

func TestCloudEventsInATopic(t *testing.T) {
	t.Parallel()
	sdkread.Run(t, "ce-", func(t *testing.T, format format.CloudEvents) sdkread.Target {
		f := newFake(t)
		topic := f.topic(256 << 10)
		return sdkread.Target{Broker: f.account().broker(sns.Config{Format: format}), Topic: topic,
			Read: func(t *testing.T, m *outbox.Message) []sdkread.Record { return amazontest.Records(t, f.read(topic)) }}
	})
}
