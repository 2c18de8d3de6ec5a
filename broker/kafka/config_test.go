package kafka_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/twmb/franz-go/pkg/kfake"
)

func TestAllFaultsOfAConfigAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := kafka.New(kafka.Config{
		Brokers:        []string{"kafka://one:9092", ":9092", "a:b:c"},
		Topic:          "{topic}.{key}",
		SASL:           &kafka.SASL{Mechanism: "GSSAPI", User: "u", Password: "secret"},
		Compression:    "brotli",
		Partitions:     3,
		Clients:        -1,
		MaxRecordBytes: 10,
		Unanswered:     -time.Second,
	})
	contains(t, err, `"kafka://one:9092"`, `":9092"`, `"a:b:c"`, `"{key}"`, `"GSSAPI"`, `"brotli"`, "CreateTopics", "Clients", "MaxRecordBytes", "Unanswered")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the password is in the error: %v", err)
	}
	_, err = kafka.New(kafka.Config{Topic: "a b"})
	contains(t, err, "Brokers: none is given", `"a b"`)
}

func TestABrokerCanBeMadeWithoutACluster(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"kafka-1", "kafka-1:9093", "::1", "[::1]:9092"} {
		b, err := kafka.New(kafka.Config{Brokers: []string{address}})
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if err := b.Close(); err != nil {
			t.Errorf("%s: close: %v", address, err)
		}
	}
}

func TestTheClientLibraryLogsToTheGivenLogger(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	var text await.Buffer
	b := f.broker(kafka.Config{Logger: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	accepted(t, b.Publish(patient(t), brokertest.Messages("orders", 1, 1)))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "kafka client: ") {
		t.Errorf("logged: %s", text.String())
	}
}
