package load_test

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/internal/configtest"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

const shown = `
name: relay-1
database: {url: "postgres://app:hidden@${HOST:-db}/app?sslpassword=hidden"}
http: {listen: ""}
destinations:
  - name: orders
    topics: ["orders.*", "!orders.internal", "yes", "1.5", "a/b"]
    broker:
      kafka:
        brokers: [a:9092, "b:9092"]
        client_id: "$${topic} #"
        sasl: {username: "1", password: hidden}
    delivery: {backoff: {max: 1h}, max_in_flight_bytes: 1000000}
  - name: events
    broker:
      nats:
        url: nats://hidden@n:4222
        user: "no"
        password_file: PASSWORD
  - name: console
    broker: {stdout: }
  - name: archive
    broker: {file: {path: "d\u00e9p\u00f4t/ev\"ents\n.jsonl"}}
`

func TestShowGivesEachValueWithItsOriginAndNoSecret(t *testing.T) {
	t.Parallel()
	password := configtest.Write(t, "password", "hidden\n")
	l := configtest.Load(t, strings.ReplaceAll(shown, "PASSWORD", password), load.Input{
		Environ:   []string{"HOST=db1", "OUTBOX_LOG_LEVEL=debug", "OUTBOX_DESTINATIONS_0_BROKER_KAFKA_COMPRESSION=zstd"},
		Overrides: map[string]string{"destinations.0.delivery.batch": "100"},
	})
	got := l.Show()
	if strings.Contains(got, "hidden") {
		t.Error("it shows a secret")
	}
	for _, line := range strings.Split(got, "\n") {
		if i := strings.Index(line, "# /"); i >= 0 {
			got = strings.Replace(got, line, line[:i+2]+filepath.Base(line[i:]), 1)
		}
	}
	got = strings.ReplaceAll(got, filepath.Dir(password), "/run/secrets")
	golden(t, "testdata/show.yaml", got)
}

func TestWhatIsShownLoadsAsTheSame(t *testing.T) {
	t.Parallel()
	text := strings.NewReplacer(":hidden@", "@", "?sslpassword=hidden", "", "nats://hidden@", "nats://",
		"sasl: {username: \"1\", password: hidden}", "topic: \"1\"", "        password_file: PASSWORD\n", "").Replace(shown)
	first := configtest.Load(t, text, load.Input{})
	if strings.Contains(first.Show(), "***") {
		t.Fatalf("the test is to have no secrets:\n%s", first.Show())
	}
	again := configtest.Load(t, first.Show(), load.Input{Hostname: "other"})
	normalise := func(c *config.Config) {
		for i := range c.Destinations {
			d := &c.Destinations[i]
			if len(d.Topics) == 0 {
				d.Topics = nil
			}
			if n := d.Broker.NATS; n != nil && len(n.StreamSubjects) == 0 {
				n.StreamSubjects = nil
			}
		}
	}
	normalise(&first.Config)
	normalise(&again.Config)
	if !reflect.DeepEqual(first.Config, again.Config) {
		t.Errorf("read back differently\n got %#v\nwant %#v\n%s", again.Config, first.Config, first.Show())
	}
	if len(again.Warnings) != len(first.Warnings) {
		t.Errorf("warnings %q, before %q", again.Warnings, first.Warnings)
	}
}
