package rest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// Problem is the body of an answer that is no result, as RFC 9457 has it.
type Problem struct {
	Title  string `json:"title"`  // of the status
	Status int    `json:"status"` // of the answer
	Detail string `json:"detail"` // what happened, and what to do
	// Field is the parameter at fault, if one is.
	Field string `json:"field,omitempty"`
}

const problemType = "application/problem+json"

// refusal is an error with a status of its own.
type refusal struct {
	status int
	text   string
}

func (r refusal) Error() string { return r.text }

// StatusOf is the one place where errors become statuses of HTTP.
func StatusOf(err error) int {
	var refused refusal
	var fault *verbs.Fault
	var dial *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &refused):
		return refused.status
	case errors.As(err, &fault):
		return http.StatusBadRequest
	case errors.Is(err, admin.ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, schema.ErrMissing), errors.Is(err, schema.ErrOutdated), errors.Is(err, schema.ErrTooNew),
		errors.Is(err, context.DeadlineExceeded), errors.As(err, &dial), errors.As(err, &network), pgconn.Timeout(err),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return http.StatusServiceUnavailable
	}
	switch code := sqlstate.Of(err); {
	case code == "42501":
		return http.StatusForbidden
	case code == "22021", code == "22P05", code == "22P02", code == "22003", code == "22008":
		// a text, number or time that the database can't hold
		return http.StatusBadRequest
	case code == "57014", code == "55P03", len(code) == 5 && (code[:2] == "08" || code[:2] == "53" || code[:2] == "57"),
		code == "3F000", code == "42P01":
		return http.StatusServiceUnavailable
	case code != "":
		return http.StatusInternalServerError
	}
	return http.StatusConflict // the verb refuses: ErrInUse, ErrTooMany and others that say why
}

// refuse writes the problem.
func refuse(w http.ResponseWriter, err error) {
	p := Problem{Status: StatusOf(err), Detail: err.Error()}
	p.Title = http.StatusText(p.Status)
	var fault *verbs.Fault
	if errors.As(err, &fault) {
		p.Field = fault.Field
	}
	switch {
	case p.Status == http.StatusServiceUnavailable && (errors.Is(err, context.DeadlineExceeded) || sqlstate.Of(err) == "57014"):
		p.Detail = "the database does not answer in time: " + p.Detail
	case p.Status == http.StatusServiceUnavailable:
		p.Detail = "the database can't be used: " + p.Detail
	}
	write(w, p.Status, problemType, p)
}

// write writes an answer of JSON.
func write(w http.ResponseWriter, status int, contentType string, body any) {
	text, err := encode(body)
	if err != nil {
		status, contentType, text = http.StatusInternalServerError, problemType, []byte(`{"title":"Internal Server Error","status":500,"detail":"the result can't be written"}`)
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client has gone
}

func encode(body any) ([]byte, error) { return json.Marshal(body) }
