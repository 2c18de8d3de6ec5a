package outbox

import (
	"context"
	"strings"
)

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
// is to be used then.
func ParseTraceParent(text string) (TraceParent, bool) {
	// 00-<32 digits>-<16 digits>-<2 digits>; what later versions add follows another "-".
	const size = 2 + 1 + 32 + 1 + 16 + 1 + 2
	if len(text) < size || text[2] != '-' || text[35] != '-' || text[52] != '-' {
		return TraceParent{}, false
	}
	version, trace, span, flags := text[:2], text[3:35], text[36:52], text[53:55]
	switch {
	case !hexadecimal(version) || !hexadecimal(trace) || !hexadecimal(span) || !hexadecimal(flags),
		strings.Trim(trace, "0") == "", strings.Trim(span, "0") == "",
		version == "ff", version == "00" && len(text) > size, len(text) > size && text[size] != '-':
		return TraceParent{}, false
	}
	return TraceParent{TraceID: trace, SpanID: span, Sampled: strings.IndexByte(digits, flags[1])&1 == 1}, true
}

const digits = "0123456789abcdef"

func hexadecimal(text string) bool { return strings.Trim(text, digits) == "" }

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

// begin asks Trace about the messages; without messages about all that follow.
func (w *Writer) begin(ctx context.Context, msgs []Message, ids []ID) *traces {
	if w.trace == nil {
		return nil
	}
	t := &traces{}
	if len(msgs) == 0 || len(msgs) > manyTraced {
		t.ask(w.trace(ctx, nil))
		return t
	}
	for i := range msgs {
		if _, ok := msgs[i].Header(traceParent); ok {
			t.each = append(t.each, traceContext{})
			continue
		}
		m := msgs[i]
		m.ID = ids[i]
		t.ask(w.trace(ctx, &m))
	}
	return t
}

// ask adds an answer of Trace. A malformed one is left out: tracing must not make a business transaction fail.
func (t *traces) ask(parent, state string, end func(error)) {
	if badText(parent) != "" {
		parent = ""
	}
	if badText(state) != "" {
		state = ""
	}
	t.each = append(t.each, traceContext{parent, state})
	if end != nil {
		t.ends = append(t.ends, end)
	}
}

// of returns the context of the message at a place.
func (t *traces) of(i int) traceContext {
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
