package amazon

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/printed"
)

// Limits that SQS and SNS share.
const (
	RequestEntries = 10  // messages per request
	maxAttributes  = 10  // per message
	maxName        = 256 // bytes of an attribute's name
	maxGroup       = 128 // characters of a group
)

// Entry is a message in the form of SQS and SNS.
type Entry struct {
	Body       string
	Attributes []Attribute // at most ten, all of the type String
	Group, ID  *string     // message group and deduplication id, nil for targets that aren't FIFO
	Size       int         // as the services count: the body, and the names, types and values of attributes
}

// Attribute is a message attribute.
type Attribute struct{ Name, Value string }

// Values returns the attributes of e in the form of a service's client; value makes one of a type and a text.
func Values[V any](e *Entry, value func(kind, text *string) V) map[string]V {
	all := make(map[string]V, len(e.Attributes))
	for i := range e.Attributes {
		all[e.Attributes[i].Name] = value(aws.String("String"), &e.Attributes[i].Value)
	}
	return all
}

// Payload is how payloads become bodies. A body is text: UTF-8 without most control characters, and not empty.
type Payload string

const (
	PayloadAuto   Payload = "auto"   // text unchanged, other payloads in base64
	PayloadText   Payload = "text"   // text unchanged, other payloads are refused
	PayloadBase64 Payload = "base64" // everything in base64
)

func (p Payload) check() error {
	switch p {
	case PayloadAuto, PayloadText, PayloadBase64:
		return nil
	}
	return fmt.Errorf("%q: use auto, text or base64", string(p))
}

// The attributes that we add; see the wire format in the packages' documentation.
const (
	attributePayload = "outbox-payload"
	attributeHeaders = "outbox-headers"
	contentType      = "content-type"
)

// encode returns m as it is sent to t: in the format of records, or without a format its payload with our attributes.
func (p Payload) encode(m *outbox.Message, t *Target, records format.Encoder) (e Entry, err error) {
	id := m.ID.String()
	if records != nil {
		err = p.formatted(&e, m, records)
	} else {
		err = p.plain(&e, m, id, t)
	}
	if err != nil {
		return e, err
	}
	e.Size = len(e.Body)
	for _, a := range e.Attributes {
		e.Size += len(a.Name) + len("String") + len(a.Value)
	}
	if t.FIFO {
		e.Group, e.ID = aws.String(group(m, id)), &id
	}
	return e, nil
}

// plain sets body and attributes of a message that has no format.
func (p Payload) plain(e *Entry, m *outbox.Message, id string, t *Target) error {
	body, form, err := p.body(m.Payload)
	if err != nil {
		return err
	}
	e.Body = body
	for i := range m.Headers {
		if name := m.Headers[i].Name; outbox.ReservedHeader(name) {
			return reserved(name)
		}
	}
	topic := m.Topic
	if topic == t.Topic {
		topic = ""
	}
	created := ""
	if !m.CreatedAt.IsZero() {
		created = m.CreatedAt.UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	}
	// The first ten become attributes, where libraries look for them: the trace, the fields that a consumer needs, and
	// those that subscriptions filter by. The queue has its own time of sending.
	all := make([]Attribute, 0, maxAttributes+len(m.Headers))
	own := func(name, value string) {
		if value != "" {
			all = append(all, Attribute{name, value})
		}
	}
	headers := func(trace bool) {
		for i := range m.Headers {
			h := &m.Headers[i]
			if isTrace(h.Name) == trace && (m.ContentType == "" || !strings.EqualFold(h.Name, contentType)) {
				all = append(all, Attribute{h.Name, h.Value})
			}
		}
	}
	headers(true)
	own("outbox-id", id)
	own(attributePayload, form)
	own(contentType, m.ContentType)
	own("outbox-event-type", m.EventType)
	own("outbox-key", m.Key)
	own("outbox-aggregate-type", m.AggregateType)
	own("outbox-aggregate-id", m.AggregateID)
	own("outbox-topic", topic)
	headers(false)
	own("outbox-created-at", created)
	e.Attributes = arrange(all)
	return nil
}

