package load_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

// What a person sees for another name of a broker or of a variable is in testdata/names.txt, which is to be read.
func TestOtherNamesOfBrokersAndVariablesAreAnswered(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	answer := func(in load.Input) string {
		in.Environ = append(in.Environ, "OUTBOX_DATABASE_URL=postgres://app@db/app")
		l, err := load.Config(in)
		if err != nil {
			_, text, _ := strings.Cut(strings.ReplaceAll(err.Error(), filepath.Dir(in.File)+"/", ""), "\n")
			return text
		}
		if len(l.Warnings) == 0 {
			return "  (nothing)"
		}
		return "  warning: " + strings.Join(l.Warnings, "\n  warning: ")
	}

	fmt.Fprint(&all, "# a key of broker\n")
	kinds := slices.Sorted(maps.Keys(load.OtherNames))
	kinds = append(kinds, "Webhook", "Kafka", "RabbitMQ", "NATS", "rabbit-mq", "rabbit_mq", "AWS_SQS", "google-pubsub", "pub_sub",
		"Redis-Streams", "event-hubs", "kafak", "rabitmq", "natss", "sq", "htpp", "gprc", "stdot", "archiv",
		"pulsar", "kinesis", "mqtt", "servicebus", "postgres")
	for _, kind := range kinds {
		file := filepath.Join(t.TempDir(), "outbox.yaml")
		text := "destinations:\n  - name: all\n    broker:\n      " + kind + ": {}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s\n%s\n", kind, answer(load.Input{File: file}))
	}

	fmt.Fprint(&all, "\n# a variable of the environment\n")
	file := filepath.Join(t.TempDir(), "outbox.yaml")
	text := "destinations:\n  - {name: all, broker: {stdout: {}}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"OUTBOX_DATABSE_URL", "OUTBOX_DB_URL", "OUTBOX_DATABASEURL", "OUTBOX_DATABASE_URI", "OUTBOX_URL", "OUTBOX_DATABASE_PASSWORD",
		"OUTBOX_LOG_LEVLE", "OUTBOX_LOGLEVEL", "OUTBOX_LOG", "OUTBOX_DEBUG", "OUTBOX_HTTP_PORT", "OUTBOX_HTTP_LISTN", "OUTBOX_LISTEN",
		"OUTBOX_KAFKA_BROKERS", "OUTBOX_DESTINATIONS_0_RATE", "OUTBOX_DESTINATION_0_NAME", "OUTBOX_DESTINATIONS_ALL_NAME",
		"OUTBOX_DESTINATIONS_1_BROKR_STDOUT", "OUTBOX_DESTINATIONS_0_BROKER_WEBHOOK_URL", "OUTBOX_DESTINATIONS_0_BROKER_AMQP_URL",
		"OUTBOX_DESTINATIONS_0_BROKER_GOOGLE_PUBSUB_PROJECT", "OUTBOX_DESTINATIONS_0_BROKER_KAFKA_BROKRES",
		"OUTBOX_DESTINATIONS_0_DELIVERY_BATHC", "OUTBOX_RETENTION", "OUTBOX_RETENTION_ENABLE", "OUTBOX_VERSION",
		// Those of others.
		"OUTBOX_CONFIG", "OUTBOX_SERVER", "OUTBOX_PORT", "OUTBOX_SERVICE_HOST", "OUTBOX_ORDERS_PORT_9187_TCP_ADDR", "OUTBOXES",
		"MY_OUTBOX_URL",
	} {
		fmt.Fprintf(&all, "%s\n%s\n", name, answer(load.Input{File: file, Environ: []string{name + "=1"}}))
	}

	fmt.Fprint(&all, "\n# --set\n")
	for _, path := range []string{"destination.0.name", "destinations.0.rate", "destinations.0.broker.webhook.url",
		"destinations.0.broker.amqp", "log.levle", "loglevel", "database.uri", "destinations.all.name"} {
		fmt.Fprintf(&all, "%s\n%s\n", path, answer(load.Input{File: file, Overrides: map[string]string{path: "1"}}))
	}
	golden(t, "testdata/names.txt", all.String())
}
