package nats

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/headers"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/template"
)

// subject builds the subjects of messages.
type subject struct{ *template.Template }

func parseSubject(text string) (subject, error) {
	t, err := template.Parse(text)
	if err != nil {
		return subject{}, fmt.Errorf("subject template %q: %w", text, err)
	}
	if strings.HasPrefix(text, "$JS.") || strings.HasPrefix(text, "$SYS.") {
		return subject{}, fmt.Errorf("subject template %q: these subjects command the server", text)
	}
	// With a plain token in place of every field, the fault is the template's own.
	if fault := subjectFault(t.With("x")); fault != "" {
		return subject{}, fmt.Errorf("subject template %q %s", text, fault)
	}
	return subject{t}, nil
}

// expanded returns m's subject, or a permanent error if NATS doesn't accept it.
func (s subject) expanded(m *outbox.Message) (string, error) {
	subject := s.Expand(m)
	if fault := subjectFault(subject); fault != "" {
		return "", outbox.Permanent(fmt.Errorf("nats: subject %q %s; change the message's topic or the subject template",
			printed.Short(subject), fault))
	}
	// A topic must not become a command such as $JS.API.STREAM.PURGE.ORDERS, or the answer to another client's request.
	first, _, _ := strings.Cut(subject, ".")
	if (first[0] == '$' || slices.Contains(inboxes, first)) && !s.decides(first) {
		return "", outbox.Permanent(fmt.Errorf("nats: subject %q begins with %s, which is the server's own or the "+
			"clients'; change the message's topic", printed.Short(subject), first))
	}
	return subject, nil
}

// inboxes begin the subjects of answers, which belong to the clients that wait for them.
var inboxes = []string{"_INBOX", "_R_", "_GR_"}

// decides reports whether the template itself fixes first as the first token.
func (s subject) decides(first string) bool {
	rest, ok := strings.CutPrefix(s.Literals[0], first)
	return ok && (s.Constant() || strings.HasPrefix(rest, "."))
}

// ofStream returns the subjects that a stream must accept for all subjects of s, nil if that is everything.
func (s subject) ofStream() []string {
	if s.Constant() {
		return []string{s.Literals[0]}
	}
	// A literal that ends inside a token, as in "events.v1-{topic}", is cut back to whole tokens.
	dot := strings.LastIndexByte(s.Literals[0], '.')
	if dot < 0 {
		return nil
	}
	return []string{s.Literals[0][:dot] + ".>"}
}

// subjectFault returns why subject is unfit for publishing, "" if it is fit.
func subjectFault(subject string) string {
	if subject == "" {
		return "is empty"
	}
	if len(subject) > longestNATSSubject {
		return "is longer than " + strconv.Itoa(longestNATSSubject) + " bytes"
	}
	before := byte('.')
	for i := 0; i < len(subject); i++ {
		c := subject[i]
		switch {
		case c <= ' ' || c == 0x7f:
			return "contains a space or a control character"
		case c == '*' || c == '>':
			return "contains a wildcard"
		case c == '.' && before == '.':
			return "has an empty token (a field of the message may be empty)"
		}
		before = c
	}
	if before == '.' {
		return "has an empty token (a field of the message may be empty)"
	}
	return ""
}

// encoder turns messages into NATS messages, one at a time in the same memory.
type encoder struct {
	subject subject
	stream  string
	records format.Encoder // nil: payloads as they are, with our own headers
	record  format.Record
	msg     nats.Msg
	values  []string
	text    []byte // of the values of a formatted record
}

func newEncoder(subject subject, stream string, records format.Encoder) *encoder {
	return &encoder{subject: subject, stream: stream, records: records, msg: nats.Msg{Header: make(nats.Header, 8)}}
}

