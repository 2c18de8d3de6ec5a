package grpc

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
)

// names are those of the specification, which the library only reads.
var names = map[codes.Code]string{
	codes.OK: "OK", codes.Canceled: "CANCELLED", codes.Unknown: "UNKNOWN", codes.InvalidArgument: "INVALID_ARGUMENT",
	codes.DeadlineExceeded: "DEADLINE_EXCEEDED", codes.NotFound: "NOT_FOUND", codes.AlreadyExists: "ALREADY_EXISTS",
	codes.PermissionDenied: "PERMISSION_DENIED", codes.ResourceExhausted: "RESOURCE_EXHAUSTED",
	codes.FailedPrecondition: "FAILED_PRECONDITION", codes.Aborted: "ABORTED", codes.OutOfRange: "OUT_OF_RANGE",
	codes.Unimplemented: "UNIMPLEMENTED", codes.Internal: "INTERNAL", codes.Unavailable: "UNAVAILABLE",
	codes.DataLoss: "DATA_LOSS", codes.Unauthenticated: "UNAUTHENTICATED",
}

func TestThePageHasTheKindOfEveryCode(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	message, request := brokertest.Answers{}, brokertest.Answers{}
	add := func(name string, code codes.Code, words string) {
		one := cfg.outcome(&outboxpb.Outcome{Code: int32(code), Error: words}, "t")
		message[name] = one
		if code == codes.OK {
			return
		}
		if err := status.Error(code, words); ofOneMessage(err) {
			request[name] = one // the message is found, and has the request's code
		} else {
			request[name] = cfg.broken(err)
		}
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		add("`"+names[code]+"`", code, "no")
	}
	for _, code := range []codes.Code{codes.ResourceExhausted, codes.OutOfRange, codes.InvalidArgument} {
		add("`"+names[code]+"` about size", code, "received message larger than max (2 vs. 1)")
	}
	add("`UNKNOWN` for a proxy's 413", codes.Unknown, "unexpected HTTP status code received from server: 413 (Request Entity Too Large)")
	message.Page(t, "../../docs/brokers", "grpc.md", "codes of a message")
	request.Page(t, "../../docs/brokers", "grpc.md", "codes of a request")
}

func TestTheWordsOfAnOverloadAreNotAboutSize(t *testing.T) {
	t.Parallel()
	for code, words := range map[codes.Code]string{
		codes.ResourceExhausted: "request took too long", codes.Unknown: "db: message too large for the cache",
		codes.OutOfRange: "exceeded request quota", codes.InvalidArgument: "waited in queue too long",
	} {
		if ofSize(status.Error(code, words)) {
			t.Errorf("%v, %s", code, words)
		}
	}
}

func TestALimitThatAServerHadIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &Broker{cfg: Defaults()}
		check := func(want int) {
			t.Helper()
			if got := b.most(); got != want {
				t.Errorf("requests have up to %d bytes, want %d", got, want)
			}
		}
		b.refusedSize(100_000)
		b.refusedSize(200_000)
		check(50_000)
		b.refusedSize(10)
		check(leastHalf)
		time.Sleep(limitHolds)
		check(b.cfg.MaxMessageBytes)
		b.refusedSize(200_000)
		check(100_000)
	})
}

func TestWhatIsAboutAMessageMakesNoOutage(t *testing.T) {
	t.Parallel()
	cfg := Defaults()
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		err := cfg.outcome(&outboxpb.Outcome{Code: int32(code), Error: "no"}, "t")
		want := code == codes.NotFound || code == codes.Aborted || code == codes.PermissionDenied
		if outbox.IsOfMessage(err) != want {
			t.Errorf("%v is about a message: %t", code, !want)
		}
	}
}
