package mapped

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/link"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

func onMajors(t *testing.T, harness func(database) relaytest.SourceHarness) {
	t.Parallel()
	servers.OnMajors(t, func(t *testing.T, config servers.PostgresConfig) {
		relaytest.RunSource(t, func(t *testing.T) relaytest.SourceHarness { return harness(newDatabase(t, config)) })
	})
}

func TestAdvisoryIsASource(t *testing.T) {
	onMajors(t, func(db database) relaytest.SourceHarness {
		h := db.harness(func(conn *pgx.ConnConfig, cfg Config) (relay.Source, error) {
			return Open(mapping.Advisory, conn, events(), cfg)
		})
		h.ConnectionOwns = true
		h.Crash = func(s relay.Session) {
			crash(s.(*advisorySession).source, s.(*advisorySession).link, s.(*advisorySession).reader.Conn)
		}
		return h
	})
}

// crash ends connections as a killed process does.
func crash(s *Source, l *link.Link, conns ...*pgx.Conn) {
	l.StopKeeping()
	_ = l.Conn.PgConn().Conn().Close()
	for _, c := range conns {
		_ = c.PgConn().Conn().Close()
	}
	s.active.Store(false)
}

func TestSkipLockedIsASource(t *testing.T) {
	onMajors(t, func(db database) relaytest.SourceHarness {
		h := db.harness(func(conn *pgx.ConnConfig, cfg Config) (relay.Source, error) {
			return Open(mapping.SkipLocked, conn, events(), cfg)
		})
		h.SharedOwnership = true
		h.RepeatsMoreAfter = true
		// A writer that locks rows would wait for those that a case reads and doesn't settle.
		h.Begin = func(ctx context.Context) (relaytest.SourceTx, error) { return db.begin(ctx, "") }
		h.Crash = func(s relay.Session) {
			session := s.(*skipLockedSession)
			for _, l := range session.links {
				crash(session.source, l)
			}
		}
		return h
	})
}

func TestLeaseIsASource(t *testing.T) {
	leaseIsASource(t, mapping.Claim{Until: "locked_until", Owner: "owner"})
}

func TestLeaseByStatusIsASource(t *testing.T) {
	servers.Long(t)
	leaseIsASource(t, mapping.Claim{Status: "taken", Since: "locked_until", Counts: true})
}

func leaseIsASource(t *testing.T, claim mapping.Claim) {
	onMajors(t, func(db database) relaytest.SourceHarness {
		h := db.harness(func(conn *pgx.ConnConfig, cfg Config) (relay.Source, error) {
			m := events()
			m.Claim = claim
			return Open(mapping.Lease, conn, m, cfg)
		})
		h.SharedOwnership = true
		h.Crash = func(s relay.Session) {
			crash(s.(*leaseSession).source, s.(*leaseSession).link, s.(*leaseSession).reader.Conn)
		}
		return h
	})
}

func offsetHarness(db database, open func(*pgx.ConnConfig, mapping.Mapping, Config) (relay.Source, error)) relaytest.SourceHarness {
	h := db.harness(func(conn *pgx.ConnConfig, cfg Config) (relay.Source, error) {
		m := events()
		m.Done, m.Failure = mapping.Done{}, mapping.Failure{DeadTable: "dead_events"}
		m.Offsets = mapping.Offsets{Table: "offsets", Topic: "topic", Partition: "part", Transaction: "xid"}
		return open(conn, m, cfg)
	})
	h.NoGroups = false
	h.RepeatsBehindHolds = true
	h.Crash = func(s relay.Session) {
		crash(s.(*offsetSession).source, s.(*offsetSession).link, s.(*offsetSession).reading)
	}
	h.Hang = func(s relay.Session) {
		s.(*offsetSession).link.StopKeeping()
	}
	return h
}

func TestXMinIsASource(t *testing.T) {
	onMajors(t, func(db database) relaytest.SourceHarness {
		h := offsetHarness(db, func(conn *pgx.ConnConfig, m mapping.Mapping, cfg Config) (relay.Source, error) {
			return Open(mapping.XMin, conn, m, cfg)
		})
		h.WaitsForWriters = true
		h.NoOrder = true
		return h
	})
}

func TestSerialIsASource(t *testing.T) {
	onMajors(t, func(db database) relaytest.SourceHarness {
		h := offsetHarness(db, func(conn *pgx.ConnConfig, m mapping.Mapping, cfg Config) (relay.Source, error) {
			return Open(mapping.Serial, conn, m, cfg)
		})
		h.WritersQueue = true
		h.Begin = func(ctx context.Context) (relaytest.SourceTx, error) {
			return db.begin(ctx, "SELECT pg_advisory_xact_lock(554738281823524)")
		}
		return h
	})
}
