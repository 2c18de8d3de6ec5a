package brokers

import (
	"cmp"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/pgoutbox/outbox/cmd/internal/bounds"
	"github.com/pgoutbox/outbox/relay"
)

// Pool has the broker clients of a process. Destinations of any database share one, with its connections, if their
// sections and formats are equal. The zero value without a Logger logs by slog.Default. Safe for concurrent use.
type Pool struct {
	Logger *slog.Logger // the clients' own; it can't name a destination

	mu      sync.Mutex
	clients []*client
	waits   map[string]uint64 // by the names of sections, of clients that are closed
}

// client is a broker's client that destinations share.
type client struct {
	relay.Broker
	kind   section
	format any
	name   string // of the section
	fair   *bounds.Fair
	groups int // shard groups of those that share it
	users  int
}

// mostShared bounds the shard groups on one client. Adapters bound the calls of a client, and a relay makes four at
// once, so one that waits for all of its calls leaves enough to the others. Their calls take turns: see fair.
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
		p.clients = append(p.clients, &client{
			Broker: broker, kind: kind, format: o.Format, name: nameOf(kind), fair: bounds.NewFair(onTheWay),
		})
	}
	c := p.clients[i]
	c.groups += groups
	c.users++
	return &fair{c.Broker, c.fair.Sender(float64(max(o.Weight, 1)))}, &use{pool: p, client: c, groups: groups}, nil
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
	if u.pool.waits == nil {
		u.pool.waits = make(map[string]uint64)
	}
	_, waits := u.client.fair.Waiting()
	u.pool.waits[u.client.name] += waits
	u.pool.clients = slices.DeleteFunc(u.pool.clients, func(c *client) bool { return c == u.client })
	return u.client.Close()
}

// Shared is the clients of one kind of broker together.
type Shared struct {
	Broker           string // the name of the section
	Clients, Waiting int    // calls that wait for those of other destinations
	Waits            uint64 // so far
}

// Use lists the kinds of brokers whose clients are shared, or were, in the order of their names.
func (p *Pool) Use() (list []Shared) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]Shared)
	for name, waits := range p.waits {
		all[name] = Shared{Broker: name, Waits: waits}
	}
	for _, c := range p.clients {
		s := all[c.name]
		waiting, waits := c.fair.Waiting()
		all[c.name] = Shared{c.name, s.Clients + 1, s.Waiting + waiting, s.Waits + waits}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Shared) int { return cmp.Compare(a.Broker, b.Broker) })
}
