// Package around has brokers that wrap another broker: [Steps] changes topics and headers, [Breaker] decides what
// counts as an outage, [InFlight] counts what is on its way. Each keeps the promises of [relay.Broker] if the inner
// broker does: the order within a key, an answer per message, nothing retained.
package around

import (
	"context"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// publisher is what each wrapper has of its own.
type publisher interface {
	Publish(ctx context.Context, batch []*outbox.Message) []error
}

// wrap returns a broker that publishes by p and has the other methods of inner.
func wrap(p publisher, inner relay.Broker) relay.Broker { return wrapped{p, inner} }

type wrapped struct {
	publisher
	inner relay.Broker
}

func (b wrapped) Close() error         { return b.inner.Close() }
func (b wrapped) Unwrap() relay.Broker { return b.inner }

var _ relay.Wrapper = wrapped{}

// outcomes are the answers of a call, nil while no message has failed, and the keys of messages that have.
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
