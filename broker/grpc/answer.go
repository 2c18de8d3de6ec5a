package grpc

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/broker/internal/search"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// outcome turns the server's answer to one message into an error.
func (cfg *Config) outcome(o *outboxpb.Outcome, topic string) error {
	code := codes.Code(o.GetCode())
	if code == codes.OK || code == codes.AlreadyExists {
		return nil
	}
	err := fmt.Errorf("grpc: the server answered %v: %s; topic %q", code, printable(o.GetError()), printable(topic))
	if ofSize(status.Error(code, o.GetError())) {
		return outbox.Permanent(fmt.Errorf("%w; raise the server's limit, or write a smaller message", err))
	}
	switch code {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		err = outbox.Permanent(err)
	case codes.Unavailable, codes.ResourceExhausted, codes.Unauthenticated, codes.Canceled: // of the server, not of the message
		err = outbox.Unavailable(err)
	case codes.NotFound, codes.Aborted, codes.PermissionDenied:
		err = outbox.OfMessage(err)
	}
	return cfg.after(err, o.GetRetryAfter().AsDuration())
}

// after adds the requested pause to err, within bounds.
func (cfg *Config) after(err error, pause time.Duration) error {
	if pause <= 0 {
		return err
	}
	return outbox.RetryAfter(err, min(pause, cfg.MaxRetryAfter))
}

// broken is the error of a whole stream or request, of which no message was answered.
func (cfg *Config) broken(err error) error {
	hint := ""
	switch status.Code(err) {
	case codes.Internal, codes.Unknown:
		if ofHeaders(err) {
			hint = "; the headers of a call have the token alone: it is longer than the server takes"
		}
	case codes.Unauthenticated, codes.PermissionDenied:
		hint = "; check the token or the client certificate"
	case codes.Unimplemented:
		hint = "; the server does not serve " + outboxpb.Delivery_ServiceDesc.ServiceName
	}
	marked := outbox.Unavailable(fmt.Errorf("grpc: %w%s", err, hint))
	for _, detail := range status.Convert(err).Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			return cfg.after(marked, retry.GetRetryDelay().AsDuration())
		}
	}
	return marked
}

// ofOneMessage reports whether the error of a whole request may be the fault of a single message in it, as when the
// server's handler fails, or when the request is too large. Then searching for that message is worth it.
func ofOneMessage(err error) bool {
	if ofSize(err) {
		return true
	}
	if ofHeaders(err) {
		return false
	}
	switch status.Code(err) {
	case codes.Unknown, codes.Internal, codes.InvalidArgument,
		codes.FailedPrecondition, codes.OutOfRange, codes.DataLoss, codes.Aborted, codes.NotFound, codes.AlreadyExists:
		return true
	}
	return false
}

// ofSize reports whether an error says that a request or a message is too large. Libraries answer RESOURCE_EXHAUSTED,
// which servers use for quotas too, so the words decide; Rust's answers OUT_OF_RANGE. UNKNOWN is any error of a
// server's code; the library makes it of a proxy's status of HTTP too.
func ofSize(err error) bool {
	s := status.Convert(err)
	switch s.Code() {
	case codes.ResourceExhausted, codes.OutOfRange, codes.InvalidArgument:
		return search.OfSize(s.Message()) && !ofHeaders(err)
	case codes.Unknown:
		return strings.HasPrefix(s.Message(), "unexpected HTTP status code received from server: 413")
	}
	return false
}

// ofHeaders reports whether an error says that the headers of a call are too large. No message has a part in them.
func ofHeaders(err error) bool {
	words := status.Convert(err).Message()
	return strings.Contains(words, "header list") || strings.Contains(words, "status code received from server: 431")
}

var errUnanswered = errors.New("grpc: the server ended the call without an answer to this message")

// printable is the beginning of a text on one line.
func printable(text string) string {
	const most = 300
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "")))
}