// encode returns m as a NATS message without reply subject, valid until the next call.
func (e *encoder) encode(m *outbox.Message) (*nats.Msg, error) {
	subject, err := e.subject.expanded(m)
	if err != nil {
		return nil, err
	}
	clear(e.msg.Header)
	if e.records != nil {
		return e.formatted(m, subject)
	}
	if need := len(m.Headers) + 12; cap(e.values) < need {
		e.values = make([]string, 0, need)
	}
	e.values = e.values[:0]

	for i := range m.Headers {
		h := &m.Headers[i]
		if err := checkHeader(h.Name, h.Value); err != nil {
			return nil, err
		}
		if m.ContentType != "" && strings.EqualFold(h.Name, "Content-Type") {
			continue
		}
		e.set(h.Name, h.Value)
	}
	e.set(nats.MsgIdHdr, m.ID.String())
	if e.stream != "" {
		e.set(nats.ExpectedStreamHdr, e.stream)
	}
	if subject != m.Topic {
		e.setText("Outbox-Topic", m.Topic)
	}
	e.setText("Content-Type", m.ContentType)
	e.setText("Outbox-Key", m.Key)
	e.setText("Outbox-Event-Type", m.EventType)
	e.setText("Outbox-Aggregate-Type", m.AggregateType)
	e.setText("Outbox-Aggregate-Id", m.AggregateID)
	if m.Position != 0 {
		e.set("Outbox-Position", strconv.FormatInt(m.Position, 10))
	}
	if !m.CreatedAt.IsZero() {
		e.set("Outbox-Created-At", m.CreatedAt.UTC().Format(time.RFC3339Nano))
	}
	if !m.DeliverAt.IsZero() {
		e.set("Outbox-Deliver-At", m.DeliverAt.UTC().Format(time.RFC3339Nano))
	}
	if m.Payload == nil {
		e.set("Outbox-Payload", "null")
	}
	e.msg.Subject, e.msg.Data = subject, m.Payload
	return &e.msg, nil
}

// formatted returns m in its format.
func (e *encoder) formatted(m *outbox.Message, subject string) (*nats.Msg, error) {
	e.record.Reset()
	if err := e.records.Encode(&e.record, m); err != nil {
		return nil, err
	}
	// All values share one text, because each by itself would be an allocation.
	e.text = e.text[:0]
	for i := range e.record.Headers {
		h := &e.record.Headers[i]
		if err := checkHeader(h.Name, h.Value); err != nil {
			return nil, err
		}
		e.text = append(e.text, h.Value...)
	}
	text := string(e.text)
	e.values = slices.Grow(e.values[:0], len(e.record.Headers)+3)
	for i := range e.record.Headers {
		h := &e.record.Headers[i]
		e.set(h.Name, text[:len(h.Value)])
		text = text[len(h.Value):]
	}
	e.set(nats.MsgIdHdr, m.ID.String())
	if e.stream != "" {
		e.set(nats.ExpectedStreamHdr, e.stream)
	}
	e.setText("Content-Type", e.record.ContentType)
	e.msg.Subject, e.msg.Data = subject, e.record.Value
	return &e.msg, nil
}

// release drops references to the data of Publish's caller.
func (e *encoder) release() {
	e.record.Reset()
	clear(e.msg.Header)
	clear(e.values[:cap(e.values)])
	e.msg.Subject, e.msg.Reply, e.msg.Data = "", "", nil
}

func (e *encoder) set(name, value string) {
	n := len(e.values)
	e.values = append(e.values, value)
	e.msg.Header[name] = e.values[n : n+1 : n+1]
}

func (e *encoder) setText(name, value string) {
	if value != "" {
		e.set(name, escape(value))
	}
}

// checkHeader refuses names and values that the wire can't carry, or that have another meaning: a Nats- header is a
// command to the server (Nats-Rollup empties a stream), an Outbox- header is ours.
func checkHeader[T string | []byte](name string, value T) error {
	if !headers.IsToken(name) {
		return outbox.Permanent(fmt.Errorf("nats: header name %q can't be sent: NATS takes letters, digits and !#$%%&'*+-.^_`|~",
			printed.Short(name)))
	}
	if hasPrefixFold(name, "Nats-") || outbox.ReservedHeader(name) {
		return outbox.Permanent(fmt.Errorf("nats: header %q can't be sent: names with the prefixes Nats- and Outbox- "+
			"are reserved; rename it", name))
	}
	for i := range len(value) {
		if c := value[i]; c == '\r' || c == '\n' || c == 0 {
			return outbox.Permanent(fmt.Errorf("nats: the value of header %q contains a line break or NUL", name))
		}
	}
	return nil
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// escape percent-encodes what a NATS header can't carry unchanged, and the percent sign itself.
func escape(s string) string {
	first := -1
	for i := 0; i < len(s); i++ {
		if mustEscape(s, i) {
			first = i
			break
		}
	}
	if first < 0 {
		return s
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, first, len(s)+8)
	copy(b, s)
	for i := first; i < len(s); i++ {
		if mustEscape(s, i) {
			b = append(b, '%', hex[s[i]>>4], hex[s[i]&15])
		} else {
			b = append(b, s[i])
		}
	}
	return string(b)
}

func mustEscape(s string, i int) bool {
	c := s[i]
	return c < ' ' || c == 0x7f || c == '%' || c == ' ' && (i == 0 || i == len(s)-1)
}
