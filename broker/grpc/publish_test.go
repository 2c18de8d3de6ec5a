package grpc_test

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testnet"
	grpcgo "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// certificate is one for 127.0.0.1, with who trusts it.
func certificate(t *testing.T) (own tls.Certificate, trusting *tls.Config) {
	t.Helper()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	trusting = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	trusting.NextProtos = nil
	return s.TLS.Certificates[0], trusting
}

func TestTokensAndCertificatesAreShown(t *testing.T) {
	t.Parallel()
	own, trusting := certificate(t)
	var token atomic.Value
	s := newServer(t, nil, nil,
		grpcgo.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAnyClientCert})),
		grpcgo.StreamInterceptor(func(srv any, stream grpcgo.ServerStream, _ *grpcgo.StreamServerInfo, handler grpcgo.StreamHandler) error {
			md, _ := metadata.FromIncomingContext(stream.Context())
			token.Store(strings.Join(md.Get("authorization"), ","))
			return handler(srv, stream)
		}))
	mutual := trusting.Clone()
	mutual.Certificates = []tls.Certificate{own}
	for name, c := range map[string]struct {
		cfg  grpc.Config
		want string
	}{
		"plaintext":     {grpc.Config{}, "unavailable"},
		"another CA":    {grpc.Config{TLS: &tls.Config{}}, "unavailable"},
		"no certificat": {grpc.Config{TLS: trusting}, "unavailable"},
		"certificate":   {grpc.Config{TLS: mutual}, "accepted"},
	} {
		var err error
		if errs := newBroker(t, s.address, c.cfg).Publish(patient(t), messages(1, 1)); errs != nil {
			err = errs[0]
		}
		if kind(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}

	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := newBroker(t, s.address, grpc.Config{TLS: mutual, TokenFile: file})
	for _, text := range []string{"one", "two"} { // replaced, it takes effect at once
		write(text + "\n")
		accepted(t, b.Publish(patient(t), messages(1, 1)))
		if token.Load() != "Bearer "+text {
			t.Errorf("token %v", token.Load())
		}
	}
	accepted(t, newBroker(t, s.address, grpc.Config{TLS: mutual, Token: "three"}).Publish(patient(t), messages(1, 1)))
	if token.Load() != "Bearer three" {
		t.Errorf("token %v", token.Load())
	}
}

func TestPingAsksForHealth(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil, nil)
	if err := newBroker(t, s.address, grpc.Config{}).Ping(patient(t)); err != nil {
		t.Errorf("without a health service: %v", err)
	}
	brokertest.CheckPing(t, newBroker(t, "127.0.0.1:1", grpc.Config{}))
	for _, code := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied} {
		guarded := newServer(t, nil, nil, grpcgo.UnaryInterceptor(
			func(_ context.Context, _ any, info *grpcgo.UnaryServerInfo, _ grpcgo.UnaryHandler) (any, error) {
				return nil, status.Error(code, "who are you?")
			}))
		err := newBroker(t, guarded.address, grpc.Config{}).Ping(patient(t))
		if !outbox.IsUnavailable(err) {
			t.Errorf("%v: %v", code, err)
		}
	}
	var checks *health.Server
	address := startWith(t, func(g *grpcgo.Server) {
		checks = health.NewServer()
		grpc_health_v1.RegisterHealthServer(g, checks)
	})
	b := newBroker(t, address, grpc.Config{})
	if err := b.Ping(patient(t)); err != nil {
		t.Errorf("healthy as a whole: %v", err)
	}
	checks.SetServingStatus("outbox.v1.Delivery", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	brokertest.CheckPing(t, b, "not healthy")
}

func TestMessagesOfAKeyAreUnderWayTogetherAndReceivedInOrder(t *testing.T) {
	t.Parallel()
	var got brokertest.Seen
	s := newServer(t, func(m *outbox.Message) error { got.Note(m); return nil }, nil)
	p := testnet.New(t, s.address)
	p.Distance(20 * time.Millisecond)
	b := newBroker(t, p.Addr(), grpc.Config{RequestMessages: 1})
	batch := messages(3000, 1) // a round trip for each would take a minute
	accepted(t, b.Publish(patient(t), batch))
	got.Check(t, batch)
	if s.streams.Load() != 1 || s.unaries.Load() != 0 {
		t.Errorf("%d streams and %d requests", s.streams.Load(), s.unaries.Load())
	}
}

func TestARecordOfAFormatIsDelivered(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil, nil)
	b := newBroker(t, s.address, grpc.Config{Format: format.CloudEvents{Source: "/shop"}})
	m := &outbox.Message{ID: outbox.NewID(), Topic: "orders",
		Key: "k", EventType: "Created", ContentType: "application/json", Payload: []byte(`{}`)}
	accepted(t, b.Publish(patient(t), []*outbox.Message{m}))
	got := s.Messages()[0]
	source, _ := got.Header("ce-source")
	if got.Key != "k" || got.ID != m.ID || source != "/shop" || string(got.Payload) != "{}" {
		t.Errorf("received %+v", got)
	}
}

func TestAReceiverAnswersByWhatItsFunctionReturns(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	defer close(slow)
	receiver, err := grpc.NewReceiver(func(ctx context.Context, m *outbox.Message) error {
		switch string(m.Payload) {
		case "coded":
			return status.Error(codes.PermissionDenied, "not you")
		case "slow":
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-slow:
			}
		}
		return nil
	}, grpc.ReceiverConfig{Timeout: await.Expiry(100 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	request := &outboxpb.DeliverRequest{Messages: []*outboxpb.Message{
		{Id: outbox.NewID().String(), Key: "a"}, {Id: outbox.NewID().String(), Key: "b", Payload: []byte("coded")},
		{Id: outbox.NewID().String(), Key: "c", Payload: []byte("slow")}, {Id: "x", Key: "d"},
		{Id: outbox.NewID().String(), AggregateId: "c"},
	}}
	resp, err := receiver.Deliver(patient(t), request)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]codes.Code, len(request.Messages))
	for _, o := range resp.GetOutcomes() {
		got[o.GetSequence()] = codes.Code(o.GetCode())
	}
	if want := []codes.Code{codes.OK, codes.PermissionDenied,
		codes.Unknown, codes.InvalidArgument, codes.Aborted}; !slices.Equal(got, want) {
		t.Errorf("codes %v, want %v", got, want)
	}
	if _, err := grpc.NewReceiver(nil, grpc.ReceiverConfig{Timeout: -1}); err == nil {
		t.Error("a receiver without a function is accepted")
	}
}

func TestConfigurationFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := grpc.New("", grpc.Config{Token: "hunter2", TokenFile: "x", RequestMessages: -1, AckTimeout: -1, Keepalive: time.Second})
	brokertest.Contains(t, err, "Target: not given", "RequestMessages: -1, it must be positive", "AckTimeout: -1ns, it must be positive",
		"Keepalive: 1s, it must be at least 10s", "TokenFile: given, and the token itself too", "TLS: not given, but a token is")
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret is shown: %v", err)
	}
	if _, err := grpc.New("dns://%zz", grpc.Config{}); err == nil {
		t.Error("a target that is none is accepted")
	}
}
