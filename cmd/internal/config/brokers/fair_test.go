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
		errs := publish(one, batch, 250, 250)
		for i, err := range errs {
			var want error
			switch {
			case i == 260:
				want = errRefused
			case i >= 500:
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
