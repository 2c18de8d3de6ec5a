package seeds

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/check"
)

// noting is a table whose author counts failures in it.
type noting struct {
	System
	state string // of the only row: a text of its attempts, and what else the author writes
	// failures is what it says after three failures and a success.
	failures string
	attempts string // the column
}

func notingSystems() []noting {
	return []noting{
		{Find("outbox_events", "skiplocked"), "SELECT attempt::text FROM outbox_events", "3", "attempt"},
		{Find("outbox_event", "advisory"), "SELECT retry_count::text || (ack_time IS NOT NULL)::text FROM outbox_event",
			"3true", "retry_count"},
		{Find("outbox_event", "skiplocked"), "SELECT retry_count::text || (ack_time IS NOT NULL)::text FROM outbox_event",
			"3true", "retry_count"},
		// The author counts when he begins to process, so the success, too.
		{Find("transaction_outbox", "lease"),
			"SELECT retry_count::text || (last_attempt_time IS NOT NULL)::text FROM p2p.transaction_outbox", "4true", "retry_count"},
	}
}

// The authors count each failure and say when it was; a retry that comes soon is no exception.
func TestEveryFailureIsInTheAuthorsColumns(t *testing.T) {
	t.Parallel()
	for _, s := range notingSystems() {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, s.System)
			var tries atomic.Int64
			w.sink.refuse = func(check.ID) error {
				if tries.Add(1) <= 3 {
					return errors.New("no stock")
				}
				return nil
			}
			w.write(0, 1)
			relay := w.start()
			w.untilSettled()
			if err := relay.Stop(await.Patience); err != nil {
				t.Fatal(err)
			}
			if got := w.db.Value(s.state); got != s.failures {
				t.Errorf("after three failures and a success the row says %s, want %s", got, s.failures)
			}
		})
	}
}

// A relay that is killed after each failure goes on from what the table says, and so the message becomes a dead letter.
func TestACrashLoopEndsInADeadLetter(t *testing.T) {
	t.Parallel()
	const most = 5
	for _, s := range notingSystems() {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			dead := "SELECT count(*) FROM outbox_dead"
			if s.Strategy == "lease" {
				dead = "SELECT count(*) FROM p2p.transaction_outbox WHERE status = 'failed' AND error_message LIKE '%no stock%'"
			} else {
				s.Source = fmt.Sprintf("%s, failure: {attempts: %s, dead_table: outbox_dead}}", s.Source[:len(s.Source)-1], s.attempts)
			}
			w := newWorld(t, s.System)
			// No life sees a second failure.
			w.delivery = fmt.Sprintf("{max_attempts: %d, on_exhausted: dead_letter, backoff: {initial: 1h, max: 1h}}", most)
			w.sink.refuse = func(check.ID) error { return errors.New("no stock") }
			w.db.Exec(fmt.Sprintf("CREATE TABLE outbox_dead (LIKE %s, reason text, error text, attempts integer, dead_at timestamptz)",
				s.Table))
			w.write(0, 1)
			attempts := func() int {
				n, err := strconv.Atoi(w.db.Value(fmt.Sprintf("SELECT coalesce(max(%s), 0) FROM %s", s.attempts, s.Table)))
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			lives, last := 0, attempts()
			for gone := false; !gone; lives++ {
				if lives > most {
					t.Fatalf("after %d lives with a failure each, the row has %d attempts of %d", lives, last, most)
				}
				relay := w.start()
				w.until("a failure is in the table", func() bool {
					gone = w.db.Value(dead) == "1"
					return gone || attempts() > last
				})
				last = attempts()
				if err := relay.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("a dead letter after %d lives", lives)
		})
	}
}
