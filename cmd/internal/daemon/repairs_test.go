package daemon

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// repaired is a database of a cluster of its own. A relay reads its outbox and two tables, by queries and by the log.
type repaired struct {
	testdb.DB
	outside testdb.DB // another database of the cluster
	server  *servers.Postgres
	m       *many
	sent    int
}

const (
	repairedTables = `CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text, sent boolean NOT NULL DEFAULT false);
		CREATE TABLE logged (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text);`
	repairedGrants = `GRANT SELECT, UPDATE ON events TO relay; GRANT SELECT ON logged TO relay;`
)

// newRepaired has a relay with four destinations.
func newRepaired(t *testing.T) *repaired {
	pg := servers.OwnPostgres(t)
	r := &repaired{DB: testdb.DB{T: t, URL: pg.URL("app")}, outside: testdb.DB{T: t, URL: pg.URL("postgres")}, server: pg}
	r.outside.Exec("CREATE ROLE relay LOGIN REPLICATION PASSWORD 'first'")
	r.install()
	conn := r.Config()
	conn.User, conn.Password = "relay", "first"
	r.m = deliverFrom(t, from("one", conn, func(c *config.Config) {
		make := func(name string, change func(*config.Destination)) config.Destination {
			d := fields.Default[config.Destination]()
			d.Name, d.Broker.Stdout = name, &brokers.Stdout{}
			change(&d)
			return d
		}
		log := fields.Default[config.Replication]()
		own := func(table, strategy string) *config.Source {
			s := fields.Default[config.Source]()
			s.Table, s.Strategy, s.Columns = table, strategy, config.Columns{ID: "id", Topic: "{topic}", Payload: "topic"}
			return &s
		}
		c.Destinations = []config.Destination{
			make("table", func(d *config.Destination) {}),
			make("log", func(d *config.Destination) { d.Replication = &log }),
			make("mapped_table", func(d *config.Destination) {
				d.Source = own("events", mapping.SkipLocked)
				d.Source.Done = config.Done{How: "boolean", Column: "sent"}
			}),
			make("mapped_log", func(d *config.Destination) {
				d.Source = own("logged", mapping.Replication)
				d.Replication = &config.Replication{Slot: "mapped", Publication: "mapped"}
			}),
		}
	}))
	return r
}

func (r *repaired) install() {
	r.outside.Exec("CREATE DATABASE app")
	r.Install()
	r.Exec(repairedTables + repairedGrants + schema.Grants("", "relay", "") +
		"GRANT CREATE ON DATABASE app TO relay; CREATE PUBLICATION mapped FOR TABLE logged;" +
		"CREATE PUBLICATION outbox FOR TABLE outbox.messages WITH (publish = 'insert', publish_via_partition_root = true)")
	r.Exec("SELECT pg_create_logical_replication_slot('mapped', 'pgoutput')")
}

// delivers writes a message for each destination, and waits until all have come.
func (r *repaired) delivers(when string) {
	r.T.Helper()
	r.sent++
	topic := fmt.Sprintf("outbox-%d", r.sent)
	r.Exec(`SELECT outbox.publish($1, 'x'::bytea)`, topic)
	r.Exec(`INSERT INTO events (topic) VALUES ($1)`, fmt.Sprintf("events-%d", r.sent))
	r.Exec(`INSERT INTO logged (topic) VALUES ($1)`, fmt.Sprintf("logged-%d", r.sent))
	await.Until(r.T, when+": all destinations deliver", func() bool {
		r.m.out.mu.Lock()
		defer r.m.out.mu.Unlock()
		text := r.m.out.text.String()
		return strings.Count(text, `"`+topic+`"`) >= 2 && strings.Contains(text, fmt.Sprintf(`"events-%d"`, r.sent)) &&
			strings.Contains(text, fmt.Sprintf(`"logged-%d"`, r.sent))
	})
}

// end ends the sessions of the relay.
func (r *repaired) end() {
	r.outside.Exec("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'relay'")
}

func (r *repaired) hba(first string) {
	r.T.Helper()
	file := filepath.Join(r.server.DataDir(), "pg_hba.conf")
	text, err := os.ReadFile(file)
	if err != nil {
		r.T.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) > 0 && strings.HasSuffix(lines[0], "# fault") {
		lines = lines[1:]
	}
	if first != "" {
		lines = append([]string{first + " # fault"}, lines...)
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		r.T.Fatal(err)
	}
	loaded := func() (at time.Time) {
		conn := r.outside.Connect() // has what the postmaster had when it connected
		defer conn.Close(r.T.Context())
		if err := conn.QueryRow(r.T.Context(), "SELECT pg_conf_load_time()").Scan(&at); err != nil {
			r.T.Fatal(err)
		}
		return at
	}
	before := loaded()
	r.outside.Exec("SELECT pg_reload_conf()")
	await.Until(r.T, "the postmaster has read the file", func() bool { return loaded().After(before) })
}

