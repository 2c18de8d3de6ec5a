package grpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	grpcgo "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testnet"
)

type stream = grpcgo.BidiStreamingServer[outboxpb.DeliverRequest, outboxpb.DeliverResponse]

// scripted is a server without the receiver.
type scripted struct {
	outboxpb.UnimplementedDeliveryServer
	stream func(stream) error
	unary  func(context.Context, *outboxpb.DeliverRequest) (*outboxpb.DeliverResponse, error)
}

func (s scripted) Stream(stream stream) error {
	if s.stream == nil {
		return s.UnimplementedDeliveryServer.Stream(stream)
	}
	return s.stream(stream)
}

func (s scripted) Deliver(ctx context.Context, req *outboxpb.DeliverRequest) (*outboxpb.DeliverResponse, error) {
	if s.unary == nil {
		return s.UnimplementedDeliveryServer.Deliver(ctx, req)
	}
	return s.unary(ctx, req)
}

func TestEveryCodeOfAMessageHasItsKind(t *testing.T) {
	t.Parallel()
	want := map[codes.Code]string{
		codes.OK: "accepted", codes.AlreadyExists: "accepted",
		codes.InvalidArgument: "refused", codes.FailedPrecondition: "refused", codes.OutOfRange: "refused",
		codes.Unavailable: "unavailable", codes.ResourceExhausted: "unavailable",
		codes.Unauthenticated: "unavailable", codes.Canceled: "unavailable",
	}
	for code := codes.OK; code <= codes.Unauthenticated+1; code++ {
		kindOf := want[code]
		if kindOf == "" {
			kindOf = "retried"
		}
		s := newServer(t, nil, func(outboxpb.DeliveryServer) outboxpb.DeliveryServer {
			return scripted{stream: func(s stream) error {
				if _, err := s.Recv(); err != nil {
					return err
				}
				return s.Send(&outboxpb.DeliverResponse{Outcomes: []*outboxpb.Outcome{
					{Sequence: 0, Code: int32(code), Error: "because\nof this"},
					{Sequence: 1}, {Sequence: 2}, {Sequence: 2, Code: 3}, {Sequence: 99}, {Sequence: -1},
				}})
			}}
		})
		errs := newBroker(t, s.address, grpc.Config{}).Publish(patient(t),
			[]*outbox.Message{message("a", 1), message("a", 2), message("b", 1)})
		if errs == nil {
			errs = make([]error, 3)
		}
		behind := map[bool]string{true: "accepted", false: "skipped"}[kindOf == "accepted"]
		if kind(errs[0]) != kindOf || kind(errs[1]) != behind || errs[2] != nil {
			t.Errorf("%v: %v", code, errs)
		}
		if errs[0] != nil && !strings.Contains(errs[0].Error(), "because of this") {
			t.Errorf("%v: %v", code, errs[0])
		}
	}
}

func TestAPauseThatIsAskedForIsPassedOnWithinBounds(t *testing.T) {
	t.Parallel()
	busy := func(d time.Duration) error {
		s, err := status.New(codes.ResourceExhausted, "busy").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d)})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	for asked, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, 24 * time.Hour: 10 * time.Minute, -time.Second: 0} {
		whole := newServer(t, nil, func(outboxpb.DeliveryServer) outboxpb.DeliveryServer {
			return scripted{stream: func(stream) error { return busy(asked) }}
		})
		single := newServer(t, func(*outbox.Message) error { return outbox.RetryAfter(outbox.Unavailable(errors.New("busy")), asked) }, nil)
		for _, s := range []*server{whole, single} {
			errs := newBroker(t, s.address, grpc.Config{}).Publish(patient(t), messages(1, 1))
			if len(errs) != 1 || kind(errs[0]) != "unavailable" || outbox.RetryDelay(errs[0]) != want {
				t.Errorf("%v: outcome %v, pause %v", asked, errs, outbox.RetryDelay(errs[0]))
			}
		}
	}
}

