package webhook

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/headers"
	"github.com/pgoutbox/outbox/internal/printed"
)

// SetHeaders writes all of m except its id and payload into h. The values are copies. An error is permanent and names
// what HTTP can't carry.
func SetHeaders(h http.Header, m *outbox.Message) error {
	w := newHeaderWriter(h, m)
	if err := w.own(m.Headers, m.ContentType != ""); err != nil {
		return err
	}
	if m.ContentType != "" {
		w.set("Content-Type", m.ContentType, false)
	}
	w.set("Outbox-Topic", m.Topic, true)
	w.set("Outbox-Key", m.Key, true)
	w.set("Outbox-Event-Type", m.EventType, true)
	w.set("Outbox-Aggregate-Type", m.AggregateType, true)
	w.set("Outbox-Aggregate-Id", m.AggregateID, true)
	if m.Position != 0 {
		var digits [20]byte
		w.text.Write(strconv.AppendInt(digits[:0], m.Position, 10))
		w.end("Outbox-Position")
	}
	w.time("Outbox-Created-At", m.CreatedAt)
	w.time("Outbox-Deliver-At", m.DeliverAt)
	if m.Payload == nil {
		w.set("Outbox-Payload", "null", false)
	}
	return nil
}

// headerWriter writes all values into one text and their slices into one array, so a message costs two allocations
// instead of two per header.
type headerWriter struct {
	h      http.Header
	text   strings.Builder
	begun  int // where the current value begins in text
	values []string
}

func newHeaderWriter(h http.Header, m *outbox.Message) *headerWriter {
	const ours, numbers = 12, 20 + 2*len(time.RFC3339Nano) + len("null")
	size := numbers + len(m.ContentType) + len(m.Topic) + len(m.Key) + len(m.EventType) + len(m.AggregateType) + len(m.AggregateID)
	for i := range m.Headers {
		size += 2*len(m.Headers[i].Name) + len(m.Headers[i].Value) + 1
	}
	w := &headerWriter{h: h, values: make([]string, 0, ours+len(m.Headers))}
	w.text.Grow(size)
	return w
}

// cut returns the text since the last cut.
func (w *headerWriter) cut() string {
	text := w.text.String()[w.begun:]
	w.begun = w.text.Len()
	return text
}

// end makes the text since the last cut the value of a header.
func (w *headerWriter) end(name string) {
	w.values = append(w.values, w.cut())
	last := len(w.values)
	w.h[name] = w.values[last-1 : last : last]
}

// set writes a header, unless value is empty. See escape.
func (w *headerWriter) set(name, value string, all bool) {
	if value != "" {
		escape(&w.text, value, all)
		w.end(name)
	}
}

func (w *headerWriter) time(name string, t time.Time) {
	if !t.IsZero() {
		var text [len(time.RFC3339Nano)]byte
		w.text.Write(t.UTC().AppendFormat(text[:0], time.RFC3339Nano))
		w.end(name)
	}
}

// percentMark follows, in the list of names, the name of a header whose value is percent-encoded. No name contains it.
const percentMark = ";percent"

// own writes the message's own headers, and the list of their names. A value that every server passes on is sent
// unchanged, with its percent signs, which have a meaning in baggage; any other value is percent-encoded. The message's
// content type, if set, overrides a header of that name.
func (w *headerWriter) own(own []outbox.Header, typed bool) error {
	var sent []string // names
	for i := range own {
		w.text.WriteString(own[i].Name)
		name := w.cut()
		if err := CheckHeader(name, ""); err != nil {
			return outbox.Permanent(fmt.Errorf("webhook: %w", err))
		}
		canonical := http.CanonicalHeaderKey(name)
		if typed && canonical == "Content-Type" {
			continue
		}
		if _, twice := w.h[canonical]; twice {
			return outbox.Permanent(fmt.Errorf("webhook: there are two headers %q, which HTTP doesn't tell apart; rename one", canonical))
		}
		encoded := !plain(own[i].Value)
		if encoded {
			escape(&w.text, own[i].Value, true)
		} else {
			w.text.WriteString(own[i].Value)
		}
		w.end(canonical)
		if encoded {
			name += percentMark
		}
		sent = append(sent, name)
	}
	for i, name := range sent {
		if i > 0 {
			w.text.WriteByte(',')
		}
		w.text.WriteString(name)
	}
	if len(sent) > 0 {
		w.end("Outbox-Headers")
	}
	return nil
}

