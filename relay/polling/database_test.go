package polling

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
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
