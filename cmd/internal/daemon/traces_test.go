package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/telemetry/collector"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/oteloutbox"
	"github.com/pgoutbox/outbox/webhook"
)

// A service, the relay and a consumer behind a webhook are three programs to the collector. The relay stops before the
// collector is looked at, so its end has sent what waited.
func TestOneTraceOfThreeProgramsReachesTheCollector(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	to := collector.New(t)
	program := func(name string) *sdk.TracerProvider {
		exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(to.URL+"/v1/traces"))
		if err != nil {
			t.Fatal(err)
		}
		p := sdk.NewTracerProvider(sdk.WithSyncer(exporter), sdk.WithResource(resource.NewSchemaless(semconv.ServiceName(name))))
		t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
		return p
	}

	consumer := program("billing")
	box, err := inbox.New("billing", inbox.Config{Tracer: oteloutbox.New(consumer)})
	if err != nil {
		t.Fatal(err)
	}
	applied := make(chan struct{}, 1)
	secret := "whsec_" + strings.Repeat("a", 32)
	keys, err := webhook.ParseKeys(secret)
	if err != nil {
		t.Fatal(err)
	}
	effects := db.Connect()
	handler, err := webhook.Handler(keys, func(ctx context.Context, m *outbox.Message) error {
		if m.Topic == "poison" {
			return outbox.Permanent(fmt.Errorf("no such account"))
		}
		_, err := box.Handle(ctx, effects, m, func(context.Context, pgx.Tx, *outbox.Message) error { return nil })
		applied <- struct{}{}
		return err
	}, webhook.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	receiver := httptest.NewServer(handler)
	t.Cleanup(receiver.Close)

	file := filepath.Join(t.TempDir(), "outbox.yaml")
	yaml := fmt.Sprintf(`{name: relay-1, http: {listen: ""}, telemetry: {endpoint: %q, authorization: Bearer t}, destinations: [{name: billing,
		broker: {http: {url: %q, secret: %q, allow_networks: [127.0.0.1]}}}]}`, to.URL, receiver.URL, secret)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := load.Config(load.Input{File: file, Environ: []string{"OUTBOX_DATABASE_URL=" + db.Config().ConnString()}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := New([]Database{{Name: config.DefaultDatabase, Origin: "the test", Conn: db.Config(),
		Config: loaded.Config}}, Options{Stdout: os.Stdout, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(await.Context(t))
	ended := make(chan error, 1)
	go func() { ended <- d.Run(running) }()

	service := oteloutbox.New(program("shop"))
	writer, err := outbox.NewWriter(outbox.WriterConfig{Trace: service.Create})
	if err != nil {
		t.Fatal(err)
	}
	conn := db.Connect()
	ctx, request := program("shop").Tracer("http").Start(t.Context(), "POST /orders")
	err = writer.InTx(ctx, conn, func(tx pgx.Tx) error {
		_, err := writer.Write(ctx, tx, outbox.Message{Topic: "orders", Payload: []byte("{}")}, outbox.Message{Topic: "poison"})
		return err
	})
	request.End()
	if err != nil {
		t.Fatal(err)
	}
	<-applied
	db.Await(`SELECT count(*) = 1 FROM outbox.dead_letters`)
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	spans, _ := to.Spans()
	named := make(map[string]collector.Span)
	for _, s := range spans {
		named[s.Service+": "+s.GetName()] = s
		if id := request.SpanContext().TraceID(); string(s.GetTraceId()) != string(id[:]) {
			t.Errorf("%s is of another trace", s.GetName())
		}
	}
	for child, parent := range map[string]string{
		"shop: create orders": "shop: POST /orders", "outbox: send orders": "shop: create orders",
		"billing: process orders": "shop: create orders", "outbox: send poison": "shop: create poison",
		"outbox: dead_letter poison": "shop: create poison",
	} {
		c, known := named[child]
		if p, ok := named[parent]; !ok || !known || string(c.GetParentSpanId()) != string(p.GetSpanId()) {
			t.Errorf("%s is no child of %s, among %d spans", child, parent, len(spans))
		}
	}
	send, dead := named["outbox: send orders"], named["outbox: dead_letter poison"]
	if send.Attr["messaging.system"] != "http" || send.Attr["messaging.pgoutbox.destination"] != "billing" || len(send.GetLinks()) != 1 {
		t.Errorf("the span of sending has %v", send.Attr)
	}
	if dead.GetStatus().GetCode().String() != "STATUS_CODE_ERROR" || dead.Attr["error.type"] != "refused" {
		t.Errorf("the span of the dead letter has %v and %v", dead.GetStatus(), dead.Attr)
	}
	if send.GetEndTimeUnixNano() > uint64(time.Now().UnixNano()) {
		t.Errorf("the span of sending ends in the future")
	}
}