// drop drops the slots of the relay, and leaves it without a login until that is done.
func (r *repaired) drop() {
	r.T.Helper()
	r.outside.Exec("ALTER ROLE relay NOLOGIN")
	r.end()
	await.Until(r.T, "the slots are dropped", func() bool {
		_, err := r.outside.Connect().Exec(r.T.Context(), "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
		return err == nil
	})
	r.outside.Exec("ALTER ROLE relay LOGIN")
}

func (r *repaired) restart() {
	r.T.Helper()
	if err := r.server.Stop(); err != nil {
		r.T.Fatal(err)
	}
	if err := r.server.Restart(r.T.Context()); err != nil {
		r.T.Fatal(err)
	}
}

// Whatever an operator can take away and give back while a relay runs, the relay waits for: each destination delivers
// by itself, however it reads.
func TestARelayDeliversAgainByItselfWhenTheDatabaseIsRepaired(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	r := newRepaired(t)
	r.delivers("at first")
	run := func(sql string) func() { return func() { r.Exec(sql) } } // by a superuser
	for _, fault := range []struct {
		name    string
		on, off func()
		says    string // in the verdict on a destination
	}{
		{"the role may not log in", run("ALTER ROLE relay NOLOGIN"), run("ALTER ROLE relay LOGIN"), "28000"},
		{"no connection is left for the role", run("ALTER ROLE relay CONNECTION LIMIT 0"),
			run("ALTER ROLE relay CONNECTION LIMIT -1"), "53300"},
		{"the role may not connect to the database", run("REVOKE CONNECT ON DATABASE app FROM PUBLIC, relay"),
			run("GRANT CONNECT ON DATABASE app TO PUBLIC"), "42501"},
		{"the role may not replicate", run("ALTER ROLE relay NOREPLICATION"), run("ALTER ROLE relay REPLICATION"), "ALTER ROLE"},
		{"pg_hba.conf refuses the role", func() { r.hba("host all relay 0.0.0.0/0 reject") }, func() { r.hba("") }, "28000"},
		{"the password was changed", func() {
			r.hba("host all relay 0.0.0.0/0 scram-sha-256")
			r.Exec("ALTER ROLE relay PASSWORD 'second'")
		}, run("ALTER ROLE relay PASSWORD 'first'"), "28P01"},
		{"a right on a table of the outbox was revoked", run("REVOKE ALL ON outbox.messages FROM relay"),
			run(schema.Grants("", "relay", "")), "outbox.messages"},
		{"a right on a table of one's own was revoked", run("REVOKE ALL ON events FROM relay"), run(repairedGrants), "events"},
		{"the schema was away", run("ALTER SCHEMA outbox RENAME TO away"), run("ALTER SCHEMA away RENAME TO outbox"), ""},
		{"a table of one's own was away", run("ALTER TABLE events RENAME TO away"), run("ALTER TABLE away RENAME TO events"), "events"},
		{"a column was away", run("ALTER TABLE events RENAME topic TO away"), run("ALTER TABLE events RENAME away TO topic"), "topic"},
		{"the publication of the outbox lacks inserts", run("ALTER PUBLICATION outbox SET (publish = 'update')"),
			run("ALTER PUBLICATION outbox SET (publish = 'insert')"), ""},
		{"the slots were dropped", r.drop, run("SELECT pg_create_logical_replication_slot('mapped', 'pgoutput')"), "there is no slot"},
		{"the role was dropped", func() {
			r.hba("") // a password is asked for before the role is missed
			r.end()
			r.Exec("DROP OWNED BY relay")
			r.outside.Exec("DROP ROLE relay")
		}, func() {
			r.outside.Exec("CREATE ROLE relay LOGIN REPLICATION PASSWORD 'first'")
			r.Exec(repairedGrants + schema.Grants("", "relay", ""))
		}, "28000"},
		{"the database was dropped", func() { r.drop(); r.outside.Exec("DROP DATABASE app WITH (FORCE)") }, r.install, "3D000"},
		{"wal_level was lowered", func() { r.drop(); r.outside.Exec("ALTER SYSTEM SET wal_level = 'replica'"); r.restart() }, func() {
			r.outside.Exec("ALTER SYSTEM RESET wal_level")
			r.restart()
			r.Exec("SELECT pg_create_logical_replication_slot('mapped', 'pgoutput')")
		}, "wal_level"},
	} {
		if !strings.Contains(string(page), "\n| "+fault.name+" | ") {
			t.Errorf("docs/operations.md doesn't have the fault: %s", fault.name)
		}
		t.Log(time.Now().Format("15:04:05"), fault.name)
		fault.on()
		r.end()
		if fault.says != "" {
			await.Until(t, fault.name+": the verdict says so", func() bool {
				code, text := r.m.get("/databases/one/healthz/destinations")
				return code == http.StatusServiceUnavailable && strings.Contains(text, fault.says)
			})
		}
		time.Sleep(time.Second) // the fault lasts
		r.stillTries(fault.name)
		fault.off()
		r.delivers(fault.name)
	}
}

// stillTries makes sure that no part of the relay has given up.
func (r *repaired) stillTries(when string) {
	r.T.Helper()
	for destination, state := range r.m.states() {
		if state == string(relay.StateStopped) {
			r.T.Fatalf("%s: destination %s has given up", when, destination)
		}
	}
}

func (m *many) states() map[string]string {
	all := map[string]string{}
	for _, u := range m.d.units {
		for _, l := range u.watch.readiness().Work {
			all[l.Destination] = l.State
		}
	}
	return all
}
