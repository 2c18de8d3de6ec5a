package mapped

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
)

// A relay doesn't guess about the log: each refusal names the reason, and what to run.
func TestTheLogIsRefusedWhereItCouldLeaveSomethingOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before string
		want   error
		says   string
	}{
		"no slot":         {`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()`, nil, "pg_create_logical_replication_slot("},
		"no publication":  {`DROP PUBLICATION events_log`, nil, `CREATE PUBLICATION "events_log" FOR TABLE "public"."events"`},
		"another table's": {`CREATE TABLE o (id int); ALTER PUBLICATION events_log SET TABLE o`, nil, "doesn't send all inserts"},
		"no inserts":      {`ALTER PUBLICATION events_log SET (publish = 'update')`, nil, "doesn't send all inserts"},
		"some rows":       {`ALTER PUBLICATION events_log SET TABLE events WHERE (id > 1)`, nil, "doesn't send all inserts"},
		"a column is left out": {`ALTER PUBLICATION events_log SET TABLE events (id, topic)`,
			mapping.ErrMapping, `doesn't send what the mapping names, "message_id", `},
		"a column that is gone": {`ALTER TABLE events DROP COLUMN payload`, mapping.ErrMapping, `no column "payload"`},
		"an unlogged table":     {`DROP PUBLICATION events_log; CREATE PUBLICATION events_log FOR ALL TABLES; ALTER TABLE events SET UNLOGGED`, nil, "ALTER TABLE public.events SET LOGGED"},
		"a child":               {`CREATE TABLE c () INHERITS (events)`, mapping.ErrMapping, "which doesn't have what is inserted into c"},
		"another plugin's":      {`SELECT pg_drop_replication_slot('SLOT'), pg_create_logical_replication_slot('SLOT', 'test_decoding')`, nil, "test_decoding"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, log := newLogDatabase(t)
			for _, sql := range strings.Split(strings.ReplaceAll(c.before, "SLOT", log.Slot), ";") {
				db.Exec(sql)
			}
			s, err := openLog(t, db, log, logged()).Acquire(t.Context())
			if err == nil {
				t.Cleanup(func() { _ = s.Close(context.Background()) })
				db.Exec(`INSERT INTO events (topic, key) VALUES ('t', 'k')`)
				for err == nil {
					_, err = s.Next(t.Context(), 10)
				}
			}
			if c.want != nil && !errors.Is(err, c.want) || !outbox.IsPermanent(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want a permanent %v that says %q", err, c.want, c.says)
			}
		})
	}
}

