package http

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"
)

// request goes through a round as the transport would; attempts and written are of its connections.
func (r *rounds) request(t *testing.T, attempts, written int) (context.Context, http.Header) {
	t.Helper()
	header := r.header(t.Context())
	if len(header) != 0 {
		t.Errorf("the header has %v of the request before", header)
	}
	header["Webhook-Id"] = []string{"1"}
	ctx := r.begin(time.Minute)
	trace := httptrace.ContextClientTrace(ctx)
	for range attempts {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	for range written {
		trace.WroteHeaders()
	}
	r.end()
	return ctx, header
}

func TestAHeaderIsUsedAgainOnlyWhenNobodyReadsIt(t *testing.T) {
	t.Parallel()
	var at rounds
	defer at.close()
	ctx, header := at.request(t, 1, 1)
	if again, _ := at.request(t, 1, 1); again != ctx {
		t.Error("a request that had been written left nothing for the next one")
	}
	if again, _ := at.request(t, 2, 1); again != ctx { // it is this request that leaves an attempt behind
		t.Error("a request that had been written left nothing for the next one")
	}
	if ctx.Err() == nil {
		t.Error("an attempt that goes on writing is not interrupted")
	}
	httptrace.ContextClientTrace(ctx).WroteHeaders() // late, and not to be taken for another request's
	other, _ := at.request(t, 1, 0)
	if other == ctx || len(header) != 1 {
		t.Errorf("the header was used again while it may have been read: %v", header)
	}
	if last, _ := at.request(t, 1, 1); last == other {
		t.Error("the header was used again while it may have been read")
	}
}

func TestARequestThatRanOutOfTimeLeavesNothingForTheNext(t *testing.T) {
	t.Parallel()
	var at rounds
	defer at.close()
	at.header(t.Context())
	ctx := at.begin(time.Nanosecond)
	<-ctx.Done()
	at.end()
	at.header(t.Context())
	if next := at.begin(time.Minute); next == ctx || next.Err() != nil {
		t.Errorf("the next one's context: %v", next.Err())
	}
	at.end()
}
