package outbox

import (
	"encoding/hex"
	"strings"
	"time"
)

// encodeHeaders returns the JSON object that the column headers holds, "" if there is no header.
func encodeHeaders(headers []Header, trace traceContext) string {
	trace = trace.missing(headers)
	if len(headers) == 0 && trace.parent == "" {
		return ""
	}
	b := make([]byte, 0, 256)
	b = append(b, '{')
	for _, h := range headers {
		b = appendHeader(b, h.Name, h.Value)
	}
	if trace.parent != "" {
		b = appendHeader(b, traceParent, trace.parent)
		if trace.state != "" {
			b = appendHeader(b, traceState, trace.state)
		}
	}
	b[len(b)-1] = '}'
	return string(b)
}

func appendHeader(b []byte, name, value string) []byte {
	b = appendJSON(b, name)
	b = append(b, ':')
	b = appendJSON(b, value)
	return append(b, ',')
}

// appendJSON quotes valid UTF-8. encoding/json would also rewrite <, > and &.
func appendJSON(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < 0x20:
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xf])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// batch holds messages by column, as insertMany takes them.
type batch struct {
	texts    [9][]string // the parameters in order, without the payload
	payloads [][]byte
}

const payloadParameter = 6

func newBatch(msgs []Message, ids []ID, traces *traces) *batch {
	b := &batch{payloads: make([][]byte, len(msgs))}
	cells := make([]string, len(b.texts)*len(msgs))
	for c := range b.texts {
		b.texts[c] = cells[c*len(msgs) : (c+1)*len(msgs)]
	}
	for i := range msgs {
		m := &msgs[i]
		for c, text := range [...]string{ids[i].String(), m.Topic, m.Key, m.AggregateType, m.AggregateID, m.EventType,
			m.ContentType, encodeHeaders(m.Headers, traces.context(i)), formatTime(m.DeliverAt)} {
			b.texts[c][i] = text
		}
		b.payloads[i] = m.Payload
	}
	return b
}

// slices are the parameters for pgx.
func (b *batch) slices() []any {
	return b.parameters(func(texts []string) any { return texts }, b.payloads)
}

// literals are the parameters for database/sql, which has no arrays: PostgreSQL's own notation.
func (b *batch) literals() []any {
	return b.parameters(func(texts []string) any { return textArray(texts) }, byteaArray(b.payloads))
}

func (b *batch) parameters(texts func([]string) any, payloads any) []any {
	args := make([]any, 0, len(b.texts)+1)
	for c := range b.texts {
		if c == payloadParameter {
			args = append(args, payloads)
		}
		args = append(args, texts(b.texts[c]))
	}
	return args
}

// textArray writes {"a","b"}.
func textArray(texts []string) string {
	size := 2
	for _, text := range texts {
		size += len(text) + 3
	}
	var b strings.Builder
	b.Grow(size + size/8)
	b.WriteByte('{')
	for i, text := range texts {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		for text != "" {
			j := strings.IndexAny(text, `"\`)
			if j < 0 {
				b.WriteString(text)
				break
			}
			b.WriteString(text[:j])
			b.WriteByte('\\')
			b.WriteByte(text[j])
			text = text[j+1:]
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// byteaArray writes {"\\x00ff",NULL}.
func byteaArray(payloads [][]byte) string {
	size := 2
	for _, payload := range payloads {
		size += 2*len(payload) + 8
	}
	b := make([]byte, 0, size)
	b = append(b, '{')
	for i, payload := range payloads {
		if i > 0 {
			b = append(b, ',')
		}
		if payload == nil {
			b = append(b, "NULL"...)
			continue
		}
		b = append(b, `"\\x`...)
		b = hex.AppendEncode(b, payload)
		b = append(b, '"')
	}
	return string(append(b, '}'))
}

// formatTime writes what PostgreSQL reads, in its own precision.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.999999Z07:00")
}

const insertColumns = `(message_id, topic, key, aggregate_type, aggregate_id, event_type, payload, content_type, headers, deliver_at)`
