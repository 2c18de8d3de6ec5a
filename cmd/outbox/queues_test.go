package main

import (
	"io"
	"log/slog"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config"
)

func TestRedisAndRabbitMQAreOpenedFromTheirConfigurationWithoutAConnection(t *testing.T) {
	t.Parallel()
	redis, rabbit := config.DefaultRedis(), config.DefaultRabbitMQ()
	redis.Addresses = []string{"127.0.0.1:1"}
	rabbit.Exchange, rabbit.CreateExchange = "events", "topic"
	rabbit.CreateQueues = []config.RabbitMQQueue{{Name: "orders", Bindings: []string{"orders.#"}, MaxLength: 1000}}
	for want, chosen := range map[string]config.Broker{"redis": {Redis: &redis}, "rabbitmq": {RabbitMQ: &rabbit}} {
		broker, kind, err := openBroker(chosen, brokerSetting{stdout: io.Discard, logger: slog.New(slog.DiscardHandler)})
		if err != nil || kind != want {
			t.Errorf("%s: opened as %q, %v", want, kind, err)
			continue
		}
		if err := broker.Close(); err != nil {
			t.Errorf("%s: close: %v", want, err)
		}
	}
	redis.Stream = "{topic"
	if _, _, err := openBroker(config.Broker{Redis: &redis}, brokerSetting{}); err == nil {
		t.Error("a broken template was taken")
	}
	rabbit.CreateQueues[0].Bindings = nil
	if _, _, err := openBroker(config.Broker{RabbitMQ: &rabbit}, brokerSetting{}); err == nil {
		t.Error("a queue that nothing reaches was taken")
	}
}
