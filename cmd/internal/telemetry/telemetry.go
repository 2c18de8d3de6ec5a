// Package telemetry sends spans to a collector, by OTLP over HTTP. A collector that is slow or away costs spans, which
// are counted, and nothing else: nothing waits for it, and memory is bounded.
package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Config says where spans go. What is not here is set by OpenTelemetry's own environment variables.
type Config struct {
	// Endpoint is the collector's URL, to which /v1/traces is added. Empty: what OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
	// OTEL_EXPORTER_OTLP_ENDPOINT says.
	Endpoint string

	// Authorization is the value of the header of this name, "" for none.
	Authorization string

	// Instance and Version describe this program, unless OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES do.
	Instance, Version string

	// Observe counts spans. It is required.
	Observe func(Outcome, int)

	// Logger tells when the collector fails, and when it takes spans again. It is required.
	Logger *slog.Logger
}

// Outcome is what became of spans.
type Outcome string

const (
	Exported Outcome = "exported" // the collector has them
	Failed   Outcome = "failed"   // it refused them, or didn't answer in time
	Dropped  Outcome = "dropped"  // too many were waiting
	LeftOut  Outcome = "left_out" // not made, since a call to the broker had too many
)

// Outcomes returns all.
func Outcomes() []Outcome { return []Outcome{Exported, Failed, Dropped, LeftOut} }

// maxWaiting bounds the spans that are kept until the collector has them, some 3 kB each.
const maxWaiting = 2048

// Exporter keeps spans until the collector has them.
type Exporter struct {
	cfg      Config
	inner    sdk.SpanExporter
	provider *sdk.TracerProvider
	waiting  atomic.Int64
	ending   context.Context // no request outlives it
	end      context.CancelFunc

	mu      sync.Mutex
	failing bool
	lost    int       // since it was last told
	told    time.Time // of failures
}

// Wanted reports whether cfg or the environment names a collector. An error says what of the environment can't be met.
func Wanted(cfg Config, getenv func(string) string) (bool, error) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") || getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false, nil
	}
	if cfg.Endpoint == "" && getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" && getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" {
		return false, nil
	}
	if e := getenv("OTEL_TRACES_EXPORTER"); e != "" && e != "otlp" {
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q: only otlp and none are known", e)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := getenv(name); protocol != "" {
			if cfg.Endpoint == "" && protocol != "http/protobuf" {
				return false, fmt.Errorf("%s is %q: traces are sent by http/protobuf alone, which collectors take at port 4318: "+
					"set telemetry.endpoint, or both variables", name, protocol)
			}
			break
		}
	}
	return true, nil
}

// New returns an Exporter that is running until Close.
func New(ctx context.Context, cfg Config) (*Exporter, error) {
	var options []otlptracehttp.Option
	if cfg.Endpoint != "" {
		at, err := url.JoinPath(cfg.Endpoint, "v1", "traces")
		if err != nil {
			return nil, err
		}
		options = append(options, otlptracehttp.WithEndpointURL(at))
	}
	if cfg.Authorization != "" {
		options = append(options, otlptracehttp.WithHeaders(map[string]string{"Authorization": cfg.Authorization}))
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		semconv.ServiceName("outbox"), semconv.ServiceVersion(cfg.Version), attribute.String("service.instance.id", cfg.Instance)),
		resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	inner, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, err
	}
	e := &Exporter{cfg: cfg, inner: inner}
	e.ending, e.end = context.WithCancel(context.Background())
	batches := sdk.NewBatchSpanProcessor(sending{e}, sdk.WithMaxQueueSize(maxWaiting))
	e.provider = sdk.NewTracerProvider(sdk.WithResource(about), sdk.WithSpanProcessor(bounded{batches, e}))
	return e, nil
}

// Provider makes the spans.
func (e *Exporter) Provider() trace.TracerProvider { return e.provider }

// Close sends what is waiting, for as long as patience at most, and ends the Exporter.
func (e *Exporter) Close(patience time.Duration) {
	late := time.AfterFunc(patience, e.end)
	defer late.Stop()
	_ = e.provider.Shutdown(context.Background()) // what isn't sent is counted and told
	e.end()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tell(nil)
}

// bounded lets spans wait up to a bound. The queue behind it would drop them uncounted.
type bounded struct {
	sdk.SpanProcessor
	*Exporter
}

func (b bounded) OnEnd(span sdk.ReadOnlySpan) {
	if !span.SpanContext().IsSampled() {
		return
	}
	if b.waiting.Add(1) > maxWaiting {
		b.waiting.Add(-1)
		b.cfg.Observe(Dropped, 1)
		return
	}
	b.SpanProcessor.OnEnd(span)
}

// Shutdown and ForceFlush are those of the processor; the Exporter has none.
func (b bounded) Shutdown(ctx context.Context) error { return b.SpanProcessor.Shutdown(ctx) }

// sending counts what the collector takes, and keeps errors from the library's logger, which is global.
type sending struct{ *Exporter }

func (s sending) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	err := s.inner.ExportSpans(ctx, spans)
	s.waiting.Add(-int64(len(spans)))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.cfg.Observe(Failed, len(spans))
		s.lost += len(spans)
		if !s.failing || time.Since(s.told) >= time.Minute {
			s.tell(err)
		}
		s.failing = true
		return nil
	}
	s.cfg.Observe(Exported, len(spans))
	if s.failing {
		s.failing = false
		s.tell(nil)
		s.cfg.Logger.Info("the collector takes traces again")
	}
	return nil
}

// tell logs what was lost since it was last called. The caller has the lock.
func (e *Exporter) tell(err error) {
	if e.lost == 0 {
		return
	}
	args := []any{"spans", e.lost}
	if err != nil {
		args = append(args, "error", err)
	}
	e.cfg.Logger.Warn("traces are lost, delivery goes on", args...)
	e.lost, e.told = 0, time.Now()
}

func (s sending) Shutdown(ctx context.Context) error { return s.inner.Shutdown(ctx) }
