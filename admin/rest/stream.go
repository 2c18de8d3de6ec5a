package rest

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/sse"
)

// statusFeed is the status again and again, for all clients of the stream.
type statusFeed struct {
	db admin.DB

	mu      sync.Mutex
	version int
	event   []byte
}

var _ sse.Feed = (*statusFeed)(nil)

// Look reads the status.
func (f *statusFeed) Look(ctx context.Context) {
	v := verbs.Status()
	result, err := v.Run(ctx, f.db, "", v.New())
	event, body := "status", result
	if err != nil {
		event, body = "problem", Problem{Title: http.StatusText(StatusOf(err)), Status: StatusOf(err), Detail: err.Error()}
	}
	text, err := encode(body)
	if err != nil {
		return // no report is like that
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version, f.event = f.version+1, sse.Event(event, text)
}

// Since returns the newest status.
func (f *statusFeed) Since(int) (event []byte, now int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.event, f.version
}

// stream is the handler of one client.
func (a *API) stream(w http.ResponseWriter, r *http.Request, _ Caller) {
	if r.URL.RawQuery != "" {
		refuse(w, &verbs.Fault{Text: "the stream has no parameters"})
		return
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "text/event-stream")
		return
	}
	if a.hub.Serve(w, r, "", func() sse.Feed { return &statusFeed{db: a.options.ViewerDB} }) != nil {
		refuse(w, refusal{http.StatusTooManyRequests,
			fmt.Sprintf("%d streams are open, or the server ends: try again, or poll /api/v1/status", sse.MaxClients)})
	}
}
