package lanes

import (
	"time"

	"github.com/pgoutbox/outbox"
)

// ReadField reads a field of a record into m. The names are those of Kafka and SQS; other fields become headers.
func ReadField(m *outbox.Message, name, value string) (err error) {
	switch name {
	case "outbox-id":
		m.ID, err = outbox.ParseID(value)
	case "outbox-topic":
		m.Topic = value
	case "outbox-event-type":
		m.EventType = value
	case "outbox-aggregate-type":
		m.AggregateType = value
	case "outbox-aggregate-id":
		m.AggregateID = value
	case "outbox-created-at":
		m.CreatedAt, err = time.Parse(time.RFC3339Nano, value)
	case "content-type":
		m.ContentType = value
	default:
		m.Headers = append(m.Headers, outbox.Header{Name: name, Value: value})
	}
	return err
}
