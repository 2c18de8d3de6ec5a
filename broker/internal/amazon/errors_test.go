package amazon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
)

func answered(status int, err error) error {
	return &awshttp.ResponseError{ResponseError: &smithyhttp.ResponseError{
		Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}}, Err: err,
	}}
}

func TestEveryAnswerToARequestHasItsKind(t *testing.T) {
	t.Parallel()
	answers := brokertest.Answers{}
	for _, c := range []struct {
		status     int
		code, want string
		divide     bool
	}{
		{400, "AWS.SimpleQueueService.NonExistentQueue", "topic unavailable", false},
		{400, "com.amazonaws.sqs#QueueDoesNotExist", "topic unavailable", false},
		{404, "NotFound", "topic unavailable", false},
		{403, "AccessDenied", "topic unavailable", false},
		{403, "AccessDeniedException", "topic unavailable", false},
		{403, "AuthorizationError", "topic unavailable", false},
		{400, "KmsDisabled", "topic unavailable", false},
		{400, "KMSAccessDenied", "topic unavailable", false},
		{400, "KmsThrottled", "unavailable", false},
		{400, "KMSThrottlingException", "unavailable", false},
		{403, "RequestThrottled", "unavailable", false},
		{400, "ThrottlingException", "unavailable", false},
		{429, "Throttled", "unavailable", false},
		{403, "InvalidClientTokenId", "unavailable", false},
		{403, "ExpiredToken", "unavailable", false},
		{403, "SignatureDoesNotMatch", "unavailable", false},
		{500, "InternalFailure", "unavailable", false},
		{503, "ServiceUnavailable", "unavailable", false},
		{400, "AWS.SimpleQueueService.BatchRequestTooLong", "refused", true},
		{400, "InvalidMessageContents", "refused", true},
		{400, "BatchRequestTooLong", "refused", true},
		{400, "MessageTooLong", "refused", true},
		{403, "RequestExpired", "unavailable", false},
		{403, "RequestTimeTooSkewed", "unavailable", false},
		{403, "InvalidSignatureException", "unavailable", false},
		{403, "IncompleteSignature", "unavailable", false},
		{403, "MissingAuthenticationToken", "unavailable", false},
		{403, "UnrecognizedClientException", "unavailable", false},
		{403, "OptInRequired", "unavailable", false},
		{403, "OverLimit", "unavailable", false},
		{400, "InvalidSecurity", "topic unavailable", false},
		{404, "InvalidAddress", "topic unavailable", false},
		{400, "UnsupportedOperation", "topic unavailable", false},
		{400, "MissingParameter", "topic unavailable", false},
		{400, "InvalidAction", "unavailable", false},
		{404, "MalformedQueryString", "retried", true},
		{400, "SerializationException", "retried", true},
		{400, "EmptyBatchRequest", "retried", true},
		{400, "TooManyEntriesInBatchRequest", "retried", true},
		{400, "BatchEntryIdsNotDistinct", "retried", true},
		{400, "InvalidBatchEntryId", "retried", true},
		{400, "InvalidParameterValue", "retried", true},
		{400, "SomethingNew", "retried", true},
	} {
		err := Classify("do", answered(c.status, &smithy.GenericAPIError{Code: c.code, Message: "text"}))
		if got := brokertest.Kind(err); got != c.want || refused(err) != c.divide {
			t.Errorf("%d %s is %s, divided: %t; want %s, %t", c.status, c.code, got, refused(err), c.want, c.divide)
		}
		if c.code != "SomethingNew" {
			answers["`"+c.code[strings.LastIndexAny(c.code, ".#")+1:]+"`"] = err
		}
	}
	answers["any code with a status 5xx"] = Classify("do", answered(500, &smithy.GenericAPIError{Code: "SomethingNew"}))
	answers["any other code"] = Classify("do", answered(400, &smithy.GenericAPIError{Code: "SomethingNew"}))
	answers["any code that says that a message is too long"] = Classify("do",
		answered(400, &smithy.GenericAPIError{Code: "InvalidParameterValue", Message: "Message must be shorter than 262144 bytes."}))
	answers.Page(t, "../../../docs/brokers", "sqs.md", "codes")
	for _, err := range []error{
		answered(500, &smithy.GenericAPIError{Code: "InternalFailure", Message: "message too large for the cache"}),
		errors.New("connection reset"), context.DeadlineExceeded, fmt.Errorf("no credentials"), answered(502,
			errors.New("html")), answered(301, errors.New("html")), answered(0, context.DeadlineExceeded),
	} {
		if got := Classify("do", err); brokertest.Kind(got) != "unavailable" {
			t.Errorf("%v is %s", err, brokertest.Kind(got))
		}
	}
	if got := Classify("do", answered(0, context.DeadlineExceeded)); strings.Contains(got.Error(), "endpoint") {
		t.Errorf("nothing answered, and the endpoint is blamed: %v", got)
	}
}

func TestEveryRefusalOfAnEntryHasItsKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code        string
		senderFault bool
		want        string
	}{
		{"InvalidMessageContents", true, "refused"},
		{"InvalidParameterValue", true, "refused"},
		{"SomethingNew", true, "refused"},
		{"AccessDenied", true, "topic unavailable"},
		{"KMS.DisabledException", true, "topic unavailable"},
		{"RequestThrottled", true, "unavailable"},
		{"ThrottlingException", false, "unavailable"},
		{"InternalError", false, "unavailable"},
		{"SomethingNew", false, "unavailable"},
	} {
		if got := brokertest.Kind(EntryError("queue", c.code, "text", c.senderFault)); got != c.want {
			t.Errorf("%s, the sender's fault: %t, is %s; want %s", c.code, c.senderFault, got, c.want)
		}
	}
}

func TestAnAnswerThatLeavesOutAMessageSaysNothingAboutIt(t *testing.T) {
	t.Parallel()
	o := newOutcomes("queue", 3)
	zero, one, nonsense := "0", "1", "7"
	text := "InvalidMessageContents"
	o.Accepted(&zero)
	o.Failed(&one, &text, nil, true)
	o.Accepted(&nonsense)
	o.Accepted(nil)
	errs := o.errs
	if errs[0] != nil || !outbox.IsPermanent(errs[1]) || !outbox.IsUnavailable(errs[2]) {
		t.Errorf("outcomes %v", errs)
	}
}
