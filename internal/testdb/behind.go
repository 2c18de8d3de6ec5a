package testdb

import (
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/relay"
)

// HoldBehindADiscarded holds the first of two messages of a key, blocked, and the second behind it while an operator's
// transaction discards the first. Neither sees what the other does, and yet the second must have a time: nobody would
// look for it.
func (db DB) HoldBehindADiscarded(t *testing.T, s relay.Session, ds []relay.Delivery) {
	t.Helper()
	if err := s.Settle(t.Context(), relay.Settlement{Through: &ds[0], Hold: []relay.Hold{{Delivery: &ds[0], Blocked: true}}}); err != nil {
		t.Fatal(err)
	}
	operator := db.Connect()
	tx, err := operator.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `DELETE FROM outbox.holds`); err != nil {
		t.Fatal(err)
	}
	settled := make(chan error, 1)
	go func() {
		settled <- s.Settle(t.Context(), relay.Settlement{Through: &ds[1], Hold: []relay.Hold{{Delivery: &ds[1]}}})
	}()
	await.Until(t, "the settlement waits", func() bool {
		return len(settled) > 0 ||
			db.Value(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1::integer = ANY (pg_blocking_pids(pid)))::text`, operator.PgConn().PID()) == "true"
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	if got := db.Value(`SELECT string_agg((retry_at <= clock_timestamp())::text, ' ') FROM outbox.holds`); got != "true" {
		t.Errorf("the hold is due: %q", got)
	}
}
