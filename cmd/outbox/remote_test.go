package main

import (
	"context"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/pgoutbox/outbox"
	grpcbroker "github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/webhook"
)

func TestMessagesReachTheServicesThatAreConfigured(t *testing.T) {
	t.Parallel()
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	var received atomic.Int64
	receive := func(context.Context, *outbox.Message) error {
		received.Add(1)
		return nil
	}

	keys, err := webhook.ParseKeys(secret)
	if err != nil {
		t.Fatal(err)
	}
	handler, err := webhook.Handler(keys, receive, webhook.Config{})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(handler)
	defer web.Close()

	receiver, err := grpcbroker.NewReceiver(receive, grpcbroker.ReceiverConfig{})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	outboxpb.RegisterDeliveryServer(server, receiver)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()

	single, remote := config.DefaultWebhook(), config.DefaultGRPC()
	single.URL, single.Secret, single.AllowNetworks = config.NewURL(web.URL), config.NewSecret(secret), []string{"127.0.0.1"}
	single.APIKeyHeader, single.APIKey = "X-Api-Key", config.NewSecret("key")
	several := single
	several.RequestMessages = 100
	remote.Target = listener.Addr().String()
	for name, b := range map[string]config.Broker{"http": {Webhook: &single}, "http, batches": {Webhook: &several}, "grpc": {GRPC: &remote}} {
		broker, _, err := openBroker(b, brokerSetting{groups: 1})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		before := received.Load()
		batch := []*outbox.Message{{ID: outbox.NewID(), Topic: "t", Key: "k"}, {ID: outbox.NewID(), Topic: "t", Key: "k", Payload: []byte("x")}}
		if errs := broker.Publish(ctx, batch); errs != nil {
			t.Errorf("%s: %v", name, errs)
		}
		if n := received.Load() - before; n != 2 {
			t.Errorf("%s: %d received", name, n)
		}
		cancel()
		if err := broker.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
