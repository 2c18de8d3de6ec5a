package grpc_test

import (
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	grpcgo "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Receivers(m, serve)) }

// What the tests of all brokers share.
var (
	patient  = brokertest.Patient
	accepted = brokertest.Accepted
	kind     = brokertest.Kind
)

// message returns a message of the topic "t" with n as payload.
func message(key string, n int) *outbox.Message { return brokertest.Message("t", key, n) }

// messages returns n messages of the topic "t" that go round over keys.
func messages(n, keys int) []*outbox.Message { return brokertest.Messages("t", n, keys) }

// serve is a server in a process of its own.
func serve(l net.Listener, accept func(context.Context, *outbox.Message) error) error {
	receiver, err := grpc.NewReceiver(accept, grpc.ReceiverConfig{})
	if err != nil {
		return err
	}
	s := grpcgo.NewServer()
	outboxpb.RegisterDeliveryServer(s, receiver)
	return s.Serve(l)
}

// server is a server within the test.
type server struct {
	brokertest.Collected
	address string
	streams atomic.Int64
	unaries atomic.Int64
}

// newServer accepts what check finds no fault with, over a receiver, or as change has it.
func newServer(t testing.TB, check func(*outbox.Message) error,
	change func(outboxpb.DeliveryServer) outboxpb.DeliveryServer, options ...grpcgo.ServerOption) *server {
	t.Helper()
	s := &server{}
	receiver, err := grpc.NewReceiver(s.Accept(check), grpc.ReceiverConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var service outboxpb.DeliveryServer = receiver
	if change != nil {
		service = change(receiver)
	}
	s.address = start(t, counted{service, s}, options...)
	return s
}

// counted counts the calls.
type counted struct {
	outboxpb.DeliveryServer
	server *server
}

func (c counted) Stream(stream grpcgo.BidiStreamingServer[outboxpb.DeliverRequest, outboxpb.DeliverResponse]) error {
	c.server.streams.Add(1)
	return c.DeliveryServer.Stream(stream)
}

func (c counted) Deliver(ctx context.Context, req *outboxpb.DeliverRequest) (*outboxpb.DeliverResponse, error) {
	c.server.unaries.Add(1)
	return c.DeliveryServer.Deliver(ctx, req)
}

// start serves on an address of its own.
func start(t testing.TB, service outboxpb.DeliveryServer, options ...grpcgo.ServerOption) (address string) {
	t.Helper()
	return startWith(t, func(g *grpcgo.Server) { outboxpb.RegisterDeliveryServer(g, service) }, options...)
}

// startWith serves what register registers.
func startWith(t testing.TB, register func(*grpcgo.Server), options ...grpcgo.ServerOption) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpcgo.NewServer(options...)
	register(g)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := g.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		g.Stop()
		serving.Wait()
	})
	return listener.Addr().String()
}

func newBroker(t testing.TB, target string, cfg grpc.Config) *grpc.Broker {
	t.Helper()
	b, err := grpc.New(target, cfg)
	return brokertest.Opened(t, b, err)
}

var errUnknownTopic = status.Error(codes.NotFound, "no such topic")
