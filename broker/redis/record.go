package redis

import (
	"strconv"
	"time"

	"github.com/pgoutbox/outbox"
)

// encoder turns messages into the arguments of a script. It copies all that it takes from a message, for a call that
// was given up may still be writing when its messages belong to the caller again.
type encoder struct {
	args  []any
	bytes []byte  // the copies, one after the other
	ends  []int   // of each copy in bytes
	holes []int32 // the argument that each copy is
}

// constant appends an argument that lives as long as the program.
func (e *encoder) constant(arg string) { e.args = append(e.args, arg) }

func (e *encoder) number(n int) { e.args = append(e.args, n) }

// text appends a copy.
func (e *encoder) text(arg string) {
	e.bytes = append(e.bytes, arg...)
	e.close()
}

func (e *encoder) copy(arg []byte) {
	e.bytes = append(e.bytes, arg...)
	e.close()
}

// close ends the copy that is being made, and makes it an argument.
func (e *encoder) close() {
	e.ends = append(e.ends, len(e.bytes))
	e.holes = append(e.holes, int32(len(e.args)))
	e.args = append(e.args, nil)
}

// done returns the arguments. e is of no use any more.
func (e *encoder) done() []any {
	all := string(e.bytes)
	texts := make([]string, len(e.ends))
	start := 0
	for i, end := range e.ends {
		texts[i] = all[start:end]
		e.args[e.holes[i]] = &texts[i]
		start = end
	}
	return e.args
}

// begin appends lane and id, and room for the number of arguments that follow, whose place it returns.
func (e *encoder) begin(m *outbox.Message, lane int) (count int) {
	e.number(lane)
	e.copy(m.ID[:])
	count = len(e.args)
	e.number(0)
	return count
}

// end fills in the number of arguments that came since begin.
func (e *encoder) end(count int) { e.args[count] = len(e.args) - count - 1 }

// message appends m in the given lane: lane, id, number of arguments, arguments.
func (e *encoder) message(m *outbox.Message, lane int, stream string) {
	count := e.begin(m, lane)
	e.constant("id")
	e.bytes, _ = m.ID.AppendText(e.bytes)
	e.close()
	if stream != m.Topic {
		e.field("topic", m.Topic)
	}
	e.field("key", m.Key)
	e.field("event_type", m.EventType)
	e.field("aggregate_type", m.AggregateType)
	e.field("aggregate_id", m.AggregateID)
	e.field("content_type", m.ContentType)
	if m.Position != 0 {
		e.constant("position")
		e.bytes = strconv.AppendInt(e.bytes, m.Position, 10)
		e.close()
	}
	e.time("created_at", m.CreatedAt)
	e.time("deliver_at", m.DeliverAt)
	if m.Payload != nil {
		e.constant("payload")
		e.copy(m.Payload)
	}
	for i := range m.Headers {
		h := &m.Headers[i]
		e.bytes = append(e.bytes, "header:"...)
		e.text(h.Name)
		e.text(h.Value)
	}
	e.end(count)
}

func (e *encoder) field(name, value string) {
	if value != "" {
		e.constant(name)
		e.text(value)
	}
}

func (e *encoder) time(name string, t time.Time) {
	if !t.IsZero() {
		e.constant(name)
		e.bytes = t.UTC().AppendFormat(e.bytes, time.RFC3339Nano)
		e.close()
	}
}

// sizeOf is about what m takes on the wire.
func sizeOf(m *outbox.Message) int {
	size := 300 + len(m.Payload) + len(m.Topic) + len(m.Key) + len(m.EventType) + len(m.AggregateType) + len(m.AggregateID) + len(m.ContentType)
	for i := range m.Headers {
		size += 30 + len(m.Headers[i].Name) + len(m.Headers[i].Value)
	}
	return size
}
