package http

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// rounds are the requests of one goroutine, one after the other. They share a round until one of them has run out of
// time, or may still be read by the transport. Their contexts have the same parent.
type rounds struct {
	current *round // nil when the next request needs another one
	until   time.Time
}

// round is a context with a timer, and a header. The transport may read the header even after the request: in an
// attempt that failed and was repeated, or in one that was answered early. Each attempt reports through the context
// when it gets a connection and when it has written the header, so unfinished writes are counted.
type round struct {
	ctx       context.Context
	cancel    context.CancelFunc
	timer     *time.Timer // nil before the first request
	header    http.Header
	unwritten atomic.Int32
}

// usualHeaders is the number of entries that fit into a map without a second table.
const usualHeaders = 14

func newRound(ctx context.Context) *round {
	r := &round{header: make(http.Header, usualHeaders)}
	r.ctx, r.cancel = context.WithCancel(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { r.unwritten.Add(1) },
		WroteHeaders: func() { r.unwritten.Add(-1) },
	}))
	return r
}

// header returns an empty header for the next request.
func (r *rounds) header(ctx context.Context) http.Header {
	if r.current == nil {
		r.current = newRound(ctx)
	}
	clear(r.current.header)
	return r.current.header
}

// begin returns the context of the request that header was called for, with that time limit. end must follow.
func (r *rounds) begin(allowed time.Duration) context.Context {
	r.until = time.Now().Add(allowed)
	if c := r.current; c.timer == nil {
		c.timer = time.AfterFunc(allowed, c.cancel)
	} else {
		c.timer.Reset(allowed)
	}
	return r.current.ctx
}

// shorten reduces the request's remaining time.
func (r *rounds) shorten(allowed time.Duration) {
	r.current.timer.Reset(min(allowed, time.Until(r.until)))
}

// end ends the time limit of a request. If the timer can't be stopped, the context has been cancelled or is about to
// be.
func (r *rounds) end() {
	if c := r.current; !c.timer.Stop() || c.ctx.Err() != nil || c.unwritten.Load() != 0 {
		r.close()
	}
}

// close interrupts what still uses the context: a request that was answered before it was sent completely.
func (r *rounds) close() {
	if r.current != nil {
		r.current.cancel()
		r.current = nil
	}
}
