package search

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox"
)

// What servers and libraries say, word for word.
func TestAnswersAboutSizeAreKnown(t *testing.T) {
	t.Parallel()
	for _, words := range []string{
		"grpc: received message larger than max (200123 vs. 100000)",                              // Go
		"grpc: received message after decompression larger than max 100000",                       // Go
		"grpc: message too large (5000000000 bytes)",                                              // Go
		"trying to send message larger than max (5000000 vs. 4194304)",                            // Go, a client
		"gRPC message exceeds maximum size 100000: 200123",                                        // Java
		"SERVER: Received message larger than max (200123 vs. 100000)",                            // C++, Python, Ruby
		"Received message exceeds the maximum configured message size.",                           // .NET
		"Received message larger than max (200123 vs 100000)",                                     // Node
		"Error, decoded message length too large: found 200123 bytes, the limit is: 100000 bytes", // Rust
		"unexpected HTTP status code received from server: 413 (Request Entity Too Large)",
		"The value for request_size is too large. You passed 10485761 in the request, but the maximum value is 10485760.",
		"One or more parameters are invalid. Reason: Message must be shorter than 262144 bytes.", // SQS
		"Request payload size exceeds the limit: 10485760 bytes.",
		"PRECONDITION_FAILED - message size 5000 is larger than configured max size 1024", // RabbitMQ
		"ERR string exceeds maximum allowed size (proto-max-bulk-len)",                    // Redis
		"Invalid parameter: Message too long",                                             // SNS
		"Request Entity Too Large", "payload too large", "record is too large", "message exceeds the limit of 1000 bytes",
		"the message size (200123 bytes) exceeds the limit", "exceeded the max message size",
	} {
		if !OfSize(words) {
			t.Errorf("not known as an answer about size: %s", words)
		}
	}
	for _, words := range []string{
		"busy", "no", "Quota exceeded for quota metric 'Publish requests' and limit 'Requests per minute'", "too many requests",
		"the rate limit of 100 requests per second is exceeded", "memory exhausted", "queue full", "max connections reached",
		"out of disk space",
		"request took too long", "the request waited in queue too long", "waited for a lock too long", "exceeded request quota",
		"exceeded message rate", "message rate exceeds the limit", "request rate is too large", "exceeded the limit of 5 requests",
		"the backlog of messages is too large", "message queue is too long", "the queue exceeds its maximum length",
		"batch size 10: max connections reached", "request waited longer than the limit", "messages exceed the maximum queue length",
		"the request exceeded the limit of 1000000 bytes per second", "request exceeded the maximum length of time",
		"message throughput exceeded the maximum request size", "request exceeded max retries",
	} {
		if OfSize(words) {
			t.Errorf("taken for an answer about size: %s", words)
		}
	}
}

func TestASearchEndsAfterSomeRequestsOrSomeTime(t *testing.T) {
	t.Parallel()
	var b Budget
	halves := 0
	for b.Spend(2) {
		halves++
	}
	if halves != requests/2 {
		t.Errorf("%d times halved", halves)
	}
	synctest.Test(t, func(*testing.T) {
		var b Budget
		halves := 0
		for b.Spend(2) {
			halves++
			time.Sleep(patience / 3)
		}
		if halves != minimum/2 {
			t.Errorf("%d times halved at a slow server", halves)
		}
	})
	if !errors.Is(ErrUndecided, outbox.ErrSkipped) {
		t.Error("what is undecided costs an attempt")
	}
}
