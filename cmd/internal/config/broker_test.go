package config_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/pgoutbox/outbox"
	grpcbroker "github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/internal/await"
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

	single, remote := config.Standard[config.Webhook](), config.Standard[config.GRPC]()
	single.URL, single.Secret, single.AllowNetworks = config.NewURL(web.URL), config.NewSecret(secret), []string{"127.0.0.1"}
	single.APIKeyHeader, single.APIKey = "X-Api-Key", config.NewSecret("key")
	several := single
	several.Batch = 100
	remote.Target = listener.Addr().String()
	for name, b := range map[string]config.Broker{"http": {Webhook: &single}, "http, batches": {Webhook: &several},
		"grpc": {GRPC: &remote}} {
		broker, err := config.Destination{Broker: b}.Open(config.Opening{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		before := received.Load()
		batch := []*outbox.Message{{ID: outbox.NewID(), Topic: "t", Key: "k"},
			{ID: outbox.NewID(), Topic: "t", Key: "k", Payload: []byte("x")}}
		if errs := broker.Publish(await.Context(t), batch); errs != nil {
			t.Errorf("%s: %v", name, errs)
		}
		if n := received.Load() - before; n != 2 {
			t.Errorf("%s: %d received", name, n)
		}
		if err := broker.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestABrokerIsOpenedFromItsSectionWithoutAConnection(t *testing.T) {
	t.Parallel()
	sqs, sns, pubsub := config.Standard[config.SQS](), config.Standard[config.SNS](), config.Standard[config.PubSub]()
	sqs.Region, sqs.CreateQueues = "eu-central-1", true
	sns.Topic = "arn:aws:sns:eu-central-1:123456789012:{topic}.fifo"
	pubsub.Project = "shop-4711"
	redis, rabbit := config.Standard[config.Redis](), config.Standard[config.RabbitMQ]()
	redis.Addresses = []string{"127.0.0.1:1"}
	rabbit.Exchange, rabbit.CreateExchange = "events", "topic"
	rabbit.CreateQueues = []config.RabbitMQQueue{{Name: "orders", Bindings: []string{"orders.#"}, MaxLength: 1000}}
	open := func(b config.Broker) (*config.Opened, error) {
		return config.Destination{Broker: b}.Open(config.Opening{Stdout: io.Discard, Logger: slog.New(slog.DiscardHandler)})
	}
	for name, chosen := range map[string]config.Broker{
		"sqs": {SQS: &sqs}, "sns": {SNS: &sns}, "pubsub": {PubSub: &pubsub}, "redis": {Redis: &redis}, "rabbitmq": {RabbitMQ: &rabbit},
	} {
		broker, err := open(chosen)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := broker.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
	}
	sqs.Queue = "{topic}"
	if _, err := open(config.Broker{SQS: &sqs}); err == nil {
		t.Error("standard queues were taken without unordered")
	}
	redis.Stream = "{topic"
	if _, err := open(config.Broker{Redis: &redis}); err == nil {
		t.Error("a broken template was taken")
	}
	rabbit.CreateQueues[0].Bindings = nil
	if _, err := open(config.Broker{RabbitMQ: &rabbit}); err == nil {
		t.Error("a queue that nothing reaches was taken")
	}
}

func TestAFormatThatABrokerCantTakeIsAFault(t *testing.T) {
	t.Parallel()
	d := config.Standard[config.Destination]()
	d.Broker.Stdout = &config.Stdout{}
	d.Format.CloudEvents = &config.CloudEvents{Source: "/x"}
	o := config.Opening{Stdout: io.Discard, Logger: slog.New(slog.DiscardHandler)}
	if _, err := d.Open(o); err == nil || !strings.Contains(err.Error(), "format of their own") {
		t.Errorf("the error is %v", err)
	}
	d.Format.CloudEvents = nil
	d.SchemaRegistry = &config.SchemaRegistry{URLs: []string{"registry"},
		Schemas: []config.RegistrySchema{{Subject: "a", Type: "avro", File: "/no/such"}}}
	if _, err := d.Open(o); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("the error is %v", err)
	}
}
