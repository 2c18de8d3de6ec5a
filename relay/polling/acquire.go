package polling

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/controls"
	"github.com/pgoutbox/outbox/relay/internal/lease"
	"github.com/pgoutbox/outbox/schema"
)

// Acquire waits until this relay owns the shard group, and returns a session that continues where the last owner's
// stored position is. The first source of a destination creates its cursor, which has seen nothing, so everything in
// the outbox is delivered.
//
// If the destination has another number of shard groups than cfg, one of the new sources waits until all groups of the
// old number are free, delivers their rest up to a common point and replaces them. Its session covers all shards and
// then ends with relay.ErrLeaseLost. So stop the relays of the old number: until they have ended, the groups that are
// already free are not delivered.
//
// These errors are marked by outbox.Permanent, because waiting alone doesn't cure them: relay.ErrActive,
// cursors.ErrStandby, cursors.ErrForeign, ErrNamesake and the errors of schema.Check. Other errors are the
// connection's.
func (s *Snapshot) Acquire(ctx context.Context) (relay.Session, error) {
	if !s.active.CompareAndSwap(false, true) {
		return nil, dial.Permanent("the source of destination %q is %w", s.destination, relay.ErrActive)
	}
	session, err := s.register(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	return session, nil
}

func (s *Snapshot) register(ctx context.Context) (_ relay.Session, err error) {
	s.release = func() {}
	defer func() {
		if err != nil {
			s.released()
		}
	}()
	if r := s.cfg.Registration; r != nil {
		release, err := r.Use(s.destination, s.cfg.Group)
		if err != nil {
			return nil, err
		}
		s.release = release
	}
	return s.acquire(ctx)
}

func (s *Snapshot) acquire(ctx context.Context) (_ relay.Session, err error) {
	conn, err := connect(ctx, s.conn, s.owner)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			dial.HangUp(conn)
		}
	}()
	preparing, cancel := context.WithTimeout(ctx, dial.PrepareWithin)
	defer cancel()
	if err := s.prepare(preparing, conn); err != nil {
		return nil, err
	}
	if err := s.boundIdleTransactions(preparing, conn); err != nil {
		return nil, err
	}
	// Once the lease is taken, no round trip is left for this.
	for _, sql := range []string{schema.WithTableOf(s.destination, takeSQL), schema.WithTableOf(s.destination, lease.WriteCursorSQL)} {
		if _, err := conn.Prepare(preparing, sql, sql); err != nil {
			return nil, fmt.Errorf("prepare the lease: %w", err)
		}
	}
	// What a session asks first is asked once before: the server has its statements and its catalogue ready then. A
	// fault that this finds is found again when the lease is taken, unless somebody has repaired it by then.
	_ = schema.Intact(preparing, conn)
	_, _ = controls.Read(preparing, conn, s.destination, 1)
	writing := &lease.Link{Conn: conn}
	if writing.Server, err = cursors.Server(preparing, conn); err != nil {
		return nil, err
	}
	for {
		row, since, err := s.take(ctx, conn, s.cfg.Group, s.cfg.Groups, true)
		if errors.Is(err, errLayout) {
			session, err := s.regroup(ctx, writing)
			if session != nil || err != nil {
				return session, err
			}
			continue // another relay has replaced the cursors
		}
		if err != nil {
			return nil, err
		}
		return s.start(ctx, writing, row, since)
	}
}
