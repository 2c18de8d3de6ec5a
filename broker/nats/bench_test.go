package nats_test

import (
	"fmt"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/servers"
)

// The figure to compare with is the library's own asynchronous publisher, which keeps no order within a
// key and sends nothing but the message id.
func BenchmarkPublish(b *testing.B) {
	const size = 5000
	for _, keys := range []int{1, 1000, size} {
		b.Run(fmt.Sprintf("broker, %d keys", keys), func(b *testing.B) {
			s := benchStream(b)
			broker := s.broker("", nats.Config{})
			versus.Measure(b, versus.Publishing(b, broker, versus.Batch("t", size, keys)))
		})
	}
	for _, headers := range []bool{false, true} {
		name := "library, message ids"
		if headers {
			name = "library, the broker's headers"
		}
		b.Run(name, func(b *testing.B) {
			s := benchStream(b)
			batch := versus.Batch("t", size, 1000)
			js, err := jetstream.New(s.js.Conn(), jetstream.WithPublishAsyncMaxPending(4096))
			if err != nil {
				b.Fatal(err)
			}
			versus.Measure(b, func() int {
				futures := make([]jetstream.PubAckFuture, 0, size)
				for _, m := range batch {
					h := natsgo.Header{natsgo.MsgIdHdr: {outbox.NewID().String()}}
					if headers {
						h.Set("Outbox-Topic", m.Topic)
						h.Set("Outbox-Key", m.Key)
						h.Set("Outbox-Event-Type", m.EventType)
						h.Set("Content-Type", m.ContentType)
					}
					future, err := js.PublishMsgAsync(&natsgo.Msg{Subject: s.name + ".t", Data: m.Payload, Header: h},
						jetstream.WithStallWait(time.Minute))
					if err != nil {
						b.Fatal(err)
					}
					futures = append(futures, future)
				}
				<-js.PublishAsyncComplete()
				for _, future := range futures {
					select {
					case <-future.Ok():
					case err := <-future.Err():
						b.Fatal(err)
					}
				}
				return size
			})
		})
	}
}

func benchStream(b *testing.B) *stream {
	return newStream(b, servers.TestNATS(b).URL())
}

func BenchmarkFormats(b *testing.B) {
	const size = 5000
	for name, f := range map[string]format.Format{"raw": nil,
		"cloudevents": format.CloudEvents{}, "structured": format.CloudEvents{Structured: true}} {
		b.Run(name, func(b *testing.B) {
			s := benchStream(b)
			broker := s.broker("", nats.Config{Format: f})
			versus.Measure(b, versus.Publishing(b, broker, versus.Batch("t", size, 1000)))
		})
	}
}
