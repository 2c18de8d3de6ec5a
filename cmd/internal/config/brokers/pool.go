package brokers

import (
	"io"
	"log/slog"
	"reflect"
	"slices"
	"sync"

	"github.com/pgoutbox/outbox/relay"
)

// Pool has the broker clients of a process. Destinations of any database share one, with its connections, if their
// sections and formats are equal. The zero value without a Logger logs by slog.Default. Safe for concurrent use.
type Pool struct {
	Logger *slog.Logger // the clients' own; it can't name a destination

	mu      sync.Mutex
	clients []*client
}

// client is a broker's client that destinations share.
type client struct {
	relay.Broker
	kind   section
	format any
	groups int // shard groups of those that share it
	users  int
}

// mostShared bounds the shard groups on one client. Adapters bound the calls of a client, and a relay makes four at
// once, so one that waits for all of its calls leaves enough to the others.
const mostShared = 16

// Open returns a destination's broker, and what closes it when no other destination uses it. A nil Pool shares nothing.
func (p *Pool) Open(kind section, o Opening) (relay.Broker, io.Closer, error) {
	shared, ok := kind.(sharing)
	if p == nil || !ok || !shared.shares() || o.Groups > mostShared {
		broker, err := kind.open(o)
		return broker, broker, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	groups := max(o.Groups, 1)
	i := slices.IndexFunc(p.clients, func(c *client) bool {
		return c.groups+groups <= mostShared && reflect.DeepEqual([]any{c.kind, c.format}, []any{kind, any(o.Format)})
	})
	if i < 0 {
		o.Groups, o.Logger = mostShared, p.Logger
		broker, err := kind.open(o)
		if err != nil {
			return nil, nil, err
		}
		i = len(p.clients)
		p.clients = append(p.clients, &client{Broker: broker, kind: kind, format: o.Format})
	}
	c := p.clients[i]
	c.groups += groups
	c.users++
	return c.Broker, &use{pool: p, client: c, groups: groups}, nil
}

// use is one destination's part in a client.
type use struct {
	pool   *Pool
	client *client
	groups int
	closed bool
}

// Close closes the client if this is its last use. A second Close does nothing.
func (u *use) Close() error {
	u.pool.mu.Lock()
	defer u.pool.mu.Unlock()
	if u.closed {
		return nil
	}
	u.closed = true
	u.client.groups -= u.groups
	if u.client.users--; u.client.users > 0 {
		return nil
	}
	u.pool.clients = slices.DeleteFunc(u.pool.clients, func(c *client) bool { return c == u.client })
	return u.client.Close()
}
