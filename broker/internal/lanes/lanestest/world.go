// Package lanestest is the suite that the consumers of all brokers pass, on real servers and with a real inbox.
package lanestest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

// Consumer is the subject of the suite.
type Consumer interface {
	Run(ctx context.Context) error
}

// Harness connects the suite to a broker. Each test takes a Source of its own.
type Harness struct {
	Source func(t *testing.T) Source

	// Ordered means that the broker keeps the order of a key even if several consumers share a source.
	Ordered bool

	// Prefix means that the broker remembers a position instead of single messages: messages that were handled behind
	// an unhandled one come again.
	Prefix bool

	// Patience is the silence after which the broker takes a consumer for dead, as Open configures it; 0 if the broker
	// watches connections or members instead of messages.
	Patience time.Duration

	// Reject means that the broker can dead-letter messages.
	Reject bool

	// LagByAsking means that the broker doesn't send the lag, and is asked rarely.
	LagByAsking bool
}

// Source is a topic, stream or queue of one test, shared by one group of consumers.
type Source struct {
	Topic   string
	Publish func(ctx context.Context, msgs []*outbox.Message) []error
	// Foreign sends a record with a key, and with the text id in the place of a message's id; without an id if that is
	// "".
	Foreign func(t *testing.T, key, id string)
	// Open returns a consumer of the group.
	Open func(t *testing.T, cfg consume.Config, handler consume.Handler) Consumer
}

// effects is a database in which handlers insert a row for each message, through an inbox.
type effects struct {
	t    *testing.T
	pool *pgxpool.Pool
	box  *inbox.Inbox
}

func newEffects(t *testing.T) *effects {
	t.Helper()
	url := servers.TestDatabase(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := schema.Up(t.Context(), conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `CREATE TABLE effects (no bigserial, message_id uuid, key text, n int)`); err != nil {
		t.Fatal(err)
	}
	e := &effects{t: t}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 24
	if e.pool, err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.pool.Close)
	if e.box, err = inbox.New("consumer", inbox.Config{}); err != nil {
		t.Fatal(err)
	}
	return e
}

// apply is a handler with an effect.
func (e *effects) apply(ctx context.Context, msg *outbox.Message) error {
	_, err := e.box.Handle(ctx, e.pool, msg, insert)
	return err
}

func insert(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
	_, err := tx.Exec(ctx, `INSERT INTO effects (message_id, key, n) VALUES ($1::text::uuid, $2, $3::text::int)`,
		msg.ID.String(), msg.Key, string(msg.Payload))
	return err
}

func (e *effects) int(query string, args ...any) (n int) {
	e.t.Helper()
	if err := e.pool.QueryRow(e.t.Context(), query, args...).Scan(&n); err != nil {
		e.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// complete waits until all messages have had their effect, and requires that each has had it once and, if ordered, in
// the order of its key.
func (e *effects) complete(want int, ordered bool) {
	e.t.Helper()
	await.Until(e.t, fmt.Sprintf("%d messages have had their effect", want), func() bool {
		return e.int(`SELECT count(DISTINCT message_id) FROM effects`) == want
	})
	e.exact(want, ordered)
}

func (e *effects) exact(want int, ordered bool) {
	e.t.Helper()
	if n := e.int(`SELECT count(*) FROM effects`); n != want {
		e.t.Errorf("%d effects of %d messages", n, want)
	}
	inverted := e.int(`SELECT count(*) FROM (SELECT n, lag(n, 1, -1) OVER (PARTITION BY key ORDER BY no) AS before FROM effects) s WHERE n <> before + 1`)
	if ordered && inverted > 0 {
		e.t.Errorf("%d effects are out of order", inverted)
	}
}

// numbered returns count messages, dealt to keys in turn; the payload is the number within the key.
func numbered(topic string, count, keys int) []*outbox.Message {
	batch := make([]*outbox.Message, count)
	for i := range batch {
		batch[i] = &outbox.Message{ID: outbox.NewID(), Topic: topic,
			Key: fmt.Sprintf("k-%d", i%keys), Payload: fmt.Appendf(nil, "%d", i/keys),
			EventType: "made", Headers: []outbox.Header{{Name: "tenant", Value: "acme"}}}
	}
	return batch
}

// publish publishes messages until all are accepted, as the engine does.
func (s Source) publish(t *testing.T, msgs []*outbox.Message) {
	t.Helper()
	ctx := await.Context(t)
	for len(msgs) > 0 {
		errs := s.Publish(ctx, msgs)
		if errs == nil {
			return
		}
		var rest []*outbox.Message
		for i, err := range errs {
			if err != nil {
				rest = append(rest, msgs[i])
			}
		}
		if msgs = rest; ctx.Err() != nil {
			t.Fatalf("%d messages could not be sent: %v", len(msgs), errs)
		}
	}
}

// running is a running consumer. stop tells it to end and waits for it.
type running struct {
	t      *testing.T
	cancel context.CancelFunc
	err    error
	done   chan struct{}
}

func (s Source) start(t *testing.T, cfg consume.Config, handler consume.Handler) *running {
	t.Helper()
	c := s.Open(t, cfg, handler)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = c.Run(ctx)
	}()
	t.Cleanup(func() { r.stop() })
	return r
}

// stop ends the consumer and returns Run's result.
func (r *running) stop() error {
	r.t.Helper()
	r.cancel()
	await.Until(r.t, "the end of the consumer", func() bool { // also when the test has ended, and with it its context
		select {
		case <-r.done:
			return true
		default:
			return false
		}
	})
	return r.err
}

func (r *running) mustStop() {
	r.t.Helper()
	if err := r.stop(); err != nil {
		r.t.Fatalf("the consumer ended with: %v", err)
	}
}