// It reads what the server sends, and so needs no right on the table.
func TestARoleThatMayNotReadTheTableReadsItsLog(t *testing.T) {
	t.Parallel()
	db, log := newLogDatabase(t)
	role := "reader_of_" + log.Slot
	db.Exec(`CREATE ROLE ` + role + ` LOGIN REPLICATION`)
	conn := db.Connect()
	t.Cleanup(func() {
		for _, sql := range []string{`DROP OWNED BY ` + role, `DROP ROLE ` + role} {
			if _, err := conn.Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
		}
	})
	db.Exec(`GRANT SELECT, INSERT ON dead_events TO ` + role)
	cfg := db.Config()
	cfg.User = role
	source := opened(t)(openLogOf(cfg, logged(), Config{Name: "one", PollIdle: 5 * time.Millisecond}, log))
	s := acquired(t, source)
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'a', '1')`)
	ds := read(t, s, 1)
	err := s.Settle(t.Context(),
		relay.Settlement{Through: &ds[0], Dead: []relay.Dead{{Delivery: &ds[0], Reason: relay.ReasonRefused, Err: errors.New("no")}}})
	must(t, err)
	if n := db.Value(`SELECT count(*) FROM dead_events`); n != "1" {
		t.Errorf("%s dead letters", n)
	}
	must(t, s.Close(t.Context()))
}

// While there is no publication the server skips inserts without a word, so the relay stops and says it.
func TestALogWhosePublicationIsTakenAwayIsReadNoMore(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for name, sql := range map[string]string{
		"made anew":  `DROP PUBLICATION events_log; CREATE PUBLICATION events_log FOR TABLE events`,
		"no inserts": `ALTER PUBLICATION events_log SET (publish = 'update')`,
		"no inserts for a moment": `ALTER PUBLICATION events_log SET (publish = 'update');
			ALTER PUBLICATION events_log SET (publish = 'insert')`,
		"some rows for a moment": `ALTER PUBLICATION events_log SET TABLE events WHERE (id > 1); ALTER PUBLICATION events_log SET TABLE events`,
		"unlogged for a moment": `DROP PUBLICATION events_log; CREATE PUBLICATION events_log FOR ALL TABLES THEN
			ALTER TABLE events SET UNLOGGED; ALTER TABLE events SET LOGGED`,
		"without the schema for a moment": `DROP PUBLICATION events_log; CREATE PUBLICATION events_log FOR TABLES IN SCHEMA public THEN
			ALTER PUBLICATION events_log DROP TABLES IN SCHEMA public; ALTER PUBLICATION events_log ADD TABLES IN SCHEMA public`,
		"without the table for a moment": `ALTER PUBLICATION events_log DROP TABLE events; ALTER PUBLICATION events_log ADD TABLE events`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, log := newLogDatabase(t)
			source := opened(t)(openLogOf(db.Config(), logged(),
				Config{Name: "one", Lease: shortLease, PollIdle: 5 * time.Millisecond}, log))
			before, sql, both := strings.Cut(sql, " THEN")
			if !both {
				before, sql = "", before
			}
			if (strings.Contains(sql, "WHERE") || strings.Contains(sql, "SCHEMA")) &&
				db.Value("SELECT current_setting('server_version_num')::int < 150000") == "true" {
				t.Skip("PostgreSQL 14 has neither row filters nor schemas in publications")
			}
			db.Exec(before)
			s := acquired(t, source)
			db.Exec(sql)
			ctx := await.Context(t)
			var err error
			for err == nil {
				_, err = s.Next(ctx, 10)
			}
			if err == nil || !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "publication") {
				t.Errorf("got %v, want a permanent one of the publication", err)
			}
			_ = s.Close(ctx)
			if _, err := source.Acquire(ctx); err == nil || !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "publication") {
				t.Errorf("acquired again, with %v", err)
			}
			// Somebody repairs both, as the error says, and the same relay goes on.
			db.Exec("DROP PUBLICATION events_log")
			db.Exec("CREATE PUBLICATION events_log FOR TABLE events")
			db.Exec("SELECT pg_drop_replication_slot($1)", log.Slot)
			db.Exec(mapping.CreateSlotSQL(log.Slot))
			s = acquired(t, source)
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'a', 'later')`)
			if ds := read(t, s, 1); string(ds[0].Payload) != "later" {
				t.Errorf("got %q", ds[0].Payload)
			}
		})
	}
}

