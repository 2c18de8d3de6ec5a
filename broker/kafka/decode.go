package kafka

import (
	"fmt"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/lanes"
	"github.com/twmb/franz-go/pkg/kgo"
)

// decode is the inverse of slab.add. The key is the ordering key; a reader needn't know whether it was the message's
// own key or its aggregate's. The payload is the record's own.
func decode(r *kgo.Record) (m outbox.Message, err error) {
	m = outbox.Message{Topic: r.Topic, Key: string(r.Key), Payload: r.Value}
	if len(r.Headers) > 0 {
		m.Headers = make([]outbox.Header, 0, len(r.Headers))
	}
	err = lanes.ErrForeign
	for _, h := range r.Headers {
		if h.Key == headerID {
			err = nil
		}
		if fault := lanes.ReadField(&m, h.Key, string(h.Value)); fault != nil {
			return m, fmt.Errorf("header %s: %w", h.Key, fault)
		}
	}
	return m, err
}
