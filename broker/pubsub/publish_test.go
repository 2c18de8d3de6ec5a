package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/pubsub"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testnet"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// reaction scripts the answers to Publish: nil lets a request through.
type reaction struct {
	mu       sync.Mutex
	requests []*pubsubpb.PublishRequest
	answer   func(*pubsubpb.PublishRequest) error
}

func (r *reaction) React(request any) (handled bool, answer any, err error) {
	publish := request.(*pubsubpb.PublishRequest)
	r.mu.Lock()
	r.requests = append(r.requests, publish)
	r.mu.Unlock()
	if r.answer == nil {
		return false, nil, nil
	}
	if err := r.answer(publish); err != nil {
		return true, &pubsubpb.PublishResponse{}, err
	}
	return false, nil, nil
}

func scripted(t *testing.T, answer func(*pubsubpb.PublishRequest) error) (*fake, *reaction) {
	t.Helper()
	r := &reaction{answer: answer}
	return newFake(t, pstest.ServerReactorOption{FuncName: "Publish", Reactor: r}), r
}

func has(request *pubsubpb.PublishRequest, data string) bool {
	for _, m := range request.Messages {
		if string(m.Data) == data {
			return true
		}
	}
	return false
}

func TestARequestHasOneKey(t *testing.T) {
	t.Parallel()
	f, r := scripted(t, nil)
	topic := f.topic()
	batch := brokertest.Messages(topic, 100, 10)
	for i := range 50 {
		batch = append(batch, &outbox.Message{ID: outbox.NewID(), Topic: topic, Payload: fmt.Append(nil, i)})
	}
	accepted(t, f.broker(pubsub.Config{}).Publish(patient(t), batch))
	for _, request := range r.requests {
		for _, m := range request.Messages {
			if m.OrderingKey != request.Messages[0].OrderingKey {
				t.Errorf("keys %q and %q in one request", m.OrderingKey, request.Messages[0].OrderingKey)
			}
		}
	}
	if len(r.requests) != 11 {
		t.Errorf("%d requests for ten keys and none", len(r.requests))
	}
}

func TestAMessageThatIsRefusedIsFoundAndStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	f, _ := scripted(t, func(request *pubsubpb.PublishRequest) error {
		if has(request, "bad") {
			return status.Error(codes.InvalidArgument, "the schema doesn't allow it")
		}
		return nil
	})
	topic := f.topic()
	batch := brokertest.Messages(topic, 60, 3)
	batch[31].Payload = []byte("bad") // k-1
	for i := range 20 {
		batch = append(batch, &outbox.Message{ID: outbox.NewID(), Topic: topic, Payload: fmt.Append(nil, i)})
	}
	batch[65].Payload = []byte("bad") // no key
	errs := f.broker(pubsub.Config{}).Publish(patient(t), batch)
	if len(errs) != len(batch) {
		t.Fatalf("outcomes %v", errs)
	}
	for i, err := range errs {
		switch {
		case i == 31 || i == 65:
			if !outbox.IsPermanent(err) {
				t.Errorf("the refused message %d was answered with: %v", i, err)
			}
		case i > 31 && batch[i].Key == "k-1":
			if !errors.Is(err, outbox.ErrSkipped) {
				t.Errorf("message %d behind it was answered with: %v", i, err)
			}
		case err != nil:
			t.Errorf("message %d: %v", i, err)
		}
	}
	if got := len(f.Messages()); got != 10+20+20+19 {
		t.Errorf("%d messages were accepted, want 69", got)
	}
}

func TestEveryAnswerHasItsKind(t *testing.T) {
	t.Parallel()
	for code, want := range map[codes.Code]string{
		codes.InvalidArgument: "refused", codes.NotFound: "topic unavailable",
		codes.PermissionDenied: "topic unavailable", codes.FailedPrecondition: "topic unavailable",
		codes.Unauthenticated: "unavailable", codes.ResourceExhausted: "unavailable",
		codes.Unavailable: "unavailable", codes.Internal: "unavailable",
		codes.Unknown: "unavailable", codes.Aborted: "unavailable", codes.DeadlineExceeded: "unavailable", codes.Canceled: "unavailable",
	} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			f, r := scripted(t, func(*pubsubpb.PublishRequest) error { return status.Error(code, "scripted") })
			errs := f.broker(pubsub.Config{}).Publish(patient(t), brokertest.Messages(f.topic(), 1, 1))
			if len(errs) != 1 {
				t.Fatalf("outcomes %v", errs)
			}
			if got := brokertest.Kind(errs[0]); got != want {
				t.Errorf("%v is %s, want %s", errs[0], got, want)
			}
			if len(r.requests) != 1 {
				t.Errorf("it was sent %d times: the engine repeats, nobody else", len(r.requests))
			}
		})
	}
}

func TestAnOutageStopsTheCall(t *testing.T) {
	t.Parallel()
	f, r := scripted(t, func(*pubsubpb.PublishRequest) error {
		asked, err := status.New(codes.Unavailable, "later").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(7 * time.Second)})
		if err != nil {
			return err
		}
		return asked.Err()
	})
	batch := brokertest.Messages(f.topic(), 2000, 1000)
	errs := f.broker(pubsub.Config{Requests: 4}).Publish(patient(t), batch)
	if len(errs) != len(batch) {
		t.Fatalf("%d outcomes", len(errs))
	}
	longest := time.Duration(0)
	for i, err := range errs {
		if !outbox.IsUnavailable(err) {
			t.Fatalf("message %d: %v", i, err)
		}
		longest = max(longest, outbox.RetryDelay(err))
	}
	if len(r.requests) > 8 || longest != 7*time.Second {
		t.Errorf("%d requests were sent, a pause of %v was asked for", len(r.requests), longest)
	}
}

