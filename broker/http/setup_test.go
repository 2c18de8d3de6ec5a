package http_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"

	"github.com/pgoutbox/outbox"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/webhook"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr"

func TestMain(m *testing.M) { os.Exit(brokertest.Receivers(m, serve)) }

// What the tests of all brokers share.
var (
	patient  = brokertest.Patient
	accepted = brokertest.Accepted
	kind     = brokertest.Kind
)

// message returns a message of the topic "t" with n as payload.
func message(key string, n int) *outbox.Message { return brokertest.Message("t", key, n) }

// messages returns n messages of the topic "t" that go round over keys.
func messages(n, keys int) []*outbox.Message { return brokertest.Messages("t", n, keys) }

// serve is a receiver in a process of its own.
func serve(l net.Listener, accept func(context.Context, *outbox.Message) error) error {
	handler, err := webhook.Handler(keys(), accept, webhook.Config{})
	if err != nil {
		return err
	}
	return http.Serve(l, handler)
}

// receiver is a receiver within the test.
type receiver struct {
	*httptest.Server
	brokertest.Collected
	requests atomic.Int64
}

// newReceiver accepts what check finds no fault with.
func newReceiver(t testing.TB, cfg webhook.Config, check func(*outbox.Message) error) *receiver {
	t.Helper()
	r := &receiver{}
	handler, err := webhook.Handler(keys(), r.Accept(check), cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.requests.Add(1)
		handler.ServeHTTP(w, req)
	}))
	t.Cleanup(func() { r.Close() })
	return r
}

func keys() []webhook.Key {
	keys, err := webhook.ParseKeys(secret)
	if err != nil {
		panic(err)
	}
	return keys
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// newBroker signs, and may connect to this machine.
func newBroker(t testing.TB, url string, cfg webhooks.Config) *webhooks.Broker {
	t.Helper()
	if cfg.Keys == nil {
		cfg.Keys = keys()
	}
	if cfg.AllowNetworks == nil {
		cfg.AllowNetworks = loopback
	}
	b, err := webhooks.New(url, cfg)
	return brokertest.Opened(t, b, err)
}

// server answers with f.
func server(t testing.TB, f http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		f(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}
