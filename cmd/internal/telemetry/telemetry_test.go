package telemetry

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/pgoutbox/outbox/cmd/internal/telemetry/collector"
)

// counted is what an exporter reports.
type counted struct {
	mu   sync.Mutex
	of   map[Outcome]int
	text bytes.Buffer
}

func (c *counted) observe(o Outcome, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[o] += n
}

func (c *counted) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(b)
}

func (c *counted) get(o Outcome) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[o]
}

func (c *counted) log() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

func exporting(t *testing.T, endpoint string) (*Exporter, *counted) {
	t.Helper()
	c := &counted{of: map[Outcome]int{}}
	e, err := New(t.Context(), Config{Endpoint: endpoint, Authorization: "Bearer secret", Instance: "relay-1", Version: "1.2.3",
		Observe: c.observe, Logger: slog.New(slog.NewTextHandler(c, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return e, c
}

func (e *Exporter) make(n int) {
	for range n {
		_, span := e.Provider().Tracer("test").Start(context.Background(), "work")
		span.SetAttributes(attribute.String("text", "some"))
		span.End()
	}
}

func TestSpansReachTheCollectorAtTheLatestAtTheEnd(t *testing.T) {
	t.Parallel()
	to := collector.New(t)
	e, c := exporting(t, to.URL)
	e.make(700)
	e.Close(time.Minute)
	spans, headers := to.Spans()
	if len(spans) != 700 || c.get(Exported) != 700 || spans[0].Service != "outbox" || spans[0].Attr["text"] != "some" {
		t.Errorf("%d spans came of 700, %d count as exported, of service %q", len(spans), c.get(Exported), spans[0].Service)
	}
	if got := headers.Get("Authorization"); got != "Bearer secret" {
		t.Errorf("the collector was shown %q", got)
	}
	if c.log() != "" {
		t.Errorf("it logs %s", c.log())
	}
}

// While a request is under way, what comes meanwhile is kept up to a bound. No span waits for it, and the end does so
// no longer than its patience: the collector answers when Close has returned, and the client would wait for an hour.
func TestACollectorThatHangsHoldsUpNothing(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "3600000")
	to := collector.New(t)
	closed := make(chan struct{})
	to.Answer(func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-closed:
		case <-r.Context().Done():
		}
		return false
	})
	e, c := exporting(t, to.URL)
	e.make(3 * maxWaiting)
	if n := e.waiting.Load(); n != maxWaiting {
		t.Errorf("%d spans wait", n)
	}
	if n := c.get(Dropped); n != 2*maxWaiting {
		t.Errorf("%d are dropped", n)
	}
	e.Close(time.Millisecond)
	close(closed)
	if n := c.get(Failed); n != maxWaiting {
		t.Errorf("%d count as failed", n)
	}
	if n := strings.Count(c.log(), "\n"); n > 2 || !strings.Contains(c.log(), "traces are lost, delivery goes on") {
		t.Errorf("%d lines:\n%s", n, c.log())
	}
}

func TestACollectorThatIsAwayIsToldOfOnceAndSoIsItsReturn(t *testing.T) {
	t.Parallel()
	to := collector.New(t)
	to.Answer(func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "no such tenant", http.StatusForbidden)
		return false
	})
	e, c := exporting(t, to.URL)
	for range 20 {
		e.make(10)
		e.flush(t)
	}
	if n := strings.Count(c.log(), "\n"); n != 1 || c.get(Failed) != 200 {
		t.Errorf("%d failed, in %d lines:\n%s", c.get(Failed), n, c.log())
	}
	to.Answer(nil)
	e.make(10)
	e.flush(t)
	if log := c.log(); strings.Count(log, "\n") != 3 || !strings.Contains(log, "spans=190") ||
		!strings.Contains(log, "takes traces again") {
		t.Errorf("the log is\n%s", log)
	}
	e.Close(time.Minute)
	if spans, _ := to.Spans(); len(spans) != 10 || c.get(Exported) != 10 {
		t.Errorf("%d spans came", len(spans))
	}
}

func TestWithoutACollectorNothingIsLostSilently(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close() // nobody listens there
	e, c := exporting(t, "http://"+listener.Addr().String())
	e.make(10)
	e.Close(time.Millisecond)
	if n := c.get(Failed); n != 10 {
		t.Errorf("%d count as failed", n)
	}
}

func (e *Exporter) flush(t *testing.T) {
	t.Helper()
	if err := e.Provider().(*sdk.TracerProvider).ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestTheEnvironmentIsReadAsOpenTelemetryHasIt(t *testing.T) {
	t.Parallel()
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318"
	for _, c := range []struct {
		config string
		env    []string
		want   bool
		fault  string
	}{
		{"", nil, false, ""},
		{"http://c", nil, true, ""},
		{"", []string{endpoint}, true, ""},
		{"", []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c:4318/v1/traces"}, true, ""},
		{"http://c", []string{"OTEL_SDK_DISABLED=true"}, false, ""},
		{"http://c", []string{"OTEL_TRACES_EXPORTER=none"}, false, ""},
		{"", []string{endpoint, "OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}, true, ""},
		{"", []string{endpoint, "OTEL_TRACES_EXPORTER=zipkin"}, false, "OTEL_TRACES_EXPORTER"},
		{"", []string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, false, "port 4318"},
		{"", []string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"}, true, ""},
		{"http://c", []string{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, true, ""},
	} {
		got, err := Wanted(Config{Endpoint: c.config}, func(name string) string {
			for _, pair := range c.env {
				if value, ok := strings.CutPrefix(pair, name+"="); ok {
					return value
				}
			}
			return ""
		})
		if got != c.want || (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q and %q: %v, %v", c.config, c.env, got, err)
		}
	}
}
