package brokers_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/oauth"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// tokenServer gives who knows the secret a token as Kafka's own validator for tests takes it: a JWT without a
// signature.
func tokenServer(t *testing.T, life int) (url string, given *atomic.Int64) {
	t.Helper()
	given = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, secret, _ := r.BasicAuth()
		if secret != "s3cret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		given.Add(1)
		now := time.Now().Unix()
		claims := fmt.Sprintf(`{"sub":"relay","scope":"kafka","iat":%d,"exp":%d}`, now, now+int64(life))
		token := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + "."
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":%d}`, token, life)
	}))
	t.Cleanup(s.Close)
	return s.URL, given
}

// kafkaWithTokens returns a server and an address of it where nobody is let in without a token, and where a session
// ends after a while; 0: with its connection.
func kafkaWithTokens(t *testing.T, session time.Duration) (k *servers.Kafka, guarded string) {
	t.Helper()
	proxy, err := testnet.StartProxy()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	k = servers.OwnKafka(t, servers.KafkaConfig{Front: proxy.Addr(), Settings: map[string]string{
		"listener.security.protocol.map":                             "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,BEHIND:SASL_PLAINTEXT",
		"listener.name.behind.sasl.enabled.mechanisms":               "OAUTHBEARER",
		"listener.name.behind.oauthbearer.sasl.jaas.config":          `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="kafka";`,
		"listener.name.behind.oauthbearer.connections.max.reauth.ms": strconv.FormatInt(session.Milliseconds(), 10),
	}})
	proxy.Forward(k.Behind())
	return k, proxy.Addr()
}

func TestARelayEntersKafkaWithTokens(t *testing.T) {
	t.Parallel()
	_, address := kafkaWithTokens(t, 0)
	url, given := tokenServer(t, 3600)
	open := func(secret string) func(context.Context) error {
		k := fields.Default[brokers.Kafka]()
		tokens := fields.Default[brokers.OAuth]()
		tokens.TokenURL, tokens.ClientID, tokens.ClientSecret = url, "relay", scalar.NewSecret(secret)
		k.CreateTopics = true
		k.Brokers, k.SASL = []string{address}, brokers.SASL{Mechanism: "oauthbearer", OAuth: &tokens}
		broker, err := config.Destination{ShardGroups: 1,
			Broker: brokers.Broker{Kafka: &k}}.Open(brokers.Opening{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := broker.Close(); err != nil {
				t.Error(err)
			}
		})
		return func(ctx context.Context) error {
			for _, err := range broker.Publish(ctx, []*outbox.Message{{ID: outbox.NewID(), Topic: "orders", Payload: []byte("1")}}) {
				return err
			}
			return nil
		}
	}
	ctx := await.Context(t)

	publish := open("s3cret")
	if err := publish(ctx); err != nil || given.Load() != 1 {
		t.Fatalf("%d tokens, error %v", given.Load(), err)
	}

	err := open("wrong")(ctx)
	if !outbox.IsUnavailable(err) || !strings.Contains(err.Error(), "check client_id and client_secret") {
		t.Errorf("wrong secret: %v, want an unavailable error that says what to do", err)
	}
}

// Tokens of 6 s and sessions of 3 s: every connection authenticates again and again while it carries records.
func TestSessionsWithKafkaAreRenewedUnderLoad(t *testing.T) {
	t.Parallel()
	server, guarded := kafkaWithTokens(t, 3*time.Second)
	url, given := tokenServer(t, 6)
	source, err := oauth.New(oauth.Config{TokenURL: url, ClientID: "relay", ClientSecret: "s3cret"})
	if err != nil {
		t.Fatal(err)
	}
	var authenticated, connected atomic.Int64
	broker, err := kafka.New(kafka.Config{
		Brokers: []string{guarded}, CreateTopics: true,
		SASL: &kafka.SASL{Mechanism: "OAUTHBEARER", Token: func(ctx context.Context) (string, error) {
			authenticated.Add(1)
			return source.Token(ctx)
		}},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			connected.Add(1)
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()

	// A connection authenticates once when it is made; whatever is beyond that renews a session.
	const callers, renewals = 4, 12
	ctx := await.Context(t)
	var sent [callers]int
	var load sync.WaitGroup
	for caller := range callers {
		load.Go(func() {
			for authenticated.Load()-connected.Load() < renewals || given.Load() < 3 {
				batch := make([]*outbox.Message, 50)
				for i := range batch {
					batch[i] = &outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: strconv.Itoa(caller),
						Payload: []byte(strconv.Itoa(sent[caller] + i))}
				}
				for _, err := range broker.Publish(ctx, batch) {
					if err != nil {
						t.Errorf("caller %d, after %d messages: %v", caller, sent[caller], err)
						return
					}
				}
				sent[caller] += len(batch)
			}
		})
	}
	load.Wait()
	t.Logf("%d messages of each caller; %d connections, %d renewals, %d tokens", sent, connected.Load(),
		authenticated.Load()-connected.Load(), given.Load())
	next := readNumbers(t, server.Addr(), "orders", sent[:])
	for caller, want := range sent {
		if key := strconv.Itoa(caller); next[key] != want {
			t.Errorf("of caller %d, %d messages arrived and %d were sent", caller, next[key], want)
		}
	}
}

// readNumbers reads a topic until there is all that was sent, and returns how many of each key there are. They count up
// from 0, each once.
func readNumbers(t *testing.T, addr, topic string, sent []int) map[string]int {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	left := 0
	for _, n := range sent {
		left += n
	}
	ctx := await.Context(t)
	next := map[string]int{}
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d messages are missing: %v", left, err)
		}
		for r := range fetches.RecordsAll() {
			if got, want := string(r.Value), strconv.Itoa(next[string(r.Key)]); got != want {
				t.Fatalf("key %s: %s came instead of %s", r.Key, got, want)
			}
			next[string(r.Key)]++
			left--
		}
	}
	return next
}
