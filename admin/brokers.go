package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/brokers"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/schema"
)

// Broker is the one that a destination delivers to, as far as it can tell which one it is.
type Broker struct {
	// Identity are its names, any of which is enough to know it by. Relay recorded the first ones, at RecordedAt.
	Identity   []string  `json:"identity"`
	Relay      string    `json:"relay"`
	RecordedAt time.Time `json:"recorded_at"`

	// Refused are the names of another broker, which RefusedBy has and refuses to deliver to; none if the destination's
	// own was seen since.
	Refused   []string  `json:"refused,omitempty"`
	RefusedBy string    `json:"refused_by,omitempty"`
	RefusedAt time.Time `json:"refused_at,omitzero"`
}

func (r *Report) readBrokers(ctx context.Context, tx pgx.Tx) error {
	list, err := brokers.Read(ctx, tx)
	if err != nil {
		return err
	}
	for _, b := range list {
		// Of a destination that nothing else is known of, nothing waits.
		if i := slices.IndexFunc(r.Destinations, func(d Destination) bool { return d.Name == b.Destination }); i >= 0 {
			known := &Broker{Identity: b.Identity, Relay: b.Relay, RecordedAt: b.RecordedAt}
			if len(b.Refused) > 0 {
				known.Refused, known.RefusedBy, known.RefusedAt = b.Refused, b.RefusedBy, b.RefusedAt
			}
			r.Destinations[i].Broker = known
		}
	}
	return nil
}

// refusesFor is how long after a refusal it counts as one that goes on: a relay tries again every few seconds.
const refusesFor = 30 * time.Second

// misdirected is the finding that a relay has another broker than the destination, if one refuses at present.
func (r *Report) misdirected(d *Destination) (f Finding, ok bool) {
	b := d.Broker
	if b == nil || len(b.Refused) == 0 || r.At.Sub(b.RefusedAt) > refusesFor {
		return f, false
	}
	return Finding{State: StateBroken, Cause: fmt.Sprintf("relay %s has another broker than this destination and sends nothing to it: "+
		"it has %s, and the destination is delivered to %s, as relay %s recorded",
		b.RefusedBy, brokers.Text(b.Refused), brokers.Text(b.Identity), b.Relay),
		Advice: "correct the broker in the configuration of " + b.RefusedBy + "; only if the destination is to move to that broker",
		Next:   "outbox destinations move " + shell.Word(d.Name)}, true
}

// otherBroker is for a group whose relay refuses its broker, between two attempts and at the next one too.
func otherBroker(r *Report, d *Destination, g *Group) (f Finding, ok bool) {
	if !g.refuses(d.Broker) {
		return f, false
	}
	f, ok = r.misdirected(d)
	f.Since = g.StateSince
	return f, ok
}

// refuses reports whether the group is not delivered because its relay may have refused its broker.
func (g *Group) refuses(b *Broker) bool {
	return !g.Live || g.State == "broken" || b != nil && len(b.Refused) > 0 && g.Owner == b.RefusedBy
}

// otherBrokerBeside is for a relay that refuses its broker while others deliver all.
func otherBrokerBeside(r *Report, d *Destination) (f Finding, ok bool) {
	if slices.ContainsFunc(d.Groups, func(g Group) bool { return g.refuses(d.Broker) }) {
		return f, false
	}
	f, ok = r.misdirected(d)
	f.State = StateAtRisk
	return f, ok
}

// Moved is what MoveDestination did, or would do.
type Moved struct {
	Destination string   `json:"destination"`
	From        []string `json:"from"`
	// To are the names of the broker that a relay has refused; none: whichever the next relay has.
	To []string `json:"to"`
}

// MoveDestination lets a destination deliver to another broker than it did: to the one that a relay has refused last,
// or, if none has, to whichever the next relay has. Everything else stays: what the old broker has got isn't sent
// again, and what is held or dead goes to the new one. It is an ErrNotFound if no broker is recorded, and an ErrInUse
// while a relay delivers to the old one.
func MoveDestination(ctx context.Context, db DB, name string, action Action) (Moved, error) {
	out := Moved{Destination: name, To: []string{}}
	err := write(ctx, db, action, func(tx pgx.Tx) error {
		var by *string
		err := tx.QueryRow(ctx, `SELECT identity, coalesce(refused, '{}'), refused_by FROM outbox.brokers WHERE destination = $1 FOR UPDATE`, name).
			Scan(&out.From, &out.To, &by)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%w: no broker is recorded for a destination of this name; the next relay records the one that it has",
				ErrNotFound)
		}
		if err != nil {
			return err
		}
		if err := refuseDeliverer(ctx, tx, name, value(by)); err != nil {
			return err
		}
		sql := `UPDATE outbox.brokers SET identity = refused, relay = refused_by, recorded_at = clock_timestamp(),
			refused = NULL, refused_by = NULL, refused_at = NULL WHERE destination = $1`
		if by == nil {
			sql = `DELETE FROM outbox.brokers WHERE destination = $1`
		}
		if _, err := tx.Exec(ctx, sql, name); err != nil {
			return err
		}
		return audit(ctx, tx, action, "move_destination", name, map[string]any{"from": out.From, "to": out.To})
	})
	if err != nil {
		return Moved{}, fmt.Errorf("move destination %s: %w", name, err)
	}
	return out, nil
}

// delivererSQL finds relays that deliver: those that are refused, or can't work with the database, don't.
const delivererSQL = `
SELECT DISTINCT owner FROM (
	SELECT owner, state FROM outbox.cursors WHERE destination = $1 AND ` + schema.Leased + `
	UNION ALL SELECT owner, state FROM outbox.tables WHERE destination = $1
	AND session IN (SELECT application_name FROM pg_stat_activity WHERE datname = current_database())) d
WHERE owner <> $2 AND state <> 'broken' ORDER BY owner`

func refuseDeliverer(ctx context.Context, tx pgx.Tx, name, refusedBy string) error {
	rows, err := tx.Query(ctx, delivererSQL, name, refusedBy)
	if err != nil {
		return fmt.Errorf("look for relays that deliver: %w", err)
	}
	owners, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(owners) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s delivers to the broker that is recorded: stop it, or give it the new broker in its configuration, "+
		"and run this again", ErrInUse, strings.Join(owners, ", "))
}
