package http_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pgoutbox/outbox"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/webhook"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr"

func TestMain(m *testing.M) {
	if address, file, is := brokertest.AsReceiver(); is {
		fmt.Fprintln(os.Stderr, runReceiver(address, file))
		os.Exit(1)
	}
	os.Exit(brokertest.Leaks(m.Run()))
}

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

// runReceiver writes every message into a file before it answers.
func runReceiver(address, path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	handler, err := webhook.Handler(keys(), func(_ context.Context, m *outbox.Message) error {
		var line bytes.Buffer
		if err := webhook.WriteBatch(&line, []*outbox.Message{m}); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err := file.Write(line.Bytes())
		return err
	}, webhook.Config{})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return http.Serve(listener, handler)
}

// received returns what a receiver has written into its file.
func received(file string) ([]outbox.Message, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) || len(data) == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	batch, err := webhook.ReadBatch(data)
	return values(batch), err
}

func values(batch []*outbox.Message) []outbox.Message {
	var all []outbox.Message
	for _, m := range batch {
		all = append(all, *m)
	}
	return all
}

// receiver is a receiver within the test.
type receiver struct {
	*httptest.Server
	requests atomic.Int64

	mu       sync.Mutex
	received []*outbox.Message
}

// newReceiver accepts what check finds no fault with.
func newReceiver(t testing.TB, cfg webhook.Config, check func(*outbox.Message) error) *receiver {
	t.Helper()
	r := &receiver{}
	handler, err := webhook.Handler(keys(), func(_ context.Context, m *outbox.Message) error {
		if check != nil {
			if err := check(m); err != nil {
				return err
			}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.received = append(r.received, m)
		return nil
	}, cfg)
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

func (r *receiver) messages() []*outbox.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*outbox.Message(nil), r.received...)
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
