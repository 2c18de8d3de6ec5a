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
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/relay"
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

	single, remote := fields.Default[brokers.Webhook](), fields.Default[brokers.GRPC]()
	single.URL, single.Secret, single.AllowNetworks = scalar.NewURL(web.URL), scalar.NewSecret(secret), []string{"127.0.0.1"}
	single.APIKeyHeader, single.APIKey = "X-Api-Key", scalar.NewSecret("key")
	several := single
	several.Batch = 100
	remote.Target = listener.Addr().String()
	for name, b := range map[string]brokers.Broker{"http": {Webhook: &single}, "http, batches": {Webhook: &several},
		"grpc": {GRPC: &remote}} {
		broker, err := config.Destination{Broker: b}.Open(brokers.Opening{})
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
	sqs, sns, pubsub := fields.Default[brokers.SQS](), fields.Default[brokers.SNS](), fields.Default[brokers.PubSub]()
	sqs.Region, sqs.CreateQueues = "eu-central-1", true
	sns.Topic = "arn:aws:sns:eu-central-1:123456789012:{topic}.fifo"
	pubsub.Project = "shop-4711"
	redis, rabbit := fields.Default[brokers.Redis](), fields.Default[brokers.RabbitMQ]()
	redis.Addresses = []string{"127.0.0.1:1"}
	rabbit.Exchange, rabbit.CreateExchange = "events", "topic"
	rabbit.CreateQueues = []brokers.RabbitMQQueue{{Name: "orders", Bindings: []string{"orders.#"}, MaxLength: 1000}}
	open := func(b brokers.Broker) (*config.Opened, error) {
		return config.Destination{Broker: b}.Open(brokers.Opening{Stdout: io.Discard, Logger: slog.New(slog.DiscardHandler)})
	}
	for name, chosen := range map[string]brokers.Broker{
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
	if _, err := open(brokers.Broker{SQS: &sqs}); err == nil {
		t.Error("standard queues were taken without unordered")
	}
	redis.Stream = "{topic"
	if _, err := open(brokers.Broker{Redis: &redis}); err == nil {
		t.Error("a broken template was taken")
	}
	rabbit.CreateQueues[0].Bindings = nil
	if _, err := open(brokers.Broker{RabbitMQ: &rabbit}); err == nil {
		t.Error("a queue that nothing reaches was taken")
	}
}

// Destinations share a client if their sections and formats are equal, whatever else they say.
func TestDestinationsOpenTheBrokersThatTheyShare(t *testing.T) {
	t.Parallel()
	pool := &brokers.Pool{Logger: slog.New(slog.DiscardHandler)}
	open := func(d config.Destination) relay.Broker {
		t.Helper()
		kafka := fields.Default[brokers.Kafka]()
		kafka.Brokers = []string{"127.0.0.1:1"}
		d.Broker.Kafka = &kafka
		opened, err := d.Open(brokers.Opening{Pool: pool, Logger: pool.Logger})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := opened.Close(); err != nil {
				t.Error(err)
			}
		})
		client := opened.Unwrap()
		if turns, ok := client.(relay.Wrapper); ok { // those of a client that others may use as well
			client = turns.Unwrap()
		}
		return client
	}
	first := open(config.Destination{})
	for _, c := range []struct {
		of     string
		d      config.Destination
		shared bool
	}{
		{"another name and other topics", config.Destination{Name: "another", Topics: []string{"orders.*"}}, true},
		{"a format", config.Destination{Format: config.Format{CloudEvents: &config.CloudEvents{}}}, false},
		{"many shard groups", config.Destination{ShardGroups: 64}, false},
	} {
		if shared := open(c.d) == first; shared != c.shared {
			t.Errorf("a destination with %s shares the client: %v", c.of, shared)
		}
	}
}

func TestAFormatThatABrokerCantTakeIsAFault(t *testing.T) {
	t.Parallel()
	d := fields.Default[config.Destination]()
	d.Broker.Stdout = &brokers.Stdout{}
	d.Format.CloudEvents = &config.CloudEvents{Source: "/x"}
	o := brokers.Opening{Stdout: io.Discard, Logger: slog.New(slog.DiscardHandler)}
	if _, err := d.Open(o); err == nil || !strings.Contains(err.Error(), "format of their own") {
		t.Errorf("the error is %v", err)
	}
	d.Format.CloudEvents = nil
	d.SchemaRegistry = &brokers.SchemaRegistry{URLs: []string{"registry"},
		Schemas: []brokers.RegistrySchema{{Subject: "a", Type: "avro", File: "/no/such"}}}
	if _, err := d.Open(o); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("the error is %v", err)
	}
}
