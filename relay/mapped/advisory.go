package mapped

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
)

// advisorySession owns the table: one relay reads at a time, and holds an advisory lock while it does.
//
// The lock belongs to the connection, and Settle writes on that connection: a relay that has lost the lock can't mark
// anything.
type advisorySession struct{ *session }

var _ strategy = (*advisorySession)(nil)

func newAdvisory(ctx context.Context, x *session) (relay.Session, error) {
	if x.pooled != nil {
		return nil, x.pooled
	}
	if err := x.source.awaitLock(ctx, x.conn, x.table.lock(), "another relay holds the table's lock"); err != nil {
		return nil, err
	}
	s := &advisorySession{x}
	s.prepare()
	s.locks()
	s.begin(s, ping)
	return s, nil
}

// take puts all messages into one shard, so the calls to the broker keep the order of the table.
func (s *advisorySession) take(ctx context.Context, limit int) ([]relay.Delivery, error) {
	ds, rows, err := s.poll(ctx, limit, false)
	for i := range ds {
		ds[i].Shard = 0
	}
	s.ledger.add(ds, rows, s.table.numbered())
	return ds, err
}

func (s *advisorySession) Settle(ctx context.Context, settlement relay.Settlement) error {
	return s.settle(ctx, settlement, func(x *settled) *outcomes { return x.outcomes(s.holds, false) })
}

func (s *advisorySession) Held(ctx context.Context, lane string, limit int) ([]relay.Delivery, error) {
	return s.reload(ctx, lane, limit, nil)
}

func (s *advisorySession) Close(ctx context.Context) error {
	return s.close(func(conn *pgx.Conn) error {
		if err := s.statements.store(ctx, conn, &outcomes{}, &s.later); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock("+s.table.lock()+")")
		return err
	})
}
