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
	"syscall"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/webhook"
)

// The figure to compare with is a loop over the same transport's RoundTrip, as many at once, that signs nothing, sends
// no header but the content type, and keeps no order within a key; or the same with the broker's headers, signed
// beforehand, which tells what the wire format costs both ends from what the broker does. The receiver reads the body
// and answers 204. cpu-µs/msg is the processor time of both ends, which says more than msg/s on a machine with other
// work.
func BenchmarkPublish(b *testing.B) {
	const size, parallel = 2000, 64
	for _, round := range []struct {
		name  string
		delay time.Duration
	}{{"loopback", 0}, {"1 ms", time.Millisecond}} {
		for _, h2 := range []bool{false, true} {
			name := map[bool]string{false: "HTTP1", true: "HTTP2"}[h2] + ", " + round.name
			b.Run("broker, "+name, func(b *testing.B) {
				url, secured := benchServer(b, h2, round.delay)
				broker := newBroker(b, url, webhooks.Config{MaxInFlight: parallel, TLS: secured})
				measure(b, size, func(batch []*outbox.Message) { accepted(b, broker.Publish(b.Context(), batch)) })
			})
			for _, headers := range []bool{false, true} {
				b.Run(map[bool]string{false: "loop, ", true: "loop with the broker's headers, "}[headers]+name, func(b *testing.B) {
					url, secured := benchServer(b, h2, round.delay)
					transport := &http.Transport{MaxIdleConnsPerHost: parallel, TLSClientConfig: secured, ForceAttemptHTTP2: h2}
					b.Cleanup(transport.CloseIdleConnections)
					var made []http.Header
					measure(b, size, func(batch []*outbox.Message) {
						if made == nil {
							made = benchHeaders(b, batch, headers)
						}
						loop(b, transport, url, batch, made, parallel)
					})
				})
			}
		}
		b.Run("broker, batches of 500, "+round.name, func(b *testing.B) {
			url, secured := benchServer(b, false, round.delay)
			broker := newBroker(b, url, webhooks.Config{Batch: 500, TLS: secured})
			measure(b, size, func(batch []*outbox.Message) { accepted(b, broker.Publish(b.Context(), batch)) })
		})
	}
}

// Beside the loop that sends the same requests is seen what is ours to mend.
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
		b.Run(contest.name, func(b *testing.B) {
			near, secured := benchServer(b, contest.h2, 0)
			scheme, address, _ := strings.Cut(near, "://")
			versus.Run(b, versus.Contest{
				Address: address,
				Adapter: func(b *testing.B, address string) versus.Publish {
					broker := newBroker(b, scheme+"://"+address, webhooks.Config{MaxInFlight: contest.parallel, TLS: secured})
					batch := benchBatch(size)
					return func() int { accepted(b, broker.Publish(b.Context(), batch)); return size }
				},
				Loop: func(b *testing.B, address string) versus.Publish {
					transport := &http.Transport{MaxIdleConnsPerHost: contest.parallel,
						TLSClientConfig: secured, ForceAttemptHTTP2: contest.h2}
					b.Cleanup(transport.CloseIdleConnections)
					batch := benchBatch(size)
					headers := benchHeaders(b, batch, contest.same)
					return func() int {
						loop(b, transport, scheme+"://"+address, batch, headers, contest.parallel)
						return size
					}
				},
			})
		})
	}
}

func benchBatch(size int) []*outbox.Message {
	batch := messages(size, 1000)
	for _, m := range batch {
		m.Payload = make([]byte, 256)
		m.EventType, m.ContentType = "OrderCreated", "application/json"
	}
	return batch
}

func measure(b *testing.B, size int, publish func([]*outbox.Message)) {
	batch := benchBatch(size)
	publish(batch) // connections
	before := cpu(b)
	b.ReportAllocs()
	for b.Loop() {
		publish(batch)
	}
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N*size), "cpu-µs/msg")
}

func cpu(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
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
