package nats_test

import (
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/lanes/lanestest"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestANATSConsumerDoesWhatAConsumerMust(t *testing.T) {
	t.Parallel()
	url := servers.TestNATS(t).URL()
	lanestest.Run(t, lanestest.Harness{Reject: true, Patience: 5 * time.Second, Source: func(t *testing.T) lanestest.Source {
		s := newStream(t, url)
		b := s.broker("", nats.Config{})
		return lanestest.Source{
			Topic:   "orders",
			Publish: b.Publish,
			Foreign: func(t *testing.T, key, id string) {
				ctx := await.Context(t)
				msg := &natsgo.Msg{Subject: s.name + ".orders", Data: []byte("1"), Header: natsgo.Header{"Outbox-Key": {key}}}
				if id != "" {
					msg.Header.Set(natsgo.MsgIdHdr, id)
				}
				if _, err := s.js.PublishMsg(ctx, msg); err != nil {
					t.Fatal(err)
				}
			},
			Open: func(t *testing.T, cfg consume.Config, handler consume.Handler) lanestest.Consumer {
				c, err := nats.NewConsumer(url, nats.Config{},
					nats.ConsumerConfig{Stream: s.name, Durable: "consumer", AckWait: 5 * time.Second, Handling: cfg}, handler)
				if err != nil {
					t.Fatal(err)
				}
				return c
			},
		}
	}})
}
