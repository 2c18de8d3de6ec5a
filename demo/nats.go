package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pgoutbox/outbox/internal/testnet"
)

// topic is where the orders service sends its events, stream the stream that has them.
const (
	topic  = "orders"
	stream = "ORDERS"
)

// maxMessage is the largest message that the stream takes. The poison message is larger.
const maxMessage = 64 << 10

// broker is a real NATS server with JetStream in this process, because nats-server is a Go library. Its stream is
// in files, so it survives takeDown. A proxy keeps its address in the meantime. One goroutine calls takeDown and
// bringUp at a time.
type broker struct {
	dir    string
	proxy  *testnet.Proxy
	server *server.Server // nil while down
	js     jetstream.JetStream
	last   atomic.Uint64 // position in the stream of the last message received
}

// startNATS starts a server with its data in dir, until undo, and creates the stream.
func startNATS(ctx context.Context, undo *undo, dir string) (*broker, error) {
	n := &broker{dir: dir}
	if err := n.start(ctx, undo); err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	return n, nil
}

func (n *broker) start(ctx context.Context, undo *undo) (err error) {
	if n.proxy, err = testnet.StartProxy(); err != nil {
		return err
	}
	undo.add(func(context.Context) error { n.proxy.Close(); return n.takeDown() })
	if err := n.bringUp(ctx); err != nil {
		return err
	}
	conn, err := nats.Connect(n.address(),
		nats.Name("outbox demo: consumer"),
		nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		return err
	}
	undo.add(func(context.Context) error { conn.Close(); return nil })
	if n.js, err = jetstream.New(conn); err != nil {
		return err
	}
	_, err = n.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: stream, Subjects: []string{topic}, MaxMsgSize: maxMessage,
		// The consumer is never far behind, so old messages may go.
		MaxBytes: 512 << 20, Discard: jetstream.DiscardOld,
	})
	return err
}

func (n *broker) name() string    { return "NATS JetStream " + server.VERSION }
func (n *broker) address() string { return "nats://" + n.proxy.Addr() }

// takeDown makes the broker unreachable, bringUp makes it reachable again at the same address.
func (n *broker) takeDown() error {
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
		n.server = nil
		n.proxy.Refuse(true)
	}
	return nil
}

func (n *broker) bringUp(ctx context.Context) error {
	s, err := server.NewServer(&server.Options{
		ServerName: "outbox-demo", Host: "127.0.0.1", Port: server.RANDOM_PORT,
		JetStream: true, StoreDir: n.dir, NoSigs: true, NoLog: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	n.server = s
	for !s.ReadyForConnections(100 * time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	n.proxy.Forward(s.Addr().String())
	n.proxy.Refuse(false)
	return nil
}

// consume calls received for every message, in the order of the stream, until ctx ends. It reads by a chain of ordered
// consumers: after each error a new one begins after the last message.
func (n *broker) consume(ctx context.Context, received func(payload []byte)) {
	// Errors are expected while the server is down.
	for ok := true; ok; ok = sleep(ctx, 20*time.Millisecond) {
		_ = n.consumeUntilTrouble(ctx, received)
	}
}

func (n *broker) consumeUntilTrouble(ctx context.Context, received func(payload []byte)) error {
	attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	consumer, err := n.js.OrderedConsumer(attempt, stream, jetstream.OrderedConsumerConfig{
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
			continue // the reader has repeated this copy, not the relay
		}
		received(message.Data())
		n.last.Store(meta.Sequence.Stream)
	}
}

// caughtUp reports whether consume has seen everything that the broker has.
func (n *broker) caughtUp(ctx context.Context) (bool, error) {
	all, err := n.js.Stream(ctx, stream)
	if err != nil {
		return false, fmt.Errorf("ask NATS for its last message: %w", err)
	}
	return n.last.Load() >= all.CachedInfo().State.LastSeq, nil
}
