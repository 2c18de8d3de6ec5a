package polling

import (
	"context"
	"errors"
	"net"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay/registration"
	"github.com/pgoutbox/outbox/relay/retention"
)

// pooled returns the database by way of a PgBouncer of its own.
func (db database) pooled(settings map[string]string) database {
	db.T.Helper()
	direct := db.Config()
	b := servers.OwnPgBouncer(db.T,
		servers.PgBouncerConfig{Server: net.JoinHostPort(direct.Host, strconv.Itoa(int(direct.Port))), Settings: settings})
	return database{testdb.DB{T: db.T, URL: b.URL(direct.Database)}}
}

// What a relay sets in a session would stay with a program that gets the session after it.
func TestAPoolerOfTransactionsIsRefusedBeforeAnythingIsSet(t *testing.T) {
	t.Parallel()
	for _, settings := range []map[string]string{nil, {"server_round_robin": "1"}, {"default_pool_size": "2"}} {
		db := newDatabase(t)
		pool := db.pooled(settings)
		application := pool.Connect()
		const everything = `SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE name <> 'application_name'`
		before := one(t, application, everything)

		retention, err := retention.New(pool.Config(), retention.Config{})
		if err != nil {
			t.Fatal(err)
		}
		_, acquireErr := pool.source("d", SnapshotConfig{}).Acquire(t.Context())
		_, registerErr := registration.Register(t.Context(), pool.Config(), "one", registration.Config{})
		_, retentionErr := retention.Once(t.Context())
		for what, err := range map[string]error{"acquire": acquireErr, "register": registerErr, "retention": retentionErr} {
			if !errors.Is(err, dial.ErrTransactionPooler) || !outbox.IsPermanent(err) {
				t.Errorf("%s, %v: %v, want ErrTransactionPooler for good", what, settings, err)
			}
		}
		// Transactions that are open at once see all sessions of the pool.
		var open []pgx.Tx
		for range 2 {
			tx, err := pool.Connect().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, tx)
			if after := one(t, tx, everything); after != before {
				t.Errorf("%v: a session of the pool has other settings now:\n%s\nbefore:\n%s", settings, after, before)
			}
			if prepared := one(t, tx, "SELECT count(*)::text FROM pg_prepared_statements"); prepared != "0" {
				t.Errorf("%v: %s prepared statements were left in a session of the pool", settings, prepared)
			}
		}
		for _, tx := range open {
			_ = tx.Rollback(t.Context())
		}
	}
}

func TestAPoolerOfSessionsIsAsGoodAsNone(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool := db.pooled(map[string]string{"pool_mode": "session"})
	db.Exec("SELECT outbox.publish('t', 'x'::bytea)")
	batch, err := testdb.Acquire(t, pool.source("d", SnapshotConfig{})).Next(t.Context(), 10)
	if err != nil || len(batch.Deliveries) != 1 {
		t.Errorf("%d messages, %v", len(batch.Deliveries), err)
	}
}

type queryRower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func one(t *testing.T, db queryRower, sql string) (text string) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}
