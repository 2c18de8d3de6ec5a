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

const natsStream = "ORDERS"

// embeddedNATS is a real NATS server with JetStream in this process, because nats-server is a Go library. Its stream is
// in files, so it survives takeDown. A proxy keeps its address in the meantime.
type embeddedNATS struct {
	dir    string
	proxy  *testnet.Proxy
	server *server.Server // nil while down
	js     jetstream.JetStream
	last   atomic.Uint64 // position in the stream of the last message received
}

var _ broker = (*embeddedNATS)(nil)

// startNATS starts a server with its data in dir, until undo, and creates the stream.
func startNATS(ctx context.Context, undo *undo, dir string) (broker, error) {
	n := &embeddedNATS{dir: dir}
	if err := n.start(ctx, undo); err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	return n, nil
}

func (n *embeddedNATS) start(ctx context.Context, undo *undo) (err error) {
	if n.proxy, err = testnet.StartProxy(); err != nil {
		return err
	}
	undo.add(func(context.Context) error { n.proxy.Close(); return n.takeDown() })
	if err := n.bringUp(ctx); err != nil {
		return err
	}
	conn, err := nats.Connect(n.place().address,
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
		Name: natsStream, Subjects: []string{topic}, MaxMsgSize: maxMessage,
		// The consumer is never far behind, so old messages may go.
		MaxBytes: 512 << 20, Discard: jetstream.DiscardOld,
	})
	return err
}

func (n *embeddedNATS) place() place {
	url := "nats://" + n.proxy.Addr()
	return place{"NATS JetStream " + server.VERSION, url, topic, target{NATS: url, Stream: natsStream}}
}

func (n *embeddedNATS) takeDown() error {
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
		n.server = nil
		n.proxy.Refuse(true)
	}
	return nil
}

func (n *embeddedNATS) bringUp(ctx context.Context) error {
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

// consume reads the stream by a chain of ordered consumers: after each error a new one begins after the last message.
func (n *embeddedNATS) consume(ctx context.Context, received func(payload []byte)) error {
	// Errors are expected while the server is down.
	for ok := true; ok; ok = sleep(ctx, 20*time.Millisecond) {
		_ = n.consumeUntilTrouble(ctx, received)
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
			continue // the reader has repeated this copy, not the relay
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
