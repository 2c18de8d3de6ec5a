package grpc_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/internal/testnet"
	grpcgo "google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func BenchmarkPublish(b *testing.B) {
	const size = 2500
	for _, round := range []struct {
		name  string
		delay time.Duration
	}{{"loopback", 0}, {"1 ms", time.Millisecond}} {
		for _, keys := range []int{1, 1000} {
			b.Run("broker, "+map[int]string{1: "1 key, ", 1000: "1000 keys, "}[keys]+round.name, func(b *testing.B) {
				broker := newBroker(b, benchServer(b, round.delay), grpc.Config{})
				versus.Measure(b, versus.Publishing(b, broker, versus.Batch("t", size, keys)))
			})
		}
	}
}

// The loop is a stream on which the library sends each message by itself, as a protobuf message that is made
// beforehand, while the answers are read beside it. The server takes every message.
func BenchmarkAgainstLoop(b *testing.B) {
	const size, keys = 2500, 1000
	versus.Run(b, "grpc", versus.Contest{
		Address: benchServer(b, 0),
		Adapter: func(b *testing.B, address string) versus.Publish {
			return versus.Publishing(b, newBroker(b, address, grpc.Config{}), versus.Batch("t", size, keys))
		},
		Loop: func(b *testing.B, address string) versus.Publish {
			client, batch := bareClient(b, address), bareBatch(size)
			return func() int { loop(b, client, batch); return size }
		},
	})
}

func bareClient(b *testing.B, address string) outboxpb.DeliveryClient {
	b.Helper()
	conn, err := grpcgo.NewClient(address, grpcgo.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return outboxpb.NewDeliveryClient(conn)
}

func bareBatch(size int) (batch []*outboxpb.DeliverRequest) {
	for _, m := range versus.Batch("t", size, 1000) {
		batch = append(batch, &outboxpb.DeliverRequest{Messages: []*outboxpb.Message{{
			Id: m.ID.String(), Topic: m.Topic, Key: m.Key, EventType: m.EventType, ContentType: m.ContentType, Payload: m.Payload,
		}}})
	}
	return batch
}

func loop(b *testing.B, client outboxpb.DeliveryClient, batch []*outboxpb.DeliverRequest) {
	stream, err := client.Stream(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for _, req := range batch {
			if stream.Send(req) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	answered := 0
	for {
		resp, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			b.Fatal(err)
		}
		answered += len(resp.GetOutcomes())
	}
	<-sent
	if answered != len(batch) {
		b.Fatalf("%d of %d answered", answered, len(batch))
	}
}

func benchServer(b *testing.B, delay time.Duration) (address string) {
	b.Helper()
	receiver, err := grpc.NewReceiver(func(context.Context, *outbox.Message) error { return nil }, grpc.ReceiverConfig{})
	if err != nil {
		b.Fatal(err)
	}
	address = start(b, receiver)
	if delay > 0 {
		p := testnet.New(b, address)
		p.Distance(delay)
		address = p.Addr()
	}
	return address
}
