package brokers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/bounds"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// recorder is a client that notes how large calls are, and refuses one message. Each call takes longer, so that
// portions stay small.
type recorder struct {
	relay.Broker
	took    time.Duration
	calls   []int
	refuses *outbox.Message
	hangs   bool
}

var errRefused = errors.New("refused")

func (r *recorder) Publish(ctx context.Context, batch []*outbox.Message) []error {
	r.calls = append(r.calls, len(batch))
	r.took += 2 * time.Millisecond
	time.Sleep(r.took) // in a bubble
	if r.hangs {
		<-ctx.Done()
	}
	i := slices.Index(batch, r.refuses)
	if i < 0 {
		return nil
	}
	errs := make([]error, len(batch))
	errs[i] = errRefused
	return errs
}

func batchOf(n int) (batch []*outbox.Message) {
	for i := range n {
		batch = append(batch, &outbox.Message{Key: fmt.Sprint(i % 7), Payload: make([]byte, 100)})
	}
	return batch
}

func TestABatchIsSentByPortionsOnlyWhileOthersUseTheClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, order := &recorder{}, bounds.NewFair(bounds.Amount{Messages: 32_000, Bytes: 32 << 20})
		one, other := &fair{client, order.Sender(1)}, &fair{client, order.Sender(1)}
		publish := func(b *fair, batch []*outbox.Message, want ...int) []error {
			t.Helper()
			client.calls = nil
			errs := b.Publish(t.Context(), batch)
			if !slices.Equal(client.calls, want) {
				t.Fatalf("calls of %v, want %v", client.calls, want)
			}
			return errs
		}
		publish(one, batchOf(3000), 3000) // the first answer: portions are the smallest from now on
		publish(other, batchOf(1), 1)
		publish(one, batchOf(600), 250, 250, 100)
		large := batchOf(5)
		large[1].Payload, large[3].Payload = make([]byte, 200<<10), make([]byte, 2<<20)
		publish(one, large, 3, 1, 1)

		batch := batchOf(600)
		client.refuses = batch[260]
		errs := publish(one, batch, 250, 250, 86) // 14 of the last 100 have the key of the one that is refused
		for i, err := range errs {
			var want error
			switch {
			case i == 260:
				want = errRefused
			case i >= 500 && i%7 == 260%7:
				want = outbox.ErrSkipped
			}
			if err != want {
				t.Fatalf("message %d: %v, want %v", i, err, want)
			}
		}
		time.Sleep(2 * time.Second)
		client.refuses = nil
		publish(one, batchOf(3000), 3000)
	})
}

func TestACallThatGivesUpItsTurnIsUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, order := &recorder{hangs: true}, bounds.NewFair(bounds.Amount{Messages: 32_000, Bytes: 32 << 20})
		one, other := &fair{client, order.Sender(1)}, &fair{client, order.Sender(1)}
		hanging, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { one.Publish(hanging, batchOf(1000)); close(ended) }()
		synctest.Wait()
		soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		errs := other.Publish(soon, batchOf(250))
		if len(client.calls) != 1 || len(errs) != 250 || !outbox.IsUnavailable(errs[0]) || !errors.Is(errs[249], context.DeadlineExceeded) {
			t.Errorf("calls of %v: %v", client.calls, errs[0])
		}
		end()
		<-ended
	})
}

// beside is a client that another destination has used just before each call.
type beside struct {
	relay.Broker
	other *bounds.Sender
}

func (b beside) Unwrap() relay.Broker { return b.Broker }

func (b beside) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if turn, err := b.other.Begin(context.WithoutCancel(ctx), bounds.Amount{Messages: 1}); err == nil {
		b.other.End(turn)
	}
	return b.Broker.Publish(ctx, batch)
}

// kept is a client that others still use.
type kept struct{ relay.Broker }

func (k kept) Unwrap() relay.Broker { return k.Broker }

func (kept) Close() error { return nil }

func TestASharedClientKeepsABrokersPromises(t *testing.T) {
	t.Parallel()
	harness := func(t *testing.T) relaytest.BrokerHarness {
		m := relaytest.NewMemory()
		m.Identify("memory")
		m.Limit(1 << 20)
		m.Unknown("nowhere", true)
		step := func(do func()) func() error { return func() error { do(); return nil } }
		return relaytest.BrokerHarness{
			Open: func(t *testing.T) relay.Broker {
				order := bounds.NewFair(bounds.Amount{Messages: 512, Bytes: 1 << 20}) // portions of 4 messages at first
				return beside{&fair{kept{m}, order.Sender(1)}, order.Sender(1)}
			},
			Topics:       [2]string{"one", "two"},
			Read:         func(context.Context) ([]outbox.Message, error) { return m.Messages(), nil },
			TooLarge:     1<<20 + 1,
			UnknownTopic: "nowhere",
			Faults:       &relaytest.BrokerFaults{Kill: step(m.Kill), Restart: step(m.Restart), Freeze: step(m.Freeze), Thaw: step(m.Thaw)},
		}
	}
	t.Run("promises", func(t *testing.T) { relaytest.RunBroker(t, harness) })
	t.Run("faults", func(t *testing.T) { relaytest.RunBrokerFaults(t, harness) })
}
