package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/shared"
)

// Broker publishes to JetStream. It satisfies relay.Broker and relay.Pinger, and is safe for concurrent use. It
// connects when first used, and again at the first use after a connection has broken.
type Broker struct {
	cfg     Config
	urls    []string
	subject subject

	calls sync.Pool // of *call

	// background bounds requests about streams that no caller waits for.
	background context.Context
	stop       context.CancelFunc
	inspecting sync.WaitGroup

	shared *shared.Link[*link]

	mu        sync.Mutex // guards the rest, and prevents new inspections after Close
	inspected map[string]struct{}
}

// New returns a broker for the servers of one cluster, a comma-separated list of URLs such as
// "nats://a:4222,nats://b:4222". It checks cfg and does not connect; see Ping.
func New(servers string, cfg Config) (*Broker, error) {
	cfg, urls, subject, err := cfg.withDefaults(servers)
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	b := &Broker{
		cfg:       cfg,
		urls:      urls,
		subject:   subject,
		inspected: make(map[string]struct{}),
	}
	b.shared = shared.New(b.connect, b.prepare, errClosed, connectFault)
	b.background, b.stop = context.WithCancel(context.Background())
	b.calls.New = func() any { return newCall(subject, cfg.Stream, cfg.records) }
	return b, nil
}

// Publish sends batch by the contract of relay.Broker. docs/brokers/nats.md lists the kind of each error, and why.
func (b *Broker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	c := b.calls.Get().(*call)
	defer b.calls.Put(c)
	c.begin(batch)
	defer c.release()

	l, err := b.join(ctx, c)
	if err != nil {
		c.Abandon(err)
		return c.Errs()
	}
	c.run(ctx, l, &b.cfg)
	l.leave(c)
	if c.Errs() != nil {
		b.explain(ctx, l, c)
	}
	return c.Errs()
}

// Ping checks that the server answers and has JetStream, and returns the reason if not. If a stream is configured, it
// must exist and have a leader and a quorum, unless it would be created; otherwise, if all messages go to one subject,
// a stream must take it. Ping changes nothing.
func (b *Broker) Ping(ctx context.Context) error {
	l, err := b.shared.Get(ctx)
	if err != nil {
		return outbox.Unavailable(err)
	}
	if err := l.flush(ctx, b.cfg.AckTimeout); err != nil {
		err = fmt.Errorf("nats: the server does not answer: %w", err)
		if ctx.Err() == nil {
			l.Sever(err)
		}
		return outbox.Unavailable(err)
	}
	if err := b.checkJetStream(ctx, l); err != nil {
		return outbox.Unavailable(err)
	}
	if b.cfg.Recall > 0 && b.cfg.CreateStream == nil {
		_, err = b.shared.Ready(ctx) // to prepare it only reads
		return outbox.Unavailable(err)
	}
	return nil
}

// Close closes the connection. It may be called more than once.
func (b *Broker) Close() error {
	b.mu.Lock()
	b.stop()
	b.mu.Unlock()
	b.shared.Close()
	b.inspecting.Wait()
	return nil
}

var errClosed = errors.New("nats: the broker is closed")

// join adds c to a working link.
func (b *Broker) join(ctx context.Context, c *call) (*link, error) {
	for {
		l, err := b.shared.Ready(ctx)
		if err != nil {
			return nil, err
		}
		if l.join(c) {
			return l, nil
		}
	}
}

// prepare creates the stream of a new link if needed, and reads the ids of its last messages.
func (b *Broker) prepare(ctx context.Context, l *link) error {
	if err := b.findStream(ctx, l); err != nil {
		return err
	}
	return b.recall(ctx, l)
}

// connect returns a new link.
func (b *Broker) connect(ctx context.Context) (*link, error) {
	l, err := connect(ctx, b.urls, &b.cfg, b.inspect)
	if err != nil {
		return nil, err
	}
	b.cfg.Logger.Info("connected to nats", "server", l.nc.ConnectedServerName(), "version", l.nc.ConnectedServerVersion())
	return l, nil
}
