package mapped

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// A session outlives its first leases, however many round trips its statements take.
func TestAShortLeaseOutlastsASlowLine(t *testing.T) {
	t.Parallel()
	opens := strategies()
	opens["log"] = nil
	for name, open := range opens {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, log := newLogDatabase(t)
			if open == nil {
				open = func(c *pgx.ConnConfig, cfg Config) (relay.Source, error) { return openLogOf(c, logged(), cfg, log) }
			}
			source, err := open(testdb.Distant(t, db.Config(), 150*time.Millisecond), Config{Name: "one", Lease: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			s, err := source.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close(t.Context()) }()
			until, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			for until.Err() == nil {
				if _, err := s.Next(until, 10); err != nil && until.Err() == nil {
					t.Fatal(err)
				}
			}
			if s.Expires().IsZero() {
				t.Error("the session has ended")
			}
		})
	}
}
