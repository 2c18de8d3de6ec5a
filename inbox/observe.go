package inbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/printed"
)

// Event is what became of one message. Message is only valid during the call.
type Event struct {
	Consumer string
	Message  *outbox.Message
	Result   Result
	Err      error // nil if the message may be acknowledged
	Took     time.Duration
}

// Observer is told of every message. Its method is called by the caller of Handle, sometimes at once, and
// must not block.
type Observer interface {
	Handled(Event)
}

// Tracer wraps the handling of every message in a span. Start returns the context for the handler, and what
// ends the span.
type Tracer interface {
	Start(ctx context.Context, consumer string, msg *outbox.Message, writer Link) (context.Context, func(Result, error))
}

// Link is the trace context of the message's writer, as W3C's headers have it; empty if it left none. A span
// refers to it by a link, since the writer's trace has long ended when the message is handled.
type Link struct {
	TraceParent string
	TraceState  string
}

// LinkOf returns the trace context that a message's writer has left in its headers traceparent and tracestate.
func LinkOf(msg *outbox.Message) (l Link) {
	l.TraceParent, _ = msg.Header("traceparent")
	l.TraceState, _ = msg.Header("tracestate")
	return l
}

type nobody struct{}

func (nobody) Handled(Event) {}
func (nobody) Start(ctx context.Context, _ string, _ *outbox.Message, _ Link) (context.Context, func(Result, error)) {
	return ctx, func(Result, error) {}
}

// log tells what the caller need not do anything about. Errors are the caller's to log.
func (b *Inbox) log(ctx context.Context, msg *outbox.Message, result Result) {
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
	args := []any{"consumer", b.consumer, "message_id", msg.ID.String(), "topic", msg.Topic, "key", printed.Key(msg.OrderingKey()), "outcome", string(result.Outcome)}
	if gap := result.Missing; gap != nil {
		args = append(args, "first_missing", gap.First, "last_missing", gap.Last)
	}
	b.cfg.Logger.Log(ctx, level, text, args...)
}
