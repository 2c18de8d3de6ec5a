package nats

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/lanes"
)

// decode is the inverse of encoder.encode. The payload is the record's own.
func decode(subject string, header nats.Header, data []byte) (m outbox.Message, err error) {
	m = outbox.Message{Topic: subject, Payload: data}
	if data == nil {
		m.Payload = []byte{}
	}
	err = lanes.ErrForeign
	for name, values := range header {
		for _, value := range values {
			if name == nats.MsgIdHdr {
				if id, fault := outbox.ParseID(value); fault == nil { // other programs use the header for ids of any kind
					m.ID, err = id, nil
				}
				continue
			}
			if hasPrefixFold(name, "Nats-") {
				continue
			}
			if fault := own(&m, name, value); fault != nil {
				return m, fmt.Errorf("header %s: %w", name, fault)
			}
		}
	}
	return m, err
}

func own(m *outbox.Message, name, value string) (err error) {
	text := func(to *string) {
		*to, err = url.PathUnescape(value)
	}
	switch name {
	case "Outbox-Topic":
		text(&m.Topic)
	case "Outbox-Key":
		text(&m.Key)
	case "Outbox-Event-Type":
		text(&m.EventType)
	case "Outbox-Aggregate-Type":
		text(&m.AggregateType)
	case "Outbox-Aggregate-Id":
		text(&m.AggregateID)
	case "Outbox-Position":
		m.Position, err = strconv.ParseInt(value, 10, 64)
	case "Outbox-Created-At":
		m.CreatedAt, err = time.Parse(time.RFC3339Nano, value)
	case "Outbox-Deliver-At":
		m.DeliverAt, err = time.Parse(time.RFC3339Nano, value)
	case "Outbox-Payload":
		if value == "null" {
			m.Payload = nil
		}
	default:
		if strings.EqualFold(name, "Content-Type") {
			text(&m.ContentType)
			return err
		}
		m.Headers = append(m.Headers, outbox.Header{Name: name, Value: value})
	}
	return err
}
