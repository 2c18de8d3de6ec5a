package mapped

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

const log = "log"

var (
	markers = []string{"skiplocked", "advisory", "lease", "lease by status"}
	moving  = []string{"xmin", "serial"}
	tables  = slices.Concat(markers, moving)
	every   = append([]string{log}, tables...)
	kinds   = []string{"advisory", "lease", "serial", log} // one of each
)

// probed is a database whose relay has a role of its own, with the rights of GrantsSQL and no others.
type probed struct {
	database
	log  logNames
	role string
}

// source opens a strategy as the role.
func (p probed) source(strategy string, change func(*Config)) *Source {
	p.T.Helper()
	conn := p.Config()
	conn.User, conn.Password = p.role, ""
	cfg := Config{Name: "one", PollIdle: 5 * time.Millisecond}
	if strategy == log {
		cfg.Slot, cfg.Publication = p.log.Slot, p.log.Publication
	}
	if change != nil {
		change(&cfg)
	}
	var source relay.Source
	var err error
	if strategy == log {
		source, err = Open(mapping.Replication, conn, logged(), cfg)
	} else {
		source, err = strategies()[strategy](conn, cfg)
	}
	if err != nil {
		p.T.Fatal(err)
	}
	return source.(*Source)
}

func newProbed(t *testing.T, strategy string, config ...servers.PostgresConfig) probed {
	t.Helper()
	db, names := newLogDatabase(t, config...)
	p := probed{db, names, "relay_" + db.Config().Database}
	p.Exec("CREATE ROLE " + p.role + " LOGIN")
	t.Cleanup(func() { p.drop(p.role) })
	if strategy == log {
		p.Exec("ALTER ROLE " + p.role + " REPLICATION")
	} else {
		p.Exec("SELECT pg_drop_replication_slot($1)", names.Slot)
	}
	s := p.source(strategy, nil)
	p.Exec(s.mapping.GrantsSQL(s.strategy, p.role))
	return p
}

// delivers makes sure that a relay of the role delivers messages, one at the second attempt, and buries one.
func (p probed) delivers(strategy string) {
	t := p.T.(*testing.T)
	t.Helper()
	broker := relaytest.NewMemory()
	broker.Fail("b", 1, errors.New("not now"))
	broker.Fail("c", 1, outbox.Permanent(errors.New("never")))
	ctx, stop := testdb.Run(t, p.source(strategy, nil), broker,
		relay.Config{Backoff: relay.Backoff{Initial: 10 * time.Millisecond, Max: 10 * time.Millisecond}})
	defer stop()
	want := len(broker.Messages()) + 2
	p.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'a', 'x'), ('t', 'b', 'y'), ('t', 'c', 'z')`)
	if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= want }); err != nil {
		t.Fatalf("%d of %d messages came: %v", len(broker.Messages()), want, err)
	}
	p.Await(`SELECT EXISTS (SELECT FROM dead_events WHERE key = 'c')`)
	if slices.Contains(markers, strategy) {
		p.Await(`SELECT NOT EXISTS (SELECT FROM events WHERE status <> 'done')`)
	}
}

const trigger = `CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN %s; END'; CREATE %s EXECUTE FUNCTION act()`

