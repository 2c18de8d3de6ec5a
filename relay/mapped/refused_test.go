package mapped

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

const raises = `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not this one''; END';
CREATE `

// Whatever the table or that for dead letters refuses of one row, the relay runs on: the others are delivered once and
// in order, and the row is marked once the table takes it.
func TestARowThatCanNotBeMarkedStopsNothing(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	never := outbox.Permanent(errors.New("never, and that is said at length"))
	tests := map[string]struct {
		prepare string
		fails   int
		err     error
		waits   bool   // until it is repaired
		repair  string // what makes the table take the mark
		dead    string // key, reason and error in the end
	}{
		"short column for errors": {
			prepare: `ALTER TABLE events ALTER error TYPE varchar(10)`,
			fails:   2, err: errors.New("later, and that is said at length"),
		},
		"short column for errors of dead letters": {
			prepare: `ALTER TABLE dead_events ALTER error TYPE varchar(10)`,
			fails:   1, err: never, dead: "bad refused never, and",
		},
		"smallint that is full": {
			prepare: `ALTER TABLE events ALTER attempts TYPE smallint;
ALTER TABLE dead_events ALTER attempts TYPE smallint;
				UPDATE events SET attempts = 32767 WHERE key = 'bad'`,
			fails: 1, err: errors.New("later"), dead: "bad exhausted later",
		},
		"check of failures": {
			prepare: `ALTER TABLE events ADD CHECK (error IS NULL)`,
			fails:   2, err: errors.New("later"),
		},
		"check of dead letters": {
			prepare: `ALTER TABLE dead_events ADD CONSTRAINT picky CHECK (key <> 'bad')`,
			fails:   1, err: never, waits: true,
			repair: `ALTER TABLE dead_events DROP CONSTRAINT picky`, dead: "bad refused never, and that is said at length",
		},
		"id of another dead letter": {
			prepare: `ALTER TABLE dead_events ADD PRIMARY KEY (id);
				INSERT INTO dead_events SELECT * FROM events WHERE key = 'bad' ORDER BY id LIMIT 1;
UPDATE dead_events SET payload = 'other'`,
			fails: 1, err: never, waits: true,
			repair: `DELETE FROM dead_events WHERE payload = 'other'`, dead: "bad refused never, and that is said at length",
		},
		"check": {
			prepare: `ALTER TABLE events ADD CONSTRAINT picky CHECK (status <> 'done' OR convert_from(payload, 'UTF8') <> '2')`, waits: true,
			repair: `ALTER TABLE events DROP CONSTRAINT picky`,
		},
		"trigger": {
			prepare: raises + `TRIGGER picky BEFORE UPDATE ON events FOR EACH ROW WHEN (NEW.status = 'done' AND NEW.payload = '2') EXECUTE FUNCTION refuse()`, waits: true,
			repair: `DROP TRIGGER picky ON events`,
		},
		"constraint trigger": {
			prepare: raises + `CONSTRAINT TRIGGER picky AFTER UPDATE ON events DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
				WHEN (NEW.status = 'done' AND NEW.payload = '2') EXECUTE FUNCTION refuse()`, waits: true,
			repair: `DROP TRIGGER picky ON events`,
		},
	}
	for name, test := range tests {
		for _, strategy := range noting {
			t.Run(name+" "+strategy, func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				insert := func(from, to int) {
					db.Exec(`INSERT INTO events (topic, key, payload) SELECT 't', CASE n % 3 WHEN 2 THEN 'bad' ELSE 'k' || n % 3 END, convert_to(n::text, 'UTF8')
						FROM generate_series($1::int, $2::int) n`, from, to)
				}
				insert(1, 30)
				for _, sql := range strings.Split(test.prepare, ";\n") {
					db.Exec(sql)
				}
				source := opened(t)(strategies()[strategy](db.Config(),
					Config{Name: "one", PollIdle: 5 * time.Millisecond, Lease: time.Minute}))
				broker := relaytest.NewMemory()
				broker.Fail("bad", test.fails, test.err)
				ctx, stop := testdb.Run(t, source, broker,
					relay.Config{Batch: 7, Backoff: relay.Backoff{Initial: 10 * time.Millisecond, Max: 10 * time.Millisecond}})
				want := 30
				if test.dead != "" {
					want--
				}
				wait := func() {
					t.Helper()
					if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= want }); err != nil {
						t.Fatalf("%d of %d messages came: %v", len(broker.Messages()), want, err)
					}
				}
				wait()
				insert(31, 60)
				want += 30
				wait()
				left := `SELECT count(*) = 0 FROM events WHERE status <> 'done'`
				if test.waits {
					db.Await(`SELECT string_agg(convert_from(payload, 'UTF8'), ',') = '2' FROM events WHERE status <> 'done'`)
					db.Exec(test.repair)
				}
				db.Await(left)
				stop()
				last, seen := make(map[string]int64), len(broker.Messages())
				for _, m := range broker.Messages() {
					if m.Position <= last[m.Key] {
						t.Errorf("key %s: %d after %d", m.Key, m.Position, last[m.Key])
					}
					last[m.Key] = m.Position
				}
				if seen != want {
					t.Errorf("%d messages came, want %d", seen, want)
				}
				if got := db.Value(`SELECT coalesce(string_agg(key || ' ' || reason || ' ' || error, ', '), '') FROM dead_events`); got != test.dead {
					t.Errorf("dead letters: %q, want %q", got, test.dead)
				}
			})
		}
	}
}

