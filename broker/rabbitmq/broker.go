package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/shared"
	"github.com/rabbitmq/amqp091-go"
)

// Broker publishes to RabbitMQ. It satisfies relay.Broker and relay.Pinger, and is safe for concurrent use. It connects
// when first used, and again at the first use after a connection has broken.
type Broker struct {
	cfg     Config
	servers []server

	calls  sync.Pool // of *call
	shared *shared.Link[*link]
	links  sync.WaitGroup // goroutines of links, including ended ones
}

// New returns a broker for the servers of one cluster, a comma-separated list of URLs such as
// "amqp://user:password@a:5672/vhost,amqp://b". The first that answers is used. New checks cfg and does not connect;
// see Ping.
func New(servers string, cfg Config) (*Broker, error) {
	cfg, list, err := cfg.withDefaults(servers)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: %w", err)
	}
	b := &Broker{cfg: cfg, servers: list}
	b.shared = shared.New(b.connect, b.prepare, errClosed, connectFault)
	b.calls.New = func() any { return newCall(newEncoder(&b.cfg)) }
	return b, nil
}

// Publish sends batch by the contract of relay.Broker. docs/brokers/rabbitmq.md lists the kind of each error, and why.
func (b *Broker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	c := b.calls.Get().(*call)
	defer b.calls.Put(c)
	c.begin(batch)
	defer c.release()

	l, err := b.shared.Ready(ctx)
	if err != nil {
		c.Abandon(err)
		return c.Errs()
	}
	ch, err := l.channel(ctx)
	if err != nil {
		c.Abandon(err)
		return c.Errs()
	}
	c.run(ctx, l, ch, &b.cfg)
	if c.clean() {
		l.put(ch)
	} else {
		l.discard(ch)
	}
	return c.Errs()
}

// Ping checks that the server answers and accepts messages, and returns the reason if not. If all messages go to one
// exchange, it must exist, unless it would be created, and the user must be allowed to write to it. Nothing is changed.
func (b *Broker) Ping(ctx context.Context) error {
	l, err := b.shared.Get(ctx)
	if err != nil {
		return outbox.Unavailable(err)
	}
	if err := l.blockedFault(); err != nil {
		return outbox.Unavailable(err)
	}
	name := ""
	if b.cfg.exchange.Constant() {
		name = b.cfg.Exchange
	}
	err = l.probe(ctx, name)
	switch {
	case isCode(err, amqp091.NotFound) && b.cfg.CreateExchange != "":
		return nil // the first message creates it
	case err == nil && name != "":
		err = l.mayWrite(ctx, name)
	}
	return outbox.Unavailable(err)
}

// Close closes the connection. It may be called more than once.
func (b *Broker) Close() error {
	b.shared.Close()
	b.links.Wait()
	return nil
}

var errClosed = errors.New("rabbitmq: the broker is closed")

// connect returns a new link. It tries the servers one after the other.
func (b *Broker) connect(ctx context.Context) (*link, error) {
	var faults []error
	for i, s := range b.servers {
		l, err := dial(ctx, s, &b.cfg, &b.links)
		if err == nil {
			version, _ := l.conn.Properties["version"].(string)
			b.cfg.Logger.Info("connected to rabbitmq", "server", l.conn.RemoteAddr().String(), "version", version)
			return l, nil
		}
		if len(b.servers) > 1 {
			err = fmt.Errorf("server %d of the list: %w", i+1, err)
		}
		faults = append(faults, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, connectFault(errors.Join(faults...))
}

// goodbye is how long Close waits for the server's answer.
const goodbye = 500 * time.Millisecond
