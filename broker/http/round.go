package http

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// rounds are the requests of one goroutine, one after the other. They share what a round has, until one of them has
// run out of time or may still be read by the transport. Their contexts have the same parent.
type rounds struct {
	current *round // nil when the next request needs another one
	until   time.Time
}

// round is a context with a timer, and a header. The transport may read a header even when the request is over:
// an attempt that failed and was repeated, or one that was answered early. Each attempt tells, through the context,
// when it gets a connection and when it has written the header, so what was not written is counted.
type round struct {
	ctx       context.Context
	cancel    context.CancelFunc
	timer     *time.Timer // nil before the first request
	header    http.Header
	unwritten atomic.Int32
}

// usualHeaders is as many as fill a map without a second table.
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

// begin returns the context of the request that header was called for, which may take so long. end has to follow.
func (r *rounds) begin(allowed time.Duration) context.Context {
	r.until = time.Now().Add(allowed)
	if c := r.current; c.timer == nil {
		c.timer = time.AfterFunc(allowed, c.cancel)
	} else {
		c.timer.Reset(allowed)
	}
	return r.current.ctx
}

// shorten leaves the request no more than that.
func (r *rounds) shorten(allowed time.Duration) {
	r.current.timer.Reset(min(allowed, time.Until(r.until)))
}

// end ends a request's time. If the timer can't be stopped the context has been cancelled, or is about to be.
func (r *rounds) end() {
	if c := r.current; !c.timer.Stop() || c.ctx.Err() != nil || c.unwritten.Load() != 0 {
		r.close()
	}
}

// close interrupts what goes on with the context: a request that was answered before it had been sent as a whole.
func (r *rounds) close() {
	if r.current != nil {
		r.current.cancel()
		r.current = nil
	}
}
