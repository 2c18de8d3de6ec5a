package inbox

import (
	"errors"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
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
		if n := w.int(`SELECT count(*) FROM outbox.dead_letters WHERE destination = 'inbox:payments'`); n != 2 {
			t.Errorf("%d dead letters, want 2", n)
		}
		if n := w.int(`SELECT count(*) FROM outbox.dead_letters WHERE message_id = $1::text::uuid AND lane = 'k' AND attempts = 5 AND reason = 'exhausted'
			AND headers ->> 'inbox-consumer' = 'payments' AND error LIKE 'some of its text%(orders/0@7)'`, msg.ID.String()); n != 1 {
			t.Errorf("the dead letter is not as it should be")
		}
		if n := w.int(`SELECT count(*) FROM outbox.dead_letters WHERE message_id = $1::text::uuid AND reason = 'refused'`, DedupID("orders/0@8").String()); n != 1 {
			t.Errorf("the message without id is not known by its source")
		}
		err := b.Park(t.Context(), w.pool, Parked{Message: without, Err: ErrNoID})
		if err == nil || !strings.Contains(err.Error(), "neither an id nor a source") {
			t.Errorf("parked without id and source: %v", err)
		}
	})
}
