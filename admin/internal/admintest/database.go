// Package admintest has what the tests of admin's packages share: a database, and rows for it.
package admintest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/route"
	"github.com/pgoutbox/outbox/schema"
)

// Database is one with the schema installed, and a connection to it.
type Database struct {
	T   *testing.T
	URL string
	*pgx.Conn
}

// New makes a fresh database.
func New(t *testing.T, config ...servers.PostgresConfig) *Database {
	t.Helper()
	// Every statement has to work in a database all of whose tables are published.
	return Open(t, testdb.Published(t, config...).URL)
}

// Open connects to a database.
func Open(t *testing.T, url string) *Database {
	t.Helper()
	d := &Database{T: t, URL: url}
	d.Conn = d.Another()
	return d
}

// Another is one more connection.
func (d *Database) Another() *pgx.Conn {
	d.T.Helper()
	conn, err := pgx.Connect(d.T.Context(), d.URL)
	if err != nil {
		d.T.Fatal(err)
	}
	d.T.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// MustExec runs a statement.
func (d *Database) MustExec(sql string, args ...any) {
	d.T.Helper()
	if _, err := d.Exec(d.T.Context(), sql, args...); err != nil {
		d.T.Fatalf("%s: %v", sql, err)
	}
}

// Int is the number that a query finds.
func (d *Database) Int(sql string, args ...any) (n int64) {
	d.T.Helper()
	if err := d.QueryRow(d.T.Context(), sql, args...).Scan(&n); err != nil {
		d.T.Fatalf("%s: %v", sql, err)
	}
	return n
}

// Cursor adds one whose lease has the given time left, such as "1 minute" or "-1 minute".
func (d *Database) Cursor(destination, lease string) {
	d.T.Helper()
	d.MustExec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier, owner, epoch, lease_until, lease)
		SELECT $1, 0, 1, system_identifier, 'relay-1', 3, clock_timestamp() + $2::text::interval, '1 hour' FROM pg_control_system()`, destination, lease)
}

// Refused notes that relay-2 has another broker than the destination.
func (d *Database) Refused(destination string) {
	d.T.Helper()
	d.MustExec(`INSERT INTO outbox.brokers (destination, identity, relay, refused, refused_by, refused_at)
		VALUES ($1, '{cluster a,host a:1}', 'relay-1', '{cluster b}', 'relay-2', clock_timestamp())`, destination)
}

// Write inserts n messages, each with a key of its own.
func (d *Database) Write(n int) {
	d.T.Helper()
	d.MustExec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 'orders', 'k' || i, 'x' FROM generate_series(1, $1) i`, n)
}

