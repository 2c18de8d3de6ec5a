package inbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/printed"
)

// Event is the outcome of one message. Message is only valid during the call.
type Event struct {
	Consumer string
	Message  *outbox.Message
	Result   Result
	Err      error // nil if the message may be acknowledged
	Took     time.Duration
}

// Observer gets an event for every message. The caller of Handle calls its method, possibly several at once; it must
// not block.
type Observer interface {
	Handled(Event)
}

// Tracer wraps the handling of every message in a span. Start returns the context for the handler, and a function that
// ends the span.
type Tracer interface {
	Start(ctx context.Context, consumer string, msg *outbox.Message, writer Link) (context.Context, func(Result, error))
}

// Link is the trace context of the message's writer, in the form of W3C's headers; empty if there is none. A span
// refers to it by a link, because the writer's trace has long ended when the message is handled.
type Link struct {
	TraceParent string
	TraceState  string
}

// LinkOf returns the trace context from the message's headers traceparent and tracestate.
func LinkOf(msg *outbox.Message) (l Link) {
	l.TraceParent, _ = msg.Header("traceparent")
	l.TraceState, _ = msg.Header("tracestate")
	return l
}

type noObserver struct{}

func (noObserver) Handled(Event) {}
func (noObserver) Start(ctx context.Context, _ string, _ *outbox.Message, _ Link) (context.Context, func(Result, error)) {
	return ctx, func(Result, error) {}
}

// log logs what needs no action of the caller. The caller logs errors.
func (b *Inbox) log(ctx context.Context, r record, msg *outbox.Message, result Result) {
	level, text := slog.LevelDebug, "message not applied"
	switch {
	case result.Missing != nil:
		level, text = slog.LevelWarn, "messages are missing before this one"
	case result.Outcome == Applied:
		return
	}
	if !b.cfg.Logger.Enabled(ctx, level) {
		return
	}
	args := append(printed.Message(msg), "consumer", b.consumer, "outcome", string(result.Outcome))
	if r.dedup != "" {
		args = append(args, "dedup_key", printed.Key(r.dedup))
	}
	if gap := result.Missing; gap != nil {
		args = append(args, "first_missing", gap.First, "last_missing", gap.Last)
	}
	b.cfg.Logger.Log(ctx, level, text, args...)
}
