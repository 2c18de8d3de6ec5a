package grpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Broker delivers to a server of outbox.v1.Delivery. It satisfies relay.Broker and relay.Pinger, and is safe
// for concurrent use. It connects when first used.
type Broker struct {
	target string
	cfg    Config
	unary  atomic.Bool

	limit atomic.Pointer[limit] // nil: no request of several messages was refused as too large

	batches inorder.Pool

	mu      sync.Mutex
	current *link
	closed  bool
	links   sync.WaitGroup // that are not closed
}

// New returns a broker for the server at target, in gRPC's syntax: "host:port", "dns:///host:port",
// "unix:///path". It checks cfg and does not connect; see Ping.
func New(target string, cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults(target)
	if err != nil {
		return nil, fmt.Errorf("grpc: %w", err)
	}
	b := &Broker{target: target, cfg: cfg}
	b.unary.Store(cfg.Unary)
	l, err := b.join()
	if err != nil {
		return nil, err // an invalid target
	}
	b.leave(l)
	return b, nil
}

// Publish sends batch by the contract of relay.Broker. docs/brokers/grpc.md lists the kind of each code, and why.
func (b *Broker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	c := &call{broker: b, Batch: b.batches.Begin(batch), order: make([]int32, 0, len(batch))}
	defer b.batches.End(c.Batch)
	l, err := b.join()
	if err == nil {
		err = cmp.Or(c.run(ctx, l), errUnanswered)
		b.leave(l)
	}
	c.Abandon(err)
	return c.Errs()
}

// Ping asks the server for its health (grpc.health.v1), and for that of outbox.v1.Delivery if the server reports single
// services. A server without the health service is healthy if it answers. A request without messages shows whether it
// accepts the token or certificate.
func (b *Broker) Ping(ctx context.Context) error {
	l, err := b.join()
	if err != nil {
		return outbox.Unavailable(err)
	}
	defer b.leave(l)
	ctx, cancel := context.WithTimeout(ctx, b.cfg.AckTimeout)
	defer cancel()
	for _, service := range []string{outboxpb.Delivery_ServiceDesc.ServiceName, ""} {
		health, err := grpc_health_v1.NewHealthClient(l.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
		switch status.Code(err) {
		case codes.OK:
			if s := health.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
				return outbox.Unavailable(fmt.Errorf("grpc: the server is not healthy: %v", s))
			}
			return b.allowed(ctx, l)
		case codes.NotFound:
			continue // it reports only on itself
		case codes.Unimplemented:
			return b.allowed(ctx, l)
		}
		if status.Code(err) == codes.DeadlineExceeded {
			b.retire(l)
		}
		return outbox.Unavailable(fmt.Errorf("grpc: ask for health: %w", err))
	}
	return nil
}

// allowed checks that the server lets this client deliver, by a request without messages. Any other answer to that says
// nothing.
func (b *Broker) allowed(ctx context.Context, l *link) error {
	_, err := outboxpb.NewDeliveryClient(l.conn).Deliver(ctx, &outboxpb.DeliverRequest{})
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		return b.cfg.broken(err)
	}
	return nil
}

// Close closes the connection. It may be called more than once.
func (b *Broker) Close() error {
	b.mu.Lock()
	b.closed = true
	l := b.current
	b.current = nil
	b.mu.Unlock()
	if l != nil {
		b.leave(l)
	}
	b.links.Wait()
	return nil
}

// limit is half the size of the smallest request of several messages that the server refused as too large. It is
// forgotten after a while, because the server's limit may have been raised.
type limit struct {
	bytes int
	since time.Time
}

const limitHolds = 5 * time.Minute

func (l *limit) holds() bool { return l != nil && time.Since(l.since) < limitHolds }

// most returns the most bytes of a request that has several messages.
func (b *Broker) most() int {
	if current := b.limit.Load(); current.holds() {
		return min(current.bytes, b.cfg.MaxMessageBytes)
	}
	return b.cfg.MaxMessageBytes
}

// refusedSize notes that the server has refused a request of several messages because of its size. Otherwise each call
// would have to find out again how much it takes.
func (b *Broker) refusedSize(bytes int) {
	refused := &limit{max(bytes/2, leastHalf), time.Now()}
	for {
		current := b.limit.Load()
		if current.holds() && current.bytes <= refused.bytes {
			return
		}
		if b.limit.CompareAndSwap(current, refused) {
			return
		}
	}
}

var errClosed = errors.New("grpc: the broker is closed")

// link is a connection with a count of its users; being the current link counts as one.
type link struct {
	conn  *grpc.ClientConn
	users int // guarded by Broker.mu
}

// join returns the current link, or a new one. It does not wait for the connection.
func (b *Broker) join() (*link, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errClosed
	}
	if b.current == nil {
		conn, err := grpc.NewClient(b.target, b.cfg.options()...)
		if err != nil {
			return nil, fmt.Errorf("grpc: %w", err)
		}
		b.current = &link{conn: conn, users: 1}
		b.links.Add(1)
	}
	b.current.users++
	return b.current, nil
}

// leave ends one use of l; the last closes it.
func (b *Broker) leave(l *link) {
	b.mu.Lock()
	l.users--
	last := l.users == 0
	b.mu.Unlock()
	if last {
		_ = l.conn.Close() // the only error: it was closed before
		b.links.Done()
	}
}

// retire makes new calls use another connection when this one gives no answers. Its own calls end by themselves.
func (b *Broker) retire(l *link) {
	b.mu.Lock()
	current := b.current == l
	if current {
		b.current = nil
	}
	b.mu.Unlock()
	if current {
		b.leave(l)
	}
}
