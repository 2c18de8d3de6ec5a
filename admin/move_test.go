package admin

import (
	"errors"
	"slices"
	"testing"
)

func TestADestinationMovesToTheBrokerThatWasRefused(t *testing.T) {
	t.Parallel()
	d := setup(t)
	anna := Action{Actor: "anna", Reason: "the new cluster"}
	move := func(action Action) (Moved, error) { return MoveDestination(t.Context(), d.Conn, "kafka", action) }
	if _, err := move(anna); !errors.Is(err, ErrNotFound) {
		t.Errorf("a destination without a broker: %v", err)
	}
	d.Cursor("kafka", "1 minute")
	d.Refused("kafka")
	if _, err := move(anna); !errors.Is(err, ErrInUse) {
		t.Errorf("while relay-1 delivers to the old broker: %v", err)
	}
	d.MustExec(`UPDATE outbox.cursors SET owner = 'relay-2'`) // for the moment in which it refuses
	preview := anna
	preview.DryRun = true
	for _, action := range []Action{preview, anna} {
		out, err := move(action)
		if err != nil || !slices.Equal(out.From, []string{"cluster a", "host a:1"}) || !slices.Equal(out.To, []string{"cluster b"}) {
			t.Fatalf("%+v, %v", out, err)
		}
		if n := d.Int(`SELECT count(*) FROM outbox.audit WHERE verb = 'move_destination' AND destination = 'kafka' AND reason = 'the new cluster'
			AND detail @> '{"from": ["cluster a"], "to": ["cluster b"]}'`); (n == 1) == action.DryRun {
			t.Errorf("%d entries in the audit, dry run: %v", n, action.DryRun)
		}
	}
	b := d.status().Destinations[0].Broker
	if b == nil || !slices.Equal(b.Identity, []string{"cluster b"}) || b.Relay != "relay-2" || b.Refused != nil {
		t.Errorf("the broker is %+v", b)
	}
	// No relay has been refused since.
	d.MustExec(`UPDATE outbox.cursors SET lease_until = '-infinity'`)
	if out, err := move(anna); err != nil || out.To == nil || len(out.To) > 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	if b := d.status().Destinations[0].Broker; b != nil {
		t.Errorf("the broker is %+v; the next relay is to tell", b)
	}
}
