package grpc_test

import (
	"context"
	"io"
	"syscall"
	"testing"
	"time"

	grpcgo "google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// The figure to compare with is a stream on which the library sends each message by itself, as a protobuf
// message that is made beforehand, while the answers are read beside it. The server takes every message.
// cpu-µs/msg is the processor time of both ends, which says more than msg/s on a machine with other work.
func BenchmarkPublish(b *testing.B) {
	const size = 2500
	for _, round := range []struct {
		name  string
		delay time.Duration
	}{{"loopback", 0}, {"1 ms", time.Millisecond}} {
		for _, keys := range []int{1, 1000} {
			b.Run("broker, "+map[int]string{1: "1 key, ", 1000: "1000 keys, "}[keys]+round.name, func(b *testing.B) {
				broker := newBroker(b, benchServer(b, round.delay), grpc.Config{})
				batch := benchBatch(size, keys)
				measure(b, size, func() { accepted(b, broker.Publish(b.Context(), batch)) })
			})
		}
		b.Run("loop, "+round.name, func(b *testing.B) {
			client, batch := bareClient(b, benchServer(b, round.delay)), bareBatch(size)
			measure(b, size, func() { loop(b, client, batch) })
		})
	}
}

func BenchmarkAgainstLoop(b *testing.B) {
	const size, keys = 2500, 1000
	b.Run("grpc", func(b *testing.B) {
		versus.Run(b, versus.Contest{
			Address: benchServer(b, 0),
			Adapter: func(b *testing.B, address string) versus.Publish {
				broker := newBroker(b, address, grpc.Config{})
				batch := benchBatch(size, keys)
				return func() int { accepted(b, broker.Publish(b.Context(), batch)); return size }
			},
			Loop: func(b *testing.B, address string) versus.Publish {
				client, batch := bareClient(b, address), bareBatch(size)
				return func() int { loop(b, client, batch); return size }
			},
		})
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
	for _, m := range benchBatch(size, 1000) {
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

func measure(b *testing.B, size int, publish func()) {
	publish() // connections
	before := cpu(b)
	b.ReportAllocs()
	for b.Loop() {
		publish()
	}
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N*size), "cpu-µs/msg")
}

func cpu(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
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

func benchBatch(size, keys int) []*outbox.Message {
	batch := messages(size, keys)
	for _, m := range batch {
		m.Payload = make([]byte, 256)
		m.EventType, m.ContentType = "OrderCreated", "application/json"
	}
	return batch
}
