package amazon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/pgoutbox/outbox"
)

func answered(status int, err error) error {
	return &awshttp.ResponseError{ResponseError: &smithyhttp.ResponseError{
		Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}}, Err: err,
	}}
}

func kindOf(err error) string {
	switch {
	case outbox.IsPermanent(err):
		return "permanent"
	case outbox.IsUnavailable(err):
		return "unavailable"
	}
	return "retryable"
}

func TestEveryAnswerToARequestHasItsKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status     int
		code, want string
		divide     bool
	}{
		{400, "AWS.SimpleQueueService.NonExistentQueue", "retryable", false},
		{400, "com.amazonaws.sqs#QueueDoesNotExist", "retryable", false},
		{404, "NotFound", "retryable", false},
		{403, "AccessDenied", "retryable", false},
		{403, "AccessDeniedException", "retryable", false},
		{403, "AuthorizationError", "retryable", false},
		{400, "KmsDisabled", "retryable", false},
		{400, "KMSAccessDenied", "retryable", false},
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
		{400, "AWS.SimpleQueueService.BatchRequestTooLong", "permanent", true},
		{400, "InvalidMessageContents", "permanent", true},
		{400, "InvalidParameterValue", "retryable", true},
		{400, "SomethingNew", "retryable", true},
	} {
		err := Classify("do", answered(c.status, &smithy.GenericAPIError{Code: c.code, Message: "text"}))
		if got := kindOf(err); got != c.want || refused(err) != c.divide {
			t.Errorf("%d %s is %s, divided: %t; want %s, %t", c.status, c.code, got, refused(err), c.want, c.divide)
		}
	}
	for _, err := range []error{
		errors.New("connection reset"), context.DeadlineExceeded, fmt.Errorf("no credentials"), answered(502, errors.New("html")), answered(301, errors.New("html")),
	} {
		if got := Classify("do", err); kindOf(got) != "unavailable" {
			t.Errorf("%v is %s", err, kindOf(got))
		}
	}
}

func TestEveryRefusalOfAnEntryHasItsKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code        string
		senderFault bool
		want        string
	}{
		{"InvalidMessageContents", true, "permanent"},
		{"InvalidParameterValue", true, "permanent"},
		{"SomethingNew", true, "permanent"},
		{"AccessDenied", true, "retryable"},
		{"KMS.DisabledException", true, "retryable"},
		{"RequestThrottled", true, "unavailable"},
		{"ThrottlingException", false, "unavailable"},
		{"InternalError", false, "unavailable"},
		{"SomethingNew", false, "unavailable"},
	} {
		if got := kindOf(EntryError("queue", c.code, "text", c.senderFault)); got != c.want {
			t.Errorf("%s, the sender's fault: %t, is %s; want %s", c.code, c.senderFault, got, c.want)
		}
	}
}

func TestAnAnswerThatLeavesOutAMessageSaysNothingAboutIt(t *testing.T) {
	t.Parallel()
	o := NewOutcomes("queue", 3)
	zero, one, nonsense := "0", "1", "7"
	text := "InvalidMessageContents"
	o.Accepted(&zero)
	o.Failed(&one, &text, nil, true)
	o.Accepted(&nonsense)
	o.Accepted(nil)
	errs := o.Errors()
	if errs[0] != nil || !outbox.IsPermanent(errs[1]) || !outbox.IsUnavailable(errs[2]) {
		t.Errorf("outcomes %v", errs)
	}
}
