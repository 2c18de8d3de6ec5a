package kafka

import (
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
	"github.com/twmb/franz-go/pkg/kgo"
)

// formatted are the records of a call in Config.Format, one for each message of the batch. Their bytes stay valid until
// the next call.
type formatted struct {
	scratch format.Record
	records []formattedRecord // empty without a format
}

// formattedRecord is a record without its topic, or the error why there is none.
type formattedRecord struct {
	format.Record
	err error
}

// forget drops references to the caller's data.
func (f *formatted) forget() {
	if len(f.records) == 0 {
		return
	}
	f.scratch.Reset()
	clear(f.records)
	f.records = f.records[:0]
}

// encode makes the records of batch; without an encoder there is no format.
func (f *formatted) encode(encoder format.Encoder, batch []*outbox.Message) {
	if encoder == nil {
		return
	}
	f.records = slices.Grow(f.records[:0], len(batch))
	for _, m := range batch {
		err := encoder.Encode(&f.scratch, m)
		f.records = append(f.records, formattedRecord{
			format.Record{Key: f.scratch.Key, Value: f.scratch.Value, ContentType: f.scratch.ContentType, Headers: f.scratch.Headers}, err})
	}
}

// value is the record value of m, message i of the batch.
func (f *formatted) value(i int32, m *outbox.Message) []byte {
	if len(f.records) > 0 {
		return f.records[i].Value
	}
	return m.Payload
}

// record returns the record of m, message i of the batch, for which s has room.
func (f *formatted) record(s *slab, i int32, m *outbox.Message, topic string, now time.Time) *kgo.Record {
	if len(f.records) > 0 {
		return s.addFormatted(&f.records[i].Record, topic, now)
	}
	return s.add(m, topic, now)
}

// addFormatted does the work of add for a record of a format, whose bytes are not copied.
func (s *slab) addFormatted(f *format.Record, topic string, now time.Time) *kgo.Record {
	from := len(s.headers)
	for i := range f.Headers {
		s.headers = append(s.headers, kgo.RecordHeader{Key: f.Headers[i].Name, Value: f.Headers[i].Value})
	}
	if f.ContentType != "" {
		s.header(headerContentType, f.ContentType)
	}
	s.records = s.records[:len(s.records)+1]
	r := &s.records[len(s.records)-1]
	r.Topic = topic
	r.Key, r.Value = f.Key, f.Value
	r.Headers = s.headers[from:len(s.headers):len(s.headers)]
	r.Timestamp = now
	return r
}
