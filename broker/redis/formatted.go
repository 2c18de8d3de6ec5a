package redis

import (
	"fmt"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
)

// The fields, other than headers, of an entry with a format. Debezium Server also calls them key and value.
const (
	keyField         = "key"
	valueField       = "value"
	contentTypeField = "content-type"
)

// formatted are the records of a call in Config.Format, by the index of their messages.
type formatted struct {
	scratch format.Record // has the memory of all
	records []format.Record
}

// format makes the record of message i and returns its size on the wire.
func (c *call) format(i int, m *outbox.Message) (int, error) {
	cfg := &c.b.cfg
	f := &c.formatted
	if f.records == nil {
		f.records = make([]format.Record, len(c.batch))
	}
	if err := cfg.records.Encode(&f.scratch, m); err != nil {
		return 0, err
	}
	r := format.Record{Key: f.scratch.Key, Value: f.scratch.Value, ContentType: f.scratch.ContentType, Headers: f.scratch.Headers}
	size := 300 + len(r.Key) + len(r.Value) + len(r.ContentType)
	for k := range r.Headers {
		h := &r.Headers[k]
		if h.Name == keyField && r.Key != nil || h.Name == valueField &&
			r.Value != nil || h.Name == contentTypeField && r.ContentType != "" {
			return 0, outbox.Permanent(fmt.Errorf("redis: header %q can't be sent: it would be taken for the field of "+
				"the record; rename it by a header rule of the destination", h.Name))
		}
		size += 30 + len(h.Name) + len(h.Value)
	}
	f.records[i] = r
	return size, nil
}

// record appends the record of m in the given lane: lane, id, stamp, number of arguments, arguments.
func (e *encoder) record(m *outbox.Message, lane int, r *format.Record) {
	count := e.begin(m, lane)
	if r.Key != nil {
		e.text(keyField)
		e.copy(r.Key)
	}
	if r.Value != nil {
		e.text(valueField)
		e.copy(r.Value)
	}
	if r.ContentType != "" {
		e.text(contentTypeField)
		e.text(r.ContentType)
	}
	for i := range r.Headers {
		e.text(r.Headers[i].Name)
		e.copy(r.Headers[i].Value)
	}
	e.end(count)
}