// Rows that can't be marked count as set aside, and a relay that reads nothing new because of them says so.
func TestWhyNothingIsReadIsSaidOfRowsThatCanNotBeMarked(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'x'), ('t', 'l', 'y')`)
	db.Exec(`ALTER TABLE events ADD CHECK (status <> 'done' OR id > 1)`)
	source := opened(t)(Open(mapping.SkipLocked, db.Config(), events(), Config{Name: "one", PollIdle: time.Millisecond, MaxHolds: 1}))
	s := acquired(t, source)
	b, err := s.Next(t.Context(), 1)
	for i := 0; err == nil && i < 2 && len(b.Deliveries) > 0; i++ {
		if err = s.Settle(t.Context(), relay.Settlement{Through: &b.Deliveries[0]}); err == nil {
			b, err = s.Next(t.Context(), 1)
		}
	}
	if err != nil || len(b.Deliveries) > 0 || b.Full == nil {
		t.Errorf("%d messages came, full %v, %v", len(b.Deliveries), b.Full, err)
	}
}

// Of a publication that makes the server refuse all marks the error says which: PostgreSQL has that in its details. The
// details of other errors have the values of rows.
func TestAPublicationThatForbidsMarksIsNamedAndNoValueIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ sql, has, lacks string }{
		"a filter": {`CREATE PUBLICATION parts FOR TABLE events WHERE (topic <> 'x')`, "not part of the replica identity", ""},
		"no key":   {`CREATE PUBLICATION parts FOR TABLE events; ALTER TABLE events REPLICA IDENTITY NOTHING`, "REPLICA IDENTITY", ""},
		"a value":  {`ALTER TABLE events ADD CHECK (status = 'new')`, "violates check constraint", "secret"},
		"a trigger's detail": {raises[:strings.Index(raises, " RETURNS")] + ` RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN RAISE ''no'' USING ERRCODE = ''42P10'', DETAIL = NEW.key; END';
			CREATE TRIGGER refuse BEFORE UPDATE ON events FOR EACH ROW EXECUTE FUNCTION refuse()`, "no", "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'secret', 'x')`)
			db.Exec(c.sql)
			_, err := db.Connect().Exec(t.Context(), "UPDATE events SET status = 'done'")
			got := existing.Explain(err)
			if !strings.Contains(got.Error(), c.has) || c.lacks != "" && strings.Contains(got.Error(), c.lacks) {
				t.Errorf("got %v, want %q and not %q", got, c.has, c.lacks)
			}
		})
	}
}
