package polling

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/registration"
	"github.com/pgoutbox/outbox/relay/retention"
	"github.com/pgoutbox/outbox/schema"
)

func TestARelayNeedsNoMoreThanItsGrants(t *testing.T) {
	t.Parallel()
	owner := newDatabase(t)
	role := "relay_" + owner.Value("SELECT current_database()")
	owner.Exec("CREATE ROLE " + role + " LOGIN")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), owner.URL)
		if err != nil {
			t.Error(err)
			return
		}
		defer dial.HangUp(conn)
		if _, err := conn.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	owner.Exec(schema.Grants("", role, ""))
	past := owner.PastSegment()
	for _, payload := range []string{"a", "b", "c"} {
		owner.WriteTo(past, payload)
	}

	cfg := owner.Config()
	cfg.User = role
	registration, err := registration.Register(t.Context(), cfg, "least", registration.Config{Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer registration.Close()
	source := func(groups int) relay.Source {
		s, err := NewSnapshot(cfg, "d", SnapshotConfig{Registration: registration, Groups: groups})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := testdb.Acquire(t, source(1))
	ds := testdb.Next(t, s, 10)
	if testdb.Payloads(ds) != "a b c" {
		t.Fatalf("got %q", testdb.Payloads(ds))
	}
	err = s.Settle(t.Context(), relay.Settlement{
		Through: &ds[2], Delivered: 1,
		Hold: []relay.Hold{{Delivery: &ds[0]}},
		Dead: []relay.Dead{{Delivery: &ds[1], Reason: relay.ReasonRefused, Err: errors.New("no")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := drain(t, s, 1); len(got) != 1 {
		t.Errorf("held %q", got)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	retention, err := retention.New(cfg, retention.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if report, err := retention.Once(t.Context()); err != nil || len(report.Emptied) != 1 {
		t.Errorf("retention: %+v, %v", report, err)
	}

	s = testdb.Acquire(t, source(2))
	if _, err := s.Next(t.Context(), 1); !errors.Is(err, relay.ErrLeaseLost) {
		t.Errorf("the number of groups was not changed: %v", err)
	}
	_ = s.Close(t.Context())
	running := source(2)
	_ = testdb.Acquire(t, running).Close(t.Context())
	owner.Exec("REVOKE SELECT ON outbox.messages FROM " + role)
	for when, s := range map[string]relay.Source{"a right was revoked": running, "at the start": source(2)} {
		if _, err := s.Acquire(t.Context()); !errors.Is(err, schema.ErrForbidden) || !outbox.IsPermanent(err) {
			t.Errorf("%s: %v, want ErrForbidden, which somebody has to repair", when, err)
		}
	}
	owner.Exec(schema.Grants("", role, ""))
	testdb.Acquire(t, running)
}
