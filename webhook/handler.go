package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Config configures a handler. The zero value means the stated defaults.
type Config struct {
	// Tolerance is how far a timestamp may be from now, which bounds how long a recorded request can be replayed.
	// Default 5 min.
	Tolerance time.Duration

	// MaxBody is the largest body that is read, in bytes; larger ones are answered with 413. Default 16 MiB.
	MaxBody int64

	// Logger reports requests that fail verification and messages that are not accepted. nil: slog.Default.
	Logger *slog.Logger
}

// Handler returns a handler that receives webhooks: it bounds and reads the body, verifies it with keys, and calls
// receive with each message. receive must be safe for concurrent use; the sender keeps the order of each key by waiting
// for the answer. receive owns the message. A message may come more than once, with the same ID.
//
// The result of receive decides the answer: nil is 204, a permanent error 422 with its text, an unavailable one 503,
// any other 500 without its text. A pause of outbox.RetryAfter becomes Retry-After. Requests that fail verification are
// answered with 401 and never reach receive. Batches are answered message by message: after a failed message, the later
// ones of its key are left to the next attempt.
func Handler(keys []Key, receive func(context.Context, *outbox.Message) error, cfg Config) (http.Handler, error) {
	h := &handler{keys: keys, receive: receive, cfg: cfg}
	if h.cfg.Tolerance == 0 {
		h.cfg.Tolerance = 5 * time.Minute
	}
	if h.cfg.MaxBody == 0 {
		h.cfg.MaxBody = 16 << 20
	}
	h.cfg.Logger = settings.Logger(h.cfg.Logger)
	var faults []error
	if receive == nil {
		faults = append(faults, errors.New("a function that receives is needed"))
	}
	if len(keys) == 0 {
		faults = append(faults, errors.New("a key is needed to verify with"))
	}
	for i, k := range keys {
		if k.secret == nil && k.public == nil {
			faults = append(faults, fmt.Errorf("key %d is empty", i+1))
		}
	}
	if h.cfg.Tolerance < 0 || h.cfg.MaxBody < 0 {
		faults = append(faults, errors.New("Tolerance and MaxBody can't be negative"))
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("webhook: %w", errors.Join(faults...))
	}
	return h, nil
}

type handler struct {
	keys    []Key
	receive func(context.Context, *outbox.Message) error
	cfg     Config
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "webhooks come as POST", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.cfg.MaxBody))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			http.Error(w, fmt.Sprintf("the body is larger than %d bytes", h.cfg.MaxBody), http.StatusRequestEntityTooLarge)
			return
		}
		http.Error(w, "the body could not be read", http.StatusBadRequest)
		return
	}
	if err := Verify(r.Header, h.keys, body, time.Now(), h.cfg.Tolerance); err != nil {
		h.cfg.Logger.Warn("webhook not believed", "remote", r.RemoteAddr, "error", err)
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && media == BatchType {
		h.batch(w, r, body)
		return
	}
	m, err := ReadMessage(r.Header, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	result := h.accept(r.Context(), m)
	if result.Status == http.StatusNoContent {
		w.WriteHeader(result.Status)
		return
	}
	if result.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(result.RetryAfter))
	}
	http.Error(w, result.Error, result.Status)
}

func (h *handler) batch(w http.ResponseWriter, r *http.Request, body []byte) {
	batch, err := ReadBatch(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	results := make([]Result, len(batch))
	broken := map[string]bool{}
	for i, m := range batch {
		key := m.OrderingKey()
		if broken[key] {
			results[i] = Result{Status: http.StatusFailedDependency}
			continue
		}
		if results[i] = h.accept(r.Context(), m); results[i].Status != http.StatusNoContent && key != "" {
			broken[key] = true
		}
	}
	var answer bytes.Buffer
	failed := false
	lines := json.NewEncoder(&answer)
	for _, result := range results {
		failed = failed || result.Status != http.StatusNoContent
		if err := lines.Encode(result); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	if !failed {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", ResultType)
	w.WriteHeader(http.StatusMultiStatus)
	_, _ = w.Write(answer.Bytes()) // a sender that is gone will repeat the request
}

// accept passes m to receive. It begins no further message when the sender is gone.
func (h *handler) accept(ctx context.Context, m *outbox.Message) Result {
	err := ctx.Err()
	if err != nil {
		err = outbox.Unavailable(err)
	} else {
		err = h.receive(ctx, m)
	}
	if err == nil {
		return Result{Status: http.StatusNoContent}
	}
	h.cfg.Logger.Warn("message not accepted", append(printed.Message(m), "error", err)...)
	result := Result{Status: http.StatusInternalServerError, Error: "the message was not accepted"}
	switch {
	case outbox.IsPermanent(err):
		result = Result{Status: http.StatusUnprocessableEntity, Error: err.Error()}
	case outbox.IsUnavailable(err):
		result.Status, result.Error = http.StatusServiceUnavailable, "try again later"
	}
	result.RetryAfter = int(math.Ceil(outbox.RetryDelay(err).Seconds()))
	return result
}
