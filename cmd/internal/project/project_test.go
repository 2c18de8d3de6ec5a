package project

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// folder makes one with files, and returns what is found there.
func folder(t *testing.T, files map[string]string) (string, Found) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := Look(dir, noon)
	if err != nil {
		t.Fatal(err)
	}
	return dir, found
}

// loaded writes the configuration and loads it as the relay would.
func loaded(t *testing.T, dir string, f Found) config.Config {
	t.Helper()
	last := f.Files[len(f.Files)-1]
	path := filepath.Join(dir, last.Path)
	if err := os.WriteFile(path, []byte(last.Text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := load.Config(load.Input{File: path})
	if err != nil {
		t.Fatalf("%v in\n%s", err, last.Text)
	}
	return l.Config
}

func TestEachBrokerOfAComposeFileIsInTheConfiguration(t *testing.T) {
	t.Parallel()
	for image, check := range map[string]func(brokers.Broker) string{
		"apache/kafka:4.3.1":                 func(b brokers.Broker) string { return b.Kafka.Brokers[0] },
		"docker.io/bitnami/kafka":            func(b brokers.Broker) string { return b.Kafka.Brokers[0] },
		"redpandadata/redpanda:v25@sha256:a": func(b brokers.Broker) string { return b.Kafka.Brokers[0] },
		"nats:2-alpine":                      func(b brokers.Broker) string { return strings.TrimPrefix(b.NATS.URL.Text(), "nats://") },
		"rabbitmq:4-management": func(b brokers.Broker) string {
			return strings.TrimPrefix(b.RabbitMQ.URL.Text(), "amqp://app:pw@")
		},
		"valkey/valkey:8":               func(b brokers.Broker) string { return b.Redis.Addresses[0] },
		"localstack/localstack":         func(b brokers.Broker) string { return strings.TrimPrefix(b.SQS.Endpoint, "http://") },
		"softwaremill/elasticmq-native": func(b brokers.Broker) string { return strings.TrimPrefix(b.SQS.Endpoint, "http://") },
	} {
		port := map[bool]int{true: 9092}[strings.Contains(image, "kafka") || strings.Contains(image, "redpanda")]
		for part, p := range map[string]int{"nats": 4222, "rabbitmq": 5672, "valkey": 6379, "localstack": 4566, "elasticmq": 9324} {
			if strings.Contains(image, part) {
				port = p
			}
		}
		for how, ports := range map[string]string{
			"localhost:19000":              fmt.Sprintf(`["127.0.0.1:19000:%d"]`, port),
			"localhost:19001":              fmt.Sprintf(`["${PORT:-19001}:%d/tcp"]`, port),
			"localhost:19002":              fmt.Sprintf(`[{target: %d, published: 19002}]`, port),
			fmt.Sprint("localhost:", port): `["80:81"]`,
		} {
			dir, f := folder(t, map[string]string{"docker-compose.yml": "services:\n  mine:\n    image: " + image +
				"\n    ports: " + ports + "\n    environment: [RABBITMQ_DEFAULT_USER=app, RABBITMQ_DEFAULT_PASS=pw]\n"})
			if got := check(loaded(t, dir, f).Destinations[0].Broker); got != how || f.Broker != "mine" {
				t.Errorf("%s with %s is at %s, as %q", image, ports, got, f.Broker)
			}
		}
	}
}

func TestKafkaIsWhereItTellsProgramsOnThisMachine(t *testing.T) {
	t.Parallel()
	for _, how := range []string{
		"environment: {KAFKA_ADVERTISED_LISTENERS: 'IN://kafka:9092,OUT://localhost:19092'}",
		"environment: [\"KAFKA_CFG_ADVERTISED_LISTENERS=OUT://127.0.0.1:19092,IN://kafka:9092\"]",
		"command: [redpanda, start, --advertise-kafka-addr, 'internal://redpanda:9092,external://localhost:19092']",
	} {
		dir, f := folder(t, map[string]string{"compose.yaml": "services:\n  kafka:\n    image: apache/kafka:4.3.1\n" +
			"    ports: ['19092:19092']\n    " + how + "\n"})
		if got := loaded(t, dir, f).Destinations[0].Broker.Kafka.Brokers[0]; got != "localhost:19092" {
			t.Errorf("%s: at %s", how, got)
		}
	}
}

func TestTheDatabaseIsTheComposeFiles(t *testing.T) {
	t.Parallel()
	for environment, want := range map[string]string{
		"{POSTGRES_USER: app, POSTGRES_PASSWORD: 'p w/1', POSTGRES_DB: shop}": "postgres://app:p%20w%2F1@localhost:5433/shop",
		"[POSTGRES_PASSWORD=secret]":                                          "postgres://postgres:secret@localhost:5433/postgres",
		"{POSTGRES_USER: app, POSTGRES_PASSWORD: '${PW}'}":                    "postgres://app@localhost:5433/app",
	} {
		dir, f := folder(t, map[string]string{"compose.yaml": "services:\n  db:\n    image: postgres:18\n" +
			"    ports: ['5433:5432']\n    environment: " + environment + "\n", "go.mod": "module example.com/shop\n\ngo 1.26\n"})
		c := loaded(t, dir, f)
		if got := c.Database.URL.Text(); got != want {
			t.Errorf("%s is %s, want %s", environment, got, want)
		}
		if f.Database != "db" || f.Module != "example.com/shop" || f.Code == "" || c.Destinations[0].Broker.Stdout == nil {
			t.Errorf("%+v", f)
		}
	}
}

func TestAMigrationHasTheFormOfItsTool(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file, text string
		paths      string
		begins     string
	}{
		"golang-migrate": {"migrations/000007_orders.up.sql", "",
			"migrations/000008_outbox.up.sql migrations/000008_outbox.down.sql", "-- 0001"},
		"goose": {"db/migrations/20260101120000_orders.sql", "-- +goose Up\n",
			"db/migrations/20261123120000_outbox.sql", "-- +goose NO"},
		"dbmate": {"db/migrations/20260101120000_orders.sql", "-- migrate:up\n",
			"db/migrations/20261123120000_outbox.sql", "-- migrate:up tr"},
		"": {"README", "", "outbox.sql", "-- 0001"},
	} {
		_, f := folder(t, map[string]string{c.file: c.text})
		var paths []string
		for _, file := range f.Files[:len(f.Files)-1] {
			paths = append(paths, file.Path)
		}
		if f.Tool != name || strings.Join(paths, " ") != c.paths || !strings.HasPrefix(f.Files[0].Text, c.begins) {
			t.Errorf("%q: %q, %q, %.40q", name, f.Tool, paths, f.Files[0].Text)
		}
	}
}

func TestAComposeFileThatCanNotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "compose.yml"), []byte("services: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Look(dir, noon); err == nil || !strings.Contains(err.Error(), "compose.yml can't be read") {
		t.Errorf("%v", err)
	}
}
