package kafka

import (
	"fmt"
	"time"

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
		value := string(h.Value)
		var fault error
		switch h.Key {
		case headerID:
			m.ID, fault = outbox.ParseID(value)
			err = nil
		case headerTopic:
			m.Topic = value
		case headerEventType:
			m.EventType = value
		case headerAggregateType:
			m.AggregateType = value
		case headerAggregateID:
			m.AggregateID = value
		case headerCreatedAt:
			m.CreatedAt, fault = time.Parse(time.RFC3339Nano, value)
		case headerContentType:
			m.ContentType = value
		default:
			m.Headers = append(m.Headers, outbox.Header{Name: h.Key, Value: value})
		}
		if fault != nil {
			return m, fmt.Errorf("header %s: %w", h.Key, fault)
		}
	}
	return m, err
}
