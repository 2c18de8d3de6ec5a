package kafka_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/authority"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// demandToken has a cluster let in who brings the token, as RFC 7628 says how.
func demandToken(f fake, token string) (seen *atomic.Int64) {
	seen = new(atomic.Int64)
	f.ControlKey(int16(kmsg.SASLHandshake), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		answer := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
		answer.SupportedMechanisms = []string{"OAUTHBEARER"}
		return answer, nil, true
	})
	f.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		answer := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		brought := req.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes
		if bytes.Contains(brought, []byte("\x01auth=Bearer "+token+"\x01")) &&
			bytes.Contains(brought, []byte("\x01logicalCluster=lkc-1\x01")) {
			seen.Add(1)
		} else {
			const saslAuthenticationFailed = 58
			answer.ErrorCode = saslAuthenticationFailed
		}
		return answer, nil, true
	})
	return seen
}

func TestATokenAuthenticatesEveryConnection(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	seen := demandToken(f, "right")
	var asked atomic.Int64
	b := f.broker(kafka.Config{SASL: &kafka.SASL{
		Mechanism:  "OAUTHBEARER",
		Extensions: map[string]string{"logicalCluster": "lkc-1"},
		Token: func(context.Context) (string, error) {
			asked.Add(1)
			return "right", nil
		},
	}})
	accepted(t, b.Publish(patient(t), brokertest.Messages("orders", 5, 2)))
	if seen.Load() == 0 || asked.Load() < seen.Load() {
		t.Errorf("%d connections were authenticated, and the token was asked for %d times", seen.Load(), asked.Load())
	}
}

func TestATokenThatIsRefusedOrCannotBeHadIsAnOutage(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]func(context.Context) (string, error){
		"refused":   func(context.Context) (string, error) { return "wrong", nil },
		"not there": func(context.Context) (string, error) { return "", errors.New("the identity provider is down") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, kfake.SeedTopics(1, "orders"))
			demandToken(f, "right")
			b := f.broker(kafka.Config{Unanswered: await.Expiry(time.Second), SASL: &kafka.SASL{Mechanism: "OAUTHBEARER", Token: token}})
			for i, err := range b.Publish(patient(t), brokertest.Messages("orders", 3, 3)) {
				if !outbox.IsUnavailable(err) {
					t.Errorf("message %d: %v, want an unavailable error", i, err)
				}
			}
		})
	}
}

func TestFaultsOfSASLAreReported(t *testing.T) {
	t.Parallel()
	token := func(context.Context) (string, error) { return "secret", nil }
	for want, s := range map[string]kafka.SASL{
		"SASL.Token: not given":    {Mechanism: "OAUTHBEARER"},
		"SASL.User: given":         {Mechanism: "OAUTHBEARER", Token: token, User: "u", Password: "secret"},
		"SASL.Token: given":        {Mechanism: "PLAIN", User: "u", Password: "secret", Token: token},
		"SASL.User: not given":     {Mechanism: "PLAIN"},
		"SCRAM-SHA-512 or OAUTHBE": {Mechanism: "GSSAPI", User: "u", Password: "secret"},
	} {
		_, err := kafka.New(kafka.Config{Brokers: []string{"k"}, SASL: &s})
		contains(t, err, want)
		if printed := fmt.Sprintf("%v %+v %#v %v", s, s, s, err); bytes.Contains([]byte(printed), []byte("secret")) {
			t.Errorf("a secret is printed: %s", printed)
		}
	}
}

func TestACertificateAuthenticatesTheClient(t *testing.T) {
	t.Parallel()
	ours := authority.New(t)
	server, client := ours.Server(t, "127.0.0.1").Certificate, ours.Client(t, "relay").Certificate
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"),
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: ours.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	open := func(cfg *tls.Config) *kafka.Broker {
		b, err := kafka.New(kafka.Config{Brokers: cluster.ListenAddrs(), TLS: cfg})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	accepted(t, open(&tls.Config{RootCAs: ours.Pool(), Certificates: []tls.Certificate{client}}).Publish(patient(t),
		brokertest.Messages("orders", 3, 2)))
	for i, err := range open(&tls.Config{RootCAs: ours.Pool()}).Publish(patient(t), brokertest.Messages("orders", 3, 3)) {
		if !outbox.IsUnavailable(err) {
			t.Errorf("without a certificate, message %d: %v, want an unavailable error", i, err)
		}
		contains(t, err, "cert_file")
	}
}
