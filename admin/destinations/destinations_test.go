package destinations

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/internal/await"
)

func TestADestinationIsDroppedOnlyWhenNobodyWorksOnIt(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.Cursor("nats", "1 minute")
	d.Write(3)
	d.Dead("kafka", "a", 1)
	d.Held("kafka", "b", 2, "")
	if _, err := Drop(t.Context(), d.Conn, "kafka", anna); !errors.Is(err, admin.ErrInUse) ||
		!strings.Contains(err.Error(), "relay-1") {
		t.Errorf("with a live lease: %v", err)
	}
	if _, err := Drop(t.Context(), d.Conn, "kaffka", anna); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	d.MustExec(`UPDATE outbox.cursors SET lease_until = clock_timestamp()`)
	dry := anna
	dry.DryRun = true
	want := Dropped{"kafka", 1, admin.Count{N: 3}, 1, 1, 0, ""}
	for _, action := range []admin.Action{dry, anna} {
		if got, err := Drop(t.Context(), d.Conn, "kafka", action); err != nil || got != want {
			t.Errorf("dry run %v: %+v, %v", action.DryRun, got, err)
		}
	}
	if n := d.Int(`SELECT count(*) FROM outbox.cursors WHERE destination = 'nats'`); n != 1 {
		t.Error("the other destination went too")
	}
	if n := d.Int(`SELECT count(*) FROM outbox.audit WHERE verb = 'drop_destination' AND detail @> '{"pending": 3}'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

// A relay that is frozen loses its lease, and keeps its session. If it wakes up, it makes the destination anew.
func TestADestinationIsNotDroppedWhileTheRelayThatHadItIsFrozen(t *testing.T) {
	t.Parallel()
	d := setup(t)
	name := "relay-1" + strings.Repeat("e", 60)
	frozen := d.Another()
	if _, err := frozen.Exec(t.Context(), `SELECT set_config('application_name', $1, false)`, "outbox relay "+name[:45]); err != nil {
		t.Fatal(err)
	}
	pid := frozen.PgConn().PID()
	d.Cursor("kafka", "10 minutes")
	d.MustExec(`UPDATE outbox.cursors SET owner = $1, lease = '1 microsecond', lease_until = clock_timestamp()`, name)
	if _, err := Drop(t.Context(), d.Conn, "kafka", anna); !errors.Is(err, admin.ErrInUse) ||
		!strings.Contains(err.Error(), fmt.Sprintf("pg_terminate_backend(%d)", pid)) {
		t.Errorf("the relay is frozen: %v", err)
	}
	for what, change := range map[string]string{
		"the lease was given back":               `lease_until = '-infinity'`,
		"the relay was started again since then": `lease_until = clock_timestamp() - interval '10 minutes'`,
		"it is another relay":                    `owner = 'relay'`,
	} {
		d.MustExec(`UPDATE outbox.cursors SET ` + change)
		dry := anna
		dry.DryRun = true
		if _, err := Drop(t.Context(), d.Conn, "kafka", dry); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		d.MustExec(`UPDATE outbox.cursors SET lease_until = clock_timestamp(), owner = $1`, name)
	}
	if err := frozen.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := func() bool { return d.Int(`SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid) == 0 }
	await.Until(t, "the session is gone", gone)
	if _, err := Drop(t.Context(), d.Conn, "kafka", anna); err != nil {
		t.Error(err)
	}
}

func TestADestinationThatIsDroppedForgetsItsBroker(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "-1 minute")
	d.Refused("kafka")
	if _, err := Drop(t.Context(), d.Conn, "kafka", admin.Action{Actor: "anna"}); err != nil {
		t.Fatal(err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.brokers`); n != 0 {
		t.Error("a destination that comes back under the name would be refused its new broker")
	}
}
