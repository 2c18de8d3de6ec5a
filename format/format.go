// Package format turns messages into records: what consumers find in a broker, whichever broker it is.
//
// A [Format] is a description, such as CloudEvents{Source: "/shop"}. An adapter binds it to its protocol
// once and then encodes one message after the other:
//
//	encoder, err := cfg.Format.Bind(format.Kafka) // in New
//
//	record.Reset()                                // for every batch
//	err := encoder.Encode(&record, message)       // for every message
//
// and copies key, value, content type and headers of the record to where the protocol has them. An
// adapter without a format sends the payload as it is, with headers of its own.
//
// Everything here is pure: no I/O, no clock, the same record for the same message forever.
package format

import (
	"fmt"

	"github.com/pgoutbox/outbox"
)

// Format describes records. Its implementations are plain structs.
type Format interface {
	// Bind checks the description and returns what encodes for a protocol.
	Bind(Binding) (Encoder, error)
}

// Encoder makes records. It may be used by several goroutines at once.
type Encoder interface {
	// Encode sets the exported fields of r to the record of m. They point into m and into r's memory, and
	// stay valid until r.Reset, even when other messages are encoded into r before. r is not to be used
	// by two goroutines at once.
	//
	// An error is marked with outbox.Permanent: there is no record for this message in this format.
	Encode(r *Record, m *outbox.Message) error
}

// Record is a message as its consumers get it.
type Record struct {
	Key         []byte // nil: none
	Value       []byte // nil: null, where the protocol knows the difference to empty
	ContentType string // "": not known
	Headers     []Header

	text    []byte
	scratch []byte
	pool    []Header // of all records since Reset
	first   int      // where this record's begin
}

// Header is a name with its value. Names may repeat no other of the record.
type Header struct {
	Name  string
	Value []byte
}

// Reset makes the memory of all records that were encoded into r free for the next ones. It gives back
// the memory of an unusually large batch.
func (r *Record) Reset() {
	const most = 16 << 20
	if cap(r.text) > most {
		r.text = nil
	}
	clear(r.pool) // names and values may be of messages
	*r = Record{text: r.text[:0], pool: r.pool[:0], scratch: r.scratch[:0]}
}

// begin makes room for a record.
func (r *Record) begin() {
	r.Key, r.Value, r.ContentType, r.Headers = nil, nil, "", nil
	r.first = len(r.pool)
	if r.text == nil {
		r.text = []byte{} // an empty key is not nil
	}
}

// copy keeps s as bytes.
func (r *Record) copy(s string) []byte {
	at := len(r.text)
	r.text = append(r.text, s...)
	return r.from(at)
}

// from returns what was appended to r.text since it had a length of at.
func (r *Record) from(at int) []byte { return r.text[at:len(r.text):len(r.text)] }

func (r *Record) header(name string, value []byte) {
	r.pool = append(r.pool, Header{name, value})
	r.Headers = r.pool[r.first:len(r.pool):len(r.pool)]
}

// Binding is a protocol, as far as formats differ by it.
type Binding uint8

// The protocols. AMQP is RabbitMQ's 0.9.1 as well: what the binding calls application properties are the
// headers of a message there. SQS, SNS, Redis and GRPC have no CloudEvents binding of their own; attributes
// are named as in HTTP, and in SQS and SNS, which don't take every character, encoded so too.
const (
	Kafka Binding = iota + 1
	NATS
	HTTP
	AMQP
	PubSub
	SQS
	SNS
	Redis
	GRPC
)

// prefix of the names of CloudEvents attributes.
func (b Binding) prefix() string {
	switch b {
	case Kafka:
		return "ce_"
	case AMQP:
		return "cloudEvents:"
	}
	return "ce-"
}

// percent means that values of CloudEvents attributes are percent-encoded.
func (b Binding) percent() bool { return b == NATS || b == HTTP || b == SQS || b == SNS }

func (b Binding) valid() error {
	if b < Kafka || b > GRPC {
		return fmt.Errorf("format: there is no binding %d", b)
	}
	return nil
}

func refuse(format string, args ...any) error {
	return outbox.Permanent(fmt.Errorf("format: "+format, args...))
}
