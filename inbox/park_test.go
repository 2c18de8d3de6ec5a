package inbox

import (
	"errors"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
)

func TestAParkedMessageIsADeadLetterOfTheConsumerOnce(t *testing.T) {
	t.Parallel()
	onOldestAndNewest(t, func(t *testing.T, w *world) {
		b := newInbox(t, Config{})
		msg := message("k")
		msg.Headers = []outbox.Header{{Name: "tenant", Value: "ac\x00me"}, {Name: "tenant", Value: "b"}}
		for range 2 {
			if err := b.Park(t.Context(), w.pool, Parked{Message: msg, Err: errors.New("never\xff"), Attempts: 5, Source: "orders/0@7"}); err != nil {
				t.Fatal(err)
			}
		}
		without := &outbox.Message{Topic: "orders", Payload: []byte("x")}
		if err := b.Park(t.Context(), w.pool, Parked{Message: without, Err: outbox.Permanent(ErrNoID), Source: "orders/0@8"}); err != nil {
			t.Fatal(err)
		}
		// The topic was made anew, and has another message there.
		other := &outbox.Message{Topic: "orders", Payload: []byte("y")}
		for range 2 {
			if err := b.Park(t.Context(), w.pool, Parked{Message: other, Err: outbox.Permanent(ErrNoID), Source: "orders/0@8"}); err != nil {
				t.Fatal(err)
			}
		}
		if n := w.int(`SELECT count(*) FROM outbox.dead_letters WHERE destination = 'inbox:payments'`); n != 3 {
			t.Errorf("%d dead letters, want 3", n)
		}
		if n := w.int(`SELECT count(*) FROM outbox.dead_letters WHERE message_id = $1::text::uuid AND lane = 'k' AND attempts = 5 AND reason = 'exhausted'
			AND headers ->> 'inbox-consumer' = 'payments' AND error LIKE 'some of its text%(orders/0@7)'`, msg.ID.String()); n != 1 {
			t.Errorf("the dead letter is not as it should be")
		}
		if n := w.int(`SELECT count(*) FROM outbox.dead_letters WHERE reason = 'refused' AND payload IN ('x', 'y')`); n != 2 {
			t.Errorf("a message without id is not known by its source and payload")
		}
		err := b.Park(t.Context(), w.pool, Parked{Message: without, Err: ErrNoID})
		if err == nil || !strings.Contains(err.Error(), "neither an id nor a source") {
			t.Errorf("parked without id and source: %v", err)
		}
	})
}

// A consumer that waits in vain for what is missing parks the message. When the missing one has come after all, the
// parked one is requeued, and applied once, whoever delivers it again.
func TestAParkedMessageThatIsRequeuedIsAppliedOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{Gaps: GapWait, Unordered: true})
	first, second := note("k", "first"), note("k", "second")
	first.Headers = []outbox.Header{{Name: outbox.SequenceHeader, Value: "1"}}
	second.Headers = []outbox.Header{{Name: outbox.SequenceHeader, Value: "2"}}
	handle := func(msg *outbox.Message) (Result, error) {
		return b.Handle(t.Context(), w.pool, msg, noteEffect)
	}
	var gap *GapError
	_, err := handle(second)
	if !errors.As(err, &gap) {
		t.Fatalf("the second before the first: %v", err)
	}
	if err := b.Park(t.Context(), w.pool, Parked{Message: second, Err: err, Attempts: 5, Source: "orders/0@7"}); err != nil {
		t.Fatal(err)
	}
	if _, err := handle(first); err != nil {
		t.Fatal(err)
	}
	if n, err := admin.Requeue(t.Context(), w.pool, admin.Selection{Destination: b.Destination()}, 10, admin.Action{Actor: "anna"}); err != nil {
		t.Fatal(n, err)
	}
	defer w.work(b, noteEffect, WorkerConfig{})()
	eventually(t, "the parked message to be applied", func() bool { return w.notes("k") == "first second" })
	if result, err := handle(second); err != nil || result.Outcome != Duplicate {
		t.Errorf("delivered again: %+v, %v", result, err)
	}
	if got := w.notes("k"); got != "first second" {
		t.Errorf("applied: %s", got)
	}
	if n := w.int(`SELECT count(*) FROM outbox.dead_letters`); n != 0 {
		t.Errorf("%d dead letters are left", n)
	}
}
