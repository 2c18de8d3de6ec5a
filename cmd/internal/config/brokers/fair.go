package brokers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/bounds"
	"github.com/pgoutbox/outbox/relay"
)

// onTheWay is how much a shared client may have on its way at once while several destinations send: as much as one call
// of a destination has, and as NATS' client allows by default. It keeps a broker busy that takes 40 ms to answer
// 100,000 messages a second. A broker that is near gets as little as a 32nd: it is sent in 1.3 ms at that rate, and
// this is what a call that comes then waits for.
var onTheWay = bounds.Amount{Messages: 4096, Bytes: 4 << 20}

// fair is a client as one destination has it: its calls take turns with those of the others.
type fair struct {
	relay.Broker
	sender *bounds.Sender
}

var _ relay.Wrapper = (*fair)(nil)

// Unwrap returns the client.
func (b *fair) Unwrap() relay.Broker { return b.Broker }

// Publish sends a batch as a whole where no other destination uses the client, and else by portions, one after the
// other. A message whose key has failed in an earlier portion is skipped. After an unavailable error nothing more is
// tried: all of the rest get that answer.
func (b *fair) Publish(ctx context.Context, batch []*outbox.Message) []error {
	most, shares := b.sender.Shares()
	if !shares {
		return b.send(ctx, batch, sizeOf(batch))
	}
	var answers []error // nil while none has failed
	var at []int        // of each of rest, its index in the batch; nil while none has failed
	for rest := batch; len(rest) > 0; {
		part, size := portion(rest, most)
		errs := b.send(ctx, part, size)
		rest = rest[len(part):]
		if errs == nil && answers == nil {
			continue
		}
		if answers == nil {
			answers = make([]error, len(batch))
			for i := len(batch) - len(rest) - len(part); i < len(batch); i++ {
				at = append(at, i)
			}
		}
		for i, err := range errs {
			answers[at[i]] = err
		}
		at = at[len(part):]
		if errs != nil {
			rest, at = unfailed(rest, at, part, errs, answers)
		}
	}
	return answers
}

// unfailed returns what is left to send of rest, whose indices are at, behind a portion with failures. The others get
// their answers.
func unfailed(rest []*outbox.Message, at []int, part []*outbox.Message, errs, answers []error) (left []*outbox.Message, leftAt []int) {
	failed := make(map[string]bool)
	var outage error
	for i, err := range errs {
		if key := part[i].OrderingKey(); err != nil && key != "" {
			failed[key] = true
		}
		if outage == nil && outbox.IsUnavailable(err) {
			outage = err
		}
	}
	for i, m := range rest {
		switch {
		case outage != nil:
			answers[at[i]] = outage
		case failed[m.OrderingKey()]:
			answers[at[i]] = outbox.ErrSkipped
		default:
			left, leftAt = append(left, m), append(leftAt, at[i])
		}
	}
	return left, leftAt
}

// send is one call to the client.
func (b *fair) send(ctx context.Context, batch []*outbox.Message, size bounds.Amount) []error {
	turn, err := b.sender.Begin(ctx, size)
	if err != nil {
		err = outbox.Unavailable(fmt.Errorf("gave up waiting for calls of other destinations on the same client: %w", err))
		return slices.Repeat([]error{err}, len(batch))
	}
	defer b.sender.End(turn)
	errs := b.Broker.Publish(ctx, batch)
	if errs != nil && len(errs) != len(batch) {
		return slices.Repeat(
			[]error{outbox.Unavailable(errors.New("the adapter breaks its contract: it didn't answer for every message"))}, len(batch))
	}
	return errs
}

// portion returns the messages at the beginning of a batch that are no more than most, but at least one.
func portion(batch []*outbox.Message, most bounds.Amount) ([]*outbox.Message, bounds.Amount) {
	size := sizeOf(batch[:1])
	n := 1
	for ; n < len(batch) && int64(n) < most.Messages; n++ {
		next := sizeOf(batch[n : n+1])
		if size.Bytes+next.Bytes > most.Bytes {
			break
		}
		size.Messages, size.Bytes = size.Messages+1, size.Bytes+next.Bytes
	}
	return batch[:n], size
}

func sizeOf(batch []*outbox.Message) bounds.Amount {
	a := bounds.Amount{Messages: int64(len(batch))}
	for _, m := range batch {
		a.Bytes += int64(len(m.Payload)) + 256 // headers, topic and key, about
	}
	return a
}
