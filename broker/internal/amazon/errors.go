package amazon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/search"
)

// refusal is an error about the content of a request.
type refusal struct {
	error
	content bool // certainly about a message
}

func (r refusal) Unwrap() error { return r.error }

func refused(err error) bool {
	var r refusal
	return errors.As(err, &r)
}

// misread is a refusal of a request that couldn't be read: the endpoint isn't the service's, or a message is to blame.
type misread struct{ error }

func (m misread) Unwrap() error { return m.error }

// judgeMisread makes an outage of what couldn't be read, if nothing else in the call was accepted.
func judgeMisread(errs []error) []error {
	if slices.Contains(errs, nil) {
		return errs
	}
	for i, err := range errs {
		var m misread
		if errors.As(err, &m) {
			errs[i] = outbox.Unavailable(err)
		}
	}
	return errs
}

// gone is an error about a target that doesn't exist.
type gone struct{ error }

func (g gone) Unwrap() error { return g.error }

// Missing marks err as an error about a target that doesn't exist: the target will be looked up again.
func Missing(err error) error { return gone{outbox.TopicUnavailable(err)} }

func missing(err error) bool {
	var g gone
	return errors.As(err, &g)
}

// IsMissing reports whether err is the service's answer that a target doesn't exist.
func IsMissing(err error) bool {
	var api smithy.APIError
	return errors.As(err, &api) && is(api.ErrorCode(), "QueueDoesNotExist", "NonExistentQueue", "NotFound", "NotFoundException")
}

// IsDenied reports whether err is the service's answer that a permission is missing.
func IsDenied(err error) bool {
	var api smithy.APIError
	return errors.As(err, &api) && isDenied(api.ErrorCode())
}

// Classify returns err with its kind; doing names the call that failed.
func Classify(doing string, err error) error {
	if err == nil {
		return nil
	}
	var api smithy.APIError
	if !errors.As(err, &api) {
		var answered *awshttp.ResponseError
		if errors.As(err, &answered) && answered.HTTPStatusCode() > 0 && answered.HTTPStatusCode() < 500 {
			return outbox.Unavailable(fmt.Errorf("%s: something that is not Amazon's service answered with status %d; "+
				"is the endpoint right? (outcome unknown): %w", doing, answered.HTTPStatusCode(), err))
		}
		return outbox.Unavailable(fmt.Errorf("%s (outcome unknown): %w", doing, plain(err)))
	}
	code := api.ErrorCode()
	fault := fmt.Errorf("%s: %s: %s", doing, code, api.ErrorMessage())
	switch {
	case isThrottle(code):
		return outbox.Unavailable(fault)
	case isIdentity(code):
		return outbox.Unavailable(fmt.Errorf("%w; see that the credentials are right, and the clock", fault))
	case IsMissing(err):
		return Missing(fault)
	case isDenied(code), isKey(code), is(code, "InvalidSecurity", "InvalidAddress", "UnsupportedOperation", "MissingParameter"):
		return outbox.TopicUnavailable(fault)
	case serverFault(err, api):
		return outbox.Unavailable(fmt.Errorf("%w (outcome unknown)", fault))
	case isContent(code), search.OfSize(api.ErrorMessage()):
		return refusal{outbox.Permanent(fault), true}
	case isForeign(code):
		return outbox.Unavailable(fmt.Errorf("%w; is the endpoint the service's?", fault))
	case is(code, "MalformedQueryString", "SerializationException"):
		return refusal{error: misread{fmt.Errorf("%w; is the endpoint the service's?", fault)}}
	}
	return refusal{error: fault}
}

// EntryError returns the error, with its kind, of a message that was refused in a request that succeeded.
func EntryError(target, code, message string, senderFault bool) error {
	err := fmt.Errorf("%s: %s: %s", target, code, message)
	switch {
	case isThrottle(code):
		return outbox.Unavailable(err)
	case isIdentity(code):
		return outbox.Unavailable(fmt.Errorf("%w; see that the credentials are right, and the clock", err))
	case isDenied(code), isKey(code):
		return outbox.TopicUnavailable(err)
	case senderFault, isContent(code), search.OfSize(message):
		return outbox.Permanent(err)
	}
	// This is the service's own trouble, not the message's.
	return outbox.Unavailable(err)
}

// bare returns a code without its prefix: a namespace and a dot, or a shape and a hash.
func bare(code string) string { return code[strings.LastIndexAny(code, ".#")+1:] }

// is compares codes, which have a suffix "Exception" in some protocols and versions.
func is(code string, names ...string) bool {
	code = bare(code)
	return slices.Contains(names, code) || slices.Contains(names, strings.TrimSuffix(code, "Exception"))
}

func isThrottle(code string) bool {
	_, found := retry.DefaultThrottleErrorCodes[bare(code)]
	return found || is(code, "Throttled", "OverLimit", "KmsThrottled", "KMSThrottling", "TooManyRequests", "ServiceUnavailable")
}

func isIdentity(code string) bool {
	return is(code, "InvalidClientTokenId", "UnrecognizedClient", "ExpiredToken", "InvalidSignature", "SignatureDoesNotMatch",
		"IncompleteSignature", "MissingAuthenticationToken", "InvalidAccessKeyId", "RequestExpired", "AuthFailure", "OptInRequired",
		"RequestTimeTooSkewed", "RequestInTheFuture", "TokenRefreshRequired", "InvalidToken", "InvalidIdentityToken")
}

// isForeign reports whether a code says that the request as such isn't understood.
func isForeign(code string) bool {
	return is(code, "InvalidAction", "UnknownOperation", "InvalidQueryParameter", "InvalidHttpRequest",
		"MalformedHttpRequest", "NoSuchVersion")
}

func isDenied(code string) bool {
	return is(code, "AccessDenied", "AuthorizationError", "NotAuthorized", "UnauthorizedOperation")
}

// isKey reports whether a code is about the encryption key of a target: KmsDisabled, KMS.DisabledException.
func isKey(code string) bool { return strings.Contains(strings.ToUpper(code), "KMS") }

func isContent(code string) bool {
	return is(code, "InvalidMessageContents", "BatchRequestTooLong", "MessageTooLong")
}

func serverFault(err error, api smithy.APIError) bool {
	var answered *awshttp.ResponseError
	return api.ErrorFault() == smithy.FaultServer ||
		errors.As(err, &answered) && answered.HTTPStatusCode() >= http.StatusInternalServerError
}

// plain removes the client's wrapping from a network error, which names the operation and the request id.
func plain(err error) error {
	var operation *smithy.OperationError
	if errors.As(err, &operation) {
		err = operation.Err
	}
	if errors.Is(err, context.Canceled) {
		return context.Canceled
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}
