package inbox

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/await"
)

func TestAParkedMessageIsADeadLetterOfTheConsumerOnce(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, w *world) {
		b := newInbox(t, Config{})
		msg := message("k")
		msg.Headers = []outbox.Header{{Name: "tenant", Value: "ac\x00me"}, {Name: "tenant", Value: "b"}}
		for range 2 {
			if err := b.Park(t.Context(), w.pool,
				Parked{Message: msg, Err: errors.New("never\xff"), Attempts: 5, Source: "orders/0@7"}); err != nil {
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
			if err := b.Park(t.Context(), w.pool,
				Parked{Message: other, Err: outbox.Permanent(ErrNoID), Source: "orders/0@8"}); err != nil {
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
// A consumer that gave up waiting for the answer parks the message again while the first statement still runs.
func TestAMessageThatIsParkedTwiceAtOnceIsOneDeadLetter(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, w *world) {
		parkTwiceAtOnce(t, w, newInbox(t, Config{}))
	})
}

func parkTwiceAtOnce(t *testing.T, w *world, b *Inbox) {
	msg := Parked{Message: &outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: "k"}, Err: errors.New("no")}
	if err := b.Park(t.Context(), w.pool,
		Parked{Message: &outbox.Message{ID: outbox.NewID(), Topic: "orders"}, Err: errors.New("no")}); err != nil {
		t.Fatal(err) // the cursor is there: the two do not meet at it
	}
	first, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Rollback(context.Background()) }()
	if err := b.Park(t.Context(), first, msg); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() { second <- b.Park(t.Context(), w.pool, msg) }()
	await.Until(t, "the second waits, or has ended", func() bool {
		return len(second) > 0 || w.int(`SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) > 0
	})
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	if n := w.int(`SELECT count(*) FROM outbox.dead_letters WHERE lane = 'k'`); n != 1 {
		t.Errorf("%d dead letters of one message", n)
	}
}

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
	if n, err := jobs.Requeue(t.Context(), w.pool, find.Selection{Destination: b.Destination()},
		10, admin.Action{Actor: "anna"}); err != nil {
		t.Fatal(n, err)
	}
	defer w.work(b, noteEffect, WorkerConfig{})()
	await.Until(t, "the parked message to be applied", func() bool { return w.notes("k") == "first second" })
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