func TestTheErrorOfAStreamSaysNothingAboutItsMessages(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Unavailable, codes.ResourceExhausted,
		codes.Unauthenticated, codes.PermissionDenied, codes.DeadlineExceeded, codes.Canceled} {
		s := newServer(t, nil, func(outboxpb.DeliveryServer) outboxpb.DeliveryServer {
			return scripted{stream: func(s stream) error {
				if _, err := s.Recv(); err != nil {
					return err
				}
				return status.Error(code, "no")
			}}
		})
		errs := newBroker(t, s.address, grpc.Config{}).Publish(patient(t), messages(4, 2))
		for i, err := range errs {
			if wanted := map[bool]string{true: "unavailable", false: "skipped"}[i < 2]; kind(err) != wanted {
				t.Errorf("%v: message %d: %v", code, i, err)
			}
		}
		if len(errs) != 4 {
			t.Errorf("%v: %v", code, errs)
		}
	}
}

func TestMessagesWithoutAnAnswerHaveAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil, func(outboxpb.DeliveryServer) outboxpb.DeliveryServer {
		return scripted{stream: func(s stream) error {
			for {
				if _, err := s.Recv(); err == io.EOF {
					return s.Send(&outboxpb.DeliverResponse{Outcomes: []*outboxpb.Outcome{{Sequence: 1}}})
				} else if err != nil {
					return err
				}
			}
		}}
	})
	errs := newBroker(t, s.address, grpc.Config{}).Publish(patient(t), messages(3, 3))
	if len(errs) != 3 || kind(errs[0]) != "unavailable" || errs[1] != nil || kind(errs[2]) != "unavailable" {
		t.Errorf("outcomes %v", errs)
	}
}

// A server whose handler falls over one message ends the whole stream; the culprit is found, and only it counts.
func TestAServerThatFailsOverOneMessageDeliversTheOthers(t *testing.T) {
	t.Parallel()
	var got brokertest.Seen
	poison := func(req *outboxpb.DeliverRequest) error {
		for _, m := range req.GetMessages() {
			if string(m.GetPayload()) == "poison" {
				return status.Error(codes.Internal, "panic")
			}
		}
		return nil
	}
	s := newServer(t, func(m *outbox.Message) error { got.Note(m); return nil },
		func(inner outboxpb.DeliveryServer) outboxpb.DeliveryServer {
			return scripted{
				stream: func(s stream) error {
					req, err := s.Recv()
					if err != nil {
						return err
					}
					return poison(req)
				},
				unary: func(ctx context.Context, req *outboxpb.DeliverRequest) (*outboxpb.DeliverResponse, error) {
					if err := poison(req); err != nil {
						return nil, err
					}
					return inner.Deliver(ctx, req)
				},
			}
		})
	b := newBroker(t, s.address, grpc.Config{})
	batch := messages(64, 8)
	batch[19].Payload = []byte("poison") // key k3, its third
	var rest []*outbox.Message
	errs := b.Publish(patient(t), batch)
	for i, err := range errs {
		want := "accepted"
		if i == 19 {
			want = "retried"
		} else if i > 19 && i%8 == 3 {
			want = "skipped"
		} else {
			rest = append(rest, batch[i])
		}
		if kind(err) != want {
			t.Errorf("message %d: %v, want %s", i, err, want)
		}
	}
	got.Check(t, rest)
	if n := s.unaries.Load(); n > 16 {
		t.Errorf("%d requests", n)
	}
}

func TestAServerWithoutStreamsGetsRequests(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil, func(inner outboxpb.DeliveryServer) outboxpb.DeliveryServer { return scripted{unary: inner.Deliver} })
	b := newBroker(t, s.address, grpc.Config{RequestMessages: 10})
	for range 2 {
		accepted(t, b.Publish(patient(t), messages(25, 3)))
	}
	if s.streams.Load() != 1 || s.unaries.Load() != 6 {
		t.Errorf("%d streams and %d requests", s.streams.Load(), s.unaries.Load())
	}
	nothing := newServer(t, nil, func(outboxpb.DeliveryServer) outboxpb.DeliveryServer { return scripted{} })
	errs := newBroker(t, nothing.address, grpc.Config{}).Publish(patient(t), messages(1, 1))
	if len(errs) != 1 || kind(errs[0]) != "unavailable" || !strings.Contains(errs[0].Error(), "does not serve outbox.v1.Delivery") {
		t.Errorf("outcome %v", errs)
	}
}

