package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const natsStream = "ORDERS"

// embeddedNATS is a NATS server with JetStream in this process: the real one, for nats-server is a Go library. Its stream
// lies in files, so that it survives takeDown.
type embeddedNATS struct {
	dir  string
	port int

	mu     sync.Mutex
	server *server.Server // nil while down

	conn *nats.Conn
	js   jetstream.JetStream
	last atomic.Uint64 // position in the stream of the last message received
}

var _ broker = (*embeddedNATS)(nil)

// startNATS starts a server with its data in dir, and creates the stream.
func startNATS(ctx context.Context, dir string) (broker, error) {
	n := &embeddedNATS{dir: dir}
	if err := n.startAnywhere(ctx); err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	if err := n.prepare(ctx); err != nil {
		return nil, fmt.Errorf("prepare NATS: %w", errors.Join(err, n.close()))
	}
	return n, nil
}

// startAnywhere finds a free port. It lies below those that the system hands out by itself, for a connection that leaves
// from the server's port while it is down would keep it from coming back.
func (n *embeddedNATS) startAnywhere(ctx context.Context) error {
	var err error
	for range 20 {
		n.port = 20000 + rand.IntN(12000)
		if err = n.bringUp(ctx); err == nil {
			return nil
		}
	}
	return err
}

func (n *embeddedNATS) prepare(ctx context.Context) error {
	conn, err := nats.Connect(n.url(),
		nats.Name("outbox demo: consumer"),
		nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		return err
	}
	n.conn = conn
	if n.js, err = jetstream.New(conn); err != nil {
		return err
	}
	_, err = n.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: natsStream, Subjects: []string{topic}, MaxMsgSize: maxMessage,
		// The consumer is never far behind, so old messages may go.
		MaxBytes: 512 << 20, Discard: jetstream.DiscardOld,
	})
	return err
}

func (n *embeddedNATS) url() string {
	return "nats://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port))
}

func (n *embeddedNATS) place() place {
	return place{"NATS JetStream " + server.VERSION, n.url(), topic, target{NATS: n.url(), Stream: natsStream}}
}

func (n *embeddedNATS) takeDown() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
		n.server = nil
	}
	return nil
}

func (n *embeddedNATS) bringUp(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.server != nil {
		return nil
	}
	// The server reports a port in use by ending the process, so look before.
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)))
	if err != nil {
		return fmt.Errorf("NATS needs port %d of 127.0.0.1 again, which something else has taken: %w", n.port, err)
	}
	if err := listener.Close(); err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "outbox-demo", Host: "127.0.0.1", Port: n.port,
		JetStream: true, StoreDir: n.dir, NoSigs: true, NoLog: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	for !s.ReadyForConnections(100 * time.Millisecond) {
		if err := ctx.Err(); err != nil {
			s.Shutdown()
			return err
		}
	}
	n.server = s
	return nil
}

// consume reads the stream by a chain of ordered consumers: after each trouble a new one begins behind the last message.
func (n *embeddedNATS) consume(ctx context.Context, received func(payload []byte)) error {
	for ctx.Err() == nil {
		// Its errors say that the server is down, which the demo knows: it took it down.
		_ = n.consumeUntilTrouble(ctx, received)
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func (n *embeddedNATS) consumeUntilTrouble(ctx context.Context, received func(payload []byte)) error {
	attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	consumer, err := n.js.OrderedConsumer(attempt, natsStream, jetstream.OrderedConsumerConfig{
		DeliverPolicy:    jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:      n.last.Load() + 1,
		MaxResetAttempts: 1,
	})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullHeartbeat(500 * time.Millisecond))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		message, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := message.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Stream <= n.last.Load() {
			continue // the same copy again: a repeat by the reader, not by the relay
		}
		received(message.Data())
		n.last.Store(meta.Sequence.Stream)
	}
}

func (n *embeddedNATS) caughtUp(ctx context.Context) (bool, error) {
	stream, err := n.js.Stream(ctx, natsStream)
	if err != nil {
		return false, fmt.Errorf("ask NATS for its last message: %w", err)
	}
	return n.last.Load() >= stream.CachedInfo().State.LastSeq, nil
}

func (n *embeddedNATS) close() error {
	if n.conn != nil {
		n.conn.Close()
	}
	return n.takeDown()
}