// A slot that was there before its publication was repaired has passed over inserts, so the repair alone is not enough:
// not for the relay that has seen it, not for one that starts later, and not with another publication.
func TestASlotThatIsOlderThanTheRepairOfItsPublicationIsRefused(t *testing.T) {
	t.Parallel()
	const (
		drop     = `DROP PUBLICATION events_log`
		create   = `CREATE PUBLICATION events_log FOR TABLE events`
		filter   = `ALTER PUBLICATION events_log SET TABLE events WHERE (id <> 2)`
		unlogged = drop + `; CREATE PUBLICATION events_log FOR ALL TABLES; ALTER TABLE events SET UNLOGGED`
	)
	for name, c := range map[string]struct {
		spoil, repair string
		unseen        bool // no relay has looked before the repair
		restarts      bool // another relay reads after the repair
		publication   string
	}{
		"none":                                {spoil: drop, repair: create},
		"none, restarted":                     {spoil: drop, repair: create, restarts: true},
		"some rows":                           {spoil: filter, repair: `ALTER PUBLICATION events_log SET TABLE events`},
		"some rows, restarted":                {spoil: filter, repair: `ALTER PUBLICATION events_log SET TABLE events`, restarts: true},
		"some rows, unseen":                   {spoil: filter, repair: `ALTER PUBLICATION events_log SET TABLE events`, unseen: true},
		"none, unseen":                        {spoil: drop, repair: create, unseen: true},
		"some rows, another publication":      {spoil: filter, repair: `CREATE PUBLICATION other FOR TABLE events`, restarts: true, publication: "other"},
		"no inserts, restarted":               {spoil: `ALTER PUBLICATION events_log SET (publish = 'update')`, repair: `ALTER PUBLICATION events_log SET (publish = 'insert')`, restarts: true},
		"another table, restarted":            {spoil: `ALTER PUBLICATION events_log DROP TABLE events`, repair: `ALTER PUBLICATION events_log ADD TABLE events`, restarts: true},
		"none, then all tables, restarted":    {spoil: drop, repair: create[:30] + ` FOR ALL TABLES`, restarts: true},
		"unlogged":                            {spoil: unlogged, repair: `ALTER TABLE events SET LOGGED`},
		"none, then of a schema, restarted":   {spoil: drop, repair: create[:30] + ` FOR TABLES IN SCHEMA public`, restarts: true},
		"without the schema, restarted":       {spoil: drop + `; ` + create[:30] + ` FOR TABLES IN SCHEMA outbox`, repair: `ALTER PUBLICATION events_log ADD TABLES IN SCHEMA public`, restarts: true},
		"none, then in a block, restarted":    {spoil: drop, repair: `DO $$ BEGIN ` + create + `|EXCEPTION WHEN OTHERS THEN RAISE|END $$`, restarts: true},
		"none, and a table frozen, restarted": {spoil: drop, repair: create + `; VACUUM FREEZE pg_publication; VACUUM FREEZE pg_publication_rel`, restarts: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers.OnMajors(t, func(t *testing.T, config servers.PostgresConfig) {
				db, log := newLogDatabase(t, config)
				if (strings.Contains(c.spoil, "WHERE") || strings.Contains(c.spoil+c.repair, "SCHEMA")) &&
					db.Value("SELECT current_setting('server_version_num')::int < 150000") == "true" {
					return // PostgreSQL 14 has neither row filters nor schemas in publications
				}
				run := func(sql string) {
					for _, one := range strings.Split(sql, ";") {
						db.Exec(strings.ReplaceAll(one, "|", ";"))
					}
				}
				again := func() {
					db.Exec("SELECT pg_drop_replication_slot($1)", log.Slot)
					db.Exec(mapping.CreateSlotSQL(log.Slot))
				}
				run("CREATE SCHEMA outbox; " + c.spoil)
				again()
				refuses := func(source *Source) {
					t.Helper()
					ctx := await.Context(t)
					s, err := source.Acquire(ctx)
					if err == nil {
						for err == nil {
							var b relay.Batch
							if b, err = s.Next(ctx, 1); len(b.Deliveries) > 0 {
								t.Errorf("row %d is delivered", b.Deliveries[0].Position)
							}
						}
						_ = s.Close(ctx)
					}
					if !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "SELECT pg_drop_replication_slot('"+log.Slot+"')") {
						t.Fatalf("got %v, want a permanent error that names the slot", err)
					}
				}
				source := openLog(t, db, log, logged())
				if !c.unseen {
					refuses(source)
				}
				db.Exec(`INSERT INTO events (topic, key, payload) SELECT 't', 'k', 'x' FROM generate_series(1, 3)`)
				run(c.repair)
				db.Exec(`INSERT INTO events (topic, key, payload) SELECT 't', 'k', 'x' FROM generate_series(4, 5)`)
				if c.publication != "" {
					log.Publication = c.publication
				}
				for range 2 {
					if c.restarts {
						source = openLog(t, db, log, logged())
					}
					refuses(source)
				}
				again()
				db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'a', 'later')`)
				if ds := read(t, acquired(t, source), 1); string(ds[0].Payload) != "later" {
					t.Errorf("got %q", ds[0].Payload)
				}
			})
		})
	}
}

// A slot that is made right after the publication is sound, whatever else goes on: a false alarm would have an operator
// drop it.
func TestASlotThatIsMadeAfterItsPublicationIsReadFromItsBeginning(t *testing.T) {
	t.Parallel()
	servers.OnMajors(t, func(t *testing.T, config servers.PostgresConfig) {
		db, log := newLogDatabase(t, config)
		another := log.Slot + "_2" // holds the catalogue back, and is behind
		db.Exec(mapping.CreateSlotSQL(another))
		db.Exec("DROP PUBLICATION events_log")
		db.Exec("SELECT pg_drop_replication_slot($1)", log.Slot)
		long, err := db.Connect().Begin(t.Context()) // is older than the publication, and writes when the slot is made
		must(t, err)
		if _, err := long.Exec(t.Context(), "INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'before')"); err != nil {
			t.Fatal(err)
		}
		made := make(chan error, 1)
		writing := db.Connect()
		db.Exec("CREATE PUBLICATION events_log FOR ALL TABLES")
		go func() {
			_, err := db.Connect().Exec(context.Background(), mapping.CreateSlotSQL(log.Slot))
			made <- err
		}()
		await.Until(t, "the slot is being made", func() bool {
			return db.Value("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '"+log.Slot+"'") == "1"
		})
		if _, err := writing.Exec(t.Context(), "INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'meanwhile')"); err != nil {
			t.Fatal(err)
		}
		must(t, long.Commit(t.Context()))
		must(t, <-made)
		db.Exec("INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'later')")
		db.Exec("VACUUM FREEZE pg_publication")
		s := acquired(t, openLog(t, db, log, logged()))
		for {
			if ds := read(t, s, 1); string(ds[0].Payload) == "later" {
				break
			}
		}
	})
}

// What leaves no insert out is no reason to stop: the operator would drop a slot that is sound.
func TestALogGoesOnThroughChangesThatLeaveNothingOut(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	const all = `DROP PUBLICATION events_log; CREATE PUBLICATION events_log FOR ALL TABLES THEN `
	const parted = `DROP PUBLICATION events_log; CREATE TABLE events (id bigserial PRIMARY KEY, topic text, key text, payload text)
			PARTITION BY RANGE (id);
		CREATE TABLE e1 PARTITION OF events FOR VALUES FROM (0) TO (100);
		CREATE TABLE e2 PARTITION OF events FOR VALUES FROM (100) TO (200);
		CREATE PUBLICATION events_log FOR TABLE events WITH (publish_via_partition_root = true) THEN `
	for name, sql := range map[string]string{
		"a partition is made":              parted + `CREATE TABLE e3 PARTITION OF events FOR VALUES FROM (200) TO (300)`,
		"a partition is dropped":           parted + `DROP TABLE e2`,
		"the publication isn't changed":    `ALTER PUBLICATION events_log SET (publish = 'update'); ROLLBACK`,
		"a column is required":             `ALTER TABLE events ALTER payload SET NOT NULL`,
		"a type is changed":                `ALTER TABLE events ALTER payload TYPE text USING convert_from(payload, 'UTF8')`,
		"a type is changed, of all tables": all + `ALTER TABLE events ALTER payload TYPE text USING convert_from(payload, 'UTF8')`,
		"a column is computed, all tables": all + `ALTER TABLE events ADD more uuid DEFAULT gen_random_uuid()`,
		"a type of a partitioned table":    parted + `ALTER TABLE events ALTER payload TYPE bytea USING convert_to(payload, 'UTF8')`,
		"all rows are rewritten":           all + `VACUUM FULL events`,
		"all rows are gone, of all":        all + `TRUNCATE events`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, log := newLogDatabase(t)
			before, sql, both := strings.Cut(sql, " THEN ")
			if !both {
				before, sql = "", before
			}
			m := logged()
			if strings.Contains(before, "PARTITION") {
				db.Exec("DROP TABLE events")
				m = mapping.Mapping{Table: "events", ID: "id", Topic: "{topic}", Key: "{key}", Payload: "payload"}
			}
			for _, sql := range strings.Split(before, ";") {
				db.Exec(sql)
			}
			if both { // the slot looks the publication up
				db.Exec("SELECT pg_drop_replication_slot($1)", log.Slot)
				db.Exec(mapping.CreateSlotSQL(log.Slot))
			}
			source := opened(t)(openLogOf(db.Config(), m, Config{Name: "one", Lease: shortLease, PollIdle: 5 * time.Millisecond}, log))
			s := acquired(t, source)
			if strings.Contains(sql, "ROLLBACK") {
				sql = "BEGIN; " + sql
				db.Exec(sql)
			} else {
				for _, sql := range strings.Split(sql, ";") {
					db.Exec(sql)
				}
			}
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'x')`)
			var err error
			for until := time.Now().Add(shortLease); err == nil && time.Now().Before(until); {
				_, err = s.Next(t.Context(), 10)
			}
			if err != nil { // and what was read behind a blocked message would come again
				t.Errorf("the session ends: %v", err)
			}
		})
	}
}

