package polling

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

func TestMain(m *testing.M) { servers.Main(m) }

// database is a fresh one with the outbox in it.
type database struct{ testdb.DB }

func newDatabase(t testing.TB, config ...servers.PostgresConfig) database {
	t.Helper()
	return database{testdb.Published(t, config...)}
}

// begin returns n transactions that run at the same time.
func (db database) begin(n int) []pgx.Tx {
	db.T.Helper()
	var txs []pgx.Tx
	for range n {
		tx, err := db.Connect().Begin(db.T.Context())
		if err != nil {
			db.T.Fatal(err)
		}
		txs = append(txs, tx)
	}
	return txs
}

func (db database) commit(txs []pgx.Tx) {
	db.T.Helper()
	for _, tx := range txs {
		if err := tx.Commit(db.T.Context()); err != nil {
			db.T.Fatal(err)
		}
	}
}

func (db database) source(destination string, cfg SnapshotConfig) *Snapshot {
	db.T.Helper()
	if cfg.PollIdle == 0 {
		cfg.PollIdle = 5 * time.Millisecond
	}
	if cfg.Lease == 0 {
		cfg.Lease = 10 * time.Second // a busy machine may lose the default of 3 s
	}
	s, err := NewSnapshot(db.Config(), destination, cfg)
	if err != nil {
		db.T.Fatal(err)
	}
	return s
}

func acquire(t testing.TB, s relay.Source) relay.Session {
	t.Helper()
	ctx := await.Context(t)
	session, err := s.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	t.Cleanup(func() {
		if !closed {
			closed = true
			_ = session.Close(context.Background())
		}
	})
	return session
}

// next waits for the next messages.
func next(t testing.TB, s relay.Session, max int) []relay.Delivery {
	t.Helper()
	ctx := await.Context(t)
	b, err := s.Next(ctx, max)
	if err != nil {
		t.Fatal(err)
	}
	return b.Deliveries
}

func payloads(ds []relay.Delivery) string {
	var all []string
	for _, d := range ds {
		all = append(all, string(d.Payload))
	}
	return strings.Join(all, " ")
}

func settle(t testing.TB, s relay.Session, through *relay.Delivery) {
	t.Helper()
	if err := s.Settle(t.Context(), relay.Settlement{Through: through, Delivered: 1}); err != nil {
		t.Fatal(err)
	}
}
