package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/secure"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Broker publishes to one Kafka cluster. Safe for concurrent use.
type Broker struct {
	cfg     Config
	topic   topicName
	options []kgo.Opt // of every client

	control *kgo.Client // for queries; never produces

	topics   atomic.Pointer[topics]
	dialFail atomic.Pointer[error] // of the latest connection that was not made or not accepted; nil after an answer

	seats chan struct{} // one for each call that may run

	mu         sync.Mutex
	idle       []*seat // the last element was used last
	generation int     // of the limits in topics
	closed     bool
}

// New returns a Broker. It checks cfg and reports all its faults together. It doesn't connect; Ping and the first
// Publish do.
func New(cfg Config) (*Broker, error) {
	cfg, topic, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, topic: topic, seats: make(chan struct{}, cfg.Clients)}
	b.topics.Store(&topics{})
	b.options = []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID(cfg.ClientID),
		kgo.Dialer(b.dial),
		kgo.WithHooks((*greetings)(b)),
		kgo.DisableClientMetrics(),
		// Kafka sends EOF, and nothing else, while it starts and when authentication is missing.
		kgo.AlwaysRetryEOF(),
		kgo.RetryBackoffFn(backoff),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
	if cfg.SASL != nil {
		mechanism, err := cfg.SASL.mechanism()
		if err != nil {
			return nil, fmt.Errorf("kafka: %w", err)
		}
		b.options = append(b.options, kgo.SASL(mechanism))
	}
	b.options = append(b.options, kgo.WithLogger(logger{cfg.Logger}))
	if b.control, err = kgo.NewClient(b.options...); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return b, nil
}

// backoff is the pause before a request is repeated: short, so that the end of an outage is noticed soon.
func backoff(tries int) time.Duration {
	return min(20*time.Millisecond<<min(tries, 10), 500*time.Millisecond)
}

// Publish sends batch, by the contract of relay.Broker. At most Config.Clients calls publish at the same time; others
// wait for one of these to end.
//
// Permanent: a record larger than its topic accepts, an invalid topic name, a record that the server calls invalid, no
// key in a compacted topic. Unavailable: no answer for Config.Unanswered, ctx ended, credentials refused. All other
// errors concern one topic and can be cured: it doesn't exist, or permissions are missing.
func (b *Broker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	s, err := b.take(ctx)
	if err != nil {
		return slices.Repeat([]error{outbox.Unavailable(err)}, len(batch))
	}
	defer b.giveBack(s)
	c := call{seat: s, ctx: ctx, batch: batch, accepted: outbox.ReceiptsWanted(ctx)}
	c.publish()
	return c.errs
}

// Ping returns nil if messages could be published, as far as that shows without publishing one, else an unavailable
// error with the cause. A server of the cluster has to answer, at the address that the cluster itself gives for it. If
// all messages go to one topic, it has to exist (unless it would be created), the user must be allowed to write there,
// and the leader of each partition has to answer.
func (b *Broker) Ping(ctx context.Context) error {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return outbox.Unavailable(errors.New("kafka: the broker is closed"))
	}
	return outbox.Unavailable(b.probe(ctx))
}

// Close closes all connections. A second Close does nothing.
func (b *Broker) Close() error {
	b.mu.Lock()
	closed, idle := b.closed, b.idle
	b.closed, b.idle = true, nil
	b.mu.Unlock()
	if closed {
		return nil
	}
	for _, s := range idle {
		s.discard()
	}
	b.control.Close()
	return nil
}

// take waits for a seat.
func (b *Broker) take(ctx context.Context) (*seat, error) {
	select {
	case b.seats <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("kafka: not sent: %w while waiting for other calls to end", ctx.Err())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		<-b.seats
		return nil, errors.New("kafka: not sent: the broker is closed")
	}
	if n := len(b.idle); n > 0 {
		s := b.idle[n-1]
		b.idle = b.idle[:n-1]
		return s, nil
	}
	return newSeat(b), nil
}

func (b *Broker) giveBack(s *seat) {
	s.slab.reset(0) // the seat must keep nothing of the caller's
	s.formatted.forget()
	b.mu.Lock()
	closed := b.closed
	if !closed {
		b.idle = append(b.idle, s)
	}
	b.mu.Unlock()
	if closed { // against the contract, but no connection should stay open
		s.discard()
	}
	<-b.seats
}

func (b *Broker) currentGeneration() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.generation
}

// dial opens a connection, with TLS if configured, and remembers the error: the client library retries without end, and
// at best logs the reason. That the time of a call has ended is no reason. A socket has a clock of its own, and may say
// so before ctx does.
func (b *Broker) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := b.connect(ctx, network, address)
	if deadline, limited := ctx.Deadline(); err != nil && ctx.Err() == nil && !(limited && time.Now().After(deadline)) {
		b.dialFail.Store(&err)
	}
	return conn, err
}

// greetings remembers whether the cluster accepts connections once they are open. Without it, the reason would be lost
// whenever the time of a call ends while the client library is at its next attempt.
type greetings Broker

var (
	_ kgo.HookBrokerRead = (*greetings)(nil)

	errClosedAtOnce error = fmt.Errorf(
		"the connection was closed at once; are the credentials right, and is TLS used on both sides or none? (%w)", io.EOF)
)

// OnBrokerRead is called after each answer.
func (g *greetings) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	greeting := key == int16(kmsg.ApiVersions) || key == int16(kmsg.SASLHandshake) || key == int16(kmsg.SASLAuthenticate)
	switch {
	case greeting && errors.Is(err, io.EOF):
		g.dialFail.Store(&errClosedAtOnce)
	case !greeting && err == nil && g.dialFail.Load() != nil:
		g.dialFail.Store(nil)
	}
}

func (b *Broker) connect(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := b.cfg.Dial(ctx, network, address)
	if err != nil || b.cfg.TLS == nil {
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	secured, err := secure.Connect(ctx, conn, b.cfg.TLS, address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return secured, nil
}

func codec(name string) (kgo.CompressionCodec, error) {
	switch name {
	case "none":
		return kgo.NoCompression(), nil
	case "gzip":
		return kgo.GzipCompression(), nil
	case "snappy":
		return kgo.SnappyCompression(), nil
	case "lz4":
		return kgo.Lz4Compression(), nil
	case "zstd":
		return kgo.ZstdCompression(), nil
	}
	return kgo.CompressionCodec{}, fmt.Errorf("compression %q: use none, gzip, snappy, lz4 or zstd", name)
}

// logger passes the client library's messages to a slog.Logger. The library's information level becomes debug.
type logger struct{ to *slog.Logger }

func (l logger) Level() kgo.LogLevel {
	if l.to.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelWarn
}

func (l logger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := slog.LevelDebug
	switch level {
	case kgo.LogLevelError:
		to = slog.LevelError
	case kgo.LogLevelWarn:
		to = slog.LevelWarn
	}
	l.to.Log(context.Background(), to, "kafka client: "+msg, keyvals...)
}
