package mapped

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/relay/mapped/internal/pending"
)

// Acquire waits until the session may begin: for the table's lock (mapping.Advisory), for the offsets of the group
// (mapping.XMin, mapping.Serial), for the slot (mapping.Replication), or for another relay of the same name
// (mapping.Lease). mapping.SkipLocked waits for nothing. Errors that waiting can't cure are marked by outbox.Permanent:
// a mapping that doesn't fit the table, a standby, a pooler in transaction mode where the strategy needs a server
// session of its own, whatever wal.OpenTail refuses, and relay.ErrActive.
func (s *Source) Acquire(ctx context.Context) (_ relay.Session, err error) {
	if !s.active.CompareAndSwap(false, true) {
		return nil, dial.Permanent("the source of table %q is %w", s.mapping.Table, relay.ErrActive)
	}
	var storing, reading *pgx.Conn
	defer func() {
		if err == nil {
			return
		}
		dial.HangUp(storing)
		dial.HangUp(reading)
		s.active.Store(false)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
	}()
	conns := []**pgx.Conn{&storing, &reading}
	if s.strategy == mapping.SkipLocked || s.strategy == mapping.Replication {
		conns = conns[:1]
	}
	t, pooled, err := s.open(ctx, conns...)
	if err != nil {
		return nil, err
	}
	x := &session{source: s, table: t, pooled: pooled, holds: pending.NewHolds(s.writeAccount), conn: storing, reading: reading}
	defer func() {
		if err == nil {
			s.account.Begin(x.holds)
		}
	}()
	switch s.strategy {
	case mapping.SkipLocked:
		return newSkipLocked(x), nil
	case mapping.Advisory:
		return newAdvisory(ctx, x)
	case mapping.Lease:
		return newLease(ctx, x)
	case mapping.Replication:
		return newLog(ctx, x)
	}
	return newOffset(ctx, x)
}

// open resolves the mapping and opens a connection for each pointer of conns. pooled is ErrTransactionPooler if the
// server sessions are not ours.
func (s *Source) open(ctx context.Context, conns ...**pgx.Conn) (t *existing.Table, pooled, err error) {
	for _, c := range conns {
		if *c, err = s.connect(ctx, &pooled); err != nil {
			return nil, pooled, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, dial.PrepareWithin)
	defer cancel()
	if t, err = existing.Resolve(ctx, *conns[0], s.mapping, s.strategy); err == nil && pooled != nil {
		err = t.RefuseSettings(ctx, *conns[0])
	}
	if err == nil {
		err = s.sole(ctx, *conns[0], t)
	}
	return t, pooled, err
}
