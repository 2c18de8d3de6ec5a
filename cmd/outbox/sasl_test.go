package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/rig"
	"github.com/pgoutbox/outbox/internal/servers"
)

// tokenServer gives who knows the secret a token as Kafka's own validator for tests takes it: a JWT without a signature.
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

// kafkaWithTokens returns the address of a cluster that lets nobody in without a token.
func kafkaWithTokens(t *testing.T) string {
	t.Helper()
	proxy, err := rig.StartProxy()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	k := servers.OwnKafka(t, servers.KafkaConfig{Front: proxy.Addr(), Settings: map[string]string{
		"listener.security.protocol.map":                    "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,BEHIND:SASL_PLAINTEXT",
		"listener.name.behind.sasl.enabled.mechanisms":      "OAUTHBEARER",
		"listener.name.behind.oauthbearer.sasl.jaas.config": `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="kafka";`,
	}})
	proxy.Forward(k.Behind())
	return proxy.Addr()
}

func TestARelayEntersKafkaWithTokens(t *testing.T) {
	t.Parallel()
	address := kafkaWithTokens(t)
	url, given := tokenServer(t, 3600)
	open := func(secret config.Secret) func(context.Context) error {
		k := config.DefaultKafka()
		tokens := config.DefaultOAuth()
		tokens.TokenURL, tokens.ClientID, tokens.ClientSecret = url, "relay", secret
		k.CreateTopics = true
		k.Brokers, k.SASL = []string{address}, config.SASL{Mechanism: "oauthbearer", OAuth: &tokens}
		broker, _, err := openBroker(config.Broker{Kafka: &k}, brokerSetting{stdout: io.Discard, groups: 1, logger: slog.New(slog.DiscardHandler)})
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	publish := open("s3cret")
	if err := publish(ctx); err != nil || given.Load() != 1 {
		t.Fatalf("%d tokens, error %v", given.Load(), err)
	}

	err := open("wrong")(ctx)
	if !outbox.IsUnavailable(err) || !strings.Contains(err.Error(), "check client_id and client_secret") {
		t.Errorf("wrong secret: %v, want an unavailable error that says what to do", err)
	}
}
