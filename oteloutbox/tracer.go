// Package oteloutbox makes OpenTelemetry's spans of a message: one when it is created, one for each time it is sent,
// and one when it is processed, by the semantic conventions for messaging.
//
//	tracer := oteloutbox.New(nil) // the global provider
//	writer, err := outbox.NewWriter(outbox.WriterConfig{Trace: tracer.Create})
//	box, err := inbox.New("payments", inbox.Config{Tracer: tracer})
//	observer := tracer.Observer(oteloutbox.Sending{System: "kafka"}, nil)
//	r, err := relay.New(source, broker, relay.Config{Observer: observer})
//
// The context of the create span travels in the message's headers traceparent and tracestate. It is the parent of the
// others, so a request and its effects are one trace; they also have a link to it, which the conventions ask for. Of a
// trace that isn't sampled, nothing is made after the writer. docs/telemetry.md describes it for users.
package oteloutbox

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/internal/printed"
)

// Scope is the name of the instrumentation that made a span.
const Scope = "github.com/pgoutbox/outbox/oteloutbox"

// Attributes that the conventions don't have.
const (
	EventType   = attribute.Key("messaging.pgoutbox.event_type")
	Destination = attribute.Key("messaging.pgoutbox.destination") // of the relay
	Attempts    = attribute.Key("messaging.pgoutbox.attempts")    // failures that were counted before
	Outcome     = attribute.Key("messaging.pgoutbox.outcome")     // inbox.Outcome
)

// Tracer makes spans. It is safe for concurrent use.
type Tracer struct {
	tracer trace.Tracer
}

var _ inbox.Tracer = (*Tracer)(nil)

// New returns a Tracer that uses provider; nil stands for OpenTelemetry's global one.
func New(provider trace.TracerProvider) *Tracer {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return &Tracer{provider.Tracer(Scope, trace.WithSchemaURL(semconv.SchemaURL))}
}

// Create begins the span of a message that is written. It is the Trace of an [outbox.WriterConfig]. Messages that share
// a context have no spans of their own: they carry that of the caller's span.
func (t *Tracer) Create(ctx context.Context, msg *outbox.Message) (traceparent, tracestate string, end func(error)) {
	span := trace.SpanFromContext(ctx)
	if msg != nil {
		_, span = t.tracer.Start(ctx, name("create", msg), trace.WithSpanKind(trace.SpanKindProducer),
			trace.WithAttributes(spanAttributes("create", "create", noBroker, msg)...))
		end = func(err error) { finish(span, err) }
	}
	place := span.SpanContext()
	if !place.IsValid() {
		return "", "", end // there is no provider
	}
	flags := place.TraceFlags() & trace.FlagsSampled
	return "00-" + place.TraceID().String() + "-" + place.SpanID().String() + "-" + flags.String(), place.TraceState().String(), end
}

// Start begins the span of a message that a consumer handles. It is a child of the context's span. If there is none, it
// is a child of the span that created the message.
func (t *Tracer) Start(ctx context.Context, consumer string, msg *outbox.Message, writer inbox.Link) (context.Context,
	func(inbox.Result, error)) {
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(spanAttributes("process", "process", noBroker, msg)...),
		trace.WithAttributes(semconv.MessagingConsumerGroupName(printed.Key(consumer)))}
	if place, ok := spanContext(writer); ok {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: place}))
		if !trace.SpanContextFromContext(ctx).IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, place)
		}
	}
	ctx, span := t.tracer.Start(ctx, name("process", msg), options...)
	return ctx, func(result inbox.Result, err error) {
		if result.Outcome != "" {
			span.SetAttributes(Outcome.String(string(result.Outcome)))
		}
		finish(span, err)
	}
}

// noBroker is the messaging system of spans without a broker, or with an unknown one.
const noBroker = "pgoutbox"

func name(operation string, m *outbox.Message) string { return operation + " " + printed.Key(m.Topic) }

// spanAttributes returns the attributes of a span about one message. Foreign text is bounded and made valid UTF-8:
// otherwise one message could keep all spans of a request to the collector from being encoded.
func spanAttributes(operation, kind, system string, m *outbox.Message) []attribute.KeyValue {
	attributes := make([]attribute.KeyValue, 0, 8)
	attributes = append(attributes,
		semconv.MessagingSystemKey.String(system),
		semconv.MessagingOperationName(operation),
		semconv.MessagingOperationTypeKey.String(kind),
		semconv.MessagingDestinationName(printed.Key(m.Topic)),
		semconv.MessagingMessageID(m.ID.String()),
		semconv.MessagingMessageBodySize(len(m.Payload)))
	if m.EventType != "" {
		attributes = append(attributes, EventType.String(printed.Key(m.EventType)))
	}
	return attributes
}

// spanContext reads a trace context; false if there is none or it is malformed. A malformed state is left out.
func spanContext(link inbox.Link) (trace.SpanContext, bool) {
	parent, ok := outbox.ParseTraceParent(link.TraceParent)
	if !ok {
		return trace.SpanContext{}, false
	}
	config := trace.SpanContextConfig{Remote: true}
	config.TraceID, _ = trace.TraceIDFromHex(parent.TraceID) // they have been checked
	config.SpanID, _ = trace.SpanIDFromHex(parent.SpanID)
	config.TraceFlags = config.TraceFlags.WithSampled(parent.Sampled)
	config.TraceState, _ = trace.ParseTraceState(link.TraceState)
	return trace.NewSpanContext(config), true
}

// finish ends a span. The class of an error is that of its mark; the rest is "error".
func finish(span trace.Span, err error, options ...trace.SpanEndOption) {
	if err != nil && span.IsRecording() {
		fail(span, class(err), err)
	}
	span.End(options...)
}

func class(err error) string {
	switch {
	case outbox.IsPermanent(err):
		return "refused"
	case outbox.IsTopicUnavailable(err):
		return "topic_unavailable"
	case outbox.IsUnavailable(err):
		return "unavailable"
	}
	return "error"
}

// maxStatus bounds the text of an error in bytes.
const maxStatus = 1000

func fail(span trace.Span, class string, err error) {
	text := fmt.Sprint(err)
	if len(text) > maxStatus {
		text = text[:maxStatus]
	}
	span.SetAttributes(semconv.ErrorTypeKey.String(class))
	span.SetStatus(codes.Error, printed.Text(text))
}
