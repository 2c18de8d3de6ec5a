package amazon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
	"github.com/pgoutbox/outbox/format"
)

// Service is SQS or SNS.
type Service interface {
	// Find looks a target up by the name that Names gave, and creates it if that was asked for. Errors
	// name it and have their kind.
	Find(ctx context.Context, name string) (*Target, error)

	// Send sends one request, once. It returns the outcome of each entry, nil for an accepted one, or an
	// error that concerns them all: one made by Refusal if the request was at fault and may be divided.
	// Nothing of entries is kept.
	Send(ctx context.Context, target *Target, entries []Entry) ([]error, error)
}

// Target is a queue or a topic on the server.
type Target struct {
	Name    string // as found by
	Address string // URL or ARN
	FIFO    bool
	Limit   int    // bytes of a message, attributes included
	Request int    // bytes of all messages of a request
	Topic   string // messages of this topic don't say so; "" for none

	found time.Time
}

// Settings of a Publisher. All but Records are required.
type Settings struct {
	Names   *Names
	Payload Payload
	Records format.Encoder // nil: payloads as they are, with attributes of ours

	Requests     int           // on their way at a time, of all calls together
	Timeout      time.Duration // of a request
	LargestLimit int           // no target's limit is higher
}

// Publisher publishes through a service. It is safe for concurrent use.
type Publisher struct {
	service  Service
	settings Settings
	batches  inorder.Pool
	slots    chan struct{} // one for each request on its way

	mu      sync.Mutex
	targets map[string]*Target
}

// NewPublisher returns a publisher.
func NewPublisher(service Service, settings Settings) *Publisher {
	return &Publisher{
		service:  service,
		settings: settings,
		slots:    make(chan struct{}, settings.Requests),
		targets:  make(map[string]*Target),
	}
}

// Publish sends batch as relay.Broker demands.
func (p *Publisher) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	c := newCall(p, batch)
	defer p.batches.End(c.Batch)
	c.run(ctx)
	return c.Errs()
}

// Targets finds the targets of all names, asking for those that aren't known yet. Each name gets a target
// or an error.
func (p *Publisher) Targets(ctx context.Context, names []string) (map[string]*Target, map[string]error) {
	found := make(map[string]*Target, len(names))
	var unknown []string
	p.mu.Lock()
	for _, name := range names {
		if t := p.targets[name]; t != nil {
			found[name] = t
		} else {
			unknown = append(unknown, name)
		}
	}
	p.mu.Unlock()
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
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			mu.Lock()
			failed[name] = errNotSent(cause(ctx))
			mu.Unlock()
			continue
		}
		asking.Go(func() {
			defer func() { <-p.slots }()
			target, err := p.find(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				found[name] = target
				return
			}
			failed[name] = err
			if outbox.IsUnavailable(err) {
				cancel() // it is the same for the others
			}
		})
	}
	asking.Wait()
	return found, explain(failed)
}

// explain replaces errors of those questions that were given up for the sake of another by its error.
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

func (p *Publisher) find(ctx context.Context, name string) (*Target, error) {
	ctx, cancel := context.WithTimeout(ctx, p.settings.Timeout)
	defer cancel()
	target, err := p.service.Find(ctx, name)
	if err != nil {
		return nil, err
	}
	target.found = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets[name] = target
	return target, nil
}

// Forget has a target found anew when it is needed next.
func (p *Publisher) Forget(t *Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.targets[t.Name] == t {
		delete(p.targets, t.Name)
	}
}

// limitHolds is how long the limit of a target is believed before a message is refused for good.
const limitHolds = time.Minute

// tooLarge judges an entry by the target's limit.
func (p *Publisher) tooLarge(t *Target, e *Entry) error {
	if e.Size <= t.Limit {
		return nil
	}
	err := fmt.Errorf("%s takes messages of at most %d bytes with their attributes, and this one has %d", t.Name, t.Limit, e.Size)
	if e.Size <= p.settings.LargestLimit && time.Since(t.found) > limitHolds {
		p.Forget(t)
		return fmt.Errorf("%w; the limit will be read again", err)
	}
	return outbox.Permanent(err)
}

// send sends a request, and divides it if it is refused as a whole.
func (p *Publisher) send(ctx context.Context, target *Target, entries []Entry) []error {
	request, cancel := context.WithTimeoutCause(ctx, p.settings.Timeout, fmt.Errorf("no answer within %v", p.settings.Timeout))
	errs, whole := p.service.Send(request, target, entries)
	if whole != nil && context.Cause(request) != nil && ctx.Err() == nil {
		whole = outbox.Unavailable(fmt.Errorf("%w (outcome unknown): %w", context.Cause(request), whole))
	}
	cancel()
	if whole == nil {
		return errs
	}
	if refused(whole) && len(entries) > 1 {
		half := len(entries) / 2
		return append(p.send(ctx, target, entries[:half]), p.send(ctx, target, entries[half:])...)
	}
	if missing(whole) {
		p.Forget(target)
	}
	return slices.Repeat([]error{whole}, len(entries))
}
