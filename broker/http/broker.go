package http

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
	"github.com/pgoutbox/outbox/broker/internal/secure"
)

// Broker sends webhooks. It satisfies relay.Broker and relay.Pinger, and is safe for concurrent use. It
// connects when first used.
type Broker struct {
	cfg       Config
	endpoint  *endpoint
	transport *http.Transport

	batches  inorder.Pool
	slots    chan struct{} // capacity MaxInFlight: held by requests in flight
	disabled atomic.Pointer[error]

	started time.Time
	// answered is when the latest answered request began, in nanoseconds since started.
	answered atomic.Int64

	throttle throttle
}

// New returns a broker that sends to address: a URL, whose path and query may have the fields {topic}, {key} (the
// ordering key), {event_type}, {aggregate_type} and {aggregate_id}. It checks cfg and does not connect; see Ping.
func New(address string, cfg Config) (*Broker, error) {
	cfg, to, proxy, err := cfg.withDefaults(address)
	if err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	return &Broker{
		cfg:       cfg,
		endpoint:  to,
		transport: newTransport(&cfg, proxy),
		slots:     make(chan struct{}, cfg.MaxInFlight),
		started:   time.Now(),
	}, nil
}

func newTransport(cfg *Config, proxy *url.URL) *http.Transport {
	secured := secure.Config(cmp.Or(cfg.TLS, &tls.Config{}))
	t := &http.Transport{
		DialContext:            guard{cfg.AllowNetworks}.dialer(cfg, proxy),
		TLSClientConfig:        secured,
		TLSHandshakeTimeout:    cfg.ConnectTimeout,
		MaxIdleConnsPerHost:    cfg.MaxInFlight,
		IdleConnTimeout:        30 * time.Second, // shorter than usual on servers, so that they seldom close first
		MaxResponseHeaderBytes: maxResponseHeaders,
		DisableCompression:     true, // a small answer must not decompress to a large one
		Protocols:              new(http.Protocols),
		// Without it, requests would still be sent into a connection whose other end is gone.
		HTTP2: &http.HTTP2Config{SendPingTimeout: cfg.Timeout / 3, PingTimeout: cfg.Timeout / 3},
	}
	t.Protocols.SetHTTP2(true)
	t.Protocols.SetHTTP1(!cfg.UnencryptedHTTP2)
	t.Protocols.SetUnencryptedHTTP2(cfg.UnencryptedHTTP2)
	if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
	}
	return t
}

// Publish sends batch by the contract of relay.Broker. docs/brokers/http.md lists the kind of each answer, and why.
func (b *Broker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	c := newCall(b, batch)
	defer b.batches.End(c.Batch)
	var workers sync.WaitGroup
	for range min(cap(b.slots), len(c.ready)) {
		workers.Go(func() { c.work(ctx) })
	}
	workers.Wait()
	return c.Errs()
}

// Ping checks that the receiver's server answers, with any status except those of a gateway, and that it wants
// messages. It sends HEAD to the server's root.
func (b *Broker) Ping(ctx context.Context) error {
	if err := b.refuses(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	req := (&http.Request{Method: http.MethodHead, URL: b.endpoint.origin, Header: b.cfg.Header.Clone()}).WithContext(ctx)
	resp, err := b.transport.RoundTrip(req)
	if err != nil {
		return outbox.Unavailable(connectionFault(err))
	}
	_ = resp.Body.Close()
	if gateway(resp.StatusCode) {
		return outbox.Unavailable(fmt.Errorf("http: %s answered %s: its gateway has no server", b.endpoint.origin.Host, resp.Status))
	}
	return nil
}

// Close closes the idle connections; there are no others when no Publish runs. It may be called more than once.
func (b *Broker) Close() error {
	b.transport.CloseIdleConnections()
	return nil
}

// refuses returns why nothing may be sent at present: the receiver is gone, or has asked for a pause.
func (b *Broker) refuses() error {
	if gone := b.disabled.Load(); gone != nil {
		return *gone
	}
	return b.throttle.check(time.Now())
}

// disable stops all sending until the program is restarted.
func (b *Broker) disable(host string) error {
	err := outbox.Unavailable(outbox.RetryAfter(fmt.Errorf(
		"http: %s answered 410 Gone: it wants no more messages, so the destination is disabled; restart the relay to "+
			"enable it again, or drop the destination", host), time.Minute))
	if b.disabled.CompareAndSwap(nil, &err) {
		b.cfg.Logger.Error("destination disabled, the receiver answered 410 Gone", "host", host)
	}
	return *b.disabled.Load()
}

// throttle remembers how long a receiver has asked for a pause.
type throttle struct {
	mu    sync.Mutex
	until time.Time
	cause error
}

func (t *throttle) set(until time.Time, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if until.After(t.until) {
		t.until, t.cause = until, cause
	}
}

func (t *throttle) check(now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !now.Before(t.until) {
		return nil
	}
	return outbox.Unavailable(outbox.RetryAfter(fmt.Errorf("%w (not sent before that)", t.cause), t.until.Sub(now)))
}
