package oteloutbox

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

func TestOneTraceLeadsFromTheRequestToTheEffect(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	conn := db.Connect()
	tracer, provider, recorder := recording(t)

	writer, err := outbox.NewWriter(outbox.WriterConfig{Trace: tracer.Create})
	if err != nil {
		t.Fatal(err)
	}
	source, err := polling.NewSnapshot(db.Config(), "events", polling.SnapshotConfig{})
	if err != nil {
		t.Fatal(err)
	}
	broker := relaytest.NewMemory()
	testdb.Run(t, source, broker, relay.Config{Name: "events", Observer: tracer.Observer(Sending{Destination: "events"}, nil)})

	ctx, request := provider.Tracer("the service").Start(t.Context(), "POST /orders")
	err = writer.InTx(ctx, conn, func(tx pgx.Tx) error {
		_, err := writer.Write(ctx, tx, outbox.Message{Topic: "orders", Key: "1"}, outbox.Message{Topic: "mails", Key: "1"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	request.End()

	var sent []outbox.Message
	await.Until(t, "both messages are sent", func() bool { sent = broker.Messages(); return len(sent) == 2 })
	box, err := inbox.New("billing", inbox.Config{Tracer: tracer})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := box.Handle(context.Background(), conn, &sent[0], func(ctx context.Context, _ pgx.Tx, _ *outbox.Message) error {
			_, effect := provider.Tracer("the consumer").Start(ctx, "book")
			effect.End()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	await.Until(t, "the spans have ended", func() bool { return len(recorder.Ended()) == 8 })
	spans := make(map[string]sdk.ReadOnlySpan)
	for _, span := range recorder.Ended() {
		if _, again := spans[span.Name()]; again && span.Name() == "process orders" {
			if got := attributes(span)[Outcome]; got != "duplicate" {
				t.Errorf("the repeat has the outcome %q", got)
			}
			continue
		}
		spans[span.Name()] = span
		if span.SpanContext().TraceID() != request.SpanContext().TraceID() {
			t.Errorf("%s is of another trace", span.Name())
		}
	}
	for child, parent := range map[string]string{"create orders": "POST /orders", "create mails": "POST /orders",
		"send orders": "create orders", "send mails": "create mails", "process orders": "create orders", "book": "process orders"} {
		if spans[child] == nil || spans[parent] == nil || spans[child].Parent().SpanID() != spans[parent].SpanContext().SpanID() {
			t.Fatalf("%s is no child of %s, among %q", child, parent, names(recorder.Ended()))
		}
	}
	create, process := spans["create orders"], spans["process orders"]
	if create.SpanKind() != trace.SpanKindProducer || process.SpanKind() != trace.SpanKindConsumer ||
		attributes(create)["messaging.message.id"] != sent[0].ID.String() ||
		attributes(process)["messaging.consumer.group.name"] != "billing" || attributes(process)[Outcome] != "applied" {
		t.Errorf("create has %v, process has %v", attributes(create), attributes(process))
	}
}

func TestAConsumersOwnSpanIsTheParent(t *testing.T) {
	t.Parallel()
	tracer, provider, recorder := recording(t)
	ctx, poll := provider.Tracer("the consumer").Start(t.Context(), "poll")
	m := withTrace(recorded, "a=b")
	_, end := tracer.Start(ctx, "billing", m, inbox.LinkOf(m))
	end(inbox.Result{}, outbox.Unavailable(errors.New("no database")))
	span := recorder.Ended()[0]
	links := span.Links()
	if span.Parent().SpanID() != poll.SpanContext().SpanID() || len(links) != 1 || links[0].SpanContext.SpanID().String() != someSpan ||
		span.Status().Code != codes.Error || attributes(span)["error.type"] != "unavailable" {
		t.Errorf("the span is a child of %v, with links %v and status %v", span.Parent(), links, span.Status())
	}
}

func TestTheWritersTraceFollowsTheCallersAndTheSampler(t *testing.T) {
	t.Parallel()
	m := &outbox.Message{ID: outbox.NewID(), Topic: "orders"}
	sampled, _, recorder := recording(t)
	never := New(sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample())))
	place, _ := spanContext(inbox.Link{TraceParent: recorded, TraceState: "a=b"})
	called := trace.ContextWithSpanContext(t.Context(), place)
	unsampled := trace.ContextWithSpanContext(t.Context(), place.WithTraceFlags(0))
	for _, c := range []struct {
		name   string
		tracer *Tracer
		ctx    context.Context
		m      *outbox.Message
		want   string // the trace and its flags; "new" for a trace of its own
		state  string
	}{
		{"no parent", sampled, t.Context(), m, "new 01", ""},
		{"parent", sampled, called, m, someTrace + " 01", "a=b"},
		{"unsampled parent", sampled, unsampled, m, someTrace + " 00", "a=b"},
		{"a sampler that never does", never, t.Context(), m, "new 00", ""},
		{"a shared context", sampled, called, nil, someTrace + " 01", "a=b"},
		{"a shared context without a parent", sampled, t.Context(), nil, "", ""},
		{"no provider", New(noop.NewTracerProvider()), t.Context(), m, "", ""},
		{"no provider, and a parent", New(noop.NewTracerProvider()), called, m, someTrace + " 01", "a=b"},
	} {
		before := len(recorder.Ended())
		parent, state, end := c.tracer.Create(c.ctx, c.m)
		if end != nil {
			end(nil)
		}
		got := ""
		if p, ok := outbox.ParseTraceParent(parent); ok {
			got = map[bool]string{true: p.TraceID, false: "new"}[p.TraceID == someTrace] + " " + parent[53:]
		} else if parent != "" {
			t.Errorf("%s: %q is no traceparent", c.name, parent)
		}
		spans := len(recorder.Ended()) - before
		if wanted := c.tracer == sampled && c.m != nil && c.ctx != unsampled; got != c.want || state != c.state || (spans == 1) != wanted {
			t.Errorf("%s: %q %q and %d spans, want %q %q", c.name, got, state, spans, c.want, c.state)
		}
	}
}

func TestAWriteThatFailsIsAnErrorOfItsSpans(t *testing.T) {
	t.Parallel()
	db := testdb.New(t) // without the schema
	conn := db.Connect()
	tracer, _, recorder := recording(t)
	writer, err := outbox.NewWriter(outbox.WriterConfig{Trace: tracer.Create})
	if err != nil {
		t.Fatal(err)
	}
	_ = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		_, err := writer.Write(t.Context(), tx, outbox.Message{Topic: "a"}, outbox.Message{Topic: "b"})
		return err
	})
	spans := recorder.Ended()
	if !slices.Equal(names(spans), []string{"create a", "create b"}) || spans[0].Status().Code != codes.Error ||
		spans[1].Status().Code != codes.Error {
		t.Errorf("spans: %q", names(spans))
	}
}

// What tracing costs a writer of one message: without it, with a trace that isn't sampled, and with one that is.
func BenchmarkWriteOne(b *testing.B) {
	db := testdb.Published(b)
	conn := db.Connect()
	never := New(sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample())))
	always := New(sdk.NewTracerProvider(sdk.WithBatcher(nowhere{})))
	for _, c := range []struct {
		name string
		cfg  outbox.WriterConfig
	}{{"untraced", outbox.WriterConfig{}}, {"unsampled", outbox.WriterConfig{Trace: never.Create}},
		{"sampled", outbox.WriterConfig{Trace: always.Create}}} {
		b.Run(c.name, func(b *testing.B) {
			writer, err := outbox.NewWriter(c.cfg)
			if err != nil {
				b.Fatal(err)
			}
			m := outbox.Message{Topic: "orders", AggregateID: "4711", EventType: "OrderPlaced", Payload: make([]byte, 256)}
			tx, err := conn.Begin(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := writer.Write(b.Context(), tx, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// nowhere is an exporter that exports nothing.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                        { return nil }