// crowd answers when so many requests have come, over connections that carry a hundred at a time.
type crowd struct {
	pubsubpb.UnimplementedPublisherServer
	want int64
	come atomic.Int64
	all  chan struct{}
}

func (c *crowd) Publish(ctx context.Context, r *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	if c.come.Add(1) == c.want {
		close(c.all)
	}
	select {
	case <-c.all:
		return &pubsubpb.PublishResponse{MessageIds: make([]string, len(r.Messages))}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestMoreRequestsAreUnderWayThanAConnectionTakes(t *testing.T) {
	t.Parallel()
	c := &crowd{want: 250, all: make(chan struct{})}
	server := grpc.NewServer(grpc.MaxConcurrentStreams(100))
	pubsubpb.RegisterPublisherServer(server, c)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	b := open(t, listener.Addr().String(), pubsub.Config{Timeout: await.Patience})
	defer b.Close()
	accepted(t, b.Publish(patient(t), brokertest.Messages("crowded", int(c.want), int(c.want))))
}

func TestWhatPubSubRefusesIsRefusedBefore(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := f.broker(pubsub.Config{})
	topic := f.topic()
	for name, spoil := range map[string]func(*outbox.Message){
		"key":             func(m *outbox.Message) { m.Key = strings.Repeat("k", 1025) },
		"size":            func(m *outbox.Message) { m.Payload = make([]byte, 9_999_990) },
		"attribute value": func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: "h", Value: strings.Repeat("v", 1025)}} },
		"attribute name":  func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: strings.Repeat("n", 257), Value: "v"}} },
		"reserved":        func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: "googclient", Value: "v"}} },
		"ours":            func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: "Outbox-Id", Value: "v"}} },
		"topic":           func(m *outbox.Message) { m.Topic = "a b c" },
		"short topic":     func(m *outbox.Message) { m.Topic = "ab" },
		"Google's topic":  func(m *outbox.Message) { m.Topic = "google-orders" },
		"attributes": func(m *outbox.Message) {
			for i := range 100 {
				m.Headers = append(m.Headers, outbox.Header{Name: fmt.Sprint("h", i), Value: "v"})
			}
		},
	} {
		batch := brokertest.Messages(topic, 2, 2)
		spoil(batch[1])
		errs := b.Publish(patient(t), batch)
		if len(errs) != 2 || errs[0] != nil || !outbox.IsPermanent(errs[1]) {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func TestATopicIsCreatedWhenAsked(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	topic := "t-" + outbox.NewID().String()
	batch := brokertest.Messages(topic, 6, 2)
	brokertest.CheckFirst(t, f.broker(pubsub.Config{}), batch, "topic unavailable", topic, "gcloud pubsub topics create")
	accepted(t, f.broker(pubsub.Config{CreateTopics: true}).Publish(patient(t), batch))
}

func TestAProbeCreatesNoTopic(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	if err := f.broker(pubsub.Config{Topic: "later", CreateTopics: true}).Ping(patient(t)); err != nil {
		t.Errorf("a topic that the first message creates: %v", err)
	}
	contains(t, f.broker(pubsub.Config{Topic: "later"}).Ping(patient(t)), "doesn't exist") // still
}

func TestPingNamesAMissingTopic(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	brokertest.CheckPing(t, f.broker(pubsub.Config{Topic: "nowhere"}), "nowhere", "doesn't exist")
}

func TestLostAnswersLeaveUnknownOutcomesAndNothingIsLostOrInverted(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	topic := f.topic()
	p := testnet.New(t, f.Addr)
	b := brokertest.Opened(t, open(t, p.Addr(), pubsub.Config{}), nil)
	brokertest.CutAnswers(t, b, p, brokertest.Messages(topic, 1, 1), brokertest.Messages(topic, 100, 10),
		func() ([]outbox.Message, error) { return f.read(topic) })
}

func TestAConnectionThatSwallowsRequestsIsGivenUp(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	topic := f.topic()
	p := testnet.New(t, f.Addr)
	b := open(t, p.Addr(), pubsub.Config{Timeout: await.Expiry(300 * time.Millisecond)})
	defer b.Close()
	p.Freeze()
	batch := brokertest.Messages(topic, 5, 5)
	for i, err := range b.Publish(patient(t), batch) {
		if !outbox.IsUnavailable(err) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	p.Thaw()
	brokertest.Deliver(patient(t), t, b, batch)
}

func TestFaultsOfTheConfigurationAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := pubsub.New(pubsub.Config{Topic: "{key}", Endpoint: "https://x", Requests: -1, Timeout: -1, Insecure: true, CredentialsFile: "x"})
	contains(t, err, "Project", "{key}", "Endpoint", "Requests", "Timeout", "insecurely")
	if _, err := pubsub.New(pubsub.Config{Project: project, Insecure: true}); err == nil {
		t.Error("insecure without an endpoint was taken")
	}
	if _, err := pubsub.New(pubsub.Config{Project: "example.com:shop-4711"}); err != nil {
		t.Error(err)
	}
}
