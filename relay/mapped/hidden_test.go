package mapped

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// A policy hides rows without a word: a strategy would find nothing to do, and one with offsets pass them.
func TestRowLevelSecurityOnTheTableIsAnError(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	name := "relay_of_" + db.Config().Database
	db.Exec("CREATE ROLE " + name + " LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO " +
		name + "; ALTER TABLE events ENABLE ROW LEVEL SECURITY")
	t.Cleanup(func() { db.drop(name) })
	cfg := db.Config()
	cfg.User = name
	leased := events()
	leased.Claim = mapping.Claim{Until: "locked_until", Owner: "owner"}
	numbered := events()
	numbered.Done, numbered.Failure = mapping.Done{}, mapping.Failure{}
	numbered.Offsets.Table = "offsets"
	for what, open := range map[string]func() (relay.Source, error){
		"skiplocked": func() (relay.Source, error) { return Open(mapping.SkipLocked, cfg, events(), Config{}) },
		"advisory":   func() (relay.Source, error) { return Open(mapping.Advisory, cfg, events(), Config{}) },
		"lease":      func() (relay.Source, error) { return Open(mapping.Lease, cfg, leased, Config{}) },
		"serial":     func() (relay.Source, error) { return Open(mapping.Serial, cfg, numbered, Config{}) },
	} {
		s, err := open()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := s.Acquire(t.Context()); !errors.Is(err, schema.ErrHidden) || !outbox.IsPermanent(err) {
			t.Errorf("%s: %v, want ErrHidden for good", what, err)
		}
	}
	// While it runs.
	db.Exec("ALTER TABLE events DISABLE ROW LEVEL SECURITY")
	s := opened(t)(Open(mapping.Advisory, cfg, events(), Config{PollIdle: time.Millisecond}))
	session, err := s.Acquire(t.Context())
	must(t, err)
	defer func() { _ = session.Close(context.Background()) }()
	db.Exec("ALTER TABLE events ENABLE ROW LEVEL SECURITY")
	for err == nil {
		_, err = session.Next(t.Context(), 1)
	}
	if !errors.Is(err, schema.ErrHidden) || !outbox.IsPermanent(err) {
		t.Errorf("a session that runs: %v, want ErrHidden for good", err)
	}
}

// drop removes a role and what it owns or may do.
func (db database) drop(role string) {
	conn, err := pgx.Connect(context.Background(), db.URL)
	if err != nil {
		db.T.Error(err)
		return
	}
	defer dial.HangUp(conn)
	if _, err := conn.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
		db.T.Error(err)
	}
}
