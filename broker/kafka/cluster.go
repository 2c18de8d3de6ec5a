package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/secure"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// cluster is the connection with a Kafka cluster, and a cache of its topics.
type cluster struct {
	cfg     Config
	topic   topicName
	options []kgo.Opt // of every client

	control *kgo.Client // for queries; never produces

	topics   atomic.Pointer[topics]
	dialFail atomic.Pointer[error] // of the latest connection that was not made or not accepted; nil after an answer

	mu         sync.Mutex
	generation int // of the limits in topics
}

// open sets the fields of c. It doesn't connect.
func (c *cluster) open(cfg Config, topic topicName) (err error) {
	c.cfg, c.topic = cfg, topic
	c.topics.Store(&topics{})
	c.options = []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID(cfg.ClientID),
		kgo.Dialer(c.dial),
		kgo.WithHooks((*greetings)(c)),
		kgo.DisableClientMetrics(),
		// Kafka sends EOF, and nothing else, while it starts and when authentication is missing.
		kgo.AlwaysRetryEOF(),
		kgo.RetryBackoffFn(backoff),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
	if cfg.mechanism != nil {
		c.options = append(c.options, kgo.SASL(cfg.mechanism))
	}
	c.options = append(c.options, kgo.WithLogger(logger{cfg.Logger}))
	c.control, err = kgo.NewClient(c.options...)
	return err
}

// topic is what a call needs to know about a topic before it sends.
type topic struct {
	name      string // interned, because the client library keeps it
	limit     int    // of a batch, in bytes
	assumed   bool   // the limit could not be read
	compacted bool   // records need keys
	checked   time.Time
}

// topics is a map that is replaced, never changed.
type topics map[string]*topic

// freshFor is how old a limit may be when a message is permanently refused because of it.
const freshFor = 30 * time.Second

// backoff is the pause before a request is repeated: short, so that the end of an outage is noticed soon.
func backoff(tries int) time.Duration {
	return min(20*time.Millisecond<<min(tries, 10), 500*time.Millisecond)
}

func (c *cluster) currentGeneration() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation
}

// dial opens a connection, with TLS if configured, and remembers the error: the client library retries without end, and
// at best logs the reason. That the time of a call has ended is no reason. A socket has a clock of its own, and may say
// so before ctx does.
func (c *cluster) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.connect(ctx, network, address)
	if deadline, limited := ctx.Deadline(); err != nil && ctx.Err() == nil && !(limited && time.Now().After(deadline)) {
		c.dialFail.Store(&err)
	}
	return conn, err
}

// greetings remembers whether the cluster accepts connections once they are open. Without it, the reason would be lost
// whenever the time of a call ends while the client library is at its next attempt.
type greetings cluster

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

func (c *cluster) connect(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.cfg.Dial(ctx, network, address)
	if err != nil || c.cfg.TLS == nil {
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	secured, err := secure.Connect(ctx, conn, c.cfg.TLS, address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return secured, nil
}

// explain adds the error of the last attempt to connect, if it failed.
func (c *cluster) explain(err error) error {
	if fail := c.dialFail.Load(); fail != nil && !errors.Is(err, *fail) {
		return fmt.Errorf("%w (last attempt to connect: %w)", err, *fail)
	}
	return err
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
