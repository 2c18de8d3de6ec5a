package mapped

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/link"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
	"github.com/pgoutbox/outbox/relay/mapped/internal/pending"
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
	if err := x.source.awaitLock(ctx, x.conn, x.table.Lock(), "another relay holds the table's lock"); err != nil {
		return nil, err
	}
	s := &advisorySession{x}
	s.prepare()
	s.locks()
	s.begin(s, link.Ping)
	return s, nil
}

// take puts all messages into one shard, so the calls to the broker keep the order of the table.
func (s *advisorySession) take(ctx context.Context, limit int) ([]relay.Delivery, error) {
	ds, rows, err := s.poll(ctx, limit, false)
	for i := range ds {
		ds[i].Shard = 0
	}
	s.ledger.Add(ds, rows, s.table.Numbered())
	return ds, err
}

func (s *advisorySession) Settle(ctx context.Context, settlement relay.Settlement) error {
	return s.settle(ctx, settlement, func(sorted *pending.Sorted) *marking.Outcomes { return sorted.Outcomes(s.holds, false) })
}

func (s *advisorySession) held(ctx context.Context, lane string, limit int) ([]relay.Delivery, error) {
	return s.reload(ctx, lane, limit, nil)
}

func (s *advisorySession) Close(ctx context.Context) error {
	return s.close(func(conn *pgx.Conn) error {
		if err := s.statements.Store(ctx, conn, &marking.Outcomes{}, &s.later); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock("+s.table.Lock()+")")
		return err
	})
}
