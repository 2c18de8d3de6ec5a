package oteloutbox

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) { servers.Main(m) }

// recording returns a Tracer and the spans that it has ended. Without a parent a span is sampled.
func recording(t testing.TB) (*Tracer, trace.TracerProvider, *tracetest.SpanRecorder) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	return New(provider), provider, recorder
}

const (
	someTrace = "0af7651916cd43dd8448eb211c80319c"
	someSpan  = "b7ad6b7169203331"
	recorded  = "00-" + someTrace + "-" + someSpan + "-01"
)

func withTrace(parent, state string) *outbox.Message {
	return &outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: "4711", EventType: "OrderPlaced", Payload: []byte("12345"),
		Headers: []outbox.Header{{Name: "tenant", Value: "7"}, {Name: "traceparent", Value: parent}, {Name: "tracestate", Value: state}}}
}

// attributes are those of a span, as text.
func attributes(span sdk.ReadOnlySpan) map[attribute.Key]string {
	all := make(map[attribute.Key]string)
	for _, a := range span.Attributes() {
		all[a.Key] = a.Value.String()
	}
	return all
}

func names(spans []sdk.ReadOnlySpan) (all []string) {
	for _, s := range spans {
		all = append(all, s.Name())
	}
	return all
}
