package brokers_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/internal/authority"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

// publishAs loads a file with this broker, opens the destination as a relay does, and publishes one message.
func publishAs(t *testing.T, broker string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "outbox.yaml")
	text := "database: {url: postgres://app@db/app}\ndestinations:\n  - name: queue\n    broker: {" + broker + "}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := load.Config(load.Input{File: file})
	if err != nil {
		t.Fatal(err)
	}
	b, err := loaded.Config.Destinations[0].Open(brokers.Opening{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx := await.Context(t)
	for _, err := range b.Publish(ctx, []*outbox.Message{{ID: outbox.NewID(), Topic: "orders", Payload: []byte("1")}}) {
		return err
	}
	return nil
}

func TestTheFileSaysHowRedisAndRabbitMQAreSpokenToWithTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := authority.New(t), authority.New(t)
	shown, relay, stranger := ours.Server(t, "127.0.0.1"), ours.Client(t, "relay"), theirs.Client(t, "relay")
	certificate := &servers.TLS{Certificate: shown.File, Key: shown.KeyFile, Authority: ours.File(), DemandClient: true}
	redis := servers.OwnRedis(t, servers.RedisConfig{TLS: certificate})
	rabbit := servers.OwnRabbitMQ(t, servers.RabbitMQConfig{TLS: certificate})

	ca, own := "ca_file: "+ours.File(), fmt.Sprintf("cert_file: %s, key_file: %s", relay.File, relay.KeyFile)
	for name, c := range map[string]struct {
		tls  string
		want []string // nothing: the message arrives
	}{
		"as it should be":       {ca + ", " + own, nil},
		"whatever it shows":     {"insecure_skip_verify: true, server_name: any.example, " + own, nil},
		"an unknown authority":  {"ca_file: " + theirs.File() + ", " + own, []string{"not trusted", "ca_file"}},
		"the system's":          {own, []string{"not trusted", "ca_file"}},
		"another name":          {ca + ", " + own + ", server_name: broker.example", []string{"broker.example", "server_name"}},
		"without a certificate": {ca, []string{"asked for a certificate", "cert_file and key_file"}},
		"a stranger": {ca + fmt.Sprintf(", cert_file: %s, key_file: %s", stranger.File, stranger.KeyFile),
			[]string{"authority that it knows", "cert_file and key_file"}},
	} {
		// A queue is known before it has a leader, so it isn't shared: another case would be refused.
		queue := strings.ReplaceAll(name, " ", "-")
		for kind, broker := range map[string]string{
			"redis": fmt.Sprintf("redis: {addresses: [%s], create_streams: true, tls: {enabled: true, %s}}", redis.TLSAddr(), c.tls),
			"rabbitmq": fmt.Sprintf("rabbitmq: {url: amqps://guest:guest@%s, routing_key: %s, create_queues: [{name: %[2]s}], "+
				"tls: {enabled: true, %[3]s}}", rabbit.TLSAddr(), queue, c.tls),
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				err := publishAs(t, broker)
				if c.want == nil && err != nil || c.want != nil && !outbox.IsUnavailable(err) {
					t.Fatalf("error %v", err)
				}
				for _, want := range c.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %v, want one that says %q", err, want)
					}
				}
			})
		}
	}
}
