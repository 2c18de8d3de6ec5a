package grpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
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

func TestMain(m *testing.M) {
	if address, file, is := brokertest.AsReceiver(); is {
		fmt.Fprintln(os.Stderr, runServer(address, file))
		os.Exit(1)
	}
	os.Exit(brokertest.Leaks(m.Run()))
}

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

// runServer writes every message into a file before it accepts it.
func runServer(address, path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	receiver, err := grpc.NewReceiver(func(_ context.Context, m *outbox.Message) error {
		var record bytes.Buffer
		if err := gob.NewEncoder(&record).Encode(m); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err := file.Write(append(binary.BigEndian.AppendUint32(nil, uint32(record.Len())), record.Bytes()...))
		return err
	}, grpc.ReceiverConfig{})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s := grpcgo.NewServer()
	outboxpb.RegisterDeliveryServer(s, receiver)
	return s.Serve(listener)
}

// received returns what a receiver has written into its file.
func received(file string) ([]outbox.Message, error) {
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var all []outbox.Message
	for len(data) > 0 {
		size := 4 + binary.BigEndian.Uint32(data)
		record := data[4:size]
		data = data[size:]
		var m outbox.Message
		if err := gob.NewDecoder(bytes.NewReader(record)).Decode(&m); err != nil {
			return nil, err
		}
		if m.Payload == nil {
			m.Payload = []byte{} // gob doesn't tell them apart; no case with faults has a NULL
		}
		all = append(all, m)
	}
	return all, nil
}

// server is a server within the test.
type server struct {
	address string
	streams atomic.Int64
	unaries atomic.Int64

	mu       sync.Mutex
	received []*outbox.Message
}

// newServer accepts what check finds no fault with, over a receiver, or as change has it.
func newServer(t testing.TB, check func(*outbox.Message) error,
	change func(outboxpb.DeliveryServer) outboxpb.DeliveryServer, options ...grpcgo.ServerOption) *server {
	t.Helper()
	s := &server{}
	receiver, err := grpc.NewReceiver(func(_ context.Context, m *outbox.Message) error {
		if check != nil {
			if err := check(m); err != nil {
				return err
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.received = append(s.received, m)
		return nil
	}, grpc.ReceiverConfig{})
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

func (s *server) messages() []*outbox.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*outbox.Message(nil), s.received...)
}

func newBroker(t testing.TB, target string, cfg grpc.Config) *grpc.Broker {
	t.Helper()
	b, err := grpc.New(target, cfg)
	return brokertest.Opened(t, b, err)
}

var errUnknownTopic = status.Error(codes.NotFound, "no such topic")
