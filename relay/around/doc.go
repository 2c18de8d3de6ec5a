// Package around has brokers that wrap another broker: [Steps] changes topics and headers, [Pace] limits the rate,
// [Breaker] decides what counts as an outage, [InFlight] counts what is on its way. Each keeps the promises of
// [relay.Broker] if the inner broker does: the order within a key, an answer per message, nothing retained.
package around

import (
	"context"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// publisher is the part of a wrapper that this package doesn't supply.
type publisher interface {
	Publish(ctx context.Context, batch []*outbox.Message) []error
}

// wrap gives p the other methods of inner. It is a relay.Pinger if inner is one.
func wrap(p publisher, inner relay.Broker) relay.Broker {
	if pinger, ok := inner.(relay.Pinger); ok {
		return pinging{p, inner, pinger}
	}
	return plain{p, inner}
}

type plain struct {
	publisher
	inner relay.Broker
}

func (b plain) Close() error { return b.inner.Close() }

type pinging struct {
	publisher
	inner  relay.Broker
	pinger relay.Pinger
}

func (b pinging) Close() error                   { return b.inner.Close() }
func (b pinging) Ping(ctx context.Context) error { return b.pinger.Ping(ctx) }

var (
	_ relay.Broker = plain{}
	_ relay.Pinger = pinging{}
)

// outcomes are the errors of a call, nil while there are none, and the keys that have failed.
type outcomes struct {
	errs   []error
	failed map[string]bool
}

// fail answers message i of n.
func (o *outcomes) fail(i, n int, m *outbox.Message, err error) {
	if o.errs == nil {
		o.errs = make([]error, n)
		o.failed = make(map[string]bool)
	}
	o.errs[i] = err
	if key := m.OrderingKey(); key != "" {
		o.failed[key] = true
	}
}

// skips reports whether an earlier message of m's key has failed.
func (o *outcomes) skips(m *outbox.Message) bool {
	return len(o.failed) > 0 && o.failed[m.OrderingKey()]
}

// failRest answers all messages from i on that have no answer yet.
func (o *outcomes) failRest(i int, batch []*outbox.Message, err error) {
	for ; i < len(batch); i++ {
		if o.errs == nil || o.errs[i] == nil {
			o.fail(i, len(batch), batch[i], err)
		}
	}
}
