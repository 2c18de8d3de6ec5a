package mapped

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
)

func TestWhatAMachineThatVanishedHadLockedIsFreeAfterALease(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for _, name := range []string{"advisory", "skiplocked"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Exec(`INSERT INTO events (topic, key) VALUES ('t', 'k')`)
			ctx := await.Context(t)
			gets := func(who string, conn *pgx.ConnConfig) {
				source := opened(t)(strategies()[name](conn, Config{Name: who, Lease: shortLease, PollIdle: 5 * time.Millisecond}))
				session, err := source.Acquire(ctx)
				if err != nil {
					t.Fatalf("%s: %v", who, err)
				}
				t.Cleanup(func() { _ = session.Close(context.WithoutCancel(ctx)) })
				if b, err := session.Next(ctx, 10); err != nil || len(b.Deliveries) != 1 {
					t.Fatalf("%s got %d messages, %v; want the one that nobody has settled", who, len(b.Deliveries), err)
				}
			}
			var machine testdb.Line
			gets("first", machine.Through(t, db.Config()))
			machine.Die()
			gets("second", db.Config())
		})
	}
}
