package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/schema"
)

// Guard wraps a source of the strategy snapshot: Acquire returns an error marked by outbox.Permanent while the
// destination is read from the write-ahead log. The cursor could be continued by queries, but then no relay would read
// the slot, which retains the log until the disk is full, and no relay would deliver what was emitted without a row.
func Guard(conn *pgx.ConnConfig, destination string, source relay.Source) relay.Source {
	return &guard{Source: source, conn: conn.Copy(), destination: destination}
}

type guard struct {
	relay.Source
	conn        *pgx.ConnConfig
	destination string
}

func (g *guard) Acquire(ctx context.Context) (relay.Session, error) {
	// This check comes before the wait, so that a start fails at once and not when another relay ends.
	if err := g.check(ctx); err != nil {
		return nil, err
	}
	session, err := g.Source.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	// Another relay may have begun to read the log during the wait. From here on only the owner of the lease can.
	if err := g.check(ctx); err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.HangUpTimeout)
		defer cancel()
		if closeErr := session.Close(closing); errors.Is(closeErr, relay.ErrLeaseLost) && !outbox.IsPermanent(err) {
			return nil, relay.ErrLeaseLost
		}
		return nil, err
	}
	return session, nil
}

func (g *guard) check(ctx context.Context) error {
	conn, err := wal.Server{Conn: g.conn, Name: g.destination}.Connect(ctx)
	if err != nil {
		return err
	}
	defer dial.HangUp(conn)
	var slot string
	err = conn.QueryRow(ctx, "SELECT slot FROM outbox.slots WHERE destination = $1 AND position IS NOT NULL", g.destination).Scan(&slot)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		if lacks := schema.Check(ctx, conn); errors.Is(lacks, schema.ErrForbidden) {
			err = lacks // it says what to do
		}
		return fmt.Errorf("ask what the destination is read by: %w", err)
	}
	return dial.Permanent("the destination is read from the write-ahead log, by slot %q: give destination %s "+
		"replication: in the configuration of this relay too, or run: outbox handover --destination %s --to snapshot "+
		"(with --abandon if no relay can read the log any more)",
		slot, g.destination, g.destination)
}
