package around

import (
	"context"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// InFlight returns a broker that tells add of the messages in calls to inner: their number when a call begins, its
// negative when the call has returned. add is called from several goroutines at once. Closing the broker closes inner.
func InFlight(inner relay.Broker, add func(messages int)) relay.Broker {
	return wrap(&inFlight{inner, add}, inner)
}

type inFlight struct {
	inner relay.Broker
	add   func(messages int)
}

func (b *inFlight) Publish(ctx context.Context, batch []*outbox.Message) []error {
	b.add(len(batch))
	defer b.add(-len(batch))
	return b.inner.Publish(ctx, batch)
}
