package load_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

// folder writes files below one, and returns the path of outbox.yaml there.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "outbox.yaml")
}

func TestDatabasesHaveWhatTheTopLevelSays(t *testing.T) {
	t.Parallel()
	file := folder(t, map[string]string{
		"outbox.yaml": `
name: relay-1
databases_dir: conf.d
databases:
  - name: orders
    database: {url_file: "${DIR}/orders.url"}
    notify: {webhook: {url_file: "${DIR}/orders.hook"}}
    quota: {messages: 5000}
    destinations:
      - {name: kafka, topics: [orders.*], delivery: {max_attempts: 7}}
      - {name: log, broker: {stdout: {}}}
      - {name: bus, broker: {nats: {url: "nats://other"}}}
  - {name: bare, database: {url: postgres://bare}}
retention: {interval: 7s}
quota: {messages: 1000, bytes: 10MiB}
notify: {webhook: {url: "https://example.com/hidden", timeout: 3s}}
destinations:
  - {name: kafka, rate: 5, broker: {kafka: {brokers: ["k:9092"]}}, delivery: {batch: 11}}
  - {name: bus, rate: 6, broker: {redis: {addresses: ["r:6379"]}}}
`,
		"orders.url": "postgres://u:hidden@orders\n", "orders.hook": "https://example.com/orders\n",
		"conf.d/users.yaml": "database: {url: postgres://users}\nretention: {enabled: false}\n",
		"conf.d/z.yml":      "name: zeta\ndatabase: {url: postgres://zeta}\ndestinations: [{name: log, broker: {stdout: {}}}]\n",
		"conf.d/README":     "no database",
	})
	environ := []string{"DIR=" + filepath.Dir(file), "OUTBOX_DATABASES_1_DATABASE_URL=postgres://by-variable"}
	loaded, err := load.Config(load.Input{File: file, Environ: environ, Unopened: true, DatabaseURL: "postgres://ignored"})
	if err != nil {
		t.Fatal(err)
	}
	all := loaded.Config.All()
	byName := make(map[string]config.Config)
	var names []string
	for _, one := range all {
		names = append(names, one.Name)
		byName[one.Name] = one.Config
		if one.Config.Name != "relay-1" || len(one.Config.Databases) != 0 {
			t.Errorf("%s is not a configuration of its own: %+v", one.Name, one.Config)
		}
	}
	if want := []string{"orders", "bare", "users", "zeta"}; !slices.Equal(names, want) {
		t.Fatalf("%q, want %q", names, want)
	}
	orders, bare, users, zeta := byName["orders"], byName["bare"], byName["users"], byName["zeta"]
	kafka, bus := orders.Destinations[0], orders.Destinations[2]
	switch {
	case orders.Database.URL.Text() != "postgres://u:hidden@orders" || bare.Database.URL.Text() != "postgres://by-variable":
		t.Error("URLs:", orders.Database.URL.Text(), bare.Database.URL.Text())
	case orders.Notify.Webhook.URL.Text() != "https://example.com/orders" || orders.Notify.Webhook.Timeout != 3*time.Second:
		t.Errorf("a secret of its own: %+v", orders.Notify.Webhook)
	case len(orders.Destinations) != 3 || kafka.Rate != 5 || kafka.Delivery.Batch != 11 || kafka.Delivery.MaxAttempts != 7 ||
		kafka.Topics[0] != "orders.*" || kafka.Broker.Kafka.Brokers[0] != "k:9092":
		t.Errorf("kafka: %+v", kafka)
	case bus.Broker.Redis != nil || bus.Broker.NATS == nil || bus.Rate != 6:
		t.Errorf("a broker of its own: %+v", bus)
	case len(bare.Destinations) != 2 || bare.Retention.Interval != 7*time.Second || !bare.Retention.Enabled:
		t.Errorf("bare: %+v", bare)
	case users.Retention.Enabled || users.Retention.Interval != 7*time.Second || len(users.Destinations) != 2:
		t.Errorf("users: %+v", users)
	case len(zeta.Destinations) != 1 || zeta.Destinations[0].Name != "log":
		t.Errorf("zeta: %+v", zeta)
	case orders.Quota != (config.Quota{Messages: 5000, Bytes: 10 << 20}) || users.Quota != (config.Quota{Messages: 1000, Bytes: 10 << 20}):
		t.Errorf("quotas: %+v, %+v", orders.Quota, users.Quota)
	case users.Destinations[0].Broker.Kafka == bare.Destinations[0].Broker.Kafka:
		t.Error("two databases share a section")
	}

	shown := loaded.Show()
	for _, part := range []string{"users.yaml:1", "interval: 7s", "env OUTBOX_DATABASES_1_DATABASE_URL"} {
		if !strings.Contains(shown, part) {
			t.Errorf("%q is not in what is shown:\n%s", part, shown)
		}
	}
	if strings.Contains(shown, "hidden") {
		t.Error("a secret is shown")
	}
}

func TestAFaultInAFileOfADatabaseNamesTheFileAndTheLine(t *testing.T) {
	t.Parallel()
	file := folder(t, map[string]string{
		"outbox.yaml":      "databases_dir: conf.d\ndestinations: [{name: log, broker: {stdout: {}}}]\n",
		"conf.d/a.yaml":    "database: {url: postgres://a}\nretention:\n  interval: soon\n",
		"conf.d/b.yaml":    "database: {}\n",
		"conf.d/Bad.yaml":  "database: {url: postgres://bad}\n",
		"conf.d/none.yaml": "",
	})
	_, err := load.Config(load.Input{File: file})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"conf.d/a.yaml:3:", "soon", "conf.d/b.yaml:1:", "databases[2].database.url: not given", "Bad.yaml", `"Bad" is no name`,
		"none.yaml: databases[3].database.url: not given"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in:\n%v", part, err)
		}
	}
}

func TestOneDatabaseIsTheDefault(t *testing.T) {
	t.Parallel()
	loaded, err := load.Config(load.Input{DatabaseURL: "postgres://given",
		Overrides: map[string]string{"destinations": "[{name: log, broker: {stdout: {}}}]", "database.url": "postgres://lower"}})
	if err != nil {
		t.Fatal(err)
	}
	all := loaded.Config.All()
	if len(all) != 1 || all[0].Name != config.DefaultDatabase || all[0].Database.URL.Text() != "postgres://given" || loaded.Config.Several() {
		t.Errorf("%+v", all)
	}
}
