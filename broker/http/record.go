package http

import (
	"bytes"
	"fmt"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/webhook"
)

// fill makes r the request of m: its payload with our headers, or the output of the format. It copies everything from
// m, because the transport may still read r when the request is over.
func (cfg *Config) fill(r *request, m *outbox.Message) error {
	if cfg.records == nil {
		r.body = bytes.Clone(m.Payload)
		return webhook.SetHeaders(r.header, m)
	}
	var record format.Record
	if err := cfg.records.Encode(&record, m); err != nil {
		return err
	}
	plain := outbox.Message{ContentType: record.ContentType, Payload: []byte{}}
	for _, h := range record.Headers {
		plain.Headers = append(plain.Headers, outbox.Header{Name: h.Name, Value: string(h.Value)})
	}
	if err := webhook.SetHeaders(r.header, &plain); err != nil {
		return fmt.Errorf("format: %w", err)
	}
	delete(r.header, "Outbox-Headers")
	r.body = bytes.Clone(record.Value)
	return nil
}
