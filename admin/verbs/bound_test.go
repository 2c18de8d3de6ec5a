package verbs

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) { servers.Main(m) }

func TestEveryStatementOfAVerbIsBoundedByTheServerAndTheVerbByItsContext(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), servers.TestDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	v := reads(Verb{Name: "look", Timeout: 12345 * time.Millisecond},
		func(ctx context.Context, db admin.DB, _ struct{}) (bound string, err error) {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("the verb has no deadline")
			}
			tx, err := db.BeginTx(ctx, pgx.TxOptions{})
			if err != nil {
				return "", err
			}
			defer func() { _ = tx.Rollback(ctx) }()
			err = tx.QueryRow(ctx, "SHOW statement_timeout").Scan(&bound)
			return bound, err
		}, nil)
	if bound, err := v.Run(t.Context(), conn, "", v.New()); err != nil || bound != "12345ms" {
		t.Errorf("%v, %v", bound, err)
	}
	var after string
	if err := conn.QueryRow(t.Context(), "SHOW statement_timeout").Scan(&after); err != nil || after != "0" {
		t.Errorf("the connection keeps %s: %v", after, err)
	}
}
