package outbox

import (
	"errors"
	"time"
)

// Kinds of errors that a broker reports and the engine understands. Every other error can be retried.
type kindError struct {
	err  error
	kind errorKind
}

type errorKind uint8

const (
	kindPermanent errorKind = iota + 1
	kindUnavailable
	kindTopicUnavailable
	kindOfMessage
)

func (e *kindError) Error() string { return e.err.Error() }
func (e *kindError) Unwrap() error { return e.err }

// Permanent marks err as one that no retry can cure: the broker refused this message (too large, invalid). The
// destination's policy decides what happens next. Permanent(nil) is nil.
func Permanent(err error) error { return withKind(err, kindPermanent) }

// Unavailable marks err as one that is not about the message: no answer came, the connection broke, or the outcome is
// unknown. The engine stalls the destination, sends the message again later and counts no attempt. Unavailable(nil) is
// nil.
func Unavailable(err error) error { return withKind(err, kindUnavailable) }

// TopicUnavailable marks err as one that is neither about the message nor about messages that go elsewhere: the topic,
// stream, queue or exchange that it is published to doesn't exist, or may not be written to. The engine sets aside what
// goes the same way, probes with one message at a time and counts no attempt. TopicUnavailable(nil) is nil.
func TopicUnavailable(err error) error { return withKind(err, kindTopicUnavailable) }

// IsPermanent reports whether err, or an error it wraps, was marked by Permanent.
func IsPermanent(err error) bool { return hasKind(err, kindPermanent) }

// IsUnavailable reports whether err, or an error it wraps, was marked by Unavailable.
func IsUnavailable(err error) bool { return hasKind(err, kindUnavailable) }

// IsTopicUnavailable reports whether err, or an error it wraps, was marked by TopicUnavailable.
func IsTopicUnavailable(err error) bool { return hasKind(err, kindTopicUnavailable) }

// OfMessage marks err as one that a retry may cure and that is about this message: the destination works, and finds
// fault with the message (it isn't valid, what it names is missing). However many messages fail so, around.Breaker
// takes it for no outage. OfMessage(nil) is nil.
func OfMessage(err error) error { return withKind(err, kindOfMessage) }

// IsOfMessage reports whether err, or an error it wraps, was marked by OfMessage.
func IsOfMessage(err error) bool { return hasKind(err, kindOfMessage) }

// ErrSkipped is a broker's answer for a message that it did not send because an earlier message of the
// same key in the same batch failed. A broker also answers so when it has looked long enough for the messages because
// of which a request was refused, and has decided some of the batch: the others are published again at once. No attempt
// is counted.
var ErrSkipped = errors.New("outbox: not sent because an earlier message of its key failed")

// RetryAfter adds to err a request not to try again before d has passed. For an unavailable error the engine stalls the
// destination for at least d, for an unavailable topic the messages that go there, for any other error the message's
// key. It changes nothing else of err. A broker bounds the requests that it passes on. RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryError{err: err, after: d}
}

// RetryDelay returns the pause of RetryAfter in err or an error it wraps; 0 if there is none.
func RetryDelay(err error) time.Duration {
	var asked *retryError
	if errors.As(err, &asked) {
		return max(asked.after, 0)
	}
	return 0
}

type retryError struct {
	err   error
	after time.Duration
}

func (e *retryError) Error() string { return e.err.Error() }
func (e *retryError) Unwrap() error { return e.err }

func withKind(err error, kind errorKind) error {
	if err == nil {
		return nil
	}
	return &kindError{err: err, kind: kind}
}

// hasKind looks at the outermost mark only, so that a later judgement overrides an earlier one.
func hasKind(err error, kind errorKind) bool {
	var marked *kindError
	return errors.As(err, &marked) && marked.kind == kind
}
