package grpc

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/format"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// encode fills p with m, or with what the format makes of it in record. It shares the bytes and strings of both.
func (cfg *Config) encode(p *outboxpb.Message, m *outbox.Message, record *format.Record) error {
	p.Id = m.ID.String()
	p.Topic, p.Key = m.Topic, m.Key
	p.AggregateType, p.AggregateId, p.EventType = m.AggregateType, m.AggregateID, m.EventType
	p.Payload, p.ContentType = m.Payload, m.ContentType
	p.CreatedAt, p.DeliverAt = stamp(m.CreatedAt), stamp(m.DeliverAt)
	p.Position = m.Position
	p.Headers = nil
	if cfg.records == nil {
		for _, h := range m.Headers {
			p.Headers = append(p.Headers, &outboxpb.Header{Name: h.Name, Value: h.Value})
		}
		return nil
	}
	if err := cfg.records.Encode(record, m); err != nil {
		return err
	}
	p.Payload, p.ContentType = record.Value, record.ContentType
	for _, h := range record.Headers {
		if !utf8.Valid(h.Value) {
			return outbox.Permanent(fmt.Errorf("grpc: header %q is not UTF-8, which protobuf demands", h.Name))
		}
		p.Headers = append(p.Headers, &outboxpb.Header{Name: h.Name, Value: string(h.Value)})
	}
	return nil
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// decode returns the message that p encodes.
func decode(p *outboxpb.Message) (*outbox.Message, error) {
	id, err := outbox.ParseID(p.GetId())
	if err != nil {
		return nil, err
	}
	m := &outbox.Message{
		ID: id, Topic: p.GetTopic(), Key: p.GetKey(), AggregateType: p.GetAggregateType(), AggregateID: p.GetAggregateId(),
		EventType: p.GetEventType(), Payload: p.Payload, ContentType: p.GetContentType(), Position: p.GetPosition(),
	}
	if p.CreatedAt != nil {
		m.CreatedAt = p.CreatedAt.AsTime()
	}
	if p.DeliverAt != nil {
		m.DeliverAt = p.DeliverAt.AsTime()
	}
	for _, h := range p.GetHeaders() {
		m.Headers = append(m.Headers, outbox.Header{Name: h.GetName(), Value: h.GetValue()})
	}
	return m, nil
}

// orderingKey is the ordering key of the message that p encodes.
func orderingKey(p *outboxpb.Message) string {
	if p.GetKey() != "" {
		return p.GetKey()
	}
	return p.GetAggregateId()
}