// A slot that kept too much: the relay that reads it warns, and the one that comes when it is invalidated stops and
// names the cause.
func TestASlotThatKeepsTooMuchIsToldOf(t *testing.T) {
	t.Parallel()
	// No checkpoint comes by itself: it would invalidate the slot too soon.
	pg := servers.OwnPostgres(t,
		servers.PostgresConfig{Settings: map[string]string{"max_slot_wal_keep_size": "1MB", "max_wal_size": "1GB"}})
	db := database{testdb.DB{T: t, URL: pg.URL("postgres")}}
	db.Exec(eventsTable)
	log := logNames{Slot: "events_log", Publication: "events_log"}
	db.Exec(mapping.CreatePublicationSQL(log.Publication, mapping.TableName{Schema: "public", Name: "events"}))
	db.Exec(mapping.CreateSlotSQL(log.Slot))
	s := acquired(t, openLog(t, db, log, logged()))
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'a', '1')`)
	read(t, s, 1) // and settle nothing
	must(t, s.Close(t.Context()))
	var lines lines
	source := opened(t)(openLogOf(db.Config(), logged(),
		Config{Name: "one", Lease: 5 * time.Second, Logger: slog.New(slog.NewTextHandler(&lines, nil))}, log))
	db.Exec("CREATE TABLE filler (x text)")
	fill := func() {
		db.Exec("SELECT pg_switch_wal()")
		db.Exec("INSERT INTO filler SELECT repeat(md5(i::text), 50) FROM generate_series(1, 4000) i")
	}
	fill()
	s = acquired(t, source)
	await.UntilElse(t, func() bool { return strings.Contains(lines.String(), "may be invalidated") }, func() string {
		return fmt.Sprintf("a warning; the slot is %s; log: %s", db.Value("SELECT wal_status FROM pg_replication_slots"), lines.String())
	})
	must(t, s.Close(t.Context()))
	await.Until(t, "the slot is invalidated", func() bool {
		fill()
		db.Exec("CHECKPOINT")
		return db.Value("SELECT wal_status FROM pg_replication_slots") == "lost"
	})
	_, err := source.Acquire(t.Context())
	if err == nil || !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "was invalidated") {
		t.Errorf("got %v, want a permanent one that says what happened", err)
	}
	db.DropSlots()
}

// lines is a log. Safe for concurrent use.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
