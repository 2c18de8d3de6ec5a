package mapped

import (
	"context"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// Broker wraps b for the relay of this source: if the mapping names a column for the partition (Done.Partition), b is
// asked to report partitions. Call it once, before relay.New.
func (s *Source) Broker(b relay.Broker) relay.Broker {
	if s.mapping.Done.Partition == "" {
		return b
	}
	return receiptsBroker{b, s.receipts.Accepted}
}

// receiptsBroker is a broker that is asked for receipts.
type receiptsBroker struct {
	relay.Broker
	accepted func(outbox.ID, outbox.Receipt)
}

func (b receiptsBroker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	return b.Broker.Publish(outbox.WithReceipts(ctx, b.accepted), batch)
}

func (b receiptsBroker) Unwrap() relay.Broker { return b.Broker }

var _ relay.Wrapper = receiptsBroker{}
