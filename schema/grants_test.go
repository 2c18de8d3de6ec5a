package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// roles creates three roles with names that need quotes and gives them what Grants prints. It returns
// a connection for each.
func roles(t *testing.T, url string) (writer, relay, viewer *pgx.Conn) {
	t.Helper()
	owner := connect(t, url)
	exec(t, owner, "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC") // as careful owners do
	install(t, owner)
	var database string
	if err := owner.QueryRow(t.Context(), `SELECT current_database()`).Scan(&database); err != nil {
		t.Fatal(err)
	}
	var names [3]string
	for i, name := range []string{"writer", "relay", "viewer"} {
		// Roles belong to the server: the database's name makes them unique.
		names[i] = fmt.Sprintf(`%s "%s"; DROP`, database, name)
		createRole(t, owner, names[i])
	}
	exec(t, owner, Grants(names[0], names[1], names[2]))
	var conns [3]*pgx.Conn
	for i, name := range names {
		conns[i] = connectAs(t, url, name)
	}
	return conns[0], conns[1], conns[2]
}

func createRole(t *testing.T, owner *pgx.Conn, name string) {
	t.Helper()
	quoted := pgx.Identifier{name}.Sanitize()
	exec(t, owner, `CREATE ROLE `+quoted+` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() {
		if _, err := owner.Exec(context.Background(), `DROP OWNED BY `+quoted+`; DROP ROLE `+quoted); err != nil {
			t.Errorf("drop role: %v", err)
		}
	})
}

func connectAs(t *testing.T, url, name string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.User, config.Password = name, "secret"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestEachRoleCanDoItsWorkAndNoMore(t *testing.T) {
	t.Parallel()
	onEachMajor(t, func(t *testing.T, url string) {
		writer, relay, viewer := roles(t, url)

		may(t, "writer", writer,
			`INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'x')`,
			`SELECT outbox.publish('t', '{}')`,
			`SELECT outbox.publish('t', '\x00'::bytea)`,
			`SELECT outbox.publish('t', '{}'::jsonb)`,
			`SELECT outbox.next_sequence('t', 'k')`,
		)
		if n, err := writer.CopyFrom(t.Context(), pgx.Identifier{"outbox", "messages"}, []string{"topic", "payload"},
			pgx.CopyFromRows([][]any{{"t", []byte("x")}})); err != nil || n != 1 {
			t.Errorf("writer: COPY: %d, %v", n, err)
		}
		mayNot(t, "writer", writer,
			`SELECT topic FROM outbox.messages`,
			`UPDATE outbox.messages SET topic = 'u'`,
			`DELETE FROM outbox.messages`,
			`TRUNCATE outbox.messages`,
			`INSERT INTO outbox.messages (topic, xid) VALUES ('t', '3')`,
			`INSERT INTO outbox.messages (topic, id) VALUES ('t', 3)`,
			`INSERT INTO outbox.messages (topic, segment) VALUES ('t', 3)`,
			`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now())`,
			`INSERT INTO outbox.messages_0 (topic) VALUES ('t')`,
			`SELECT setval('outbox.messages_id_seq', 1)`,
			`SELECT * FROM outbox.cursors`,
			`SELECT * FROM outbox.migrations`,
		)

		may(t, "relay", relay,
			`SELECT * FROM outbox.messages`,
			`SELECT * FROM outbox.messages_3`,
			`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier)
			 SELECT 'd', 0, 1, system_identifier FROM pg_control_system()`,
			`SELECT * FROM outbox.cursors FOR UPDATE`,
			`UPDATE outbox.cursors SET epoch = epoch + 1, prev = pg_current_snapshot()`,
			`DELETE FROM outbox.cursors`,
			`INSERT INTO outbox.relays (name, instance, backend_pid, backend_start, host, pid, version)
			 SELECT 'r', gen_random_uuid(), pid, backend_start, 'h', 1, 'v' FROM pg_stat_activity WHERE pid = pg_backend_pid()`,
			`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, shard, created_at)
			 SELECT 'd', 'l', id, message_id, topic, shard, created_at FROM outbox.messages LIMIT 1`,
			`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, shard, created_at, attempts, reason, error)
			 SELECT destination, lane, id, message_id, topic, shard, created_at, 1, 'refused', 'x' FROM outbox.holds`,
			`DELETE FROM outbox.holds`,
			`INSERT INTO outbox.audit (actor, verb) VALUES ('a', 'v')`,
			`SELECT outbox.header(headers, 'a') FROM outbox.messages`,
			`BEGIN; LOCK TABLE outbox.messages_7 IN ACCESS EXCLUSIVE MODE NOWAIT; TRUNCATE outbox.messages_7; ROLLBACK`,
		)
		mayNot(t, "relay", relay,
			`INSERT INTO outbox.messages (topic) VALUES ('t')`,
			`SELECT outbox.publish('t', '{}')`,
			`UPDATE outbox.messages SET topic = 'u'`,
			`DELETE FROM outbox.messages_1`,
			`TRUNCATE outbox.messages`,
			`DROP TABLE outbox.messages_1`,
			`DELETE FROM outbox.audit`,
			`DELETE FROM outbox.migrations`,
			`CREATE TABLE outbox.mine ()`,
		)
		if err := Check(t.Context(), relay); err != nil {
			t.Errorf("relay: %v", err)
		}

		may(t, "viewer", viewer,
			`SELECT id, xid, message_id, topic, key, headers, created_at FROM outbox.messages`,
			`SELECT outbox.header(headers, 'a') FROM outbox.messages`,
			`SELECT * FROM outbox.cursors`,
			`SELECT * FROM outbox.relays`,
			`SELECT * FROM outbox.audit`,
			`SELECT * FROM outbox.migrations`,
			`SELECT destination, lane, id, attempts, error, retry_at FROM outbox.holds`,
			`SELECT destination, message_id, reason, error, dead_at FROM outbox.dead_letters`,
			`SELECT * FROM outbox.inbox`,
			`SELECT * FROM outbox.inbox_positions`,
			`SELECT * FROM outbox.inbox_gaps`,
		)
		mayNot(t, "viewer", viewer,
			`SELECT payload FROM outbox.messages`,
			`SELECT payload FROM outbox.holds`,
			`SELECT payload FROM outbox.dead_letters`,
			`SELECT outbox.publish('t', '{}')`,
			`DELETE FROM outbox.cursors`,
			`SELECT outbox.receive('c', gen_random_uuid())`,
		)
		if state, err := Status(t.Context(), viewer); err != nil || state.Version != Latest() {
			t.Errorf("viewer: status %+v: %v", state, err)
		}
	})
}

func TestAConsumerCanRecordAndForgetAndNoMore(t *testing.T) {
	t.Parallel()
	onEachMajor(t, func(t *testing.T, url string) {
		owner := connect(t, url)
		install(t, owner)
		name := "consumer of " + owner.Config().Database
		createRole(t, owner, name)
		exec(t, owner, ConsumerGrants(name))
		consumer := connectAs(t, url, name)
		may(t, "consumer", consumer,
			`SELECT outbox.receive('c', gen_random_uuid())`,
			`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT outbox.receive('c', gen_random_uuid()); COMMIT`,
			`SELECT outbox.receive('c', NULL, 'some key')`,
			`SELECT outbox.receive('c', gen_random_uuid(), wait => false)`,
			`SELECT outbox.store('c', gen_random_uuid(), NULL, true, 't', 'k', '', '', '', 'x', '', NULL)`,
			`SELECT * FROM outbox.receive_in_order('c', gen_random_uuid(), NULL, true, 't', 'k', 3, 'report', true, 7)`,
			`SELECT * FROM outbox.receive_in_order('c', gen_random_uuid(), NULL, true, 't', 'k', 2, 'report', true, 8)`,
			`BEGIN; LOCK TABLE outbox.inbox_0 IN SHARE MODE NOWAIT; COMMIT`,
			`BEGIN; LOCK TABLE outbox.inbox_2 IN ACCESS EXCLUSIVE MODE NOWAIT; TRUNCATE outbox.inbox_2; ROLLBACK`,
			`UPDATE outbox.inbox_rotation SET current = 1`,
			`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier)
			 SELECT 'inbox:c', 0, 1, s.system_identifier FROM pg_control_system() s
			 WHERE NOT EXISTS (SELECT FROM outbox.cursors c WHERE c.destination = 'inbox:c') ON CONFLICT DO NOTHING`,
		)
		mayNot(t, "consumer", consumer,
			`DELETE FROM outbox.inbox_0`,
			`UPDATE outbox.inbox_0 SET consumer = 'other'`,
			`SELECT * FROM outbox.messages`,
			`SELECT outbox.publish('t', '{}')`,
			`DELETE FROM outbox.inbox_rotation`,
			`SELECT * FROM outbox.inbox_messages`,
			`UPDATE outbox.cursors SET epoch = 1`,
		)
	})
}

func may(t *testing.T, who string, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Errorf("%s may not %s: %v", who, sql, err)
		}
	}
}

func mayNot(t *testing.T, who string, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); sqlstate.Of(err) != "42501" {
			t.Errorf("%s may %s: %v", who, sql, err)
		}
	}
}

func TestCheckNamesTheRightsThatARelayLacks(t *testing.T) {
	t.Parallel()
	url := servers.TestDatabase(t)
	_, relay, viewer := roles(t, url)
	err := Check(t.Context(), viewer)
	if !errors.Is(err, ErrForbidden) || !strings.Contains(err.Error(), "TRUNCATE on outbox.messages_7") ||
		!strings.Contains(err.Error(), "outbox migrate grants") {
		t.Errorf("viewer as relay: %v", err)
	}
	if strings.Contains(err.Error(), "SELECT on outbox.cursors") {
		t.Errorf("names a right that the role has: %v", err)
	}
	exec(t, connect(t, url), `REVOKE USAGE ON SCHEMA outbox FROM `+currentRole(t, relay))
	grant := func(as string) string { return "--apply --" + as + " " + shell.Word(relay.Config().User) }
	if err := Check(t.Context(), relay); !errors.Is(err, ErrForbidden) || !strings.HasSuffix(err.Error(), grant("relay")) {
		t.Errorf("without USAGE: %v", err)
	}
	if _, err := Status(t.Context(), relay); !errors.Is(err, ErrForbidden) || !strings.Contains(err.Error(), grant("viewer")) {
		t.Errorf("status without USAGE: %v", err)
	}
	if _, err := Up(t.Context(), relay, UpConfig{DryRun: true}); !errors.Is(err, ErrForbidden) ||
		!strings.HasSuffix(err.Error(), "run this as the schema's owner") {
		t.Errorf("up without USAGE: %v", err)
	}
}

func TestCheckSaysThatATableWasDropped(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	install(t, conn)
	exec(t, conn, `DROP TABLE outbox.holds`)
	if err := Check(t.Context(), conn); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "outbox.holds") {
		t.Fatal(err)
	}
}

func TestUpWithoutRightsSaysWhoMustRunIt(t *testing.T) {
	t.Parallel()
	url := servers.TestDatabase(t)
	owner := connect(t, url)
	var name string
	if err := owner.QueryRow(t.Context(), `SELECT current_database() || ' nobody'`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	createRole(t, owner, name)
	nobody := connectAs(t, url, name)
	_, err := Up(t.Context(), nobody, UpConfig{})
	if !errors.Is(err, ErrForbidden) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "owner of the database") {
		t.Errorf("in an empty database: %v", err)
	}
	// A schema made for the role is enough: nothing else asks for CREATE on the database.
	exec(t, owner, `CREATE SCHEMA outbox AUTHORIZATION `+currentRole(t, nobody))
	if _, err := Up(t.Context(), nobody, UpConfig{}); err != nil {
		t.Errorf("in a schema of its own: %v", err)
	}
}

func currentRole(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	var name string
	if err := conn.QueryRow(t.Context(), `SELECT current_user`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	return pgx.Identifier{name}.Sanitize()
}

func TestGrantsLeavesOutRolesWithoutAName(t *testing.T) {
	t.Parallel()
	if text := Grants("", "", ""); text != "" {
		t.Errorf("nobody got %s", text)
	}
	if text := Grants("", "r", ""); strings.Contains(text, "publish") || !strings.Contains(text, `TO "r"`) {
		t.Errorf("the relay got %s", text)
	}
}

func TestGrantsKnowsEverySegment(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	install(t, conn)
	var n int
	err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.messages'::regclass`).Scan(&n)
	if err != nil || n != segments {
		t.Fatalf("%d segments, grants for %d: %v", n, segments, err)
	}
}
