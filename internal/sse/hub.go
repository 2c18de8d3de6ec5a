// Package sse sends news to many clients that stay connected, as server-sent events. A feed is looked at while it has
// clients, once for all of them. A slow client gets the newest state, not every state.
package sse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// MaxClients bounds the clients of a hub.
	MaxClients = 256
	// Pause is between two looks.
	Pause = time.Second

	comment      = 15 * time.Second // without news, so that no proxy takes the connection for dead
	frameTimeout = 10 * time.Second // for a client to take a frame
)

// ErrFull means that a client can't be served: there are too many, or the hub is closed.
var ErrFull = errors.New("too many clients")

// Feed is what clients hear about. Its methods are called at the same time.
type Feed interface {
	// Look takes a new look, and begins a new version.
	Look(ctx context.Context)
	// Since returns the event for a client that has seen a version, or nothing if that is 0, and the version that it
	// has seen then.
	Since(version int) (event []byte, now int)
}

// Event is one event of a feed. data has no line break.
func Event(name string, data []byte) []byte {
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, data)
}

// Hub has the feeds, by their keys, and their clients.
type Hub struct {
	ctx     context.Context // of all feeds
	cancel  context.CancelFunc
	working sync.WaitGroup

	mu      sync.Mutex
	clients int
	feeds   map[string]*feed
}

type feed struct {
	Feed
	clients map[chan struct{}]bool
	looked  bool
}

// NewHub makes a hub, which has to be closed.
func NewHub() *Hub {
	h := &Hub{feeds: map[string]*feed{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Go runs work until the hub is closed.
func (h *Hub) Go(work func(ctx context.Context)) { h.working.Go(func() { work(h.ctx) }) }

// Close ends all connections, and waits for the looks.
func (h *Hub) Close() {
	h.cancel()
	h.working.Wait()
}

// Keys are those of the feeds that are looked at.
func (h *Hub) Keys() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.feeds))
}

// Serve sends the feed of a key to a client, until that goes or the hub is closed. open makes a feed that isn't there.
// The error is ErrFull, and nothing is written then.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request, key string, open func() Feed) error {
	f, news := h.join(key, open)
	if f == nil {
		w.Header().Set("Retry-After", "10")
		return ErrFull
	}
	defer h.leave(f, news)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Accel-Buffering", "no")
	control := http.NewResponseController(w)
	frame, version := []byte("retry: 2000\n\n"), 0
	for {
		// The server's own bound is for a whole answer.
		if control.SetWriteDeadline(time.Now().Add(frameTimeout)) != nil {
			return nil
		}
		if _, err := w.Write(frame); err != nil || control.Flush() != nil {
			return nil
		}
		select {
		case <-news:
			frame, version = f.Since(version)
		case <-time.After(comment):
			frame = []byte(": no news\n\n")
		case <-r.Context().Done():
			return nil
		case <-h.ctx.Done():
			return nil
		}
	}
}

func (h *Hub) join(key string, open func() Feed) (*feed, chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.clients >= MaxClients || h.ctx.Err() != nil {
		return nil, nil
	}
	h.clients++
	f := h.feeds[key]
	if f == nil {
		f = &feed{Feed: open(), clients: map[chan struct{}]bool{}}
		h.feeds[key] = f
		h.working.Go(func() { h.run(key, f) })
	}
	news := make(chan struct{}, 1)
	if f.looked {
		news <- struct{}{} // what the others have seen is new to this one
	}
	f.clients[news] = true
	return f, news
}

func (h *Hub) leave(f *feed, news chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients--
	delete(f.clients, news)
}

// run looks at a feed as long as it has clients.
func (h *Hub) run(key string, f *feed) {
	for {
		began := time.Now()
		f.Look(h.ctx)
		if !h.tell(key, f) {
			return
		}
		select {
		case <-time.After(max(Pause, 20*time.Since(began))): // a slow look is taken less often
		case <-h.ctx.Done():
		}
	}
}

// tell wakes the clients of a feed. It is false when no client is left; the feed is forgotten then.
func (h *Hub) tell(key string, f *feed) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(f.clients) == 0 || h.ctx.Err() != nil {
		delete(h.feeds, key)
		return false
	}
	f.looked = true
	for news := range f.clients {
		select {
		case news <- struct{}{}:
		default: // the one before wasn't taken
		}
	}
	return true
}
