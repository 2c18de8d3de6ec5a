package health

import (
	"fmt"
	"testing"
	"time"
)

func TestInboxStatusKnowsTablesAndConsumers(t *testing.T) {
	t.Parallel()
	d := setup(t)
	i, err := InboxStatus(t.Context(), d.Conn)
	if err != nil || len(i.Consumers) != 0 || len(i.Tables) != 3 || i.Tables[0].Role != "current" || i.Tables[2].Role != "before" ||
		i.Window != 7*24*time.Hour || i.Closed.IsZero() || i.Due {
		t.Fatalf("%+v, %v", i, err)
	}
	d.MustExec(`SELECT outbox.receive('plain', gen_random_uuid())`)
	d.MustExec(`UPDATE outbox.inbox_rotation SET current = 1, closed_at = NULL`)
	d.MustExec(`SELECT outbox.receive_in_order('numbered', gen_random_uuid(), NULL, true, 't', 'k', 3, 'report', true, NULL)`)
	for range 2 {
		d.MustExec(`SELECT outbox.store('stored', gen_random_uuid(), NULL, true, 't', 'k', '', '', '', 'x', '', NULL)`)
	}
	d.Dead("inbox:stored", "k", 1)
	d.Held("inbox:stored", "k", 2, "infinity")
	if i, err = InboxStatus(t.Context(), d.Conn); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(i.Consumers), "[{numbered 1 1 false 0 0 0} {plain 0 0 false 0 0 0} {stored 0 0 true 2 1 1}]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if i.Tables[0].Role != "before" || i.Tables[1].Role != "current" || i.Tables[2].Role != "forgotten" || !i.Closed.IsZero() {
		t.Errorf("%+v", i)
	}
}

func TestTheWindowOfTheInboxIsSetWithAnAudit(t *testing.T) {
	t.Parallel()
	d := setup(t)
	if err := SetInboxWindow(t.Context(), d.Conn, 36*time.Hour, anna); err != nil {
		t.Fatal(err)
	}
	if i, err := InboxStatus(t.Context(), d.Conn); err != nil || i.Window != 36*time.Hour {
		t.Errorf("%+v, %v", i, err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.audit WHERE verb = 'inbox_window' AND actor = 'anna@example' AND detail ->> 'window' = '36h0m0s'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	if err := SetInboxWindow(t.Context(), d.Conn, time.Millisecond, anna); err == nil {
		t.Error("a millisecond was taken")
	}
}
