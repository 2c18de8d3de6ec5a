package relaytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
)

// Memory is an in-memory broker whose faults follow a script, for tests of publishers. Without a script it accepts
// everything at once. It starts no goroutines, and uses time only for Delay, so it can be used in a testing/synctest
// bubble. Safe for concurrent use.
type Memory struct {
	mu       sync.Mutex
	accepted []outbox.Message
	calls    int
	closed   bool
	fails    map[string]*scriptedFailure
	limit    int
	unknown  map[string]bool
	lost     int
	delay    time.Duration
	down     bool
	names    []string
	frozen   chan struct{} // closed by Thaw; nil: not frozen
	waiting  int
	changed  chan struct{} // closed and replaced when accepted, calls or waiting change
}

type scriptedFailure struct {
	left int // negative: forever
	err  error
}

// NewMemory returns an empty broker.
func NewMemory() *Memory {
	return &Memory{
		fails:   map[string]*scriptedFailure{},
		unknown: map[string]bool{},
		changed: make(chan struct{}),
	}
}

// Identify has Identity return names; none, as at the beginning, is a broker that doesn't know which one it is.
func (m *Memory) Identify(names ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.names = names
}

// Identity returns the names that Identify has set, and an error while the broker is killed.
func (m *Memory) Identity(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, outbox.Unavailable(errors.New("memory broker: down"))
	}
	return m.names, nil
}

// Fail answers the next n messages of an ordering key that would be accepted with err, whose kind outbox.Permanent and
// outbox.Unavailable decide. A negative n means all further messages, 0 none.
func (m *Memory) Fail(key string, n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n == 0 {
		delete(m.fails, key)
		return
	}
	m.fails[key] = &scriptedFailure{n, err}
}

// Limit refuses payloads of more than n bytes for good. 0 means no limit.
func (m *Memory) Limit(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = n
}

// Unknown makes a topic unknown, or known again.
func (m *Memory) Unknown(topic string, unknown bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unknown[topic] = unknown
}

// LoseAnswers makes the next n calls that would accept something accept it and answer unavailable, as when the
// connection breaks between the two.
func (m *Memory) LoseAnswers(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost = n
}

// Delay makes every call wait for d first, or until its context ends.
func (m *Memory) Delay(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.delay = d
}

// Kill makes calls answer unavailable at once, until Restart. Calls that wait because of Freeze fail too.
func (m *Memory) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = true
	m.thaw()
}

// Restart ends Kill. Accepted messages are still there.
func (m *Memory) Restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = false
}

// Freeze makes calls wait until Thaw or until their context ends; then they answer unavailable, and none of their
// messages was accepted. LoseAnswers covers the other case.
func (m *Memory) Freeze() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.frozen == nil {
		m.frozen = make(chan struct{})
	}
}

// Thaw releases the calls that wait and all later ones.
func (m *Memory) Thaw() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.thaw()
}

func (m *Memory) thaw() {
	if m.frozen != nil {
		close(m.frozen)
		m.frozen = nil
	}
}

// Messages returns copies of everything accepted, in that order, repeats included.
func (m *Memory) Messages() []outbox.Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.accepted)
}

// Calls returns how often Publish was called, and how many of these calls wait because of Freeze.
func (m *Memory) Calls() (all, waiting int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls, m.waiting
}

// Wait returns nil once until returns true, or ctx's error. It calls until again whenever a call has come, begun to
// wait or returned, and whenever messages were accepted. until may call Messages and Calls.
func (m *Memory) Wait(ctx context.Context, until func() bool) error {
	for {
		m.mu.Lock()
		changed := m.changed
		m.mu.Unlock()
		if until() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// notify wakes Wait. m.mu is held.
func (m *Memory) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Publish accepts batch as far as the script lets it.
func (m *Memory) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	if err := m.admit(ctx); err != nil {
		return slices.Repeat([]error{outbox.Unavailable(err)}, len(batch))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	errs := make([]error, len(batch))
	failed := map[string]bool{}
	before := len(m.accepted)
	for i, message := range batch {
		key := message.OrderingKey()
		if key != "" && failed[key] {
			errs[i] = outbox.ErrSkipped
			continue
		}
		if errs[i] = m.accept(message); errs[i] != nil {
			failed[key] = true
		}
	}
	if m.lost > 0 && len(m.accepted) > before {
		m.lost--
		err := outbox.Unavailable(errors.New("memory broker: the connection broke before the answer came"))
		for i := range errs {
			if errs[i] == nil {
				errs[i] = err
			}
		}
	}
	m.notify()
	if !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return nil
	}
	return errs
}

// admit makes a call wait for the delay, the freeze and the outage.
func (m *Memory) admit(ctx context.Context) error {
	m.mu.Lock()
	m.calls++
	m.notify()
	delay := m.delay
	m.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("memory broker: %w", err)
		}
		m.mu.Lock()
		frozen, down, closed := m.frozen, m.down, m.closed
		if frozen != nil && !down && !closed {
			m.waiting++
			m.notify()
		}
		m.mu.Unlock()
		switch {
		case closed:
			return errors.New("memory broker: closed")
		case down:
			return errors.New("memory broker: connection refused")
		case frozen == nil:
			return nil
		}
		select {
		case <-frozen:
		case <-ctx.Done():
		}
		m.mu.Lock()
		m.waiting--
		m.notify()
		m.mu.Unlock()
	}
}

// accept stores a copy of message, or returns why not.
func (m *Memory) accept(message *outbox.Message) error {
	if m.unknown[message.Topic] {
		return fmt.Errorf("memory broker: topic %q doesn't exist", message.Topic)
	}
	if m.limit > 0 && len(message.Payload) > m.limit {
		return outbox.Permanent(fmt.Errorf("memory broker: the payload has %d bytes, the limit is %d", len(message.Payload), m.limit))
	}
	if f := m.fails[message.OrderingKey()]; f != nil && f.left != 0 {
		f.left--
		return f.err
	}
	m.accepted = append(m.accepted, clone(message))
	return nil
}

// Ping reports whether the broker would answer.
func (m *Memory) Ping(ctx context.Context) error {
	m.mu.Lock()
	frozen, down, closed := m.frozen, m.down, m.closed
	m.mu.Unlock()
	switch {
	case closed:
		return outbox.Unavailable(errors.New("memory broker: closed"))
	case down:
		return outbox.Unavailable(errors.New("memory broker: connection refused"))
	case frozen == nil:
		return nil
	}
	select {
	case <-frozen:
		return m.Ping(ctx)
	case <-ctx.Done():
		return outbox.Unavailable(fmt.Errorf("memory broker: %w", ctx.Err()))
	}
}

// Close makes every later call answer unavailable. What was accepted can still be read.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.thaw()
	return nil
}

// clone copies a message and everything that it points to.
func clone(m *outbox.Message) outbox.Message {
	c := *m
	c.Topic = strings.Clone(m.Topic)
	c.Key = strings.Clone(m.Key)
	c.AggregateType = strings.Clone(m.AggregateType)
	c.AggregateID = strings.Clone(m.AggregateID)
	c.EventType = strings.Clone(m.EventType)
	c.ContentType = strings.Clone(m.ContentType)
	if m.Payload != nil {
		c.Payload = append([]byte{}, m.Payload...)
	}
	c.Headers = slices.Clone(m.Headers)
	for i, h := range c.Headers {
		c.Headers[i] = outbox.Header{Name: strings.Clone(h.Name), Value: strings.Clone(h.Value)}
	}
	return c
}
