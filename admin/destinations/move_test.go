package destinations

import (
	"errors"
	"slices"
	"testing"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
)

func TestADestinationMovesToTheBrokerThatWasRefused(t *testing.T) {
	t.Parallel()
	d := setup(t)
	anna := admin.Action{Actor: "anna", Reason: "the new cluster"}
	move := func(action admin.Action) (Moved, error) { return Move(t.Context(), d.Conn, "kafka", action) }
	if _, err := move(anna); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("a destination without a broker: %v", err)
	}
	d.Cursor("kafka", "1 minute")
	d.Refused("kafka")
	if _, err := move(anna); !errors.Is(err, admin.ErrInUse) {
		t.Errorf("while relay-1 delivers to the old broker: %v", err)
	}
	d.MustExec(`UPDATE outbox.cursors SET owner = 'relay-2'`) // for the moment in which it refuses
	preview := anna
	preview.DryRun = true
	for _, action := range []admin.Action{preview, anna} {
		out, err := move(action)
		if err != nil || !slices.Equal(out.From, []string{"cluster a", "host a:1"}) || !slices.Equal(out.To, []string{"cluster b"}) {
			t.Fatalf("%+v, %v", out, err)
		}
		if n := d.Int(`SELECT count(*) FROM outbox.audit WHERE verb = 'move_destination' AND destination = 'kafka' AND reason = 'the new cluster'
			AND detail @> '{"from": ["cluster a"], "to": ["cluster b"]}'`); (n == 1) == action.DryRun {
			t.Errorf("%d entries in the audit, dry run: %v", n, action.DryRun)
		}
	}
	broker := func() *health.Broker {
		t.Helper()
		r, err := health.Status(t.Context(), d.Conn)
		if err != nil {
			t.Fatal(err)
		}
		return r.Destinations[0].Broker
	}
	b := broker()
	if b == nil || !slices.Equal(b.Identity, []string{"cluster b"}) || b.Relay != "relay-2" || b.Refused != nil {
		t.Errorf("the broker is %+v", b)
	}
	// No relay has been refused since.
	d.MustExec(`UPDATE outbox.cursors SET lease_until = '-infinity'`)
	if out, err := move(anna); err != nil || out.To == nil || len(out.To) > 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	if b := broker(); b != nil {
		t.Errorf("the broker is %+v; the next relay is to tell", b)
	}
}
