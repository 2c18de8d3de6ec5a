package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/schema"
)

// Probe looks at everything that Acquire needs. Other relays may run. It opens a replication connection, and makes the
// publication if it is missing, which it takes back. The error has everything at once. What is lost, or has to be read
// from the table meanwhile, is no error: a relay goes on by itself.
func (s *Source) Probe(ctx context.Context) error {
	conn, err := s.server().Connect(ctx)
	if err != nil { // a pooler refuses either connection for a reason of its own
		stream, streamErr := s.server().ConnectWAL(ctx)
		if streamErr == nil {
			stream.HangUp()
		}
		return errors.Join(err, streamErr)
	}
	defer dial.HangUp(conn)
	if err := schema.Check(ctx, conn); err != nil {
		return err
	}
	if err := cursors.RefuseStandby(ctx, conn); err != nil {
		return err
	}
	if err := s.preflight(ctx, conn); err != nil {
		return err // without that level, nothing else can be looked at
	}
	return errors.Join(s.server().Probe(ctx, conn, s.cfg.Slot), s.probeSlot(ctx, conn), s.probePublication(ctx, conn))
}

// probeSlot refuses a slot that belongs to something else.
func (s *Source) probeSlot(ctx context.Context, conn *pgx.Conn) error {
	if err := refuseTaken(ctx, conn, s.destination, s.cfg.Slot); err != nil {
		return err
	}
	p := slotRow{slot: s.cfg.Slot}
	err := conn.QueryRow(ctx, `SELECT coalesce(plugin, ''), coalesce(nullif(database, current_database()), '') FROM pg_replication_slots
		WHERE slot_name = $1`, s.cfg.Slot).Scan(&p.there.plugin, &p.there.database)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the slot: %w", err)
	}
	p.there.slot = true
	return p.foreign()
}

// probePublication makes a publication that is missing, in a transaction that is rolled back.
func (s *Source) probePublication(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return fmt.Errorf("look for the publication: %w", err)
	}
	_, err := Publication(ctx, conn, s.cfg.Publication)
	if _, rollbackErr := conn.Exec(context.WithoutCancel(ctx), "ROLLBACK"); err == nil {
		err = rollbackErr
	}
	return err
}
