package grpc_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	grpcgo "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
)

func large(m *outbox.Message, size int) { m.Payload = bytes.Repeat([]byte("x"), size) }

func TestAMessageThatIsTooLargeForTheServerIsRefusedAlone(t *testing.T) {
	t.Parallel()
	for _, unary := range []bool{false, true} {
		s := newServer(t, nil, nil, grpcgo.MaxRecvMsgSize(100_000))
		b := newBroker(t, s.address, grpc.Config{Unary: unary})
		for range 2 { // the second call knows what the first has learnt
			batch := messages(20, 20)
			large(batch[7], 200_000)
			errs := b.Publish(patient(t), batch)
			brokertest.CheckRefused(t, batch, errs, 7)
			brokertest.Contains(t, errs[7], "larger than max", "raise the server's limit")
		}
		if n := s.unaries.Load(); n > 20 {
			t.Errorf("%d requests", n)
		}
	}
}

func TestAServerOfSmallRequestsGetsSmallRequests(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil, nil, grpcgo.MaxRecvMsgSize(32_000))
	b := newBroker(t, s.address, grpc.Config{})
	for range 2 {
		batch := messages(200, 20)
		for _, m := range batch {
			large(m, 1000)
		}
		accepted(t, b.Publish(patient(t), batch))
	}
	if n := s.unaries.Load(); n > 20 {
		t.Errorf("%d requests: the second call has not gone by a stream", n)
	}
}

// saying is a server that takes requests up to a size and says of others what it is told to.
func saying(t *testing.T, most int, code codes.Code, words string) *server {
	return newServer(t, nil, func(inner outboxpb.DeliveryServer) outboxpb.DeliveryServer {
		return scripted{unary: func(ctx context.Context, req *outboxpb.DeliverRequest) (*outboxpb.DeliverResponse, error) {
			if proto.Size(req) > most {
				return nil, status.Error(code, words)
			}
			return inner.Deliver(ctx, req)
		}}
	})
}

func TestServersSayThatAMessageIsTooLargeInManyWays(t *testing.T) {
	t.Parallel()
	for words, code := range map[string]codes.Code{
		"gRPC message exceeds maximum size 1000: 20000":                                        codes.ResourceExhausted,
		"Error, decoded message length too large: found 20000 bytes, the limit is: 1000 bytes": codes.OutOfRange,
		"unexpected HTTP status code received from server: 413 (Request Entity Too Large)":     codes.Unknown,
	} {
		s := saying(t, 1000, code, words)
		batch := messages(20, 20)
		large(batch[3], 2000)
		brokertest.CheckRefused(t, batch, newBroker(t, s.address, grpc.Config{Unary: true}).Publish(patient(t), batch), 3)
	}
}

// A call that would have to look for hundreds of refused messages ends before that, and what it has not decided costs
// no attempt.
func TestASearchForManyMessagesIsLeftToLaterCalls(t *testing.T) {
	t.Parallel()
	s := saying(t, 1000, codes.ResourceExhausted, "message too large")
	b := newBroker(t, s.address, grpc.Config{Unary: true})
	rest := messages(600, 600)
	for i, m := range rest {
		if i%3 != 0 {
			large(m, 2000)
		}
	}
	refused, calls := 0, 0
	for ; len(rest) > 0 && calls < 100; calls++ {
		before := s.unaries.Load()
		errs := b.Publish(patient(t), rest)
		if n := s.unaries.Load() - before; n > 100+600 {
			t.Errorf("%d requests in a call", n)
		}
		var left []*outbox.Message
		for i, err := range errs {
			switch kind(err) {
			case "refused":
				refused++
			case "skipped":
				left = append(left, rest[i])
			case "accepted":
			default:
				t.Fatalf("message %d: %v", i, err)
			}
		}
		rest = left
	}
	if refused != 400 || calls < 2 || len(rest) > 0 {
		t.Errorf("%d refused in %d calls, %d left", refused, calls, len(rest))
	}
}

func TestATokenThatIsTooLongIsNoFaultOfAMessage(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil, func(outboxpb.DeliveryServer) outboxpb.DeliveryServer {
		return scripted{unary: func(context.Context, *outboxpb.DeliverRequest) (*outboxpb.DeliverResponse, error) {
			return nil, status.Error(codes.Internal, "header list size to send violates the maximum size (100 bytes) set by server")
		}}
	})
	errs := newBroker(t, s.address, grpc.Config{Unary: true}).Publish(patient(t), messages(2, 2))
	for _, err := range errs {
		if kind(err) != "unavailable" || !strings.Contains(err.Error(), "token") {
			t.Errorf("outcome %v", err)
		}
	}
}