// What a relay could not do shows in a probe, with what repairs it. What a probe finds well, a relay then delivers.
func TestWhatAProbeFindsWellIsDelivered(t *testing.T) {
	t.Parallel()
	// A slot has nothing of what its publication didn't send in its time.
	const again = `; SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')`
	for name, test := range map[string]struct {
		of     []string
		empty  bool   // no row waits
		prep   string // ROLE and SLOT stand for their names
		want   string // in the error; "": it is well
		repair string // after which it is well; "": what the error says after "run: "
	}{
		"nothing lacks":              {of: every},
		"nothing lacks and no row":   {of: every, empty: true},
		"only reading is the role's": {of: every, prep: `ALTER ROLE ROLE SET default_transaction_read_only = on`},
		"SELECT lacks":               {of: tables, prep: `REVOKE SELECT ON events FROM ROLE`, want: "permission denied"},
		"SELECT lacks and no row":    {of: kinds[:3], empty: true, prep: `REVOKE SELECT ON events FROM ROLE`, want: "permission denied"},
		"UPDATE lacks":               {of: markers, prep: `REVOKE UPDATE ON events FROM ROLE`, want: "permission denied"},
		"DELETE lacks":               {of: markers, prep: `REVOKE DELETE ON events FROM ROLE`, want: "permission denied"},
		"DELETE lacks and no row":    {of: markers, empty: true, prep: `REVOKE DELETE ON events FROM ROLE`, want: "permission denied"},
		"UPDATE of one column is there": {of: markers, empty: true, want: "permission denied",
			prep: `REVOKE UPDATE ON events FROM ROLE; GRANT UPDATE (status, locked_until, owner, attempts) ON events TO ROLE`},
		"UPDATE of the columns suffices": {of: markers,
			prep: `REVOKE UPDATE ON events FROM ROLE; GRANT UPDATE (status, locked_until, owner, attempts, error) ON events TO ROLE`},
		"the schema is closed": {of: kinds, prep: `REVOKE USAGE ON SCHEMA public FROM PUBLIC`, want: "events",
			repair: `GRANT USAGE ON SCHEMA public TO ROLE`},
		"a policy hides rows": {of: tables, prep: `ALTER TABLE events ENABLE ROW LEVEL SECURITY`, want: "row-level security",
			repair: `ALTER TABLE events DISABLE ROW LEVEL SECURITY`},
		"a policy hides dead letters": {of: kinds, prep: `ALTER TABLE dead_events ENABLE ROW LEVEL SECURITY`,
			want: "row-level security", repair: `ALTER TABLE dead_events DISABLE ROW LEVEL SECURITY`},
		"dead letters can't be inserted": {of: every, prep: `REVOKE INSERT ON dead_events FROM ROLE`, want: "permission denied"},
		"dead letters can't be read":     {of: kinds, empty: true, prep: `REVOKE SELECT ON dead_events FROM ROLE`, want: "permission denied"},
		"there is no table for dead letters": {of: kinds, prep: `ALTER TABLE dead_events RENAME TO other`,
			want: "outbox migrate sources", repair: `ALTER TABLE other RENAME TO dead_events`},
		"dead letters need more": {of: kinds, empty: true, prep: `ALTER TABLE dead_events ADD more text NOT NULL`, want: "more",
			repair: `ALTER TABLE dead_events ALTER more DROP NOT NULL`},
		"dead letters have another type": {of: kinds, empty: true, prep: `ALTER TABLE dead_events ALTER topic TYPE integer USING 0`, want: "topic",
			repair: `ALTER TABLE dead_events ALTER topic TYPE text`},
		"dead letters are too short": {of: kinds[:3], prep: `ALTER TABLE dead_events ALTER key TYPE varchar(1)`,
			want: "dead_events", repair: `ALTER TABLE dead_events ALTER key TYPE text`},
		"dead letters draw a number": {of: kinds, empty: true, prep: `ALTER TABLE dead_events ADD number bigserial`, want: "dead_events_number_seq"},
		"dead letters draw a number for a row": {of: kinds[:3], prep: `ALTER TABLE dead_events ADD number bigserial`,
			want: "dead_events_number_seq", repair: `GRANT USAGE ON SEQUENCE dead_events_number_seq TO ROLE`},
		"dead letters have an identity": {of: kinds, prep: `ALTER TABLE dead_events ADD number bigint GENERATED ALWAYS AS IDENTITY`},
		"another dead letter has the id": {of: kinds[:3], want: "ids were used twice",
			prep:   `ALTER TABLE dead_events ADD PRIMARY KEY (id); INSERT INTO dead_events SELECT * FROM events; UPDATE dead_events SET payload = 'other'`,
			repair: `DELETE FROM dead_events`},
		"a trigger refuses what is done": {of: markers, want: "not this one", repair: `DROP TRIGGER act ON events`,
			prep: fmt.Sprintf(trigger, `RAISE ''not this one''`, `TRIGGER act BEFORE UPDATE ON events FOR EACH ROW WHEN (NEW.status = 'done')`)},
		"a trigger refuses at the end": {of: markers, want: "not this one", repair: `DROP TRIGGER act ON events`,
			prep: fmt.Sprintf(trigger, `RAISE ''not this one''`, `CONSTRAINT TRIGGER act AFTER UPDATE ON events
				DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.status = 'done')`)},
		"a trigger refuses failures": {of: markers, want: "not this one", repair: `DROP TRIGGER act ON events`,
			prep: fmt.Sprintf(trigger, `RAISE ''not this one''`, `TRIGGER act BEFORE UPDATE ON events FOR EACH ROW WHEN (NEW.error IS NOT NULL)`)},
		"a trigger refuses dead letters": {of: kinds[:3], want: "not this one", repair: `DROP TRIGGER act ON dead_events`,
			prep: fmt.Sprintf(trigger, `RAISE ''not this one''`, `TRIGGER act BEFORE INSERT ON dead_events FOR EACH ROW`)},
		"a trigger writes elsewhere": {of: markers, want: "permission denied for table notes", repair: `GRANT INSERT ON notes TO ROLE`,
			prep: `CREATE TABLE notes (id bigint); ` +
				fmt.Sprintf(trigger, `INSERT INTO notes VALUES (1); RETURN NEW`, `TRIGGER act AFTER UPDATE ON events FOR EACH ROW`)},
		"a trigger keeps rows": {of: markers, want: "triggers", repair: `DROP TRIGGER act ON events`,
			prep: fmt.Sprintf(trigger, `RETURN NULL`, `TRIGGER act BEFORE UPDATE ON events FOR EACH ROW WHEN (NEW.status = 'done')`)},
		"a trigger sets a row back": {of: markers, want: "triggers", repair: `DROP TRIGGER act ON events`,
			prep: fmt.Sprintf(trigger, `NEW.status = OLD.status; RETURN NEW`, `TRIGGER act BEFORE UPDATE ON events FOR EACH ROW WHEN (NEW.status = 'done')`)},
		"a condition refuses what is done": {of: markers, want: "picky", repair: `ALTER TABLE events DROP CONSTRAINT picky`,
			prep: `ALTER TABLE events ADD CONSTRAINT picky CHECK (status <> 'done' OR topic <> 't')`},
		"offsets can't be inserted": {of: moving, prep: `REVOKE INSERT ON offsets FROM ROLE`, want: "permission denied"},
		"offsets can't be inserted and no row": {of: moving, empty: true, prep: `REVOKE INSERT ON offsets FROM ROLE`,
			want: "permission denied"},
		"offsets can't be moved": {of: moving, empty: true, prep: `REVOKE UPDATE ON offsets FROM ROLE`, want: "permission denied"},
		"offsets draw a number": {of: moving, want: "offsets_number_seq", empty: true, repair: `GRANT USAGE ON SEQUENCE offsets_number_seq TO ROLE`,
			prep: `ALTER TABLE offsets ADD number serial`},
		"there are no offsets": {of: moving, want: "CREATE TABLE", prep: `ALTER TABLE offsets RENAME TO other`,
			repair: `ALTER TABLE other RENAME TO offsets`},
		"offsets have another key": {of: moving, prep: `ALTER TABLE offsets ADD CHECK (topic <> '')`, want: "offsets_topic_check",
			repair: `ALTER TABLE offsets DROP CONSTRAINT offsets_topic_check`},
		"the sequence was set back": {of: []string{"serial"}, want: "setval", prep: `INSERT INTO events (topic, payload) VALUES ('t', 'y'), ('t', 'z');
			SELECT setval('events_id_seq', 1); GRANT SELECT ON events_id_seq TO ROLE`, repair: `SELECT setval('events_id_seq', 3)`},
		"the role may not replicate": {of: []string{log}, prep: `ALTER ROLE ROLE NOREPLICATION`, want: "has no right to replicate"},
		"there is no publication": {of: []string{log}, prep: `DROP PUBLICATION events_log`, want: `there is no publication "events_log"`,
			repair: `CREATE PUBLICATION events_log FOR TABLE events` + again},
		"the publication has no inserts": {of: []string{log}, prep: `ALTER PUBLICATION events_log SET (publish = 'update')`,
			want: "doesn't send all inserts", repair: `ALTER PUBLICATION events_log SET (publish = 'insert')` + again},
		"the publication has another table": {of: []string{log}, prep: `ALTER PUBLICATION events_log SET TABLE offsets`,
			want: "doesn't send all inserts", repair: `ALTER PUBLICATION events_log SET TABLE events` + again},
		"there is no slot": {of: []string{log}, prep: `SELECT pg_drop_replication_slot('SLOT')`, want: "there is no slot",
			repair: `SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')`},
		"the slot has another plugin": {of: []string{log}, want: "test_decoding", repair: `SELECT pg_drop_replication_slot('SLOT');
			SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')`,
			prep: `SELECT pg_drop_replication_slot('SLOT'); SELECT pg_create_logical_replication_slot('SLOT', 'test_decoding')`},
	} {
		for _, strategy := range test.of {
			t.Run(name+"/"+strategy, func(t *testing.T) {
				t.Parallel()
				p := newProbed(t, strategy)
				if !test.empty {
					p.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'old', 'x')`)
				}
				exec := func(sql string) {
					t.Helper()
					sql = strings.NewReplacer("ROLE ROLE", "ROLE "+p.role, "FROM ROLE", "FROM "+p.role, "TO ROLE", "TO "+p.role,
						"SLOT", p.log.Slot).Replace(sql)
					for _, one := range eachOf(sql) {
						p.Exec(one)
					}
				}
				exec(test.prep)
				before := p.state()
				untried, err := p.source(strategy, nil).Probe(t.Context())
				if after := p.state(); after != before {
					t.Errorf("the probe has changed %s to %s", before, after)
				}
				if err == nil && (untried == "") != (!test.empty && strategy != log) {
					t.Errorf("untried: %q", untried)
				}
				if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
					t.Fatalf("got %v, want %q", err, test.want)
				}
				if err != nil {
					repair := test.repair
					if repair == "" {
						var found bool
						if _, repair, found = strings.Cut(err.Error(), "run: "); !found {
							t.Fatalf("the error names no repair: %v", err)
						}
						repair, _, _ = strings.Cut(repair, " (managed")
					}
					exec(repair)
					if _, err := p.source(strategy, nil).Probe(t.Context()); err != nil {
						t.Fatalf("after the repair %s: %v", repair, err)
					}
				}
				p.delivers(strategy)
			})
		}
	}
}

// eachOf splits statements, of which some can't share a transaction.
func eachOf(sql string) []string {
	if strings.TrimSpace(sql) == "" {
		return nil
	}
	if strings.Contains(sql, "plpgsql") {
		return []string{sql}
	}
	return strings.Split(sql, ";")
}

// state is what a probe must leave as it was.
func (p probed) state() string {
	p.T.Helper()
	conn := p.Connect()
	var state string
	for _, sql := range []string{`SELECT coalesce(string_agg(e::text, ';' ORDER BY id), '') FROM events e`,
		`SELECT count(*)::text FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid WHERE a.usename = '` + p.role + `'`,
		`SELECT coalesce(string_agg(confirmed_flush_lsn::text, ';'), '') FROM pg_replication_slots WHERE slot_name = '` + p.log.Slot + `'`,
		`SELECT last_value::text FROM events_id_seq`} {
		var one string
		if err := conn.QueryRow(p.T.Context(), sql).Scan(&one); err != nil {
			p.T.Fatal(err)
		}
		state += one + "\n"
	}
	return state
}

// The rights that GrantsSQL gives are those that each preset needs, and no more than a probe uses.
func TestEveryPresetIsProbed(t *testing.T) {
	t.Parallel()
	for _, preset := range mapping.Presets() {
		t.Run(preset.Name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			m, _ := matrixMapping(preset, preset.Strategy)
			table := newMatrixTable(preset, m, 0)
			db.Exec(matrixDDL + "; " + table.ddl())
			role := "relay_" + db.Config().Database
			db.Exec("CREATE ROLE " + role + " LOGIN")
			t.Cleanup(func() { database{db}.drop(role) })
			conn := db.Config()
			conn.User = role
			source := opened(t)(Open(preset.Strategy, conn, m, Config{Name: "one", PollIdle: time.Millisecond, Notify: "wake"})).(*Source)
			if _, err := source.Probe(t.Context()); err == nil {
				t.Error("a role without a right is well")
			}
			db.Exec(m.GrantsSQL(preset.Strategy, role))
			for n := range 2 {
				untried, err := source.Probe(t.Context())
				if err != nil || (untried == "") != (n == 1) {
					t.Errorf("with %d rows: %q, %v", n, untried, err)
				}
				values, _ := table.values(n+1, "k1", "a", "")
				columns := slices.Sorted(maps.Keys(values))
				list := make([]string, len(columns))
				for i, column := range columns {
					list[i] = values[column]
				}
				db.Exec("INSERT INTO " + m.Table + ` ("` + strings.Join(columns, `", "`) + `") VALUES (` + strings.Join(list, ", ") + ")")
			}
			s := acquired(t, source)
			ds := read(t, s, 2)
			if err := s.Settle(t.Context(), relay.Settlement{Through: &ds[1], Delivered: 2}); err != nil {
				t.Error(err)
			}
			if untried, err := source.Probe(t.Context()); err != nil { // beside the session
				t.Errorf("%q, %v", untried, err)
			}
		})
	}
}
