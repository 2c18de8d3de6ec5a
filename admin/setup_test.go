package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/route"
	"github.com/pgoutbox/outbox/schema"
)

var (
	_ DB = (*pgx.Conn)(nil)
	_ DB = (*pgxpool.Pool)(nil)
)

func TestMain(m *testing.M) { servers.Main(m) }

// database is a fresh one with the schema installed.
type database struct {
	t   *testing.T
	url string
	*pgx.Conn
}

func setup(t *testing.T, config ...servers.PostgresConfig) *database {
	t.Helper()
	// Every statement has to work in a database all of whose tables are published.
	d := &database{t: t, url: testdb.Published(t, config...).URL}
	d.Conn = d.another()
	return d
}

// another is one more connection.
func (d *database) another() *pgx.Conn {
	d.t.Helper()
	conn, err := pgx.Connect(d.t.Context(), d.url)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (d *database) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.Exec(d.t.Context(), sql, args...); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
}

func (d *database) int(sql string, args ...any) (n int64) {
	d.t.Helper()
	if err := d.QueryRow(d.t.Context(), sql, args...).Scan(&n); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// cursor adds one whose lease has the given time left, such as "1 minute" or "-1 minute".
func (d *database) cursor(destination, lease string) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier, owner, epoch, lease_until, lease)
		SELECT $1, 0, 1, system_identifier, 'relay-1', 3, clock_timestamp() + $2::text::interval, '1 hour' FROM pg_control_system()`, destination, lease)
}

// refused notes that relay-2 has another broker than the destination.
func (d *database) refused(destination string) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.brokers (destination, identity, relay, refused, refused_by, refused_at)
		VALUES ($1, '{cluster a,host a:1}', 'relay-1', '{cluster b}', 'relay-2', clock_timestamp())`, destination)
}

func (d *database) write(n int) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 'orders', 'k' || i, 'x' FROM generate_series(1, $1) i`, n)
}

// dead adds dead letters of one lane, with the given positions.
func (d *database) dead(destination, lane string, positions ...int64) {
	d.t.Helper()
	for _, p := range positions {
		d.exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, payload, headers, created_at, attempts, reason, error)
			VALUES ($1, $2, $3, $4, 'orders', $2, 1, 'secret', '{"a":"b"}', now(), 10, 'exhausted', 'broker said no')`,
			destination, lane, p, fmt.Sprintf("00000000-0000-7000-8000-%012d", p))
	}
}

// held adds a hold; retryAt is a time, "infinity" or "" for one behind its head.
func (d *database) held(destination, lane string, position int64, retryAt string) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, payload, created_at, attempts, retry_at, error)
		VALUES ($1, $2, $3, $4, 'orders', $2, 1, 'secret', now(), 2, nullif($5, '')::timestamptz, 'refused: too large')`,
		destination, lane, position, fmt.Sprintf("00000000-0000-7000-8000-%012d", position), retryAt)
}

// selects notes which topics a destination selects.
func (d *database) selects(destination string, topics ...string) {
	d.t.Helper()
	settings, err := json.Marshal(Settings{Selects: &route.Filter{Topics: topics}})
	if err != nil {
		d.t.Fatal(err)
	}
	d.exec(`UPDATE outbox.cursors SET settings = $2::text::jsonb, settings_at = now() - interval '1 day' WHERE destination = $1`, destination,
		string(settings))
}

// unselected notes two messages that the relay of the first destination has found to be selected by none of its own.
func (d *database) unselected(topic string) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.unselected (relay, topic, event_type, message_id, messages) VALUES ('relay-2', $1, '', gen_random_uuid(), 2)`, topic)
}

// table makes the table shop, whose relay is this connection, was first seen two hours ago, and knows what account has.
func (d *database) table(account string) {
	d.t.Helper()
	if account == "" {
		account = "{}"
	}
	m := mapping.Mapping{Table: "shop", ID: "id", Topic: "{topic}", CreatedAt: "created_at",
		Done: mapping.Done{How: mapping.DoneTimestamp, Column: "done_at"}}
	columns, err := json.Marshal(m)
	if err != nil {
		d.t.Fatal(err)
	}
	d.exec(`CREATE TABLE shop (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text, created_at timestamptz, done_at timestamptz);
		SET application_name = 'outbox relay shop'`)
	d.exec(`INSERT INTO outbox.tables (destination, shard_group, owner, shard_groups, session, strategy, mapping, state, state_since, lag_objective, account, began_at)
		VALUES ('shop', 0, 'relay-1/shop', 1, 'outbox relay shop', 'advisory', $1::text::jsonb, 'flowing', now(), '30 s', $2::text::jsonb, now() - interval '2 hours')`,
		string(columns), account)
}

// rows adds rows to it.
func (d *database) rows(created, done string, n int) {
	d.t.Helper()
	d.exec(`INSERT INTO shop (topic, created_at, done_at) SELECT 't', `+created+`, `+done+` FROM generate_series(1, $1)`, n)
}

func (d *database) status() *Report {
	d.t.Helper()
	r, err := Status(d.t.Context(), d.Conn)
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

var anna = Action{Actor: "anna@example", Reason: "the broker is mended"}

// viewer makes the connection one of a role that has a viewer's rights only.
func (d *database) viewer() {
	d.t.Helper()
	role := "viewer of " + d.Config().Database
	d.as(role, schema.Grants("", "", role))
}

// as makes the connection one of a new role with the given rights.
func (d *database) as(name, grants string) {
	d.t.Helper()
	role := pgx.Identifier{name}.Sanitize()
	d.exec(`CREATE ROLE ` + role)
	d.t.Cleanup(func() {
		_, err := d.Exec(context.Background(), `RESET ROLE; DROP OWNED BY `+role+`; DROP ROLE `+role)
		if err != nil {
			d.t.Error(err)
		}
	})
	d.exec(grants)
	d.exec(`SET ROLE ` + role)
}