// Dead adds dead letters of one lane, with the given positions.
func (d *Database) Dead(destination, lane string, positions ...int64) {
	d.T.Helper()
	for _, p := range positions {
		d.MustExec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, payload, headers, created_at, attempts, reason, error)
			VALUES ($1, $2, $3, $4, 'orders', $2, 1, 'secret', '{"a":"b"}', now(), 10, 'exhausted', 'broker said no')`,
			destination, lane, p, fmt.Sprintf("00000000-0000-7000-8000-%012d", p))
	}
}

// Held adds a hold; retryAt is a time, "infinity" or "" for one behind its head.
func (d *Database) Held(destination, lane string, position int64, retryAt string) {
	d.T.Helper()
	d.MustExec(`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, payload, created_at, attempts, retry_at, error)
		VALUES ($1, $2, $3, $4, 'orders', $2, 1, 'secret', now(), 2, nullif($5, '')::timestamptz, 'refused: too large')`,
		destination, lane, position, fmt.Sprintf("00000000-0000-7000-8000-%012d", position), retryAt)
}

// Selects notes which topics a destination selects.
func (d *Database) Selects(destination string, topics ...string) {
	d.T.Helper()
	settings, err := json.Marshal(map[string]any{"selects": &route.Filter{Topics: topics}})
	if err != nil {
		d.T.Fatal(err)
	}
	d.MustExec(`UPDATE outbox.cursors SET settings = $2::text::jsonb, settings_at = now() - interval '1 day' WHERE destination = $1`, destination,
		string(settings))
}

// Unselected notes two messages that the relay of the first destination has found to be selected by none of its own.
func (d *Database) Unselected(topic string) {
	d.T.Helper()
	d.MustExec(`INSERT INTO outbox.unselected (relay, topic, event_type, message_id, messages) VALUES ('relay-2', $1, '', gen_random_uuid(), 2)`, topic)
}

// Table makes the table shop, whose relay is this connection, was first seen two hours ago, and knows what account has.
func (d *Database) Table(account string) {
	d.T.Helper()
	if account == "" {
		account = "{}"
	}
	m := mapping.Mapping{Table: "shop", ID: "id", Topic: "{topic}", CreatedAt: "created_at",
		Done: mapping.Done{How: mapping.DoneTimestamp, Column: "done_at"}}
	columns, err := json.Marshal(m)
	if err != nil {
		d.T.Fatal(err)
	}
	d.MustExec(`CREATE TABLE shop (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text, created_at timestamptz, done_at timestamptz);
		SET application_name = 'outbox relay shop'`)
	d.MustExec(`INSERT INTO outbox.tables (destination, shard_group, owner, shard_groups, session, strategy, mapping, state, state_since, lag_objective, account, began_at)
		VALUES ('shop', 0, 'relay-1/shop', 1, 'outbox relay shop', 'advisory', $1::text::jsonb, 'flowing', now(), '30 s', $2::text::jsonb, now() - interval '2 hours')`,
		string(columns), account)
}

// Rows adds rows to it.
func (d *Database) Rows(created, done string, n int) {
	d.T.Helper()
	d.MustExec(`INSERT INTO shop (topic, created_at, done_at) SELECT 't', `+created+`, `+done+` FROM generate_series(1, $1)`, n)
}

// Viewer makes the connection one of a role that has a viewer's rights only.
func (d *Database) Viewer() {
	d.T.Helper()
	role := "viewer of " + d.Config().Database
	d.As(role, schema.Grants("", "", role))
}

// As makes the connection one of a new role with the given rights.
func (d *Database) As(name, grants string) {
	d.T.Helper()
	role := pgx.Identifier{name}.Sanitize()
	d.MustExec(`CREATE ROLE ` + role)
	d.T.Cleanup(func() {
		_, err := d.Exec(context.Background(), `RESET ROLE; DROP OWNED BY `+role+`; DROP ROLE `+role)
		if err != nil {
			d.T.Error(err)
		}
	})
	d.MustExec(grants)
	d.MustExec(`SET ROLE ` + role)
}

// Messages writes n of them to two segments, by two transactions.
func (d *Database) Messages(n int) {
	d.T.Helper()
	for half := range 2 {
		d.MustExec(`INSERT INTO outbox.messages (message_id, topic, key, aggregate_id, payload, headers, created_at, segment)
			SELECT ('00000000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, 'topic-' || i % 3, CASE WHEN i % 2 = 0 THEN 'k' || i % 10 END, 'k' || i % 10, 'secret',
			       jsonb_build_object('tenant', i % 5, 'traceparent', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'),
			       '2026-05-01 12:00:00Z'::timestamptz + i * interval '1 second',
			       (date_part('epoch', now())::bigint / 600 + $3) % 8
			FROM generate_series($1::int, $2::int) i`, half*n/2+1, (half+1)*n/2, 7+half)
	}
}

// OddTimes writes messages of the topic odd, and holds of a destination, whose times JSON can't write.
func (d *Database) OddTimes(destination string) {
	d.T.Helper()
	for i, at := range []string{"infinity", "-infinity", "20000-01-01", "0044-03-15 BC"} {
		d.MustExec(`INSERT INTO outbox.messages (message_id, topic, created_at, deliver_at) VALUES ($1::text::uuid, 'odd', $2::text::timestamptz, $2::text::timestamptz)`,
			MessageID(d.T, i).String(), at)
		d.Held(destination, at, int64(i), "2100-01-01")
		d.MustExec(`UPDATE outbox.holds SET created_at = lane::timestamptz, deliver_at = lane::timestamptz`)
	}
}

// MessageID is the id of the nth of [Database.Messages].
func MessageID(t *testing.T, n int) outbox.ID {
	t.Helper()
	id, err := outbox.ParseID(fmt.Sprintf("00000000-0000-7000-8000-%012d", n))
	if err != nil {
		t.Fatal(err)
	}
	return id
}
