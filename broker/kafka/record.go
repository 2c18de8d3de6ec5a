package kafka

import (
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Names of the headers that the adapter writes.
const (
	headerID            = "outbox-id"
	headerTopic         = "outbox-topic"
	headerEventType     = "outbox-event-type"
	headerAggregateType = "outbox-aggregate-type"
	headerAggregateID   = "outbox-aggregate-id"
	headerCreatedAt     = "outbox-created-at"
	headerContentType   = "content-type"
	ownHeaders          = 7

	createdAtLayout = "2006-01-02T15:04:05.000000Z07:00"
)

// slab is memory for the records of a part, reused by the next part. Records don't move, because the client library
// points to them. When headers or text grow, later ones go to a new block, and pointers to earlier ones stay valid.
type slab struct {
	records []kgo.Record
	headers []kgo.RecordHeader
	text    []byte
	clock   clock
}

// reset makes room for n records.
func (s *slab) reset(n int) {
	clear(s.records) // drops the payloads, which are the caller's
	s.records = slices.Grow(s.records[:0], n)
	s.headers = s.headers[:0]
	s.text = s.text[:0]
}

// add appends the record of m, for which reset has made room. Its value is m's payload itself; everything else is
// copied. All records of a part have one timestamp, which costs less than one for each record.
func (s *slab) add(m *outbox.Message, topic string, now time.Time) *kgo.Record {
	from := len(s.headers)
	for i := range m.Headers {
		s.header(m.Headers[i].Name, m.Headers[i].Value)
	}
	at := len(s.text)
	s.text, _ = m.ID.AppendText(s.text)
	s.headers = append(s.headers, kgo.RecordHeader{Key: headerID, Value: s.text[at:len(s.text):len(s.text)]})
	if topic != m.Topic {
		s.header(headerTopic, m.Topic)
	}
	if m.EventType != "" {
		s.header(headerEventType, m.EventType)
	}
	if m.AggregateType != "" {
		s.header(headerAggregateType, m.AggregateType)
	}
	if m.AggregateID != "" {
		s.header(headerAggregateID, m.AggregateID)
	}
	if !m.CreatedAt.IsZero() {
		at := len(s.text)
		s.text = s.clock.append(s.text, m.CreatedAt)
		s.headers = append(s.headers, kgo.RecordHeader{Key: headerCreatedAt, Value: s.text[at:len(s.text):len(s.text)]})
	}
	if m.ContentType != "" {
		s.header(headerContentType, m.ContentType)
	}
	s.records = s.records[:len(s.records)+1]
	r := &s.records[len(s.records)-1]
	r.Topic = topic
	r.Value = m.Payload
	r.Headers = s.headers[from:len(s.headers):len(s.headers)]
	r.Timestamp = now
	if key := m.OrderingKey(); key != "" {
		r.Key = s.copy(key)
	}
	return r
}

// clock writes times in createdAtLayout. Consecutive messages were mostly written in the same second, so it formats
// each second once: formatting every time would be a tenth of the cost of a message.
type clock struct {
	second int64
	text   []byte // the second, without fraction and zone; empty: none yet
}

func (c *clock) append(to []byte, t time.Time) []byte {
	if second := t.Unix(); second != c.second || len(c.text) == 0 {
		c.second, c.text = second, t.UTC().AppendFormat(c.text[:0], createdAtLayout[:len("2006-01-02T15:04:05")])
	}
	fraction := t.Nanosecond() / int(time.Microsecond)
	digits := [...]byte{'.', 0, 0, 0, 0, 0, 0, 'Z'}
	for i := 6; i > 0; i-- {
		digits[i] = '0' + byte(fraction%10)
		fraction /= 10
	}
	return append(append(to, c.text...), digits[:]...)
}

func (s *slab) header(name, value string) {
	s.headers = append(s.headers, kgo.RecordHeader{Key: name, Value: s.copy(value)})
}

func (s *slab) copy(text string) []byte {
	at := len(s.text)
	s.text = append(s.text, text...)
	return s.text[at:len(s.text):len(s.text)]
}

// atMost returns a cheap upper bound of the size of m's record: it assumes five bytes for every length, and that every
// header is present.
func atMost(m *outbox.Message) int {
	const lengths = 5 // of a varint
	const fixed = 32 + 10*ownHeaders + 36 + len(createdAtLayout) +
		len(headerID) + len(headerTopic) + len(headerEventType) + len(headerAggregateType) +
		len(headerAggregateID) + len(headerCreatedAt) + len(headerContentType)
	size := fixed + len(m.Key) + len(m.Payload) + len(m.Topic) + len(m.EventType) + len(m.AggregateType) +
		2*len(m.AggregateID) + len(m.ContentType)
	for i := range m.Headers {
		size += 2*lengths + len(m.Headers[i].Name) + len(m.Headers[i].Value)
	}
	return size
}

// Sizes of a batch, as in the format of record batches (magic 2).
const (
	// batchOverhead is what the batch of one record adds to its size.
	batchOverhead = 61

	// The client library bounds a batch by an estimate that is up to 4 bytes too high for an empty batch and at least 2
	// too high for others. With a bound of 2 above the topic's limit, it never makes a batch that the server refuses; a
	// single record may have 2 bytes less than the server would accept.
	libraryMargin = 2

	smallestLimit = 1 << 10
	largestLimit  = 64 << 20 // the server's socket.request.max.bytes is 100 MiB
)

// size returns the size of r as the only record of its batch.
func size(r *kgo.Record) int {
	body := 1 + 1 + 1 + // attributes, deltas of time and offset
		varint(len(r.Key)) + len(r.Key) +
		varint(len(r.Value)) + len(r.Value) +
		varint(len(r.Headers))
	for i := range r.Headers {
		h := &r.Headers[i]
		body += varint(len(h.Key)) + len(h.Key) + varint(len(h.Value)) + len(h.Value)
	}
	return batchOverhead + varint(body) + body
}

// varint returns the length of n as a zigzag varint. A length of -1, for NULL, takes one byte as 0 does.
func varint(n int) int {
	length := 1
	for n = 2 * n; n >= 0x80; n >>= 7 {
		length++
	}
	return length
}
