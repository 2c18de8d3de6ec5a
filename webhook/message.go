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
)

// SetHeaders writes all of m but its id and payload into h. The values are copies. An error is permanent: it
// names what HTTP can't carry.
func SetHeaders(h http.Header, m *outbox.Message) error {
	if err := setOwn(h, m.Headers, m.ContentType != ""); err != nil {
		return err
	}
	if m.ContentType != "" {
		h["Content-Type"] = []string{escape(m.ContentType, false)}
	}
	set := func(name, value string) {
		if value != "" {
			h[name] = []string{escape(value, true)}
		}
	}
	set("Outbox-Topic", m.Topic)
	set("Outbox-Key", m.Key)
	set("Outbox-Event-Type", m.EventType)
	set("Outbox-Aggregate-Type", m.AggregateType)
	set("Outbox-Aggregate-Id", m.AggregateID)
	if m.Position != 0 {
		h["Outbox-Position"] = []string{strconv.FormatInt(m.Position, 10)}
	}
	set("Outbox-Created-At", timestamp(m.CreatedAt))
	set("Outbox-Deliver-At", timestamp(m.DeliverAt))
	if m.Payload == nil {
		h["Outbox-Payload"] = []string{"null"}
	}
	return nil
}

// setOwn writes the message's own headers, and the list of their names. The message's content type, if it
// is set, wins over a header of that name.
func setOwn(h http.Header, own []outbox.Header, typed bool) error {
	var names strings.Builder
	for i := range own {
		name, value := strings.Clone(own[i].Name), strings.Clone(own[i].Value)
		if err := CheckHeader(name, value); err != nil {
			return outbox.Permanent(fmt.Errorf("webhook: %w", err))
		}
		canonical := http.CanonicalHeaderKey(name)
		if typed && canonical == "Content-Type" {
			continue
		}
		if _, twice := h[canonical]; twice {
			return outbox.Permanent(fmt.Errorf("webhook: there are two headers %q, which HTTP doesn't tell apart; rename one", canonical))
		}
		h[canonical] = []string{value}
		if names.Len() > 0 {
			names.WriteByte(',')
		}
		names.WriteString(name)
	}
	if names.Len() > 0 {
		h["Outbox-Headers"] = []string{names.String()}
	}
	return nil
}

// reserved are headers that direct the request or belong to the connection. The message must not set them.
var reserved = []string{
	"Authorization", "Connection", "Content-Length", "Expect", "Host", "Http2-Settings", "Keep-Alive", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// CheckHeader says why a request can't have a header with this name and value beside those that are defined here;
// nil if it can.
func CheckHeader(name, value string) error {
	if !isToken(name) {
		return fmt.Errorf("header name %q can't be sent: HTTP takes letters, digits and !#$%%&'*+-.^_`|~", shorten(name))
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

func isToken(name string) bool {
	for i := 0; i < len(name); i++ {
		c := name[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return name != ""
}

// ReadMessage returns the message that a request carries. The payload is body itself, or nil for NULL. A
// webhook that another product sent has an id of another form: the message's ID is then made of its hash, so
// that repeats still have the same one, and Topic and the other fields are empty.
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
			name = strings.TrimSpace(name)
			if strings.EqualFold(name, "Content-Type") {
				m.ContentType = "" // it was a header, and is read as one
			}
			m.Headers = append(m.Headers, outbox.Header{Name: name, Value: h.Get(name)})
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

// idOf reads a message id; of anything else it makes a UUID of version 8 from its SHA-256.
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

func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// escape percent-encodes what a header can't carry unchanged through every server; all also what would be
// taken for an escape, and what is not ASCII. The result is a copy.
func escape(s string, all bool) string {
	first := 0
	for first < len(s) && !mustEscape(s, first, all) {
		first++
	}
	if first == len(s) {
		return strings.Clone(s)
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, first, len(s)+32)
	copy(b, s)
	for i := first; i < len(s); i++ {
		if c := s[i]; mustEscape(s, i, all) {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func mustEscape(s string, i int, all bool) bool {
	c := s[i]
	return c < ' ' || c == 0x7f || c == ' ' && (i == 0 || i == len(s)-1) || all && (c == '%' || c > 0x7f)
}

func shorten(s string) string {
	const most = 100
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
