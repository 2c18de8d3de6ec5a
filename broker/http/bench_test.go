package http_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/webhook"
)

func BenchmarkPublish(b *testing.B) {
	for name, delay := range map[string]time.Duration{"loopback": 0, "1 ms": time.Millisecond} {
		b.Run("broker, batches of 500, "+name, func(b *testing.B) {
			url, secured := benchServer(b, false, delay)
			broker := newBroker(b, url, webhooks.Config{Batch: 500, TLS: secured})
			versus.Measure(b, versus.Publishing(b, broker, versus.Batch("t", 2000, 1000)))
		})
	}
}

// The loop calls the same transport's RoundTrip, as many at once. It signs nothing, sends no header but the content
// type, and keeps no order within a key. The loop that sends the broker's headers, signed beforehand, shows what the
// wire format costs. The receiver reads the body and answers 204.
func BenchmarkAgainstLoop(b *testing.B) {
	const size = 1000
	for _, contest := range []struct {
		name     string
		h2, same bool
		parallel int
	}{
		{"http/1.1", false, false, 64},
		{"http/1.1, loop sends the same headers", false, true, 64},
		{"http/2", true, false, 64},
		{"http/2, loop sends the same headers", true, true, 64},
		{"http/2, 512 at once", true, false, 512},
	} {
		near, secured := benchServer(b, contest.h2, 0)
		scheme, address, _ := strings.Cut(near, "://")
		versus.Run(b, contest.name, versus.Contest{
			Address: address,
			Adapter: func(b *testing.B, address string) versus.Publish {
				broker := newBroker(b, scheme+"://"+address, webhooks.Config{MaxInFlight: contest.parallel, TLS: secured})
				return versus.Publishing(b, broker, versus.Batch("t", size, 1000))
			},
			Loop: func(b *testing.B, address string) versus.Publish {
				transport := &http.Transport{MaxIdleConnsPerHost: contest.parallel,
					TLSClientConfig: secured, ForceAttemptHTTP2: contest.h2}
				b.Cleanup(transport.CloseIdleConnections)
				batch := versus.Batch("t", size, 1000)
				headers := benchHeaders(b, batch, contest.same)
				return func() int {
					loop(b, transport, scheme+"://"+address, batch, headers, contest.parallel)
					return size
				}
			},
		})
	}
}

// benchHeaders returns a header for each message: the content type, or all that the broker sends.
func benchHeaders(b *testing.B, batch []*outbox.Message, all bool) []http.Header {
	made := make([]http.Header, len(batch))
	for i, m := range batch {
		made[i] = http.Header{"Content-Type": {m.ContentType}}
		if !all {
			continue
		}
		if err := webhook.SetHeaders(made[i], m); err != nil {
			b.Fatal(err)
		}
		webhook.Sign(made[i], keys(), m.ID.String(), time.Now(), m.Payload)
	}
	return made
}

func loop(b *testing.B, transport *http.Transport, url string, batch []*outbox.Message, headers []http.Header, parallel int) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range parallel {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(batch) {
					return
				}
				req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url, bytes.NewReader(batch[i].Payload))
				if err != nil {
					b.Error(err)
					return
				}
				req.Header = headers[i]
				resp, err := transport.RoundTrip(req)
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusNoContent {
					b.Error(resp.Status)
				}
			}
		})
	}
	wg.Wait()
}

func benchServer(b *testing.B, h2 bool, delay time.Duration) (url string, secured *tls.Config) {
	b.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			b.Error(err)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	if h2 {
		s.EnableHTTP2 = true
		s.StartTLS()
		secured = s.Client().Transport.(*http.Transport).TLSClientConfig
	} else {
		s.Start()
	}
	b.Cleanup(s.Close)
	url = s.URL
	if delay > 0 {
		p := testnet.New(b, s.Listener.Addr().String())
		p.Distance(delay)
		url = fmt.Sprintf("%s://%s", map[bool]string{false: "http", true: "https"}[h2], p.Addr())
	}
	return url, secured
}
