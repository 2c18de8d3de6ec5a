package seeds

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/pgoutbox/outbox"
	grpcbroker "github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/proof/rig"
)

// sink is a gRPC service that tells a checker what it accepts, at the moment it does.
type sink struct {
	address string
	server  *grpc.Server
	served  chan error

	destination *check.Destination
	system      System
	topic       string // that messages must have
	// refuse, if not nil, is asked whether a message is accepted.
	refuse func(check.ID) error

	mu     sync.Mutex
	ids    map[check.ID]outbox.ID
	faults []error // of messages that are not as they should be; the first few
}

func openSink(s *sink) (*sink, error) {
	receiver, err := grpcbroker.NewReceiver(s.receive, grpcbroker.ReceiverConfig{})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.address, s.server, s.served, s.ids = listener.Addr().String(), grpc.NewServer(), make(chan error, 1), make(map[check.ID]outbox.ID)
	outboxpb.RegisterDeliveryServer(s.server, receiver)
	go func() { s.served <- s.server.Serve(listener) }()
	return s, nil
}

// sink is a target that tells of what comes by itself.
var _ rig.Target = (*sink)(nil)

func (s *sink) YAML(string) string                       { return fmt.Sprintf("{grpc: {target: %q}}", s.address) }
func (s *sink) Create(context.Context) error             { return nil }
func (s *sink) Delete(context.Context) error             { return nil }
func (s *sink) Forbid(context.Context) error             { return errors.ErrUnsupported }
func (s *sink) Permit(context.Context) error             { return errors.ErrUnsupported }
func (s *sink) Answers(context.Context) error            { return nil }
func (s *sink) Read(context.Context) (rig.Reader, error) { return s, nil }
func (s *sink) AtEnd(context.Context) (bool, error)      { return true, nil }
func (s *sink) Close()                                   {}

// Next has nothing that the checker wasn't told of.
func (s *sink) Next(ctx context.Context) ([][]byte, error) {
	return nil, rig.Pause(ctx, 5*time.Millisecond)
}

// Grown is how many different messages have come.
func (s *sink) Grown(context.Context) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids), nil
}

func (s *sink) close() error {
	s.server.Stop()
	// Stopped before it has begun to serve, it says so.
	if err := <-s.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

func (s *sink) receive(_ context.Context, m *outbox.Message) error {
	id, err := check.Decode(rig.Unwrap(m.Payload))
	if err != nil {
		s.complain("message %s: %w", m.ID, err)
		return outbox.Permanent(err)
	}
	if s.refuse != nil {
		if err := s.refuse(id); err != nil {
			return err
		}
	}
	s.destination.Delivered(id.Key, id.Seq)
	want := (rig.Message{Key: int(id.Key)}).KeyText()
	if s.system.Digits {
		want = hex.EncodeToString([]byte(want))
	}
	if m.Topic != s.topic || m.OrderingKey() != want {
		s.complain("message %v has topic %q and key %q, want %q and %q", id, m.Topic, m.OrderingKey(), s.topic, want)
	}
	if s.system.Header != "" && !hasHeader(m, s.system.Header) {
		s.complain("message %v has no header %q", id, s.system.Header)
	}
	s.mu.Lock()
	before, again := s.ids[id]
	s.ids[id] = m.ID
	s.mu.Unlock()
	if again && before != m.ID {
		s.complain("message %v came as %s and as %s", id, before, m.ID)
	}
	return nil
}

func hasHeader(m *outbox.Message, name string) bool {
	for _, h := range m.Headers {
		if h.Name == name && h.Value != "" {
			return true
		}
	}
	return false
}

func (s *sink) complain(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) < check.MaxExamples {
		s.faults = append(s.faults, fmt.Errorf(format, args...))
	}
}

// complaints are about messages that were not as they should be.
func (s *sink) complaints() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.faults...)
}