// reserved are headers that direct the request or belong to the connection. A message must not set them.
var reserved = []string{
	"Authorization", "Connection", "Content-Length", "Expect", "Host", "Http2-Settings", "Keep-Alive", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// CheckHeader returns why a request can't have this header in addition to those defined here; nil if it can.
func CheckHeader(name, value string) error {
	if !headers.IsToken(name) {
		return fmt.Errorf("header name %q can't be sent: HTTP takes letters, digits and !#$%%&'*+-.^_`|~", printed.Short(name))
	}
	canonical := http.CanonicalHeaderKey(name)
	if strings.HasPrefix(canonical, "Webhook-") || strings.HasPrefix(canonical, "Outbox-") || slices.Contains(reserved, canonical) {
		return fmt.Errorf("header %q can't be sent: the name is reserved for the request itself; rename it", name)
	}
	for i := 0; i < len(value); i++ {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return fmt.Errorf("the value of header %q contains a control character", name)
		}
	}
	return nil
}

// ReadMessage returns the message in a request. The payload is body itself, or nil for NULL. A webhook of another
// product has an id of another form: the message's ID is then derived from its hash, so repeats still have the same
// one, and Topic and the other fields are empty.
func ReadMessage(h http.Header, body []byte) (*outbox.Message, error) {
	r := reader{h: h}
	m := &outbox.Message{
		ID:            idOf(h.Get(HeaderID)),
		Topic:         r.text("Outbox-Topic"),
		Key:           r.text("Outbox-Key"),
		AggregateType: r.text("Outbox-Aggregate-Type"),
		AggregateID:   r.text("Outbox-Aggregate-Id"),
		EventType:     r.text("Outbox-Event-Type"),
		ContentType:   h.Get("Content-Type"),
		Position:      r.number("Outbox-Position"),
		CreatedAt:     r.time("Outbox-Created-At"),
		DeliverAt:     r.time("Outbox-Deliver-At"),
	}
	if h.Get("Outbox-Payload") != "null" {
		m.Payload = body
		if body == nil {
			m.Payload = []byte{}
		}
	}
	if names := h.Get("Outbox-Headers"); names != "" {
		for name := range strings.SplitSeq(names, ",") {
			name, encoded := strings.CutSuffix(strings.TrimSpace(name), percentMark)
			value := h.Get(name)
			if encoded {
				value = r.text(name)
			}
			if strings.EqualFold(name, "Content-Type") {
				m.ContentType = "" // it was sent as a header, and is read as one
			}
			m.Headers = append(m.Headers, outbox.Header{Name: name, Value: value})
		}
	}
	return m, r.err
}

// reader reads fields and remembers the first that is malformed.
type reader struct {
	h   http.Header
	err error
}

func (r *reader) text(name string) string {
	text, err := url.PathUnescape(r.h.Get(name))
	r.note(name, err)
	return text
}

func (r *reader) number(name string) int64 {
	text := r.h.Get(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	r.note(name, err)
	return n
}

func (r *reader) time(name string) time.Time {
	text := r.text(name)
	if text == "" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	r.note(name, err)
	return at
}

func (r *reader) note(name string, err error) {
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("webhook: header %s: %w", name, err)
	}
}

var errNoMessages = errors.New("webhook: a batch without messages")

// idOf reads a message id; it turns any other text into a UUID of version 8 from its SHA-256.
func idOf(text string) outbox.ID {
	id, err := outbox.ParseID(text)
	if err != nil {
		sum := sha256.Sum256([]byte(text))
		copy(id[:], sum[:])
		id[6] = id[6]&0x0f | 0x80
		id[8] = id[8]&0x3f | 0x80
	}
	return id
}

// escape writes s and percent-encodes what not every server passes on unchanged; with all, also what would be taken for
// an escape, and what is not ASCII.
func escape(b *strings.Builder, s string, all bool) {
	const hex = "0123456789ABCDEF"
	plain := 0 // where the unescaped part begins
	for i := 0; i < len(s); i++ {
		if mustEscape(s, i, all) {
			b.WriteString(s[plain:i])
			b.WriteByte('%')
			b.WriteByte(hex[s[i]>>4])
			b.WriteByte(hex[s[i]&15])
			plain = i + 1
		}
	}
	b.WriteString(s[plain:])
}

// plain reports whether s can be a header's value unchanged: printable ASCII, without spaces at the ends.
func plain(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] > 0x7e || mustEscape(s, i, false) {
			return false
		}
	}
	return true
}

func mustEscape(s string, i int, all bool) bool {
	c := s[i]
	return c < ' ' || c == 0x7f || c == ' ' && (i == 0 || i == len(s)-1) || all && (c == '%' || c > 0x7f)
}
