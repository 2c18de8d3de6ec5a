// Package inboxtest helps to test consumers that use package inbox: it delivers messages as brokers do at their worst,
// and ends the test unless each has had its effect exactly once.
//
//	inboxtest.Run(t, inboxtest.Consumer{
//		Handle: func(ctx context.Context, msg *outbox.Message) error {
//			_, err := box.Handle(ctx, pool, msg, applyPayment)
//			return err
//		},
//		Effects: func(t testing.TB, msg *outbox.Message) int { return countPayments(t, msg.Key) },
//	}, paid, refunded)
package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox"
)

// Consumer is the consumer under test.
type Consumer struct {
	// Handle is the consumer's handling of a message: nil means that it acknowledges. Concurrently calls it from
	// several goroutines at once.
	Handle func(ctx context.Context, msg *outbox.Message) error

	// Effects returns how often a message has had its effect, by looking at the rows that the effect makes.
	Effects func(t testing.TB, msg *outbox.Message) int
}

// Run delivers msgs in every way of this package, as subtests, one after the other. Each way gets copies with ids of
// their own. For consumers that identify messages by something else, such as a sequence number or a business key, call
// the ways one by one.
func Run(t *testing.T, c Consumer, msgs ...outbox.Message) {
	t.Helper()
	for _, way := range []struct {
		name string
		do   func(testing.TB, Consumer, ...*outbox.Message)
	}{
		{"twice", Twice}, {"concurrently", Concurrently}, {"crash before the acknowledgement",
			CrashBeforeAck}, {"out of order", OutOfOrder},
	} {
		t.Run(way.name, func(t *testing.T) {
			fresh := make([]*outbox.Message, len(msgs))
			for i := range msgs {
				m := msgs[i]
				m.ID = outbox.NewID()
				fresh[i] = &m
			}
			way.do(t, c, fresh...)
		})
	}
}

// Twice delivers each message twice, and all of them a third time.
func Twice(t testing.TB, c Consumer, msgs ...*outbox.Message) {
	t.Helper()
	for _, msg := range msgs {
		c.deliver(t, msg)
		c.deliver(t, msg)
	}
	for _, msg := range msgs {
		c.deliver(t, msg)
	}
	c.requireOnce(t, msgs)
}

// OutOfOrder delivers the messages from the last to the first, and again from the first to the last: messages that were
// refused as too early may then be applied.
func OutOfOrder(t testing.TB, c Consumer, msgs ...*outbox.Message) {
	t.Helper()
	for _, msg := range slices.Backward(msgs) {
		_ = c.Handle(t.Context(), msg) // it comes again
	}
	for _, msg := range msgs {
		c.deliver(t, msg)
	}
	c.requireOnce(t, msgs)
}

// Concurrently delivers each message to four consumers at once, as during a rebalance. A message that is refused, as by
// inbox.ErrBusy, comes again afterwards.
func Concurrently(t testing.TB, c Consumer, msgs ...*outbox.Message) {
	t.Helper()
	for _, msg := range msgs {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { _ = c.Handle(t.Context(), msg) })
		}
		all.Wait()
		c.deliver(t, msg)
	}
	c.requireOnce(t, msgs)
}

// CrashBeforeAck ends the consumer after the effect of each message and before its acknowledgement, and also before the
// effect: a handling whose context ends at some moment, after which the message comes again.
func CrashBeforeAck(t testing.TB, c Consumer, msgs ...*outbox.Message) {
	t.Helper()
	for _, msg := range msgs {
		cut, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Handle(cut, msg); err == nil {
			t.Fatalf("inboxtest: message %s was acknowledged though its context had ended: Handle has to return the error", msg.ID)
		}
		c.deliver(t, msg) // the effect; the acknowledgement is lost with the process
		c.deliver(t, msg) // the broker delivers it again
	}
	c.requireOnce(t, msgs)
}

// ErrNoEffect is returned by the failing handler of RequireRollback.
var ErrNoEffect = errors.New("inboxtest: the handler fails after its effect")

// RequireRollback ends the test unless a message whose handling fails after the effect leaves nothing, and has its
// effect when it comes again. failing is the consumer's Handle with a handler that makes its effect and then returns
// ErrNoEffect.
func RequireRollback(t testing.TB, c Consumer, failing func(ctx context.Context, msg *outbox.Message) error, msg *outbox.Message) {
	t.Helper()
	if err := failing(t.Context(), msg); !errors.Is(err, ErrNoEffect) {
		t.Fatalf("inboxtest: want the handler's error, got %v", err)
	}
	if n := c.Effects(t, msg); n != 0 {
		t.Fatalf("inboxtest: message %s has had its effect %d times though its handler failed: is everything done in "+
			"the handler's transaction?", msg.ID, n)
	}
	c.deliver(t, msg)
	c.requireOnce(t, []*outbox.Message{msg})
}

func (c Consumer) deliver(t testing.TB, msg *outbox.Message) {
	t.Helper()
	if err := c.Handle(t.Context(), msg); err != nil {
		t.Fatalf("inboxtest: message %s of topic %q was not acknowledged: %v", msg.ID, msg.Topic, err)
	}
}

func (c Consumer) requireOnce(t testing.TB, msgs []*outbox.Message) {
	t.Helper()
	var wrong []string
	for _, msg := range msgs {
		if n := c.Effects(t, msg); n != 1 {
			wrong = append(wrong, fmt.Sprintf("message %s (topic %q, key %q): %d times", msg.ID, msg.Topic, msg.OrderingKey(), n))
		}
	}
	if len(wrong) > 0 {
		t.Fatalf("inboxtest: each message must have its effect once:\n\t%s", strings.Join(wrong, "\n\t"))
	}
}
