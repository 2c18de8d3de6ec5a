package mapped

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// A session outlives its first leases, however many round trips its statements take. A machine that stops may lose one,
// but not each time.
func TestAShortLeaseOutlastsASlowLine(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	opens := strategies()
	opens["log"] = nil
	for name, open := range opens {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, log := newLogDatabase(t)
			if open == nil {
				open = func(c *pgx.ConnConfig, cfg Config) (relay.Source, error) { return openLogOf(c, logged(), cfg, log) }
			}
			lease := await.Expiry(time.Second)
			source := opened(t)(open(testdb.Distant(t, db.Config(), 150*time.Millisecond), Config{Name: "one", Lease: lease}))
			var err error
			for range 20 {
				if err = outlasts(t.Context(), source, 5*lease); err == nil {
					return
				}
			}
			t.Fatal(err)
		})
	}
}

// outlasts reads for a while, and returns why the session ended before.
func outlasts(ctx context.Context, source relay.Source, while time.Duration) error {
	s, err := source.Acquire(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close(ctx) }()
	reading, cancel := context.WithTimeout(ctx, while)
	defer cancel()
	for reading.Err() == nil {
		if _, err := s.Next(reading, 10); err != nil && reading.Err() == nil {
			return err
		}
	}
	if s.Expires().IsZero() {
		return relay.ErrLeaseLost
	}
	return nil
}
