package rabbitmq_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := servers.Run(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// patience bounds what a test waits for. Nothing asserts that things are faster.
const patience = 2 * time.Minute

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

var names atomic.Int64

// newName returns a name that no other test has.
func newName() string { return fmt.Sprintf("t%d-%d", os.Getpid(), names.Add(1)) }

// ask runs f on a channel of its own.
func ask(t testing.TB, url string, f func(ch *amqp091.Channel) error) {
	t.Helper()
	if err := try(url, f); err != nil {
		t.Fatal(err)
	}
}

func try(url string, f func(ch *amqp091.Channel) error) error {
	conn, err := amqp091.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return f(ch)
}

// pair returns two queues.
func pair(t testing.TB, url string) [2]*queue {
	t.Helper()
	return [2]*queue{newQueue(t, url, nil), newQueue(t, url, nil)}
}

// queue is a quorum queue of a test's own, and what has been read from it so far.
type queue struct {
	url, name string
	seen      []amqp091.Delivery
}

func newQueue(t testing.TB, url string, args amqp091.Table) *queue {
	t.Helper()
	q := &queue{url: url, name: newName()}
	if args == nil {
		args = amqp091.Table{}
	}
	args["x-queue-type"] = "quorum"
	ask(t, url, func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare(q.name, true, false, false, false, args)
		return err
	})
	t.Cleanup(func() {
		// The server may be gone on purpose.
		_ = try(url, func(ch *amqp091.Channel) error {
			_, err := ch.QueueDelete(q.name, false, false, false)
			return err
		})
	})
	return q
}

