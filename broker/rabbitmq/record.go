package rabbitmq

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/template"
	"github.com/rabbitmq/amqp091-go"
)

// shortString is the most bytes of a routing key, of the name of an exchange or header, and of a text property.
const shortString = 255

// record is a message as it is sent. It is valid until the encoder's next one.
type record struct {
	exchange   string
	routingKey string
	publishing amqp091.Publishing
}

// encoder turns messages into records, one at a time in the same memory.
type encoder struct {
	exchange, routingKey *template.Template
	mostBytes            int            // of the body
	records              format.Encoder // nil: payloads as they are, with headers of ours
	rec                  record
	scratch              format.Record // by records
}

func newEncoder(cfg *Config) *encoder {
	e := &encoder{exchange: cfg.exchange, routingKey: cfg.routingKey, mostBytes: cfg.MaxMessageBytes, records: cfg.records}
	e.rec.publishing.Headers = make(amqp091.Table, 8)
	return e
}

// release drops references to the data of Publish's caller.
func (e *encoder) release() {
	headers := e.rec.publishing.Headers
	clear(headers)
	e.rec = record{publishing: amqp091.Publishing{Headers: headers}}
	e.scratch.Reset()
}

// reserved reports whether a name is reserved for the server and not fixed by the template.
func reserved(name string, t *template.Template) bool {
	return strings.HasPrefix(name, "amq.") && !strings.HasPrefix(t.Literals[0], "amq.")
}

// encode returns m as a record, or a permanent error if RabbitMQ would refuse it. frameSize is the largest frame of the
// connection, or 0; the properties and headers together must fit into it.
func (e *encoder) encode(m *outbox.Message, frameSize int) (*record, error) {
	e.release()
	r := &e.rec
	r.exchange, r.routingKey = e.exchange.Expand(m), e.routingKey.Expand(m)
	if r.exchange == "" && !e.exchange.Constant() {
		return nil, refuse("the exchange's name is empty: the fields of the template are empty in this message")
	}
	if r.exchange == "" && r.routingKey == "" {
		return nil, refuse("the routing key, which names the queue, is empty: the fields of the template are empty in this message")
	}
	// The server reserves these names: its exchanges, queues of one connection, the answers of requests.
	if reserved(r.exchange, e.exchange) || r.exchange == "" && reserved(r.routingKey, e.routingKey) {
		return nil, refuse("exchange %q, routing key %.100q: names that begin with amq. are the server's own; change the message's topic",
			r.exchange, r.routingKey)
	}
	p := &r.publishing
	p.DeliveryMode = amqp091.Persistent
	p.MessageId = m.ID.String()
	var err error
	if e.records != nil {
		err = e.formatted(m, p)
	} else {
		err = e.plain(m, r)
	}
	if err != nil {
		return nil, err
	}
	if len(p.Body) > e.mostBytes {
		return nil, refuse("a body of %d bytes is larger than the %d that are allowed", len(p.Body), e.mostBytes)
	}
	for _, s := range []struct{ what, value string }{
		{"exchange's name", r.exchange}, {"routing key", r.routingKey}, {"content type", p.ContentType}, {"event type", p.Type},
	} {
		if len(s.value) > shortString {
			return nil, refuse("the %s %q is %d bytes long, and AMQP takes %d", s.what, printed.Short(s.value), len(s.value), shortString)
		}
	}
	if size := headerBytes(p); frameSize > 0 && size > frameSize {
		return nil, refuse("headers and properties take %d bytes, and have to fit into a frame of %d (frame_max)", size, frameSize)
	}
	return r, nil
}

// formatted sets the fields of m in its format. The message id is a property all the same, because it identifies a
// returned message.
func (e *encoder) formatted(m *outbox.Message, p *amqp091.Publishing) error {
	if err := e.records.Encode(&e.scratch, m); err != nil {
		return err
	}
	p.ContentType, p.Body = e.scratch.ContentType, e.scratch.Value
	for _, h := range e.scratch.Headers {
		if err := checkHeader(h.Name); err != nil {
			return err
		}
		p.Headers[h.Name] = string(h.Value)
	}
	return nil
}

// plain sets the fields of a message without a format: its payload, properties and our headers.
func (e *encoder) plain(m *outbox.Message, r *record) error {
	p := &r.publishing
	p.ContentType, p.Type, p.Timestamp, p.Body = m.ContentType, m.EventType, m.CreatedAt, m.Payload
	table := p.Headers
	for i := range m.Headers {
		h := &m.Headers[i]
		if err := checkHeader(h.Name); err != nil {
			return err
		}
		table[h.Name] = h.Value
	}
	text := func(name, value string) {
		if value != "" {
			table[name] = value
		}
	}
	if r.routingKey != m.Topic {
		text("outbox-topic", m.Topic)
	}
	text("outbox-key", m.Key)
	text("outbox-aggregate-type", m.AggregateType)
	text("outbox-aggregate-id", m.AggregateID)
	if m.Position != 0 {
		table["outbox-position"] = m.Position
	}
	if !m.CreatedAt.IsZero() {
		table["outbox-created-at"] = m.CreatedAt.UTC().Format(time.RFC3339Nano)
	}
	if !m.DeliverAt.IsZero() {
		table["outbox-deliver-at"] = m.DeliverAt.UTC().Format(time.RFC3339Nano)
	}
	if m.Payload == nil {
		table["outbox-payload"] = "null"
	}
	return nil
}

// checkHeader refuses names that AMQP can't carry, or that have another meaning: CC and BCC make the server send copies
// to the queues that they name, and outbox- is ours.
func checkHeader(name string) error {
	switch {
	case name == "" || len(name) > shortString:
		return refuse("the header name %q is %d bytes long, and AMQP takes 1 to %d", printed.Short(name), len(name), shortString)
	case name == "CC" || name == "BCC":
		return refuse("header %q can't be sent: RabbitMQ takes it for a command to route the message elsewhere as well; rename it", name)
	case outbox.ReservedHeader(name):
		return refuse("header %q can't be sent: names with the prefix outbox- are reserved; rename it", name)
	}
	return nil
}

// headerBytes is the size of the frame with a message's properties and headers, or a little more.
func headerBytes(p *amqp091.Publishing) int {
	size := 64 + len(p.ContentType) + len(p.MessageId) + len(p.Type)
	for name, value := range p.Headers {
		size += 10 + len(name)
		if text, ok := value.(string); ok {
			size += len(text)
		}
	}
	return size
}

func refuse(format string, args ...any) error {
	return outbox.Permanent(fmt.Errorf("rabbitmq: "+format, args...))
}
