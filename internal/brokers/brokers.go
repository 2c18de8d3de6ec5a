// Package brokers remembers which broker each destination delivers to: outbox.brokers.
package brokers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/schema"
)

// ErrOther means that a relay has another broker than its destination.
var ErrOther = errors.New("the broker is another one than the destination's")

// Broker is a row of outbox.brokers.
type Broker struct {
	Destination string
	Identity    []string
	Relay       string // that recorded it
	RecordedAt  time.Time

	// Refused are the names of the broker that was refused last, none if none was since the destination's own was last
	// seen. The rest means nothing then.
	Refused   []string
	RefusedBy string
	RefusedAt time.Time
}

// Same reports whether two lists of names can be those of one broker. An unknown broker has no names, and equals none.
func Same(a, b []string) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(name string) bool { return slices.Contains(b, name) })
}

// recognizeSQL decides in one statement, because relays may begin at the same time. The names that were seen last are
// kept: one address of a list may be replaced, and later another.
const recognizeSQL = `
INSERT INTO outbox.brokers AS b (destination, identity, relay) VALUES ($1, $2, $3)
ON CONFLICT (destination) DO UPDATE SET
	identity = CASE WHEN b.identity && $2 THEN $2 ELSE b.identity END,
	refused = CASE WHEN NOT b.identity && $2 THEN $2 END,
	refused_by = CASE WHEN NOT b.identity && $2 THEN $3 END,
	refused_at = CASE WHEN NOT b.identity && $2 THEN clock_timestamp() END
RETURNING identity, relay, recorded_at`

// Recognize records the names of a relay's broker, if the destination has none yet or has that broker. Otherwise it
// records the refusal, and returns ErrOther, marked by outbox.Permanent, with what to do.
func Recognize(ctx context.Context, conn *pgx.Conn, destination, relay string, identity []string) error {
	own := make([]string, len(identity))
	for i, name := range identity {
		own[i] = schema.Fit(conn, name)
	}
	known := Broker{Destination: destination}
	err := conn.QueryRow(ctx, recognizeSQL, destination, own, relay).Scan(&known.Identity, &known.Relay, &known.RecordedAt)
	if err != nil {
		return fmt.Errorf("record which broker this is: %w", err)
	}
	return known.Refuse(own)
}

// Refuse returns ErrOther if a relay's broker is another one than b.
func (b *Broker) Refuse(identity []string) error {
	if Same(b.Identity, identity) {
		return nil
	}
	return outbox.Permanent(fmt.Errorf("%w: destination %s has been delivered to %s, as relay %s recorded at %s, and this relay would "+
		"deliver to %s. Nothing is sent there. Correct the broker in the configuration of this relay; if the destination is to move "+
		"to that broker, run: outbox destinations move %s", ErrOther, b.Destination, Text(b.Identity), b.Relay,
		b.RecordedAt.UTC().Format(time.RFC3339), Text(identity), shell.Word(b.Destination)))
}

// Text returns a list of names for people.
func Text(identity []string) string {
	if len(identity) == 0 {
		return "an unknown broker"
	}
	return strings.Join(identity, " = ")
}

// Read returns the brokers of all destinations, by name.
func Read(ctx context.Context, db schema.Querier) ([]Broker, error) {
	rows, err := db.Query(ctx, `SELECT destination, identity, relay, recorded_at, coalesce(refused, '{}'), coalesce(refused_by, ''),
		coalesce(refused_at, recorded_at) FROM outbox.brokers ORDER BY destination`)
	if err != nil {
		return nil, fmt.Errorf("read the brokers of the destinations: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b Broker, err error) {
		err = row.Scan(&b.Destination, &b.Identity, &b.Relay, &b.RecordedAt, &b.Refused, &b.RefusedBy, &b.RefusedAt)
		return b, err
	})
}
