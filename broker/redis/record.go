package redis

import (
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"github.com/pgoutbox/outbox"
)

// encoder packs messages for a script, as one MessagePack array of strings and numbers. A server reads one argument of
// 100 KB much faster than a thousand small ones. The encoder copies everything from a message, because a call that was
// given up may still be writing when its messages belong to the caller again.
type encoder struct {
	bytes []byte
	items int
}

// The MessagePack formats in use.
const (
	fixedString = 0xa0 // with the length in its low 5 bits
	string8     = 0xd9
	string16    = 0xda
	string32    = 0xdb
	number32    = 0xce
	number64    = 0xcf
	array32     = 0xdd
)

// newEncoder returns an encoder with room for about size bytes.
func newEncoder(size int) *encoder {
	return &encoder{bytes: append(make([]byte, 0, size+64), array32, 0, 0, 0, 0)}
}

// done returns the array. e can't be used afterwards.
func (e *encoder) done() []byte {
	binary.BigEndian.PutUint32(e.bytes[1:], uint32(e.items))
	return e.bytes
}

func (e *encoder) number(n int) {
	e.items++
	e.bytes = binary.BigEndian.AppendUint32(append(e.bytes, number32), uint32(n))
}

// stamp appends the first 48 bits of id: in a UUID of version 7, its time in milliseconds.
func (e *encoder) stamp(id outbox.ID) {
	e.items++
	e.bytes = append(append(e.bytes, number64, 0, 0), id[:6]...)
}

func (e *encoder) text(s string) {
	e.length(len(s))
	e.bytes = append(e.bytes, s...)
}

func (e *encoder) copy(b []byte) {
	e.length(len(b))
	e.bytes = append(e.bytes, b...)
}

// length begins a string of n bytes, which follow.
func (e *encoder) length(n int) {
	e.items++
	switch {
	case n < 32:
		e.bytes = append(e.bytes, fixedString|byte(n))
	case n <= math.MaxUint8:
		e.bytes = append(e.bytes, string8, byte(n))
	case n <= math.MaxUint16:
		e.bytes = binary.BigEndian.AppendUint16(append(e.bytes, string16), uint16(n))
	default:
		e.bytes = binary.BigEndian.AppendUint32(append(e.bytes, string32), uint32(n))
	}
}

// count is a number that is filled in later.
type count struct{ place, items int }

// begin appends lane, id and stamp, and room for the number of arguments that follow.
func (e *encoder) begin(m *outbox.Message, lane int) count {
	e.number(lane)
	e.copy(m.ID[:])
	e.stamp(m.ID)
	e.number(0)
	return count{len(e.bytes) - 4, e.items}
}

// end fills in the number of arguments since begin.
func (e *encoder) end(c count) {
	binary.BigEndian.PutUint32(e.bytes[c.place:], uint32(e.items-c.items))
}

const headerPrefix = "header:"

// message appends m in the given lane: lane, id, stamp, number of arguments, arguments.
func (e *encoder) message(m *outbox.Message, lane int, stream string) {
	count := e.begin(m, lane)
	e.text("id")
	e.length(36)
	e.bytes, _ = m.ID.AppendText(e.bytes)
	if stream != m.Topic {
		e.field("topic", m.Topic)
	}
	e.field("key", m.Key)
	e.field("event_type", m.EventType)
	e.field("aggregate_type", m.AggregateType)
	e.field("aggregate_id", m.AggregateID)
	e.field("content_type", m.ContentType)
	if m.Position != 0 {
		var digits [20]byte
		e.text("position")
		e.copy(strconv.AppendInt(digits[:0], m.Position, 10))
	}
	e.time("created_at", m.CreatedAt)
	e.time("deliver_at", m.DeliverAt)
	if m.Payload != nil {
		e.text("payload")
		e.copy(m.Payload)
	}
	for i := range m.Headers {
		h := &m.Headers[i]
		e.length(len(headerPrefix) + len(h.Name))
		e.bytes = append(append(e.bytes, headerPrefix...), h.Name...)
		e.text(h.Value)
	}
	e.end(count)
}

func (e *encoder) field(name, value string) {
	if value != "" {
		e.text(name)
		e.text(value)
	}
}

func (e *encoder) time(name string, t time.Time) {
	if !t.IsZero() {
		var digits [len(time.RFC3339Nano)]byte
		e.text(name)
		e.copy(t.UTC().AppendFormat(digits[:0], time.RFC3339Nano))
	}
}

// sizeOf is about the size of m on the wire.
func sizeOf(m *outbox.Message) int {
	size := 300 + len(m.Payload) + len(m.Topic) + len(m.Key) +
		len(m.EventType) + len(m.AggregateType) + len(m.AggregateID) + len(m.ContentType)
	for i := range m.Headers {
		size += 30 + len(m.Headers[i].Name) + len(m.Headers[i].Value)
	}
	return size
}
