package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/relay/polling"
)

// Acquire waits until this relay has the destination's lease, and returns a session that continues where the last
// owner's stored position is: in the log if its slot can be trusted, else in the table until there is a new slot.
//
// Errors that waiting doesn't cure are marked by outbox.Permanent: a server or role that can't stream, a pooler, a slot
// or a publication that is missing and can't be created or is another's, and whatever the snapshot strategy refuses.
func (s *Source) Acquire(ctx context.Context) (relay.Session, error) {
	// A server that has no connection left for a second Run is no reason to call the first one broken.
	if err := s.ready(ctx); err != nil && !s.table.Active() {
		return nil, err
	}
	owned, err := s.table.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	table, ok := polling.TableOf(owned)
	if !ok {
		return owned, nil // it joins earlier shard groups into one, and then ends
	}
	session, err := s.start(ctx, table)
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.HangUpTimeout)
		defer cancel()
		closeErr := table.Close(closing)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.Is(closeErr, relay.ErrLeaseLost) {
			return nil, relay.ErrLeaseLost
		}
		return nil, err
	}
	return session, nil
}

// ready checks, before the wait for the lease, that the server can be streamed from.
func (s *Source) ready(ctx context.Context) error {
	stream, err := s.server().ConnectWAL(ctx)
	if err != nil {
		return err
	}
	stream.HangUp()
	conn, err := s.server().Connect(ctx)
	if err != nil {
		return err
	}
	defer dial.HangUp(conn)
	return s.preflight(ctx, conn)
}

// start decides where to continue.
func (s *Source) start(ctx context.Context, table *polling.Table) (*session, error) {
	session := newSession(s, table)
	conn, err := s.server().Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer dial.HangUp(conn)
	if err := createSlotRow(ctx, conn, s.destination, s.cfg.Slot, s.cfg.Publication); err != nil {
		return nil, err
	}
	p, err := readSlotRow(ctx, conn, s.destination)
	if err != nil {
		return nil, err
	}
	if session.statusInterval, err = wal.StatusInterval(ctx, conn); err != nil {
		return nil, err
	}
	if p.slot != s.cfg.Slot {
		session.formerSlot = p.slot
	}
	if err := p.foreign(); err != nil {
		return nil, err
	}
	session.mode = p.mode
	cause := p.lost(s.cfg.Slot, s.cfg.Publication)
	if cause == nil {
		err = session.resume(ctx, conn, &p)
	} else {
		err = session.fallBack(ctx, conn, &p, cause)
	}
	if err != nil {
		return nil, err
	}
	session.keep()
	return session, nil
}

// resume streams from the stored position.
func (s *session) resume(ctx context.Context, conn *pgx.Conn, p *slotRow) error {
	var now string
	if err := conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text, "+standbysSQL).Scan(&now, &s.standbys); err != nil {
		return fmt.Errorf("ask where the log is: %w", err)
	}
	end, err := wal.ParseLSN(now)
	if err != nil {
		return err
	}
	prev, _ := s.Table.Prev()
	seen, err := cursors.Parse(prev)
	if err != nil {
		return err
	}
	s.version = p.version
	s.progress, s.stored = wal.NewProgress(p.stored), p.stored
	s.seen, s.seenUntil = &seen, end
	s.end, s.fallback.covers = end, p.covers
	s.streaming = true
	if err := s.stream(ctx, conn); err != nil {
		return err
	}
	s.log().Info("reading the write-ahead log", "slot", p.slot, "position", p.stored.Position.String())
	return nil
}

// fallBack reads the table from the cursor until there is a new slot.
func (s *session) fallBack(ctx context.Context, conn *pgx.Conn, p *slotRow, cause error) error {
	if s.mode == modeReplication {
		if !p.there.slot {
			if err := wal.RefuseFull(ctx, conn); err != nil {
				return err
			}
		}
		// If the log was read before, the table is read until the publication is as it has to be.
		_, err := Publication(ctx, conn, s.source.cfg.Publication)
		if err != nil && (errors.Is(cause, errNew) || !outbox.IsPermanent(err)) {
			return err
		}
	}
	reason := ""
	if !errors.Is(cause, errNew) {
		reason = cause.Error()
		s.log().Error("the replication slot can't be read on: the table is read from the cursor on until there is a new one. "+
			"Messages that were emitted without a row and not read are lost; some others may come twice",
			"slot", p.slot, "position", p.stored.Position.String(), "cause", reason)
	}
	// From here on no session uses the old position.
	err := s.Table.Write(ctx, func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		return s.distrust(ctx, conn, reason)
	})
	if err == nil && s.mode == modeSnapshot {
		s.log().Warn("reading the table, to which the destination was handed over; for the log run: outbox handover --destination " +
			s.source.destination + " --to replication")
	}
	if err == nil && s.mode == modeSnapshot && p.there.slot {
		err = s.dropSlot(ctx, conn) // a predecessor that switched to the table had no time to drop it
	}
	return err
}

// Close stores and confirms the last position and gives the lease back.
func (s *session) Close(ctx context.Context) error {
	s.cancel()
	s.helpers.Wait()
	var err error
	if s.isStreaming() {
		if s.Table.Failure() == nil {
			err = s.store(ctx, nil)
		}
		if s.wal != nil && err == nil {
			_ = s.confirm(s.wal, true) // if it fails, the next session's stream begins at the stored position
		}
	}
	if s.wal != nil {
		s.wal.Goodbye()
	}
	return errors.Join(err, s.Table.Close(ctx))
}

// Next waits for messages: from the table until the log takes over, and then from the log.
func (s *session) Next(ctx context.Context, limit int) (relay.Batch, error) {
	if limit < 1 {
		return relay.Batch{}, fmt.Errorf("replication: Next was asked for %d messages", limit)
	}
	if s.isStreaming() {
		return s.nextOfLog(ctx, limit)
	}
	return s.nextOfTable(ctx, limit)
}

func (s *session) nextOfLog(ctx context.Context, limit int) (relay.Batch, error) {
	if s.wantsToLeave() {
		return relay.Batch{}, s.leaveLog(ctx)
	}
	if s.wantsToCatchUp() {
		return relay.Batch{}, s.catchUp(ctx)
	}
	batch, err := s.readLog(ctx, limit)
	if failure := s.Table.Failure(); err != nil && failure != nil {
		err = failure // that failure has closed the connection
	}
	return batch, err
}
