package once

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/internal/settings"
)

// Client is the Redis client for the notes: a *redis.Client, a *redis.ClusterClient or a failover client. Its timeouts
// should be well below Config.Lease.
type Client = redis.Scripter

// Config tunes a [Cache]. The zero value is fit for use.
type Config struct {
	// Window is how long a done message is remembered, counted from its effect. It should be longer than brokers keep
	// unacknowledged messages. A note takes about 150 bytes. Default 24 h.
	Window time.Duration

	// Lease is how long the claim of a dead process keeps others from the message. Living processes renew it. Default
	// 30 s, at least 100 ms.
	Lease time.Duration

	// Timeout is the time after which the handler's context ends. Default: only the caller's context ends it.
	Timeout time.Duration

	// DedupKey returns what identifies a message, of at most inbox.MaxDedupBytes; "" stands for its ID. Default: the
	// ID.
	DedupKey func(*outbox.Message) string

	// Prefix begins the keys in Redis; the consumer's name and the message's identification follow. Default
	// "outbox:once:".
	Prefix string

	// Logger reports effects that could not be noted, and lost claims; nil: slog.Default.
	Logger *slog.Logger

	// Observer gets every message, and Tracer wraps it in a span, as for an inbox; nil for none.
	Observer inbox.Observer
	Tracer   inbox.Tracer
}

// Handler makes the effect of a message. It returns when ctx ends. An error marked by outbox.Permanent means that a
// repeat would not help, one marked by outbox.Unavailable that the message isn't to blame.
type Handler func(ctx context.Context, msg *outbox.Message) error

// The errors of Handle if a message has not had its effect. The message must not be acknowledged.
var (
	// ErrBusy means that another process has claimed the message, or had claimed it when it died. It is marked by
	// outbox.Unavailable: deliver the message again later, and count no attempt.
	ErrBusy = errors.New("another process has claimed the message: deliver it again in a moment; if that process has " +
		"died, its claim expires")

	// ErrLost means that the handler was interrupted: its claim could not be kept, and another process may run it. It
	// is marked by outbox.Unavailable.
	ErrLost = errors.New("the claim of the message was lost while its handler ran: another process may be at it")
)

// Cache makes the effects of one consumer. Safe for concurrent use.
type Cache struct {
	consumer string
	client   Client
	cfg      Config
}

// New returns the cache of a consumer, which may have any number of processes. It reports all faults of cfg together
// and doesn't connect. The caller owns the client.
func New(consumer string, client Client, cfg Config) (*Cache, error) {
	var faults settings.Faults
	faults.Need(consumer != "" && len(consumer) <= inbox.MaxConsumerBytes, "",
		"the consumer's name must have 1 to %d bytes, not %d", inbox.MaxConsumerBytes, len(consumer))
	faults.Need(client != nil, "", "there is no client of Redis")
	settings.AtLeast(&faults, "Window", &cfg.Window, 24*time.Hour, time.Millisecond)
	settings.AtLeast(&faults, "Lease", &cfg.Lease, 30*time.Second, 100*time.Millisecond)
	settings.Default(&cfg.Prefix, "outbox:once:")
	faults.Need(cfg.Timeout >= 0, "Timeout", "%v, it must be positive", cfg.Timeout)
	cfg.Logger = settings.Logger(cfg.Logger)
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("once: consumer %.40q: %w", consumer, err)
	}
	return &Cache{consumer: consumer, client: client, cfg: cfg}, nil
}

// Handle claims a message, runs fn and marks the message as done. If it was marked before, fn isn't run and the outcome
// is inbox.Duplicate. With a nil error the message may be acknowledged; with any other it may not.
//
// If the effect has happened and can't be marked, the outcome is inbox.Applied all the same, and the error is logged:
// delivering the message again would certainly repeat the effect.
func (c *Cache) Handle(ctx context.Context, msg *outbox.Message, fn Handler) (inbox.Result, error) {
	key, err := c.key(msg)
	if err == nil && fn == nil {
		err = outbox.Permanent(errors.New("there is no handler"))
	}
	began := time.Now()
	result := inbox.Result{}
	if err == nil {
		result, err = c.traced(ctx, key, msg, fn)
	}
	if c.cfg.Observer != nil {
		c.cfg.Observer.Handled(inbox.Event{Consumer: c.consumer, Message: msg, Result: result, Err: err, Took: time.Since(began)})
	}
	if err != nil {
		return inbox.Result{}, fmt.Errorf("once: %s: message %s: %w", c.consumer, nameOf(msg), err)
	}
	return result, nil
}

func (c *Cache) traced(ctx context.Context, key string, msg *outbox.Message, fn Handler) (result inbox.Result, err error) {
	if c.cfg.Tracer != nil {
		traced, end := c.cfg.Tracer.Start(ctx, c.consumer, msg, inbox.LinkOf(msg))
		defer func() { end(result, err) }()
		ctx = traced
	}
	cl := &claim{cache: c, key: key, token: rand.Text(), msg: msg}
	switch answer, err := cl.take(ctx); {
	case err != nil:
		return inbox.Result{}, err
	case answer == answerDone:
		return inbox.Result{Outcome: inbox.Duplicate}, nil
	case answer == answerBusy:
		return inbox.Result{}, outbox.Unavailable(ErrBusy)
	}
	finished := false
	defer func() {
		if !finished { // even if fn has ended its goroutine
			cl.release(ctx)
		}
	}()
	if err := cl.run(ctx, fn); err != nil {
		return inbox.Result{}, err
	}
	finished = true
	cl.mark(ctx)
	return inbox.Result{Outcome: inbox.Applied}, nil
}

// key is the key of the note.
func (c *Cache) key(msg *outbox.Message) (string, error) {
	if msg == nil {
		return "", outbox.Permanent(errors.New("there is no message"))
	}
	known := ""
	if c.cfg.DedupKey != nil {
		if known = c.cfg.DedupKey(msg); len(known) > inbox.MaxDedupBytes {
			return "", outbox.Permanent(fmt.Errorf("its deduplication key has %d bytes, the limit is %d", len(known), inbox.MaxDedupBytes))
		}
	}
	kind := "key:"
	if known == "" {
		if msg.ID.IsZero() {
			return "", outbox.Permanent(inbox.ErrNoID)
		}
		kind, known = "id:", msg.ID.String()
	}
	return c.cfg.Prefix + c.consumer + ":" + kind + known, nil
}

func nameOf(msg *outbox.Message) string {
	if msg == nil || msg.ID.IsZero() {
		return "without id"
	}
	return msg.ID.String()
}

// guarded turns a panic into an error.
func guarded(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &inbox.PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	return f()
}
