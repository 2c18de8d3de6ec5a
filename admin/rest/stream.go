package rest

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/verbs"
)

const (
	maxStreams    = 256
	streamPause   = time.Second      // between two looks
	streamComment = 15 * time.Second // without news, so that no proxy takes the connection for dead
	frameTimeout  = 10 * time.Second // for a client to take a frame, or an answer
)

// stream sends the status to many clients: one query of the database serves them all, and without clients there is
// none. A slow client gets the newest status, and misses some.
type stream struct {
	db     admin.DB
	ctx    context.Context // of all streams; the looks end with it
	cancel context.CancelFunc
	looks  sync.WaitGroup

	mu      sync.Mutex
	clients map[chan []byte]struct{}
	looking bool
	latest  []byte
}

func newStream(db admin.DB) *stream {
	s := &stream{db: db, clients: map[chan []byte]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// close ends all streams, and waits for the look.
func (s *stream) close() {
	s.cancel()
	s.looks.Wait()
}

// join adds a client. It returns nil if there are too many, or if the server ends.
func (s *stream) join() chan []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.clients) >= maxStreams || s.ctx.Err() != nil {
		return nil
	}
	c := make(chan []byte, 1)
	s.clients[c] = struct{}{}
	if !s.looking {
		s.looking, s.latest = true, nil
		s.looks.Go(s.look)
	}
	if s.latest != nil {
		c <- s.latest
	}
	return c
}

func (s *stream) leave(c chan []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, c)
}

// look queries the status while there are clients.
func (s *stream) look() {
	v := verbs.Status()
	for {
		began := time.Now()
		result, err := v.Run(s.ctx, s.db, "", v.New())
		event, body := "status", result
		if err != nil {
			event, body = "problem", Problem{Title: http.StatusText(StatusOf(err)), Status: StatusOf(err), Detail: err.Error()}
		}
		text, err := encode(body)
		if err != nil {
			return // no report is like that
		}
		if !s.send(fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, text)) {
			return
		}
		select {
		case <-time.After(max(streamPause, 20*time.Since(began))): // a slow look is taken less often
		case <-s.ctx.Done():
		}
	}
}

// send gives all clients a frame. It returns false when no client is left; the queries then end.
func (s *stream) send(frame []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = frame
	for c := range s.clients {
		select {
		case <-c: // the one before wasn't taken
		default:
		}
		c <- frame
	}
	s.looking = len(s.clients) > 0 && s.ctx.Err() == nil
	return s.looking
}

// serve is the handler of one client.
func (s *stream) serve(w http.ResponseWriter, r *http.Request, _ Caller) {
	if r.URL.RawQuery != "" {
		refuse(w, &verbs.Fault{Text: "the stream has no parameters"})
		return
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "text/event-stream")
		return
	}
	frames := s.join()
	if frames == nil {
		w.Header().Set("Retry-After", "10")
		refuse(w, refusal{http.StatusTooManyRequests,
			fmt.Sprintf("%d streams are open, or the server ends: try again, or poll /api/v1/status", maxStreams)})
		return
	}
	defer s.leave(frames)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no")
	control := http.NewResponseController(w)
	frame := []byte("retry: 2000\n\n")
	for {
		// The server's own bound is for a whole answer.
		if control.SetWriteDeadline(time.Now().Add(frameTimeout)) != nil {
			return
		}
		if _, err := w.Write(frame); err != nil {
			return
		}
		if control.Flush() != nil {
			return
		}
		select {
		case frame = <-frames:
		case <-time.After(streamComment):
			frame = []byte(": no news\n\n")
		case <-r.Context().Done():
			return
		case <-s.ctx.Done():
			return
		}
	}
}
