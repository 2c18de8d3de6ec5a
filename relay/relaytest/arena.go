package relaytest

import (
	"unsafe"

	"github.com/pgoutbox/outbox"
)

// arena holds a batch whose strings, payloads and headers all lie in one block of memory, as in a source that reads
// into a reused buffer.
type arena struct {
	batch    []*outbox.Message
	messages []outbox.Message
	headers  []outbox.Header
	bytes    []byte
}

func newArena(batch []outbox.Message) *arena {
	size, headers := 0, 0
	for i := range batch {
		m := &batch[i]
		size += len(m.Topic) + len(m.Key) + len(m.AggregateType) + len(m.AggregateID) +
			len(m.EventType) + len(m.Payload) + len(m.ContentType)
		for _, h := range m.Headers {
			size += len(h.Name) + len(h.Value)
		}
		headers += len(m.Headers)
	}
	a := &arena{
		batch:    make([]*outbox.Message, len(batch)),
		messages: make([]outbox.Message, len(batch)),
		headers:  make([]outbox.Header, 0, headers),
		bytes:    make([]byte, 0, size),
	}
	for i := range batch {
		m := &a.messages[i]
		*m = batch[i]
		m.Topic = a.text(m.Topic)
		m.Key = a.text(m.Key)
		m.AggregateType = a.text(m.AggregateType)
		m.AggregateID = a.text(m.AggregateID)
		m.EventType = a.text(m.EventType)
		m.ContentType = a.text(m.ContentType)
		if m.Payload != nil {
			m.Payload = a.copy(string(m.Payload))
		}
		if m.Headers != nil {
			from := len(a.headers)
			for _, h := range m.Headers {
				a.headers = append(a.headers, outbox.Header{Name: a.text(h.Name), Value: a.text(h.Value)})
			}
			m.Headers = a.headers[from:len(a.headers):len(a.headers)]
		}
		a.batch[i] = m
	}
	return a
}

func (a *arena) copy(s string) []byte {
	from := len(a.bytes)
	a.bytes = append(a.bytes, s...)
	return a.bytes[from:len(a.bytes):len(a.bytes)]
}

// text returns a string whose bytes scribble can overwrite, which only unsafe can make.
func (a *arena) text(s string) string {
	b := a.copy(s)
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// scribble overwrites everything. A later reader sees garbage, or the race detector finds it.
func (a *arena) scribble() {
	all := a.bytes[:cap(a.bytes)]
	for i := range all {
		all[i] = '?'
	}
	clear(a.headers)
	clear(a.messages)
	clear(a.batch)
}
