package amazon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
)

// Service is SQS or SNS.
type Service interface {
	// List sends a request that needs no name, to check access. Errors have their kind.
	List(ctx context.Context) error

	// Accounts returns the accounts that own the targets, as far as that is known. Errors have their kind.
	Accounts(ctx context.Context) ([]Account, error)

	// Find looks up a target by the name that Names gave, and creates it if the configuration allows that and create is
	// true. Without create, one that would be created is nil. Errors name it and have their kind.
	Find(ctx context.Context, name string, create bool) (*Target, error)

	// Send sends one request, once, and notes what the answer says of each entry. Its error is the client's: there was
	// no answer, or one that concerns all entries. It keeps nothing of entries.
	Send(ctx context.Context, target *Target, entries []Entry, answer *Outcomes) error
}

// Target is a queue or a topic on the server.
type Target struct {
	Name    string // the name that it was found by
	Address string // URL or ARN
	FIFO    bool
	Limit   int    // bytes of a message, attributes included
	Request int    // bytes of all messages of a request
	Topic   string // messages of this topic don't carry it; "" for none

	found time.Time
}

// Settings of a Broker. All are required.
type Settings struct {
	Common           // completed
	Service   string // as errors name it: "sqs" or "sns"
	Sending   string // as errors name what is done: "send to queue"
	Kind      string // of the targets: "queue" or "topic"
	Transport *http.Transport
	Names     *Names

	LargestLimit int // the highest limit of any target
}

// Broker publishes through a service. It satisfies relay.Broker and relay.Pinger, and is safe for concurrent use.
type Broker struct {
	service  Service
	settings Settings
	batches  inorder.Pool
	slots    chan struct{} // one for each request in flight
	closed   atomic.Bool

	mu      sync.Mutex
	targets map[string]*Target
}

// NewBroker returns a broker. It connects to nothing.
func NewBroker(service Service, settings Settings) *Broker {
	return &Broker{
		service:  service,
		settings: settings,
		slots:    make(chan struct{}, settings.Requests),
		targets:  make(map[string]*Target),
	}
}

// Publish sends batch as relay.Broker demands.
func (b *Broker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	c := newCall(b, batch)
	defer b.batches.End(c.Batch)
	c.run(ctx)
	return judgeMisread(c.Errs())
}

// Ping checks that the service answers and accepts the credentials, and that the targets exist that the configuration
// names without a field, or would be created. It returns the reason if not, and changes nothing.
func (b *Broker) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.settings.Timeout)
	defer cancel()
	if err := b.usable(); err != nil {
		return err
	}
	fixed := b.settings.Names.Fixed()
	for _, name := range fixed {
		if _, err := b.service.Find(ctx, name, false); err != nil {
			return outbox.Unavailable(err)
		}
	}
	if len(fixed) > 0 {
		return nil
	}
	return outbox.Unavailable(b.service.List(ctx))
}

// Close closes idle connections. No Publish may be running. It may be called more than once.
func (b *Broker) Close() error {
	b.closed.Store(true)
	b.settings.Transport.CloseIdleConnections()
	return nil
}

func (b *Broker) usable() error {
	if b.closed.Load() {
		return outbox.Unavailable(fmt.Errorf("%s: the broker is closed", b.settings.Service))
	}
	return nil
}

// find finds the targets of all names, and looks up those that aren't known yet. Each name gets a target or an error.
func (b *Broker) find(ctx context.Context, names []string) (map[string]*Target, map[string]error) {
	found := make(map[string]*Target, len(names))
	var unknown []string
	b.mu.Lock()
	for _, name := range names {
		if t := b.targets[name]; t != nil {
			found[name] = t
		} else {
			unknown = append(unknown, name)
		}
	}
	b.mu.Unlock()
	if len(unknown) == 0 {
		return found, nil
	}

	failed := make(map[string]error)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, name := range unknown {
		select {
		case b.slots <- struct{}{}:
		case <-ctx.Done():
			mu.Lock()
			failed[name] = errNotSent(cause(ctx))
			mu.Unlock()
			continue
		}
		asking.Go(func() {
			defer func() { <-b.slots }()
			target, err := b.findOne(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				found[name] = target
				return
			}
			failed[name] = err
			if outbox.IsUnavailable(err) {
				cancel() // the other lookups would fail with the same error
			}
		})
	}
	asking.Wait()
	return found, explain(failed)
}

// explain replaces the errors of lookups that were cancelled because of another lookup by that one's error.
func explain(failed map[string]error) map[string]error {
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		reason := failed[name]
		if !outbox.IsUnavailable(reason) || errors.Is(reason, context.Canceled) {
			continue
		}
		for other, err := range failed {
			if errors.Is(err, context.Canceled) {
				failed[other] = reason
			}
		}
		break
	}
	return failed
}

func (b *Broker) findOne(ctx context.Context, name string) (*Target, error) {
	ctx, cancel := context.WithTimeout(ctx, b.settings.Timeout)
	defer cancel()
	if err := b.usable(); err != nil {
		return nil, err
	}
	target, err := b.service.Find(ctx, name, true)
	if err != nil {
		return nil, err
	}
	target.found = time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.targets[name] = target
	return target, nil
}

// forget makes the next use of a target look it up again.
func (b *Broker) forget(t *Target) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.targets[t.Name] == t {
		delete(b.targets, t.Name)
	}
}

// limitHolds is how long the limit of a target is trusted when a message would be refused permanently.
const limitHolds = time.Minute

// tooLarge checks an entry against the target's limit.
func (b *Broker) tooLarge(t *Target, e *Entry) error {
	if e.Size <= t.Limit {
		return nil
	}
	err := fmt.Errorf("%s takes messages of at most %d bytes with their attributes, and this one has %d", t.Name, t.Limit, e.Size)
	if e.Size <= b.settings.LargestLimit && time.Since(t.found) > limitHolds {
		b.forget(t)
		return fmt.Errorf("%w; the limit will be read again", err)
	}
	return outbox.Permanent(err)
}

// send sends a request, and divides it if it is refused as a whole.
func (b *Broker) send(ctx context.Context, target *Target, entries []Entry) []error {
	if err := b.usable(); err != nil {
		return slices.Repeat([]error{err}, len(entries))
	}
	request, cancel := context.WithTimeoutCause(ctx, b.settings.Timeout, fmt.Errorf("no answer within %v", b.settings.Timeout))
	outcomes := newOutcomes(fmt.Sprintf("%s: %s %q", b.settings.Service, b.settings.Kind, target.Name), len(entries))
	whole := Classify(fmt.Sprintf("%s: %s %q", b.settings.Service, b.settings.Sending, target.Name),
		b.service.Send(request, target, entries, outcomes))
	if whole != nil && context.Cause(request) != nil && ctx.Err() == nil {
		whole = outbox.Unavailable(fmt.Errorf("%w (outcome unknown): %w", context.Cause(request), whole))
	}
	cancel()
	if whole == nil {
		return outcomes.errs
	}
	if refused(whole) && len(entries) > 1 {
		half := len(entries) / 2
		return append(b.send(ctx, target, entries[:half]), b.send(ctx, target, entries[half:])...)
	}
	if missing(whole) {
		b.forget(target)
	}
	return slices.Repeat([]error{whole}, len(entries))
}