// isTrace reports whether a header carries the context of a trace.
func isTrace(name string) bool {
	return strings.EqualFold(name, "traceparent") || strings.EqualFold(name, "tracestate") || strings.EqualFold(name, "baggage")
}

func reserved(name string) error {
	return refuse("header %q can't be sent: names with the prefix outbox- are reserved; rename it", printed.Short(name))
}

// body returns the body of a payload, and what the consumer must know to read it.
func (p Payload) body(payload []byte) (body, form string, err error) {
	switch {
	case payload == nil:
		return "null", "null", nil
	case len(payload) == 0:
		return " ", "empty", nil
	case p != PayloadBase64 && isText(payload):
		return string(payload), "", nil
	case p == PayloadText:
		return "", "", outbox.Permanent(fmt.Errorf("the payload can't be sent as text: only UTF-8 without control " +
			"characters can; allow base64 for it"))
	}
	return base64.StdEncoding.EncodeToString(payload), "base64", nil
}

// arrange makes as many as possible of all into attributes of their own, in this order, and puts the others into one
// attribute as a JSON object.
func arrange(all []Attribute) []Attribute {
	fit := func(room int) (own, rest []Attribute) {
		own = make([]Attribute, 0, maxAttributes)
		names := make(map[string]struct{}, room)
		for _, a := range all {
			_, twice := names[a.Name]
			if len(own) == room || twice || !isAttributeName(a.Name) || a.Value == "" || !isText([]byte(a.Value)) {
				rest = append(rest, a)
				continue
			}
			names[a.Name] = struct{}{}
			own = append(own, a)
		}
		return own, rest
	}
	own, rest := fit(maxAttributes)
	if len(rest) == 0 {
		return own
	}
	if own, rest = fit(maxAttributes - 1); len(rest) > 0 {
		own = append(own, Attribute{attributeHeaders, object(rest)})
	}
	return own
}

// object returns attributes as a JSON object, in text that SQS and SNS accept.
func object(all []Attribute) string {
	var b bytes.Buffer
	for i, a := range all {
		b.WriteByte("{,"[min(i, 1)])
		quote(&b, a.Name)
		b.WriteByte(':')
		quote(&b, a.Value)
	}
	b.WriteByte('}')
	return b.String()
}

func quote(b *bytes.Buffer, s string) {
	text, _ := json.Marshal(s) // a string can always be marshalled
	text = bytes.ReplaceAll(text, []byte("\ufffe"), []byte(`\ufffe`))
	b.Write(bytes.ReplaceAll(text, []byte("\uffff"), []byte(`\uffff`)))
}

// isText reports whether b has only characters that SQS accepts.
func isText(b []byte) bool {
	ascii := true
	for _, c := range b {
		if c < ' ' && c != '\t' && c != '\n' && c != '\r' {
			return false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	return ascii || utf8.Valid(b) && !bytes.Contains(b, []byte("\ufffe")) && !bytes.Contains(b, []byte("\uffff"))
}

// isAttributeName reports whether an attribute may have this name.
func isAttributeName(name string) bool {
	if name == "" || len(name) > maxName || name[0] == '.' || name[len(name)-1] == '.' || strings.Contains(name, "..") {
		return false
	}
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	lower := strings.ToLower(name)
	return !strings.HasPrefix(lower, "aws.") && !strings.HasPrefix(lower, "amazon.")
}

// group returns the message group of m: its ordering key, or a hash of the key if the key can't be a group. A message
// without a key has a group of its own.
func group(m *outbox.Message, id string) string {
	key := m.OrderingKey()
	if key == "" {
		return id
	}
	fits := len(key) <= maxGroup
	for i := 0; i < len(key) && fits; i++ {
		fits = key[i] > ' ' && key[i] < 0x7f
	}
	if fits {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}
