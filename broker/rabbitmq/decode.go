package rabbitmq

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/lanes"
	"github.com/rabbitmq/amqp091-go"
)

// decode is the inverse of encoder.encode. The payload is the delivery's own.
func decode(d *amqp091.Delivery) (m outbox.Message, err error) {
	text := func(name string) string {
		value, _ := d.Headers[name].(string)
		return value
	}
	m = outbox.Message{
		Topic:         cmp.Or(text("outbox-topic"), d.RoutingKey),
		Key:           text("outbox-key"),
		EventType:     d.Type,
		AggregateType: text("outbox-aggregate-type"),
		AggregateID:   text("outbox-aggregate-id"),
		ContentType:   d.ContentType,
		Payload:       d.Body,
	}
	if m.Payload == nil {
		m.Payload = []byte{}
	}
	if text("outbox-payload") == "null" {
		m.Payload = nil
	}
	m.Position, _ = d.Headers["outbox-position"].(int64)
	for name, value := range d.Headers {
		if !strings.HasPrefix(name, "outbox-") && !strings.HasPrefix(name, "x-") {
			m.Headers = append(m.Headers, outbox.Header{Name: name, Value: fmt.Sprint(value)})
		}
	}
	for name, to := range map[string]*time.Time{"outbox-created-at": &m.CreatedAt, "outbox-deliver-at": &m.DeliverAt} {
		if at := text(name); at != "" {
			if *to, err = time.Parse(time.RFC3339Nano, at); err != nil {
				return m, fmt.Errorf("header %s: %w", name, err)
			}
		}
	}
	if m.ID, err = outbox.ParseID(d.MessageId); err != nil {
		return m, lanes.ErrForeign // other programs use message-id for ids of any kind
	}
	return m, nil
}
