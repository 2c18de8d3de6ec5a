package outbox

import "context"

// Names of W3C's trace context.
const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

// TraceParent is the place in a trace at which a message was created, as W3C's header traceparent has it. Package
// oteloutbox makes spans of it.
type TraceParent struct {
	TraceID string // 32 hexadecimal digits in lower case
	SpanID  string // 16
	Sampled bool   // whether the trace is recorded
}

// ParseTraceParent reads the value of a header traceparent. It is false for one that breaks W3C's rules: nothing of it
// is to be used then. Relays read that of every message, so it is one pass.
func ParseTraceParent(text string) (TraceParent, bool) {
	// 00-<32 digits>-<16 digits>-<2 digits>; what later versions add follows another "-".
	const size = 2 + 1 + 32 + 1 + 16 + 1 + 2
	if len(text) < size || len(text) > size && (text[:2] == "00" || text[size] != '-') || text[:2] == "ff" {
		return TraceParent{}, false
	}
	var digits [4]byte // the parts' digits, one or the other: 0 if all are
	part := 0
	for i := range size {
		switch c := text[i]; {
		case i == 2 || i == 35 || i == 52:
			if c != '-' {
				return TraceParent{}, false
			}
			part++
		case c >= '0' && c <= '9':
			digits[part] |= c - '0'
		case c >= 'a' && c <= 'f':
			digits[part] |= c - 'a' + 10
		default:
			return TraceParent{}, false
		}
	}
	if digits[1] == 0 || digits[2] == 0 {
		return TraceParent{}, false
	}
	last := text[size-1]
	if last >= 'a' {
		last -= 'a' - 10
	}
	return TraceParent{TraceID: text[3:35], SpanID: text[36:52], Sampled: last&1 == 1}, true
}

// TraceParent returns what the message's header traceparent says, false if there is none or it is malformed. The
// strings are parts of the header, so they live as long as the message does.
func (m *Message) TraceParent() (TraceParent, bool) {
	text, ok := m.Header(traceParent)
	if !ok {
		return TraceParent{}, false
	}
	return ParseTraceParent(text)
}

type traceContext struct{ parent, state string }

// manyTraced is the number of messages of a Write that have a span each.
const manyTraced = 100

// traces are the contexts of the messages of one Write. nil is that of a writer without Trace.
type traces struct {
	each []traceContext // one if the messages share it
	ends []func(error)
}

// tracer is WriterConfig.Trace.
type tracer func(ctx context.Context, msg *Message) (traceparent, tracestate string, end func(error))

// begin asks for the contexts of the messages; without messages for one of all that follow.
func (trace tracer) begin(ctx context.Context, msgs []Message, ids []ID) *traces {
	if trace == nil {
		return nil
	}
	t := &traces{}
	if len(msgs) == 0 || len(msgs) > manyTraced {
		t.add(trace(ctx, nil))
		return t
	}
	for i := range msgs {
		if _, ok := msgs[i].Header(traceParent); ok {
			t.each = append(t.each, traceContext{})
			continue
		}
		m := msgs[i]
		m.ID = ids[i]
		t.add(trace(ctx, &m))
	}
	return t
}

// add adds what Trace has returned. What is malformed is left out: tracing must not make a business transaction fail.
func (t *traces) add(parent, state string, end func(error)) {
	if textFault(parent) != "" {
		parent = ""
	}
	if textFault(state) != "" {
		state = ""
	}
	t.each = append(t.each, traceContext{parent, state})
	if end != nil {
		t.ends = append(t.ends, end)
	}
}

// context returns that of the message with an index.
func (t *traces) context(i int) traceContext {
	switch {
	case t == nil:
		return traceContext{}
	case i >= len(t.each):
		return t.each[0]
	}
	return t.each[i]
}

func (t *traces) end(err error) {
	if t == nil {
		return
	}
	for _, end := range t.ends {
		end(err)
	}
}

// missing returns the part of t to add to headers, nothing if that would exceed their limits.
func (t traceContext) missing(headers []Header) traceContext {
	if t.parent == "" {
		return traceContext{}
	}
	size := len(traceParent) + len(t.parent) + len(traceState) + len(t.state)
	for _, h := range headers {
		if h.Name == traceParent || h.Name == traceState {
			return traceContext{} // the two belong together
		}
		size += len(h.Name) + len(h.Value)
	}
	if len(headers)+2 > MaxHeaders || size > MaxHeaderBytes {
		return traceContext{}
	}
	return t
}
