// Package collector is a collector of traces for tests. It decodes the official protobuf messages of OTLP over HTTP.
package collector

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span, with the service that made it.
type Span struct {
	*tracepb.Span
	Service string
	Attr    map[string]string
}

// Collector takes what is exported to URL.
type Collector struct {
	URL string

	mu      sync.Mutex
	spans   []Span
	headers http.Header // of the last request
	answer  func(http.ResponseWriter, *http.Request) bool
}

// New starts a Collector that ends with the test.
func New(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// Answer has answer called for each request; false means that it has answered.
func (c *Collector) Answer(answer func(http.ResponseWriter, *http.Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

// Spans returns what has been exported, and the headers of the last request.
func (c *Collector) Spans() ([]Span, http.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...), c.headers
}

func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	answer := c.answer
	c.mu.Unlock()
	if answer != nil && !answer(w, r) {
		return
	}
	var request collectorpb.ExportTraceServiceRequest
	body, err := io.ReadAll(r.Body)
	if err == nil && (r.Method != http.MethodPost || r.URL.Path != "/v1/traces" ||
		r.Header.Get("Content-Type") != "application/x-protobuf") {
		err = fmt.Errorf("%s %s of %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"))
	}
	if err == nil {
		err = proto.Unmarshal(body, &request)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = r.Header.Clone()
	for _, from := range request.GetResourceSpans() {
		service := ""
		for _, a := range from.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range from.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				attributes := make(map[string]string)
				for _, a := range s.GetAttributes() {
					attributes[a.GetKey()] = a.GetValue().GetStringValue()
				}
				c.spans = append(c.spans, Span{s, service, attributes})
			}
		}
	}
}