func TestSilenceIsAnOutageAndEndsTheConnection(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	silent.Store(true)
	s := newServer(t, nil, func(inner outboxpb.DeliveryServer) outboxpb.DeliveryServer {
		return scripted{stream: func(s stream) error {
			if silent.Load() {
				<-s.Context().Done()
				return s.Context().Err()
			}
			return inner.Stream(s)
		}}
	})
	p := testnet.New(t, s.address)
	b := newBroker(t, p.Addr(), grpc.Config{AckTimeout: await.Expiry(300 * time.Millisecond)})
	errs := b.Publish(patient(t), messages(1, 1))
	if len(errs) != 1 || kind(errs[0]) != "unavailable" || !strings.Contains(errs[0].Error(), "no answer within 300ms") {
		t.Errorf("outcome %v", errs)
	}
	silent.Store(false)
	brokertest.Deliver(patient(t), t, b, messages(10, 2))
	if n := p.Opened(); n < 2 {
		t.Errorf("%d connections: the silent one is still used", n)
	}
}

func TestFailuresLostAnswersAndCutsInvertNothing(t *testing.T) {
	t.Parallel()
	for _, unary := range []bool{false, true} {
		t.Run(fmt.Sprint("unary ", unary), func(t *testing.T) {
			t.Parallel()
			var got brokertest.Seen
			var calls atomic.Int64
			s := newServer(t, func(m *outbox.Message) error {
				if n := calls.Add(1); n%53 == 0 {
					return errors.New("not now")
				} else if n%211 == 0 {
					got.Note(m)
					return errors.New("accepted, and said otherwise")
				}
				got.Note(m)
				return nil
			}, nil)
			p := testnet.New(t, s.address)
			b := newBroker(t, p.Addr(), grpc.Config{Unary: unary, RequestMessages: 20, AckTimeout: await.Expiry(time.Second)})
			all := messages(4000, 60)
			for part := range 8 {
				p.CutAfter(20_000)            // inside a request, most likely
				p.SwallowAnswers(part%4 == 3) // until the connection is given up
				batch := all[part*500 : part*500+500]
				var left []*outbox.Message
				errs := b.Publish(patient(t), batch)
				p.SwallowAnswers(false)
				for i, err := range errs {
					if err != nil {
						left = append(left, batch[i])
					}
				}
				if errs != nil {
					brokertest.Deliver(patient(t), t, b, left)
				}
			}
			got.Check(t, all)
		})
	}
}

func TestTheEndOfTheContextInterruptsACall(t *testing.T) {
	t.Parallel()
	for _, unary := range []bool{false, true} {
		s := newServer(t, nil, func(outboxpb.DeliveryServer) outboxpb.DeliveryServer {
			return scripted{
				stream: func(s stream) error { <-s.Context().Done(); return s.Context().Err() },
				unary: func(ctx context.Context, _ *outboxpb.DeliverRequest) (*outboxpb.DeliverResponse, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				},
			}
		})
		b := newBroker(t, s.address, grpc.Config{Unary: unary, AckTimeout: time.Hour})
		batch := messages(30, 30)
		for _, m := range batch {
			m.Payload = make([]byte, 500_000) // more than any window takes: the sender is stuck
		}
		ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(200*time.Millisecond))
		errs := b.Publish(ctx, batch)
		cancel()
		if len(errs) != len(batch) {
			t.Fatalf("outcomes %v", errs)
		}
		for i, err := range errs {
			if kind(err) != "unavailable" {
				t.Errorf("message %d: %v", i, err)
			}
		}
	}
}
