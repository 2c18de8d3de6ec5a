package seeds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/pgoutbox/outbox"
	grpcbroker "github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/internal/servers"
)

// service is a gRPC server that keeps what it accepts.
type service struct {
	address string

	mu     sync.Mutex
	lines  []line
	refuse func(n int) error // nil: everything is accepted
}

func newService(t *testing.T, refuse func(n int) error) *service {
	t.Helper()
	s := &service{refuse: refuse}
	receiver, err := grpcbroker.NewReceiver(s.receive, grpcbroker.ReceiverConfig{})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = listener.Addr().String()
	server := grpc.NewServer()
	outboxpb.RegisterDeliveryServer(server, receiver)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		// Stopped before it has begun to serve, as in a test that is skipped, it says so.
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return s
}

func (s *service) receive(_ context.Context, m *outbox.Message) error {
	l := line{ID: m.ID.String(), Topic: m.Topic, Key: m.OrderingKey(), Headers: make(map[string]string)}
	for _, h := range m.Headers {
		l.Headers[h.Name] = h.Value
	}
	if err := json.Unmarshal(m.Payload, &l.Payload); err != nil {
		return outbox.Permanent(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		if err := s.refuse(l.Payload.N); err != nil {
			return err
		}
	}
	s.lines = append(s.lines, l)
	return nil
}

func (s *service) arrived() []line {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]line(nil), s.lines...)
}

func (s *service) acceptAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = nil
}

// Transactions are processed by a gRPC service; the key by which it is to drop repeats is with each.
func TestSeed4ThroughGRPC(t *testing.T) {
	t.Parallel()
	service := newService(t, nil)
	seed4().through(t, fmt.Sprintf("{grpc: {target: %q}}", service.address), service.arrived)
}

// What a service refuses has its copy in a table for dead letters, and the offset goes on; a row that is inserted
// from there once more is delivered like any other.
func TestSeed1DeadLettersOfAnOffsetReader(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"xmin", "serial"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			const every = 50
			service := newService(t, func(n int) error {
				if n%every == 0 {
					return outbox.Permanent(errors.New("no such product"))
				}
				return nil
			})
			write, behind := writePartition, behindOffsets+`(m.transaction_id, m.id) <= (o.last_processed_transaction_id, o.last_processed_id))`
			if strategy == "serial" {
				write, behind = writeInTurn, behindOffsets+`m.id <= o.last_processed_id)`
			}
			s := seed{
				ddl: offsetsTable + `
CREATE TABLE outbox_dead (LIKE outbox_messages, reason text, error text, attempts integer, dead_at timestamptz, PRIMARY KEY (id));`,
				source: fmt.Sprintf(`{preset: outbox_messages_%s, failure: {dead_table: outbox_dead}}`, strategy),
				write:  write, unmarked: behind, topic: "orders", header: "tenant",
			}
			b := &bed{T: t, seed: s, url: servers.TestDatabase(t), program: outboxProgram(t), folder: t.TempDir(),
				broker: fmt.Sprintf("{grpc: {target: %q}}", service.address)}
			conn := b.connect()
			if _, err := conn.Exec(t.Context(), s.ddl); err != nil {
				t.Fatal(err)
			}
			b.writeAll(0)
			relay := b.start("one", "1", 0)
			b.untilMarked(conn)
			if got, want := len(service.arrived()), rows-rows/every; got != want {
				t.Errorf("%d messages were accepted, want %d", got, want)
			}
			var dead int
			err := conn.QueryRow(t.Context(), `SELECT count(*) FROM outbox_dead WHERE reason = 'refused' AND error LIKE '%no such product%'
				AND attempts = 1 AND dead_at IS NOT NULL AND (payload ->> 'n')::int % $1 = 0`, every).Scan(&dead)
			if err != nil {
				t.Fatal(err)
			}
			if dead != rows/every {
				t.Errorf("%d dead letters are as they should be, want %d", dead, rows/every)
			}

			service.acceptAll()
			tx, err := conn.Begin(t.Context())
			if err == nil && strategy == "serial" {
				err = writerLock.Take(t.Context(), tx)
			}
			if err == nil {
				_, err = tx.Exec(t.Context(), `WITH d AS (DELETE FROM outbox_dead RETURNING *)
					INSERT INTO outbox_messages (topic, key, type, payload, headers, partition) SELECT topic, key, type, payload, headers, partition FROM d`)
			}
			if err == nil {
				err = tx.Commit(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			b.until("the dead letters are delivered", func() bool { return len(service.arrived()) >= rows })
			b.untilMarked(conn)
			relay.stop()
			b.check(service.arrived(), 0, 0)
		})
	}
}
