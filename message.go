package outbox

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// Message is one event: what a service writes into the outbox and what a relay passes to a broker.
//
// A writer sets Topic and Payload, nearly always Key or AggregateID, and whatever else its consumers need. A relay
// delivers every field unchanged. Strings are UTF-8.
type Message struct {
	// ID identifies the message forever: every repeat of a delivery carries the same one, so consumers deduplicate by
	// it. If it is zero, the writer generates a UUIDv7.
	ID ID

	// Topic is where the message goes; brokers map it to a Kafka topic, a NATS subject and so on.
	// Required, at most MaxTopicBytes long.
	Topic string

	// Key orders: messages with the same key are first seen by the broker in the order in which their transactions
	// locked that key's row. Empty means AggregateID; if that is empty too, the message has no order. Order is per key
	// across topics.
	Key string

	AggregateType string
	AggregateID   string
	EventType     string

	// Payload is delivered byte for byte. nil is stored as NULL, which Kafka consumers see as a tombstone.
	Payload     []byte
	ContentType string

	// Headers travel beside the payload. Names are unique and matched exactly. They consist of ASCII letters, digits
	// and !#$%&'*+-.^_`|~, which every protocol can carry, and must not be a ReservedHeader. Values must not contain
	// CR, LF or NUL. A Writer with a Trace function fills "traceparent" and "tracestate".
	Headers []Header

	// DeliverAt, if in the future, holds back the message, and later ones with the same key, until then. Give delayed
	// messages a key of their own.
	DeliverAt time.Time

	// CreatedAt is set by the database when the row is inserted; a writer leaves it zero.
	CreatedAt time.Time

	// Position is the row's id, set by the relay. Within a key it grows in delivery order; positions of different keys
	// can't be compared. Zero before delivery.
	Position int64
}

// ReservedHeader reports whether a header's name begins with "outbox-", in upper or lower case. Relays write such
// headers beside a message's own.
func ReservedHeader(name string) bool {
	const prefix = "outbox-"
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// Header is one name with its value.
type Header struct {
	Name  string
	Value string
}

// Header returns the value of the named header and whether there is one.
func (m *Message) Header(name string) (string, bool) {
	for i := range m.Headers {
		if m.Headers[i].Name == name {
			return m.Headers[i].Value, true
		}
	}
	return "", false
}

// OrderingKey returns the key that orders m: Key, else AggregateID, else "" for a message without order.
func (m *Message) OrderingKey() string {
	if m.Key != "" {
		return m.Key
	}
	return m.AggregateID
}

// ID is a UUID.
type ID [16]byte

// NewID returns a UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then random bits. Safe for
// concurrent use.
func NewID() ID {
	var id ID
	// rand.Read never fails and fills the buffer entirely, by its contract.
	_, _ = rand.Read(id[6:])
	now := uint64(time.Now().UnixMilli())
	binary.BigEndian.PutUint16(id[0:2], uint16(now>>32))
	binary.BigEndian.PutUint32(id[2:6], uint32(now))
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

// IsZero reports whether id is unset.
func (id ID) IsZero() bool { return id == ID{} }

// String returns the canonical form, 36 characters in lower case.
func (id ID) String() string {
	var b [36]byte
	id.encode(b[:])
	return string(b[:])
}

// AppendText appends the canonical form to b.
func (id ID) AppendText(b []byte) ([]byte, error) {
	var text [36]byte
	id.encode(text[:])
	return append(b, text[:]...), nil
}

// MarshalText returns the canonical form.
func (id ID) MarshalText() ([]byte, error) { return id.AppendText(nil) }

// UnmarshalText reads what ParseID reads.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, err := ParseID(string(text))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

func (id ID) encode(dst []byte) {
	hex.Encode(dst[0:8], id[0:4])
	dst[8] = '-'
	hex.Encode(dst[9:13], id[4:6])
	dst[13] = '-'
	hex.Encode(dst[14:18], id[6:8])
	dst[18] = '-'
	hex.Encode(dst[19:23], id[8:10])
	dst[23] = '-'
	hex.Encode(dst[24:36], id[10:16])
}

// ParseID reads the canonical form of a UUID, in either case.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return ID{}, errNotUUID(s)
	}
	compact := s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36]
	if _, err := hex.Decode(id[:], []byte(compact)); err != nil {
		return ID{}, errNotUUID(s)
	}
	return id, nil
}

func errNotUUID(s string) error {
	if len(s) > 40 {
		s = s[:40] + "…"
	}
	return fmt.Errorf("outbox: %q is not a UUID such as 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f", s)
}

// Limits of a message, checked by the Writer and by the SQL function outbox.publish. MaxPayloadBytes is
// a default that WriterConfig can change.
const (
	MaxTopicBytes   = 249 // Kafka's limit, the lowest of the brokers
	MaxKeyBytes     = 1024
	MaxHeaders      = 64
	MaxHeaderBytes  = 32 << 10  // all names and values together
	MaxPayloadBytes = 1_000_000 // leaves room for headers below the 1 MiB that Kafka and NATS take by default
)