// read takes what is in the queue out of it, and returns all that has ever been. A message of its own, behind all that
// is there, says where to stop.
func (q *queue) read(ctx context.Context) ([]amqp091.Delivery, error) {
	err := try(q.url, func(ch *amqp091.Channel) error {
		if err := errors.Join(ch.Qos(1000, 0, false), ch.Confirm(false)); err != nil {
			return err
		}
		end := outbox.NewID().String()
		confirmed, err := ch.PublishWithDeferredConfirm("", q.name, true, false, amqp091.Publishing{MessageId: end})
		if err != nil {
			return err
		}
		if accepted, err := confirmed.WaitContext(ctx); err != nil || !accepted {
			return fmt.Errorf("the end of queue %s was not accepted: %w", q.name, err)
		}
		deliveries, err := ch.ConsumeWithContext(ctx, q.name, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for d := range deliveries {
			if err := d.Ack(false); err != nil {
				return err
			}
			if d.MessageId == end {
				return nil
			}
			q.seen = append(q.seen, d)
		}
		return cmp.Or(ctx.Err(), errors.New("the consumer has been cancelled"))
	})
	return q.seen, err
}

// messages returns what a consumer makes of all that was read.
func (q *queue) messages(ctx context.Context) ([]outbox.Message, error) {
	deliveries, err := q.read(ctx)
	if err != nil {
		return nil, err
	}
	var all []outbox.Message
	for i := range deliveries {
		m, err := decode(&deliveries[i])
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// decode reads the documented wire format.
func decode(d *amqp091.Delivery) (m outbox.Message, err error) {
	text := func(name string) string {
		value, _ := d.Headers[name].(string)
		return value
	}
	m = outbox.Message{
		Topic:         cmp.Or(text("outbox-topic"), d.RoutingKey),
		Key:           text("outbox-key"),
		EventType:     d.Type,
		AggregateType: text("outbox-aggregate-type"),
		AggregateID:   text("outbox-aggregate-id"),
		ContentType:   d.ContentType,
	}
	m.Position, _ = d.Headers["outbox-position"].(int64)
	if m.ID, err = outbox.ParseID(d.MessageId); err != nil {
		return m, err
	}
	if created := text("outbox-created-at"); created != "" {
		if m.CreatedAt, err = time.Parse(time.RFC3339Nano, created); err != nil {
			return m, err
		}
		if !d.Timestamp.Equal(m.CreatedAt.Truncate(time.Second)) {
			return m, fmt.Errorf("timestamp %v of a message created at %v", d.Timestamp, m.CreatedAt)
		}
	}
	if text("outbox-payload") != "null" {
		m.Payload = append([]byte{}, d.Body...)
	}
	if d.DeliveryMode != amqp091.Persistent {
		return m, fmt.Errorf("delivery mode %d", d.DeliveryMode)
	}
	for name, value := range d.Headers {
		if !strings.HasPrefix(name, "outbox-") && !strings.HasPrefix(name, "x-") {
			m.Headers = append(m.Headers, outbox.Header{Name: name, Value: fmt.Sprint(value)})
		}
	}
	sortHeaders(&m)
	return m, nil
}

func sortHeaders(m *outbox.Message) {
	m.Headers = slices.Clone(m.Headers)
	slices.SortFunc(m.Headers, func(a, b outbox.Header) int { return cmp.Compare(a.Name, b.Name) })
}

func newBroker(t testing.TB, servers string, cfg rabbitmq.Config) *rabbitmq.Broker {
	t.Helper()
	b, err := rabbitmq.New(servers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// harness addresses two queues.
func harness(t *testing.T, url string, queues [2]*queue) relaytest.BrokerHarness {
	return relaytest.BrokerHarness{
		Open: func(t *testing.T) relay.Broker {
			b, err := rabbitmq.New(url, rabbitmq.Config{AckTimeout: 5 * time.Second, MaxMessageBytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		Topics: [2]string{queues[0].name, queues[1].name},
		Read: func(ctx context.Context) (all []outbox.Message, err error) {
			for _, q := range queues {
				part, err := q.messages(ctx)
				if err != nil {
					return nil, err
				}
				all = append(all, part...)
			}
			return all, nil
		},
		Forget:       func(m *outbox.Message) { sortHeaders(m) }, // headers are a map
		TooLarge:     1<<20 + 1,
		UnknownTopic: "unknown-" + queues[0].name,
	}
}

// message returns a message with n as payload.
func message(stream, key string, n int) *outbox.Message {
	return &outbox.Message{ID: outbox.NewID(), Topic: stream, Key: key, Payload: fmt.Appendf(nil, "%d", n)}
}

// messages returns n messages that go round over keys.
func messages(stream string, n, keys int) []*outbox.Message {
	batch := make([]*outbox.Message, n)
	for i := range batch {
		batch[i] = message(stream, fmt.Sprintf("k%d", i%keys), i/keys)
	}
	return batch
}

// accepted fails the test unless all were accepted.
func accepted(t testing.TB, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

// checkOutcomes verifies what every call promises: after the first failure of a key nothing but ErrSkipped.
func checkOutcomes(t testing.TB, batch []*outbox.Message, errs []error) {
	t.Helper()
	if errs == nil {
		return
	}
	if len(errs) != len(batch) {
		t.Fatalf("%d outcomes for %d messages", len(errs), len(batch))
	}
	failed := map[string]bool{}
	for i, m := range batch {
		key, err := m.OrderingKey(), errs[i]
		if key == "" {
			continue
		}
		if failed[key] != errors.Is(err, outbox.ErrSkipped) {
			t.Fatalf("message %d of key %q: an earlier one failed: %v; outcome: %v", i, key, failed[key], err)
		}
		if err != nil {
			failed[key] = true
		}
	}
}

// deliver does what the engine does: it publishes batch until all is accepted.
func deliver(ctx context.Context, t testing.TB, b *rabbitmq.Broker, batch []*outbox.Message) {
	t.Helper()
	for len(batch) > 0 {
		errs := b.Publish(ctx, batch)
		checkOutcomes(t, batch, errs)
		if errs == nil {
			return
		}
		var rest []*outbox.Message
		var last error
		for i, err := range errs {
			if err == nil {
				continue
			}
			if outbox.IsPermanent(err) {
				t.Fatalf("message %d: %v", i, err)
			}
			if !errors.Is(err, outbox.ErrSkipped) {
				last = err
			}
			rest = append(rest, batch[i])
		}
		batch = rest
		select {
		case <-ctx.Done():
			t.Fatalf("%d messages left: %v", len(batch), last)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func contains(t testing.TB, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v doesn't have %q", err, part)
		}
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting until %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// proxy stands between client and server, and does to their traffic what it is told.
type proxy struct {
	listener net.Listener
	upstream string
	all      sync.WaitGroup

	swallow  atomic.Bool  // what the server says is lost
	delay    atomic.Int64 // nanoseconds before each piece of what the server says
	cutAfter atomic.Int64 // bytes from the client after which the connection is cut; 0 is never
	sent     atomic.Int64 // bytes from the client that were passed on

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

func newProxy(t testing.TB, upstream string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, upstream: upstream, conns: map[net.Conn]struct{}{}}
	p.all.Go(p.serve)
	t.Cleanup(func() {
		listener.Close()
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.cut()
		p.all.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		if p.closed {
			client.Close()
			server.Close()
		}
		p.mu.Unlock()
		p.all.Go(func() { p.copy(server, client, p.fromClient) })
		p.all.Go(func() { p.copy(client, server, p.fromServer) })
	}
}

func (p *proxy) copy(to, from net.Conn, pass func(to io.Writer, piece []byte) error) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if err := pass(to, buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) fromClient(to io.Writer, piece []byte) error {
	n, err := to.Write(piece)
	sent := p.sent.Add(int64(n))
	if limit := p.cutAfter.Load(); limit > 0 && sent >= limit {
		p.cutAfter.Store(0)
		return io.ErrClosedPipe
	}
	return err
}

func (p *proxy) fromServer(to io.Writer, piece []byte) error {
	if d := p.delay.Load(); d > 0 {
		time.Sleep(time.Duration(d)) // a slow network, not synchronisation
	}
	if p.swallow.Load() {
		return nil
	}
	_, err := to.Write(piece)
	return err
}
