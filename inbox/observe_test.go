package inbox

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
)

// events is an observer that remembers.
type events struct {
	mu   sync.Mutex
	seen []Event
}

func (e *events) Handled(event Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = append(e.seen, event)
}

func (e *events) list() []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.seen)
}

type spanKey struct{}

// spans is a tracer that remembers.
type spans struct {
	links []Link
	ends  []string
}

func (s *spans) Start(ctx context.Context, consumer string, msg *outbox.Message, writer Link) (context.Context, func(Result, error)) {
	s.links = append(s.links, writer)
	return context.WithValue(ctx, spanKey{}, consumer+" "+msg.Topic), func(r Result, err error) {
		end := string(r.Outcome)
		if err != nil {
			end = "error"
		}
		s.ends = append(s.ends, end)
	}
}

func TestObserverAndTracerSeeEveryMessageWithTheWritersTrace(t *testing.T) {
	t.Parallel()
	w := setup(t)
	seen, traced := &events{}, &spans{}
	b := newInbox(t, Config{Observer: seen, Tracer: traced})
	msg := message("k")
	msg.Headers = []outbox.Header{{Name: "traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		{Name: "tracestate", Value: "a=b"}}
	handler := func(ctx context.Context, _ pgx.Tx, _ *outbox.Message) error {
		if ctx.Value(spanKey{}) != "payments orders" {
			t.Error("the handler doesn't have the span's context")
		}
		return nil
	}
	boom := errors.New("boom")
	for _, fn := range []Handler{
		func(context.Context, pgx.Tx, *outbox.Message) error { return boom }, handler, handler,
	} {
		_, _ = b.Handle(t.Context(), w.pool, msg, fn)
	}
	want := Link{TraceParent: msg.Headers[0].Value, TraceState: "a=b"}
	if !slices.Equal(traced.links, []Link{want, want, want}) || !slices.Equal(traced.ends, []string{"error", "applied", "duplicate"}) {
		t.Errorf("spans: %+v", traced)
	}
	all := seen.list()
	if len(all) != 3 || !errors.Is(all[0].Err, boom) || all[1].Result.Outcome != Applied || all[2].Result.Outcome != Duplicate ||
		all[1].Consumer != "payments" || all[1].Message != msg || all[1].Took <= 0 {
		t.Errorf("events: %+v", all)
	}
}

func TestALineAboutAMessageHasItsTraceItsTypeAndItsDeduplicationKey(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var log bytes.Buffer
	b := newInbox(t, Config{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		DedupKey: func(m *outbox.Message) string { return "booking " + m.Key }})
	msg := message("k")
	msg.EventType = "Booked"
	msg.Headers = []outbox.Header{{Name: "traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}}
	for range 2 {
		if _, err := b.Handle(t.Context(), w.pool, msg, func(context.Context, pgx.Tx, *outbox.Message) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"message_id=" + msg.ID.String(), "event_type=Booked", "trace_id=0af7651916cd43dd8448eb211c80319c",
		`dedup_key="booking k"`, "outcome=duplicate"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in %s", want, &log)
		}
	}
}
