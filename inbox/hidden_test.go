package inbox

import (
	"context"
	"errors"
	"testing"

	"github.com/pgoutbox/outbox/schema"
)

// A policy that hides what was recorded would have a message applied again.
func TestRecordsThatAPolicyHidesAreAnError(t *testing.T) {
	t.Parallel()
	w := setup(t)
	admin, conn := w.conn(), w.conn()
	role := "consumer_of_" + conn.Config().Database
	w.exec("CREATE ROLE " + role)
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	w.exec(schema.ConsumerGrants(role) + "GRANT ALL ON effects, effects_no_seq TO " + role)
	if _, err := conn.Exec(t.Context(), "SET ROLE "+role); err != nil {
		t.Fatal(err)
	}
	msg := message("k")
	quick, busy := newInbox(t, Config{}), newInbox(t, Config{ComeBack: true})
	if _, err := quick.Handle(t.Context(), conn, msg, effect); err != nil {
		t.Fatal(err)
	}
	// Its record stands in the table before now.
	w.exec("UPDATE outbox.inbox_rotation SET current = 1, closed_at = clock_timestamp()")
	if _, err := quick.Handle(t.Context(), conn, message("other"), effect); err != nil {
		t.Fatal(err)
	}
	w.exec("ALTER TABLE outbox.inbox_0 ENABLE ROW LEVEL SECURITY")
	for what, handle := range map[string]func() error{
		"Handle":            func() error { _, err := quick.Handle(t.Context(), conn, msg, effect); return err },
		"Handle, come back": func() error { _, err := busy.Handle(t.Context(), conn, msg, effect); return err },
		"Retention of them": func() error { r, _ := NewRetention(conn, RetentionConfig{}); return r.Look(t.Context()).Err },
	} {
		if what == "Retention of them" {
			w.exec("ALTER TABLE outbox.inbox_rotation ENABLE ROW LEVEL SECURITY")
		}
		if err := handle(); err == nil || what != "Retention of them" && !errors.Is(err, schema.ErrHidden) {
			t.Errorf("%s: %v, want ErrHidden", what, err)
		}
	}
	w.requireEffects(msg, 1)
}
