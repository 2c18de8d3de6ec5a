package http

import (
	"context"
	"time"
)

// limit bounds one request after the other in time. They share a timer and a context, which are made anew when
// one of them has run out of time. The context's parent has to be the same for all.
type limit struct {
	current context.Context // nil when the next request needs another one
	cancel  context.CancelFunc
	timer   *time.Timer
	until   time.Time
}

// begin returns the context of a request that may take so long. end has to follow.
func (l *limit) begin(ctx context.Context, allowed time.Duration) context.Context {
	l.until = time.Now().Add(allowed)
	if l.current != nil {
		l.timer.Reset(allowed)
		return l.current
	}
	l.current, l.cancel = context.WithCancel(ctx)
	l.timer = time.AfterFunc(allowed, l.cancel)
	return l.current
}

// shorten leaves the request no more than that.
func (l *limit) shorten(allowed time.Duration) {
	l.timer.Reset(min(allowed, time.Until(l.until)))
}

// end ends a request's time. If the timer can't be stopped the context has been cancelled, or is about to be.
func (l *limit) end() {
	if !l.timer.Stop() || l.current.Err() != nil {
		l.close()
	}
}

// close interrupts what goes on with the context: a request that was answered before it had been sent as a whole.
func (l *limit) close() {
	if l.current != nil {
		l.cancel()
		l.current = nil
	}
}
