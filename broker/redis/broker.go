package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/template"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// Broker publishes to Redis streams. It satisfies relay.Broker and relay.Pinger, and is safe for concurrent use. It
// connects when first used, and again at the first use after a connection has broken.
type Broker struct {
	cfg       Config
	addresses []string
	streams   *template.Template
	client    redis.UniversalClient
	name      outbox.ID // identifies this broker among all writers of a stream
	calls     atomic.Int64

	// background bounds work that no caller waits for.
	background context.Context
	stop       context.CancelFunc
	running    sync.WaitGroup

	closing sync.Once
	closed  error

	mu        sync.Mutex // guards the rest, and prevents new goroutines after Close
	ended     bool
	inspected bool
}

// New returns a broker for a server, or for the nodes of a cluster or the sentinels that cfg names: addresses such as
// "127.0.0.1:6379", separated by commas. It checks cfg and does not connect; see Ping.
func New(addresses string, cfg Config) (*Broker, error) {
	cfg, list, streams, err := cfg.withDefaults(addresses)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	b := &Broker{cfg: cfg, addresses: list, streams: streams, client: redis.NewUniversalClient(cfg.options(list)), name: outbox.NewID()}
	b.background, b.stop = context.WithCancel(context.Background())
	return b, nil
}

// Publish sends batch by the contract of relay.Broker. docs/brokers/redis.md lists the kind of each error, and why.
func (b *Broker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	c := &call{b: b, batch: batch, plan: newPlan(len(batch)), lost: make(map[int]bool)}
	c.prepare()
	c.run(ctx)
	if c.errs == nil {
		b.inspectOnce()
	}
	return c.errs
}

// Close closes the connections. It may be called more than once.
func (b *Broker) Close() error {
	b.closing.Do(func() {
		b.mu.Lock()
		b.ended = true
		b.mu.Unlock()
		b.stop()
		b.closed = b.client.Close()
		b.running.Wait()
	})
	return b.closed
}

var errClosed = errors.New("redis: the broker is closed")

// start runs f in a goroutine, unless the broker is closed. Close waits for it.
func (b *Broker) start(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	b.running.Go(f)
	return true
}

// node returns the client of the server that has the stream.
func (b *Broker) node(ctx context.Context, stream string) (*redis.Client, error) {
	switch client := b.client.(type) {
	case *redis.ClusterClient:
		return client.MasterForKey(ctx, stream)
	case *redis.Client:
		return client, nil
	}
	return nil, fmt.Errorf("a client of type %T", b.client)
}

// exec sends cmds to node at once. It returns when all are answered, or errGivenUp when ctx ends: no context interrupts
// a read, so the read continues in the background, for at most AckTimeout. The commands have their own errors.
func (b *Broker) exec(ctx context.Context, node *redis.Client, cmds []redis.Cmder) error {
	if ctx.Err() != nil {
		return fmt.Errorf("redis: %w", context.Cause(ctx))
	}
	done := make(chan struct{})
	started := b.start(func() {
		defer close(done)
		pipe := node.Pipeline()
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			blame(cmds, err)
		}
	})
	if !started {
		return errClosed
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errGivenUp, context.Cause(ctx))
	}
}

// blame sets err in the commands that have neither error nor answer: the library sets none when it gets no connection.
func blame(cmds []redis.Cmder, err error) {
	for _, cmd := range cmds {
		if answer, ok := cmd.(*redis.Cmd); ok && answer.Err() == nil && answer.Val() == nil {
			answer.SetErr(err)
		}
	}
}

// SilenceClient turns off what the client library itself writes to standard error, in the whole process. The library
// has no such setting for a single client, and its output has nothing that errors don't have.
func SilenceClient() { logging.Disable() }

// confirmation returns the command that waits for replicas and disks, nil if the configuration asks for none. It waits
// for everything that was written on its connection before.
func (b *Broker) confirmation(ctx context.Context) *redis.Cmd {
	timeout := b.cfg.WaitTimeout.Milliseconds()
	switch {
	case b.cfg.Fsync:
		return redis.NewCmd(ctx, "WAITAOF", 1, b.cfg.Replicas, timeout)
	case b.cfg.Replicas > 0:
		return redis.NewCmd(ctx, "WAIT", b.cfg.Replicas, timeout)
	}
	return nil
}

// unconfirmed returns which of the required confirmations are missing, nil if none.
func (b *Broker) unconfirmed(confirm *redis.Cmd) error {
	err := confirm.Err()
	switch {
	case err != nil && isAnswer(err):
		return fmt.Errorf("redis: %v: %w; WAITAOF needs Redis 7.2 or later and appendonly yes (outcome unknown)", confirm.Name(), err)
	case err != nil:
		return fmt.Errorf("%w (outcome unknown)", noAnswer(err))
	}
	local, replicas := int64(1), int64(0)
	switch counts := confirm.Val().(type) {
	case int64:
		replicas = counts
	case []any:
		if len(counts) == 2 {
			local, _ = counts[0].(int64)
			replicas, _ = counts[1].(int64)
		}
	}
	if local >= 1 && replicas >= int64(b.cfg.Replicas) {
		return nil
	}
	return fmt.Errorf("redis: after %v the messages are on %d of %d replicas, and on disk here: %t (outcome unknown)",
		b.cfg.WaitTimeout, replicas, b.cfg.Replicas, local >= 1)
}

// notice makes the client read a cluster's map again when a node reports that it is outdated.
func (b *Broker) notice(err error) {
	cluster, ok := b.client.(*redis.ClusterClient)
	if !ok {
		return
	}
	for _, prefix := range []string{"MOVED", "ASK", "READONLY", "CLUSTERDOWN", "MASTERDOWN"} {
		if strings.HasPrefix(err.Error(), prefix) {
			cluster.ReloadState(b.background)
			return
		}
	}
}
